"""Which words of a command line are ours, torchrun's and the script's."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.arguments import CommandLine, split
from traceml_launch.commandline.options import OPTIONS


class Row(NamedTuple):
    name: str
    words: str
    given: dict[str, str]
    torchrun: str
    script_args: str
    taken: str = ""
    script: str = "train.py"
    kind: str = "script"


ROWS = [
    Row("a script alone", "train.py", {}, "", ""),
    Row("ours before", "--nproc-per-node 4 train.py", {"nproc-per-node": "4"}, "", ""),
    Row("ours before with =", "--nproc-per-node=4 train.py", {"nproc-per-node": "4"}, "", ""),
    Row(
        "underscores before",
        "--nproc_per_node=4 --logs_dir x train.py",
        {"nproc-per-node": "4", "logs-dir": "x"},
        "",
        "",
    ),
    Row("mixed spelling before", "--nproc-per_node 4 train.py", {"nproc-per-node": "4"}, "", ""),
    Row("underscore in a value stays", "--run-name=a_b train.py", {"run-name": "a_b"}, "", ""),
    Row("= in a value stays", "--run-name a=b train.py", {"run-name": "a=b"}, "", ""),
    Row("alias before", "--session-id x train.py", {"run-name": "x"}, "", ""),
    Row("a flag before", "--no-history train.py", {"no-history": "true"}, "", ""),
    Row("an extra before", "--settle-sec 2 train.py", {"settle-sec": "2"}, "", ""),
    Row("the last one wins", "--run-name a train.py --run-name b", {"run-name": "b"}, "", "", "--run-name b"),
    Row("torchrun's before", "--max-restarts 3 train.py", {}, "--max-restarts 3", ""),
    Row("torchrun's with = and _", "--max_restarts=3 train.py", {}, "--max_restarts=3", ""),
    Row("torchrun's switch before", "--standalone train.py x", {}, "--standalone", "x"),
    Row("torchrun's short option", "-r 3 -t 1 train.py", {}, "-r 3 -t 1", ""),
    Row("short option with its value", "-r3 -t=1 train.py", {}, "-r3 -t=1", ""),
    Row("value that looks like an option", "--rdzv-conf --x train.py", {}, "--rdzv-conf --x", ""),
    Row("value with commas", "-r 0:1,1:2 train.py", {}, "-r 0:1,1:2", ""),
    Row("a module", "-m pkg.train --lr 1", {}, "", "--lr 1", script="pkg.train", kind="module"),
    Row("a module by its long name", "--module pkg.train", {}, "", "", script="pkg.train", kind="module"),
    Row("options between -m and the module", "-m --nnodes 1 pkg", {"nnodes": "1"}, "", "", script="pkg", kind="module"),
    Row("a program", "--no-python ./run.sh -m x", {}, "", "-m x", script="./run.sh", kind="program"),
    Row("a program, underscore", "--no_python ./run.sh", {}, "", "", script="./run.sh", kind="program"),
    Row("run-path stays torchrun's", "--run-path /a/train.py", {}, "--run-path", "", script="/a/train.py"),
    Row("ours behind with =", "train.py --nproc-per-node=4", {"nproc-per-node": "4"}, "", "", "--nproc-per-node=4"),
    Row("ours behind", "train.py --nproc-per-node 4", {"nproc-per-node": "4"}, "", "", "--nproc-per-node 4"),
    Row("alias behind", "train.py --session-id x", {"run-name": "x"}, "", "", "--session-id x"),
    Row("a flag behind", "train.py --no-history x", {"no-history": "true"}, "", "x", "--no-history"),
    Row("a flag with a value behind is the script's", "train.py --no-history=1", {}, "", "--no-history=1"),
    Row("underscores behind are the script's", "train.py --run_name a", {}, "", "--run_name a"),
    Row(
        "extras behind are the script's",
        "train.py --settle-sec 2 --attach --overwrite --quiet",
        {},
        "",
        "--settle-sec 2 --attach --overwrite --quiet",
    ),
    Row(
        "torchrun's behind are the script's",
        "train.py --max-restarts 3 --standalone",
        {},
        "",
        "--max-restarts 3 --standalone",
    ),
    Row("short options behind are the script's", "train.py -m x -r 3", {}, "", "-m x -r 3"),
    Row("help behind is the script's", "train.py --help -h", {}, "", "--help -h"),
    Row("our mode behind", "train.py --mode summary", {"mode": "summary"}, "", "", "--mode summary"),
    Row("our mode behind with =", "train.py --mode=cli", {"mode": "cli"}, "", "", "--mode=cli"),
    Row("a foreign mode", "train.py --mode train --x", {}, "", "--mode train --x"),
    Row("a foreign mode with =", "train.py --mode=max", {}, "", "--mode=max"),
    Row("a mode without a value", "train.py --mode", {}, "", "--mode"),
    Row("between the script's", "train.py a --run-name x b", {"run-name": "x"}, "", "a b", "--run-name x"),
    Row("behind --", "train.py a -- --run-name x --", {}, "", "a --run-name x --"),
    Row("behind --args", "train.py --args --nnodes 2 -- --args", {}, "", "--nnodes 2 -- --args"),
    Row("ours, then --", "train.py --nnodes 2 -- --nnodes 3", {"nnodes": "2"}, "", "--nnodes 3", "--nnodes 2"),
    Row("-- before the script", "--nnodes 1 -- train.py --nnodes 3 -- x", {"nnodes": "1"}, "", "--nnodes 3 -- x"),
    Row("a script named like an option", "-- -odd.py x", {}, "", "x", script="-odd.py"),
    Row("standard input as the script", "- x", {}, "", "x", script="-"),
    Row("prefixes behind are the script's", "train.py --nproc 2 --run-names a", {}, "", "--nproc 2 --run-names a"),
    Row("the report's option behind", "train.py --html-report", {"html-report": "true"}, "", "", "--html-report"),
]


def values(line: CommandLine) -> dict[str, str]:
    return {key: value for key, (_, value) in line.given.items()}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_every_word_has_one_owner(row: Row) -> None:
    line = split(row.words.split())
    assert values(line) == row.given
    assert line.torchrun == row.torchrun.split()
    assert line.target.args == tuple(row.script_args.split())
    assert line.taken_behind_script == row.taken.split()
    assert (line.target.name, line.target.kind) == (row.script, row.kind)


def test_empty_and_blank_arguments_of_the_script_are_kept() -> None:
    assert split(["train.py", "", "a b", "\n"]).target.args == ("", "a b", "\n")


def test_the_last_spelling_is_remembered_for_messages() -> None:
    assert split(["--session_id", "x", "train.py"]).given["run-name"] == ("--session_id", "x")


@pytest.mark.parametrize(
    ("words", "values_by_name"),
    [
        ("-r3 train.py", {"--redirects": "3"}),
        ("-t=1 train.py", {"--tee": "1"}),
        ("--rdzv_backend=c10d train.py", {"--rdzv-backend": "c10d"}),
        ("--rdzv-endpoint [::1]:29400 train.py", {"--rdzv-endpoint": "[::1]:29400"}),
        ("--standalone train.py", {"--standalone": "true"}),
        ("--role a --role b train.py", {"--role": "b"}),
    ],
)
def test_what_torchrun_will_understand(words: str, values_by_name: dict[str, str]) -> None:
    assert split(words.split()).torchrun_values == values_by_name


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--nproc-per-nod 4 train.py", ["--nproc-per-nod", "did you mean --nproc-per-node?"]),
        ("--max-restart=4 train.py", ["--max-restart", "did you mean --max-restarts?"]),
        ("--epochs 3 train.py", ["unknown option --epochs; traceml run --help lists all", "behind it"]),
        ("--run_nam=4 train.py", ["--run_nam", "did you mean --run-name?"]),
        ("-x train.py", ["-x"]),
        ("--run-name", ["--run-name lacks its value"]),
        ("--max-restarts", ["--max-restarts lacks its value"]),
        ("-r", ["-r lacks its value"]),
        ("train.py --logs-dir", ["--logs-dir lacks its value"]),
        ("--no-history=yes train.py", ["--no-history takes no value"]),
        ("-m --no-python x", ["--no-python", "exclude each other"]),
        ("--nnodes 2", ["SCRIPT is missing"]),
        ("--", ["SCRIPT is missing"]),
        ("", ["SCRIPT is missing"]),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(words: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        split(words.split()).target  # noqa: B018 - reading it is what fails
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("words", ["--help", "-h", "--nnodes 2 --help", "--help --nonsense"])
def test_help_before_the_script_is_ours(words: str) -> None:
    assert split(words.split()).is_help_wanted


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_read_before_the_script_and_extras_never_behind_it(option: Any) -> None:
    words = [option.name] if option.kind == "flag" else [option.name, (*option.choices, "7")[0]]
    before, behind = split([*words, "train.py"]), split(["train.py", *words])
    assert list(before.given) == [option.key]
    assert list(behind.given) == ([] if option.is_extra else [option.key])
    assert behind.script_args == (words if option.is_extra else [])
