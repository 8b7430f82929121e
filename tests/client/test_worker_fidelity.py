"""The worker against plain Python: exit code, standard output and standard error of each case, byte for byte."""

from __future__ import annotations

import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.client.fidelity_cases import ABOUT_MAIN, CASES, Case
from tests.harness.stub_launcher import DEADLINE_S, FinishedWorker, StubLauncher


def compare(case: Case, folder: Path) -> FinishedWorker:
    """Run the case both ways in `folder`, and demand that they look the same."""
    for name, content in {**({"main.py": case.script} if case.script else {}), **case.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="latin-1")
    # One folder for the socket, outside: a case may list or fill its own.
    launcher_dir = folder.with_name(folder.name + "-launcher")
    launcher_dir.mkdir()
    with StubLauncher(launcher_dir) as launcher:
        environment = launcher.environment()
        plain = subprocess.run(
            [sys.executable, *case.options, "-u", *case.arguments],
            cwd=folder,
            env=environment,
            input=case.text_in,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        ours = launcher.run(case.arguments, cwd=folder, env=environment, text_in=case.text_in, options=case.options)
    assert ours.stderr.decode(errors="replace") == plain.stderr.decode(errors="replace")
    assert ours.stdout == plain.stdout
    assert ours.exit_code == plain.returncode
    assert ours.outside == b""
    return ours


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_looks_as_under_plain_python(case: Case, tmp_path: Path) -> None:
    if case.is_told_of_threads and sys.version_info >= (3, 12):
        pytest.skip("Python itself tells a process with a second thread that it forks")
    compare(case, tmp_path)


def test_rank_that_executes_itself_anew_is_measured(tmp_path: Path) -> None:
    ours = compare(next(case for case in CASES if case.name == "executed_anew"), tmp_path)
    assert (ours.ring.exit_code(), ours.ring.is_marker_sent()) == (3, True)


def test_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", ABOUT_MAIN.replace("__loader__.name, __loader__.path", "__loader__"))
    compare(Case("archive", arguments=("app.zip", "a")), tmp_path)


def test_compiled_file(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(ABOUT_MAIN)
    py_compile.compile(str(tmp_path / "source.py"), cfile=str(tmp_path / "main.pyc"))
    compare(Case("compiled", arguments=("main.pyc", "a")), tmp_path)


def test_link_to_a_script(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "real.py").write_text(ABOUT_MAIN + "import neighbour")
    (tmp_path / "deep" / "neighbour.py").write_text("print('found beside the file, not beside the link')")
    (tmp_path / "main.py").symlink_to("deep/real.py")
    compare(Case("link"), tmp_path)


def test_unreadable_script(tmp_path: Path) -> None:
    (tmp_path / "main.py").symlink_to("main.py")  # a loop: also root cannot open it
    compare(Case("unreadable"), tmp_path)


def test_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_text("import sys; print(ascii(sys.argv), ascii(__file__))\n1 / 0")
    compare(Case("name", arguments=(name,)), tmp_path)
