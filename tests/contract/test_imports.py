"""Each package is imported in a fresh interpreter: what it pulls in is what its users pay for, and may not have.

The peer's aggregator came to need torch because a package `__init__` re-exported its heaviest module.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.contract.tree import PACKAGES, ROOT

HEAVY = ("torch", "asyncio", "psutil", "uvloop", "aiosqlite", "numpy", "typer", "sqlite3")

ALLOWED = {
    "traceml_client": set(),
    "traceml_client.protocol": set(),
    "traceml_daemon": set(),
    "traceml_launch": set(),
    "traceml_client.worker": {"psutil"},
    "traceml_daemon.core.events": set(),
    "traceml_daemon.commands.diagnosing": set(),
}


def modules_after(statement: str) -> set[str]:
    """Top-level modules in `sys.modules` after a statement in a fresh interpreter."""
    code = f"{statement}; import json, sys; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def python_files(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize(("module", "allowed"), ALLOWED.items(), ids=ALLOWED)
def test_import_stays_light(module: str, allowed: set[str]) -> None:
    assert modules_after(f"import {module}") & set(HEAVY) <= allowed


def test_whole_daemon_and_launcher_need_no_torch_and_no_rank_code() -> None:
    names = [module_name(path) for path in python_files("traceml_daemon", "traceml_launch")]
    names = [name for name in names if ".demo" not in name and not name.endswith("__main__")]
    assert len(names) > 20
    assert "torch" not in modules_after("; ".join(f"import {name}" for name in names))


def test_client_needs_no_asyncio_and_only_the_hooks_touch_torch() -> None:
    names = [module_name(path) for path in python_files("traceml_client")]
    names = [name for name in names if ".torch_hooks" not in name and not name.endswith("worker")]
    assert len(names) > 15
    found = modules_after("; ".join(f"import {name}" for name in names))
    assert found & {"torch", "asyncio", "uvloop", "aiosqlite", "traceml_daemon", "traceml_launch"} == set()


def imported_by_name(path: Path) -> Iterator[str]:
    """What a module imports by `import_module`, where no graph of imports sees it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (word.value for word in node.args if isinstance(word, ast.Constant))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_needs_one_that_needs_it(package: str) -> None:
    """Nor does it when it is called: an import inside a function hides a circle and does not break it."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    for path in python_files(package):
        for name in imported_by_name(path):
            graph.add_import(importer=module_name(path), imported=name)
    edges = [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]
    assert len(edges) > 50
    assert [edge for edge in sorted(edges) if graph.chain_exists(importer=edge[1], imported=edge[0])] == []
