"""A script that executes itself anew while something of ours is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.stub_daemon import StubDaemon
from tests.harness.stub_launcher import StubLauncher

EXECUTES = """
import os, shutil, sys
{}
try:
    os.execv({}, {})
except (OSError, ValueError, TypeError) as error:
    print(type(error).__name__)
"""
NO_ARGUMENT = "['python', 'main.py', chr(0)]"


@pytest.mark.parametrize(
    ("broken", "program", "arguments", "printed", "notes"),
    [
        (
            "shutil.which = 7",
            "sys.executable",
            NO_ARGUMENT,
            "ValueError",
            ("a fault of TraceML itself, 1x: execution",),
        ),
        ("", "sys.executable", NO_ARGUMENT, "ValueError", ()),
        ("", "sys.executable", "7", "TypeError", ()),
        ("", "sys.executable", "[]", "ValueError", ()),
        ("", "sys.executable + '-of-old'", "['python', 'main.py']", "FileNotFoundError", ()),
        ("", "sys.executable + chr(0)", "['python', 'main.py']", "ValueError", ()),
    ],
    ids=["ours is broken", "no argument", "no arguments", "none of them", "no such file", "no file at all"],
)
def test_only_a_fault_of_ours_is_counted(
    tmp_path: Path, broken: str, program: str, arguments: str, printed: str, notes: tuple[str, ...]
) -> None:
    """What is no command line is the script's, and for the system to refuse."""
    (tmp_path / "main.py").write_text(EXECUTES.format(broken, program, arguments))
    with StubDaemon() as daemon, StubLauncher(tmp_path, daemon=("127.0.0.1", daemon.port, "")) as launcher:
        done = launcher.run(["main.py"], cwd=tmp_path)
    assert (done.exit_code, done.stdout.decode().split()) == (0, [printed])
    assert [marker.notes for marker in daemon.heard.markers] == [notes]
    assert [line[:20] for line in done.stderr.decode().splitlines()] == ["[TraceML] execution:"] * len(notes)
