"""Rules of the house that no linter knows: sizes, names, one place for the environment, no path of a machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.contract.tree import is_demo, is_test, label, sources, tracked

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
SAY_NOTHING = {"utils", "common", "helpers", "manager", "base", "misc", "api", "types"}
ENVIRONMENT_HOME = "traceml_client/protocol/environ.py"
MACHINE_PATH = re.compile(r"/(?:home/(?!me/)|root/|Users/)\w|/opt/(?:tm|wheels|pypi)|/tmp/w\b|/work/(?:main|shared)")
"""Places of somebody's machine; neutral ones (/home/me of an example, /work/job of a recorded case) are not."""


SOURCES = sources()
ALL_PYTHON = [path for path in tracked("*.py") if path.name != "syntax_error.py"]


def test_files_are_short_and_their_names_say_something() -> None:
    long = [label(p) for p in ALL_PYTHON if len(p.read_text().splitlines()) >= MAX_FILE_LINES and not is_test(p)]
    assert long == []
    assert [label(p) for p in ALL_PYTHON if p.stem in SAY_NOTHING] == []
    assert [label(p) for p in ALL_PYTHON if not p.read_text().isascii()] == []


def test_functions_are_short() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines >= MAX_FUNCTION_LINES:
                    found.append(f"{label(path)}:{node.lineno} {node.name}: {lines} lines")
    assert found == []


def test_environment_is_touched_in_one_place_only() -> None:
    names = ("environ", "environb", "getenv", "putenv", "unsetenv")
    found = []
    for path in SOURCES:
        if label(path) == ENVIRONMENT_HOME or is_demo(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_use = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
            is_import = isinstance(node, ast.ImportFrom) and node.module == "os"
            if is_use or (is_import and any(alias.name in names for alias in node.names)):
                found.append(f"{label(path)}:{node.lineno}")
    assert found == []


def test_variables_of_ours_are_spelled_in_one_place_only() -> None:
    """A second spelling of a TRACEML_ variable in code is a second default waiting to differ."""
    found = []
    for path in SOURCES:
        if label(path) == ENVIRONMENT_HOME or is_demo(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"TRACEML_[A-Z_]+", text):
                found.append(f"{label(path)}:{node.lineno} {text}")
    assert found == []


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
