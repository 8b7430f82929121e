"""What a user gets from `pip install`: every module, the schemas, the demo's scripts, the console scripts; no tests."""

from __future__ import annotations

import importlib
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.contract.tree import PACKAGES, ROOT, label, tracked

hatchling = pytest.importorskip("hatchling.build", reason="needs hatchling, which the test extra installs")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = hatchling.build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as wheel:
        return set(wheel.namelist())


def test_wheel_holds_every_file_of_the_packages(wheel_names: set[str]) -> None:
    wanted = {label(path) for path in tracked("*") if path.relative_to(ROOT).parts[0] in PACKAGES}
    assert any(name.endswith(".json") for name in wanted), "no JSON Schema in the packages"
    assert any(name.startswith("traceml_launch/demo/") for name in wanted), "no demo in the packages"
    assert wanted - wheel_names == set()


def test_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    others = {name for name in wheel_names if name.split("/")[0] not in PACKAGES and ".dist-info/" not in name}
    assert others == set()
    assert not any("__pycache__" in name for name in wheel_names)


def test_console_scripts_lead_to_functions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["scripts"]) == {"traceml", "traceml-launch", "traceml-daemon"}
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"## {project['version']}" in Path(ROOT / "CHANGELOG.md").read_text()
