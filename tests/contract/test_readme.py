"""README is complete: every option, variable, command and make target of the tree stands in it."""

from __future__ import annotations

import re

from tests.contract.tree import ROOT
from traceml_client.protocol import environ
from traceml_launch.commandline.options import OPTIONS

README = (ROOT / "README.md").read_text()
MAX_LINE = 126


def is_named(word: str) -> bool:
    """Whether `word` stands in README as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", README) is not None


def test_every_option_and_its_variable_is_named() -> None:
    assert [option.name for option in OPTIONS if not is_named(option.name)] == []
    assert [option.variable for option in OPTIONS if not is_named(option.variable)] == []


def test_every_default_of_the_options_is_named_beside_it() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    found = []
    for option in OPTIONS:
        row = next((line for line in rows if re.search(rf"`{option.name}`", line)), "")
        if option.default not in row.replace("`", ""):
            found.append(f"{option.name}: {option.default}")
    assert found == []


def test_every_variable_that_is_read_is_named() -> None:
    names = [value for value in vars(environ).values() if isinstance(value, str) and value.startswith("TRACEML_")]
    assert len(names) > 5
    assert [name for name in names if not is_named(name)] == []


def test_no_variable_is_named_that_nobody_reads() -> None:
    known = {value for value in vars(environ).values() if isinstance(value, str)}
    known |= {option.variable for option in OPTIONS}
    assert set(re.findall(r"\bTRACEML_[A-Z_]+\b", README)) - known == set()


def test_every_make_target_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert [name for name in phony[1].split() if f"make {name}" not in README] == []


def test_every_promise_links_a_test_that_is_there() -> None:
    linked = re.findall(r"\]\((tests/promises/\w+\.py)\)", README)
    assert len(linked) > 10
    assert [path for path in linked if not (ROOT / path).exists()] == []


def test_its_prose_is_wrapped() -> None:
    """Tables are not, nor is what a command printed."""
    prose = re.sub(r"^```.*?^```|<!-- .*?<!-- /[^>]* -->", "", README, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    assert len(lines) > 200
    assert [line for line in lines if len(line) > MAX_LINE] == []


def test_readme_has_its_chapters() -> None:
    for chapter in ("Install", "Architecture", "Decisions", "Development"):
        assert re.search(rf"^#+ {chapter}", README, re.MULTILINE), chapter
