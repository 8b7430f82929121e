"""Whatever a script's arguments are: they reach it unchanged and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceml_launch.commandline.arguments import SEPARATORS, split
from traceml_launch.commandline.options import BY_SPELLING, OPTIONS

OURS_BEHIND = {spelling for spelling, option in BY_SPELLING.items() if not option.is_extra}

anything = st.text(max_size=12)
like_options = st.one_of(
    anything,
    st.sampled_from([name.replace("-", "_").replace("__", "--", 1) for name in BY_SPELLING if name.count("-") > 2]),
    st.sampled_from([option.name for option in OPTIONS if option.is_extra]),
    st.sampled_from(["--help", "-h", "-m", "-r", "--max-restarts", "--rdzv-id=3", "--standalone", "--nproc", "-"]),
)
foreign = like_options.filter(lambda word: word not in SEPARATORS and word.partition("=")[0] not in OURS_BEHIND)
ours = st.sampled_from(
    [["--nnodes", "2"], ["--nnodes=2"], ["--no-history"], ["--run-name", "--x"], ["--mode=summary"], ["--mode", "cli"]]
)


@given(st.lists(foreign))
def test_words_that_are_not_ours_pass_unchanged(words: list[str]) -> None:
    line = split(["train.py", *words])
    assert line.script_args == words
    assert line.given == {}
    assert line.taken_behind_script == []


@given(st.lists(anything), st.sampled_from(SEPARATORS))
def test_behind_a_separator_everything_passes(words: list[str], separator: str) -> None:
    assert split(["train.py", separator, *words]).script_args == words
    assert split([separator, "train.py", *words]).script_args == words


@given(
    st.lists(
        st.one_of(st.tuples(st.just("foreign"), foreign.map(lambda word: [word])), st.tuples(st.just("ours"), ours))
    )
)
def test_ours_are_taken_out_and_the_rest_keeps_its_order(parts: list[tuple[str, list[str]]]) -> None:
    line = split(["train.py", *(word for _, words in parts for word in words)])
    assert line.script_args == [word for owner, words in parts for word in words if owner == "foreign"]
    assert line.taken_behind_script == [word for owner, words in parts for word in words if owner == "ours"]
