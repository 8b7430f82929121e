"""The table of options is what the command does: in the help, in every source of a value, in what is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.harness import launches
from traceml_launch import cli, commands
from traceml_launch.commandline import help_text, layers, preparation, torchrun_options
from traceml_launch.commandline.options import BY_SPELLING, OPTIONS, Option, documented
from traceml_launch.commandline.torchrun_options import declared_options

CONTRACT_DEFAULTS = {
    "--nproc-per-node": "1",
    "--nnodes": "1",
    "--node-rank": "0",
    "--master-addr": "127.0.0.1",
    "--master-port": "29500",
    "--logs-dir": "logs",
    "--mode": "summary",
    "--aggregator-port": "29765",
    "--aggregator-bind-host": "127.0.0.1",
    "--finalize-timeout-sec": "300",
    "--settle-sec": "1",
    "--max-log-bytes": "0",
    "--on-missing-aggregator": "warn",
    "--linger-sec": "30",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    return tmp_path


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_help_names_every_option_default_and_variable(width: int) -> None:
    text = help_text.run_help(width=width)
    flat = " ".join(text.split())
    for option in documented():
        for word in (*option.spellings, option.variable):
            assert re.search(rf"(?<![\w-]){word}(?![\w-])", text), word
        assert f"[default: {option.default}]" in flat, option.name
    for option in OPTIONS:
        assert option.name in text


def test_the_defaults_in_the_help_begin_with_the_contracts() -> None:
    shown = {option.name: re.split(r"[;, ]", option.default)[0] for option in OPTIONS}
    assert {name: shown[name] for name in CONTRACT_DEFAULTS} == CONTRACT_DEFAULTS


def test_help_goes_to_standard_output_and_starts_nothing(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert commands.run_command(["--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: traceml run [OPTIONS] SCRIPT [ARGS...]\n")
    assert captured.err == ""
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_reads_its_variable_and_the_file(option: Option, elsewhere: Path) -> None:
    (elsewhere / "traceml.toml").write_text(f"{option.key.replace('-', '_')} = 'word'\n")
    assert layers.read_file(elsewhere) == {option.key: "word"}
    said = launches.layers("train.py", {option.variable: "v"}, {option.key: "f"})
    assert said.find(option.key) == (option.variable, "v", False)


def test_the_file_takes_numbers_and_truth_values(elsewhere: Path) -> None:
    (elsewhere / "traceml.toml").write_text("nproc-per-node = 2\nsettle-sec = 0.5\nno-history = true\nattach = false\n")
    read = layers.read_file(elsewhere)
    assert read == {"nproc-per-node": "2", "settle-sec": "0.5", "no-history": "true", "attach": "false"}
    assert layers.read_file(elsewhere / "nowhere") == {}


REFUSED = [
    ("--nproc-per-node 0 train.py", "--nproc-per-node"),
    ("--aggregator-port 99999 train.py", "--aggregator-port"),
    ("train.py --run-name=../x", "--run-name"),
    ("--nnodes 2 --node-rank 5 --run-name x train.py", "--node-rank"),
    ("--nproc-per-nodes 2 train.py", "--nproc-per-nodes"),
    ("--token-file nowhere train.py", "--token-file"),
    ("--mode=dashboard train.py", "--mode"),
    ("--tls-cert c train.py", "--tls-cert"),
    ("--nnodes 2", "SCRIPT"),
]
"""One of each kind; which values are refused is in `test_launch_settings`."""


@pytest.mark.parametrize(("words", "named"), REFUSED)
def test_wrong_usage_is_exit_2_in_one_line_and_leaves_nothing(
    words: str, named: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert commands.run_command(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("traceml run: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nproc-per-nod = 2", ["nproc-per-nod is no option", "did you mean nproc-per-node?"]),
        ("run-name = ['a']", ["run-name must be a string"]),
        ("run-name = ", ["is no TOML"]),
        ("settle-sec = 'soon'", ["settle-sec: 'soon'"]),
        ("mode = 'cli'", ["mode cli is not in this version"]),
        ("token = 'secret'", ["token is no option"]),
        ("module = true", ["module is no option"]),
    ],
)
def test_a_wrong_file_is_named(content: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("traceml.toml").write_text(content)
    assert commands.run_command(["train.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("traceml run: traceml.toml")
    assert error.count("\n") == 1
    assert "secret" not in error
    for word in words:
        assert word in error


@pytest.mark.parametrize("command", commands.LATER_COMMANDS)
def test_commands_of_a_later_version_are_refused(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", command, "x"])
    assert cli.main() == 2
    assert capsys.readouterr().err == f"traceml: the command {command} is not in this version of TraceML\n"


def test_an_unknown_command_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", "runn", "train.py"])
    assert cli.main() == 2
    assert capsys.readouterr().err == "traceml: unknown command runn; did you mean run?\n"


def test_the_front_door_lists_its_commands_and_its_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml"])
    assert cli.main() == 0
    listed = re.findall(r"^  ([a-z]+) +[A-Z]", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(commands.COMMANDS)
    monkeypatch.setattr("sys.argv", ["traceml", "--version"])
    assert cli.main() == 0
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"traceml {project['version']}\n"


def test_a_wrong_option_of_another_command_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", "demo", "--faults", "crash"])
    assert cli.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("traceml: ")
    assert "--faults" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("fault", "words"), [("hang", "not in this version"), ("crush", "did you mean crash?")])
def test_a_fault_that_the_demo_does_not_have(
    fault: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", "demo", "--fault", fault])
    assert cli.main() == 2
    error = capsys.readouterr().err
    assert error.startswith(f"traceml demo: --fault {fault}")
    assert words in error


@pytest.mark.parametrize("content", [b" \n", b"one\ntwo\n", b"nul\0", b"\xff\xfe", b"x" * 5000])
def test_a_token_file_must_hold_one_token(content: bytes, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "t").write_bytes(content)
    assert commands.run_command(["--token-file", "t", "train.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"traceml run: --token-file {elsewhere / 't'} ")
    assert error.count("\n") == 1
    assert "two" not in error


@pytest.mark.parametrize(("mode", "is_said"), [(0o600, False), (0o644, True)])
def test_a_token_that_others_can_read_is_told(elsewhere: Path, mode: int, is_said: bool) -> None:
    path = elsewhere / "t"
    path.write_text("secret\n")
    path.chmod(mode)
    config = preparation.prepare(["--token-file", "t", "train.py"])
    assert config is not None
    assert config.token == "secret"
    assert any("chmod 600" in notice for notice in config.notices) is is_said
    assert all("secret" not in notice for notice in config.notices)


def test_an_option_of_ours_is_never_one_that_torchrun_keeps_for_itself() -> None:
    passed_on = torchrun_options.SWITCHES | torchrun_options.VALUED
    assert passed_on.isdisjoint({spelling for option in OPTIONS for spelling in option.spellings})


def test_an_option_of_another_torchrun_is_read_from_its_source() -> None:
    source = b"""
parser.add_argument("-q", "--quick", action=check_env)
parser.add_argument("--new_thing", "--new-thing", action=env, type=str)
parser.add_argument("--old", action="store_true")
parser.add_argument("script")
"""
    assert declared_options(source) == {"-q": False, "--quick": False, "--new-thing": True, "--old": False}


@pytest.mark.torch
def test_the_table_of_torchruns_options_is_torchruns() -> None:
    from torch.distributed.run import get_args_parser

    usage = " ".join(get_args_parser().format_usage().split())
    theirs = {name: bool(value) for name, value in re.findall(r"\[(--?[\w-]+)( [^]]+)?\]", usage)}
    for name in ("-h", *BY_SPELLING):
        theirs.pop(name, None)
    assert len(theirs) > 20
    assert {name: torchrun_options.takes_value(name) for name in theirs} == theirs
