"""The signs of every entry find what they are for, and leave alone what only looks like it: each file has the texts."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from traceml_daemon.log_files import sign_files
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader
from traceml_daemon.triage.signs import BadSign, parse_sign
from traceml_daemon.triage.verdict import Verdict

FILES = sorted((Path(sign_files.__file__).parents[1] / "triage" / "catalog").glob("*.toml"))
DOCUMENTS: dict[str, dict[str, Any]] = {path.stem: tomllib.loads(path.read_text()) for path in FILES}


@dataclass(frozen=True)
class Example:
    kind: str
    text: str
    category: str
    rank: int | None


def examples(category: str) -> list[Example]:
    document = DOCUMENTS[category]
    found = [Example("positive", one["text"], category, one.get("rank")) for one in document.get("positive", ())]
    found += [Example("near_miss", one["text"], one["category"], None) for one in document.get("near_miss", ())]
    return found


def diagnose(text: str) -> Verdict:
    seen = Observations()
    reader = LogReader(0, load_book(), seen)
    reader.feed(text.encode())
    reader.finish()
    return judge(seen)


@pytest.mark.parametrize("category", DOCUMENTS)
def test_an_entry_needs_positive_examples_and_near_misses(category: str) -> None:
    kinds = [example.kind for example in examples(category)]
    assert kinds.count("positive") >= 3
    assert kinds.count("near_miss") >= 2


@pytest.mark.parametrize("category", DOCUMENTS)
def test_its_examples_are_diagnosed_as_they_should(category: str) -> None:
    for example in examples(category):
        verdict = diagnose(example.text)
        assert verdict.category == example.category, example.text
        if example.kind == "positive":
            assert verdict.rank == example.rank, example.text
        else:
            assert example.category != category


def test_every_pattern_compiles_and_its_words_stand_in_what_it_finds() -> None:
    for sign in load_book().signs:
        assert sign.compiled.groups >= 0
        for example in examples(sign.category):
            for line in example.text.splitlines():
                if sign.compiled.search(line):
                    assert any(literal in line.lower() for literal in sign.literals), sign


@pytest.mark.parametrize(
    "table",
    [
        {"pattern": "a.*b"},
        {"pattern": "abc", "literal": "abc"},
        {"pattern": "abcd", "colour": "red"},
        {"pattern": "abcd", "where": "anywhere"},
        {"literal": "abcd"},
    ],
)
def test_a_sign_that_cannot_be_used_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(BadSign, match="cuda_oom"):
        parse_sign("cuda_oom", table)
