"""Rules of the house that no linter knows: sizes, names, one place for the environment, no path of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("traceml_client", "traceml_daemon", "traceml_launch")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
SAY_NOTHING = {"utils", "common", "helpers", "manager", "base", "misc", "api", "types"}
ENVIRONMENT_HOME = "traceml_client/protocol/environ.py"
MACHINE_PATH = re.compile(r"/(?:home|root|Users)/\w|/opt/(?:tm|wheels|pypi)|/tmp/w\b|/work/(?:main|shared)")
"""Places of somebody's machine; the neutral ones of the recorded cases (/work/job, /opt/env) are not among them."""


def tracked(pattern: str) -> list[Path]:
    """Files that belong to the tree, committed or about to be; generated and ignored ones do not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({path for line in listing.splitlines() if (path := ROOT / line).is_file()})


SOURCES = [path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES]
ALL_PYTHON = [path for path in tracked("*.py") if path.name != "syntax_error.py"]


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ALL_PYTHON, ids=label)
def test_file_is_short_and_its_name_says_something(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_FILE_LINES
    assert path.stem not in SAY_NOTHING
    assert path.read_text().isascii()


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_functions_are_short(path: Path) -> None:
    functions = (
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = {function.name: (function.end_lineno or 0) - function.lineno + 1 for function in functions}
    assert {name: lines for name, lines in lengths.items() if lines >= MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_environment_is_read_in_one_place_only(path: Path) -> None:
    if label(path) == ENVIRONMENT_HOME or "demo/" in label(path):
        return
    touched = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv")
            and ast.unparse(node.value) == "os"
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(alias.name in ("environ", "getenv") for alias in node.names)
        )
    ]
    assert touched == []


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_variables_of_ours_are_named_in_one_place_only(path: Path) -> None:
    """A second spelling of a TRACEML_ variable in code is a second default waiting to differ."""
    if label(path) == ENVIRONMENT_HOME or "demo/" in label(path):
        return
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    literals = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    assert [text for text in literals if re.fullmatch(r"TRACEML_[A-Z_]+", text)] == []


def test_no_path_of_a_machine_in_the_tree() -> None:
    me = Path(__file__)
    found = []
    for path in tracked("*"):
        if path != me and path.suffix not in (".png", ".sqlite"):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if MACHINE_PATH.search(line):
                    found.append(f"{label(path)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_nothing_is_left_for_later_in_the_sources() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX)\b|NotImplementedError")
    found = [label(path) for path in SOURCES if marks.search(path.read_text())]
    assert found == []
