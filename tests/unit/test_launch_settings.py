"""Where values come from and which are refused: precedence, bad input, what a later version brings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.launches import FOLDER, launch
from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.config import LaunchConfig


def test_the_defaults_are_the_contracts() -> None:
    config = launch("train.py")
    assert config == LaunchConfig(
        target=config.target, run_name="20260101-000000-abcdef", logs_dir=FOLDER / "logs", has_color=False
    )
    assert config.role == "owner"
    assert not config.is_port_required


@pytest.mark.parametrize(
    ("words", "environ", "file", "expected"),
    [
        ("--settle-sec 1.5", {"TRACEML_SETTLE_SEC": "2"}, {"settle-sec": "3"}, 1.5),
        ("", {"TRACEML_SETTLE_SEC": "2"}, {"settle-sec": "3"}, 2.0),
        ("", {"TRACEML_SETTLE_SEC": ""}, {"settle-sec": "3"}, 3.0),
        ("", {}, {"settle-sec": "3"}, 3.0),
        ("", {}, {}, 1.0),
    ],
)
def test_flag_before_variable_before_file_before_default(
    words: str, environ: dict[str, str], file: dict[str, str], expected: float
) -> None:
    assert launch(f"{words} train.py", environ, file).settle_s == expected


def test_a_value_of_the_user_beats_the_jobs_and_the_jobs_beats_the_default() -> None:
    job = {"PET_NPROC_PER_NODE": "8"}
    assert launch("train.py", job).num_local_ranks == 8
    assert launch("train.py", job, {"nproc-per-node": "3"}).num_local_ranks == 3
    assert launch("train.py", {**job, "TRACEML_NPROC_PER_NODE": "2"}).num_local_ranks == 2
    assert launch("--nproc-per-node 4 train.py", job).num_local_ranks == 4


def test_the_alias_of_the_run_name_has_a_variable_and_a_key_too() -> None:
    assert launch("train.py", {"TRACEML_SESSION_ID": "a"}).run_name == "a"
    assert launch("train.py", {}, {"session-id": "b"}).run_name == "b"
    assert launch("train.py", {"TRACEML_SESSION_ID": "a", "TRACEML_RUN_NAME": "c"}).run_name == "c"


@pytest.mark.parametrize(
    ("words", "environ", "file", "start"),
    [
        ("--aggregator-port x train.py", {}, {}, "--aggregator-port: 'x'"),
        ("--aggregator_port=70000 train.py", {}, {}, "--aggregator_port: '70000'"),
        ("--aggregator-port 0 train.py", {}, {}, "--aggregator-port: '0'"),
        ("--master-port -1 train.py", {}, {}, "--master-port: '-1'"),
        ("train.py", {"TRACEML_MASTER_PORT": "a"}, {}, "TRACEML_MASTER_PORT: 'a'"),
        ("train.py", {}, {"settle-sec": "soon"}, "traceml.toml: settle-sec: 'soon'"),
        ("train.py", {"PET_NPROC_PER_NODE": "many"}, {}, "PET_NPROC_PER_NODE: 'many'"),
        ("train.py", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "x"}, {}, "SLURM_NNODES: 'x'"),
        ("--nproc-per-node 0 train.py", {}, {}, "--nproc-per-node: '0'"),
        ("--nproc-per-node -2 train.py", {}, {}, "--nproc-per-node: '-2'"),
        ("--nproc-per-node banana train.py", {}, {}, "--nproc-per-node: 'banana'"),
        ("--nnodes 0 train.py", {}, {}, "--nnodes: '0'"),
        ("--nnodes 2:1 train.py", {}, {}, "--nnodes: '2:1'"),
        ("--nnodes 1:2:3 train.py", {}, {}, "--nnodes: '1:2:3'"),
        ("train.py --run-name a/b", {}, {}, "--run-name: 'a/b'"),
        ("--session-id .. train.py", {}, {}, "--session-id: '..'"),
        ("--run-name a..b train.py", {}, {}, "--run-name: 'a..b'"),
        ("--run-name= train.py", {}, {}, "--run-name: ''"),
        ("--run-name --nnodes train.py", {}, {}, "--run-name: '--nnodes'"),
        ("--on-missing-aggregator ignore train.py", {}, {}, "--on-missing-aggregator: 'ignore'"),
        ("--mode fast train.py", {}, {}, "--mode: 'fast'"),
        ("--finalize-timeout-sec nan train.py", {}, {}, "--finalize-timeout-sec: 'nan'"),
        ("--linger-sec -1 train.py", {}, {}, "--linger-sec: '-1'"),
        ("--grace-sec 0 train.py", {}, {}, "--grace-sec: '0'"),
        ("--trace-max-steps 1.5 train.py", {}, {}, "--trace-max-steps: '1.5'"),
        ("--max-log-bytes 1k train.py", {}, {}, "--max-log-bytes: '1k'"),
        ("train.py", {"TRACEML_NO_HISTORY": "perhaps"}, {}, "TRACEML_NO_HISTORY: 'perhaps'"),
        ("--nnodes 2 --node-rank 2 --run-name x train.py", {}, {}, "--node-rank: 2 is out of range"),
        ("--node-rank 1 train.py", {}, {}, "--node-rank: 1 is out of range"),
        ("--nnodes 1:4 --run-name x train.py", {}, {}, "--nnodes 1:4 needs a rendezvous backend"),
        ("--nnodes 2 --node-rank 1 train.py", {}, {}, "--run-name is missing"),
        ("--nnodes 2 --rdzv-id none train.py", {}, {}, "--run-name is missing"),
    ],
)
def test_bad_input_is_one_line_that_names_its_source(
    words: str, environ: dict[str, str], file: dict[str, str], start: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(words, environ, file)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "environ", "file", "source"),
    [
        ("--mode cli train.py", {}, {}, "--mode cli"),
        ("train.py --mode=dashboard", {}, {}, "--mode dashboard"),
        ("train.py", {"TRACEML_MODE": "cli"}, {}, "TRACEML_MODE cli"),
        ("train.py", {}, {"on-stall": "kill"}, "traceml.toml: on-stall kill"),
        ("--stall-timeout-sec 60 train.py", {}, {}, "--stall-timeout-sec 60"),
        ("--on-stall kill train.py", {}, {}, "--on-stall kill"),
        ("--notify-url http://x train.py", {}, {}, "--notify-url http://x"),
        ("--notify-cmd true train.py", {}, {}, "--notify-cmd true"),
        ("--dashboard-port 1 train.py", {}, {}, "--dashboard-port 1"),
    ],
)
def test_what_a_later_version_brings_is_refused(
    words: str, environ: dict[str, str], file: dict[str, str], source: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(words, environ, file)
    assert str(caught.value) == f"{source} is not in this version of TraceML"


@pytest.mark.parametrize(
    ("words", "trust"),
    [
        ("train.py", None),
        ("--tls-cert c --tls-key k train.py", ("/somewhere/c", "")),
        ("--tls-cert c --tls-key k --tls-ca /a train.py", ("/a", "127.0.0.1")),
        ("--attach --aggregator-host far --tls-ca a train.py", ("/somewhere/a", "far")),
        ("--nnodes 2 --node-rank 1 --master-addr far --run-name r --tls-ca a train.py", ("/somewhere/a", "far")),
        ("--nnodes 2 --node-rank 1 --run-name r --tls-cert c train.py", ("/somewhere/c", "")),
    ],
)
def test_how_the_aggregator_is_told_by_its_certificate(words: str, trust: tuple[str, str] | None) -> None:
    assert launch(words).tls_trust == trust


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--tls-cert a train.py", "--tls-cert needs --tls-key"),
        ("--tls-key a train.py", "--tls-key needs --tls-cert"),
        ("--tls-ca a train.py", "--tls-ca needs --tls-cert"),
        ("--tls-ca a --nnodes 2 --rdzv-backend c10d --rdzv-id x train.py", "--tls-ca needs --tls-cert"),
    ],
)
def test_half_of_the_tls_files_is_refused(words: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        launch(words)


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ("--mode summary train.py", {}),
        ("train.py --mode=summary", {}),
        ("--stall-timeout-sec 300 train.py", {}),
        ("--stall-timeout-sec 300.0 train.py", {}),
        ("train.py", {"TRACEML_HTML_REPORT": "0"}),
        ("train.py --mode train", {}),
    ],
)
def test_what_is_as_it_always_is_or_not_ours_is_not_refused(words: str, environ: dict[str, str]) -> None:
    assert launch(words, environ).target.name == "train.py"


def test_what_was_taken_from_behind_the_script_is_said() -> None:
    (notice,) = launch("train.py --nproc-per-node=4 --lr 1").notices
    assert "--nproc-per-node=4" in notice
    assert "--lr" not in notice
    assert launch("--nproc-per-node=4 train.py").notices == ()


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        ("", {}, False),
        ("-r 3", {}, True),
        ("-r 0", {}, False),
        ("--tee=3", {}, True),
        ("--logs-specs mine", {}, True),
        ("--log-dir /x", {}, False),
        ("", {"PET_REDIRECTS": "1"}, True),
        ("", {"TRACEML_TEE": "3"}, True),
    ],
)
def test_whose_the_streams_are(words: str, environ: dict[str, str], expected: bool) -> None:
    assert launch(f"{words} train.py", environ).are_streams_torchruns is expected


@pytest.mark.parametrize(
    ("words", "environ", "file", "expected"),
    [
        ("--max_restarts=3 -t 1", {}, {}, "--max_restarts=3 -t 1"),
        ("", {"TRACEML_MAX_RESTARTS": "2"}, {"role": "r"}, "--max-restarts 2 --role r"),
        ("--role x", {}, {"role": "r"}, "--role x"),
        ("", {"TRACEML_STANDALONE": "1"}, {}, "--standalone"),
        ("", {"TRACEML_STANDALONE": "0"}, {}, ""),
        ("", {"PET_MAX_RESTARTS": "2"}, {}, ""),
        ("", {"PET_RUN_PATH": "1"}, {}, "--run-path"),
    ],
)
def test_torchruns_own_options_are_passed_on(
    words: str, environ: dict[str, str], file: dict[str, str], expected: str
) -> None:
    assert launch(f"{words} train.py", environ, file).torchrun_options == tuple(expected.split())


@pytest.mark.parametrize(
    ("environ", "kind"),
    [({"PET_MODULE": "1"}, "module"), ({"PET_NO_PYTHON": "1"}, "program"), ({"PET_MODULE": "0"}, "script")],
)
def test_torchruns_variables_say_what_the_target_is(environ: dict[str, str], kind: str) -> None:
    assert launch("x", environ).target.kind == kind


@pytest.mark.parametrize(
    ("words", "environ", "timeout_s", "options"),
    [
        ("", {}, 30.0, ()),
        ("--shutdown-timeout 12", {}, 12.0, ("--shutdown-timeout", "12")),
        ("", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}, 9.0, ()),
        ("--grace-sec 20", {}, 13.0, ()),
        ("--grace-sec 3", {}, 1.0, ()),
        ("--grace-sec 100", {}, 30.0, ()),
        ("--grace-sec 20 --shutdown-timeout 60", {}, 13.0, ("--shutdown-timeout", "60", "--shutdown-timeout", "13")),
    ],
)
def test_a_known_deadline_bounds_torchruns_own_time(
    words: str, environ: dict[str, str], timeout_s: float, options: tuple[str, ...]
) -> None:
    config = launch(f"{words} train.py", environ)
    assert (config.shutdown_timeout_s, config.torchrun_options) == (timeout_s, options)


def test_every_switch_and_number_reaches_its_field() -> None:
    config = launch(
        "--attach --no-save-training-output --no-history --disable-traceml --overwrite --quiet --max-log-bytes 9 "
        "--trace-max-steps 5 --linger-sec 0 --finalize-timeout-sec 7 --on-missing-aggregator raise --logs-dir /l "
        "--html-report --aggregator-port 1234 train.py"
    )
    assert (config.attach, config.overwrite, config.is_quiet, config.is_disabled) == (True, True, True, True)
    assert (config.is_output_saved, config.has_history, config.has_html) == (False, False, True)
    assert (config.max_log_bytes, config.trace_max_steps, config.linger_s, config.finalize_timeout_s) == (9, 5, 0, 7)
    assert (config.on_missing_aggregator, config.logs_dir) == ("raise", Path("/l"))
    assert (config.aggregator_port, config.is_port_required) == (1234, True)


def test_the_token_is_taken_from_its_variable_and_never_shown() -> None:
    config = launch("train.py", {"TRACEML_TOKEN": "secret-word"})
    assert config.token == "secret-word"
    assert "secret-word" not in repr(config)


@pytest.mark.parametrize(
    ("environ", "is_terminal", "expected"),
    [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False)],
)
def test_color_is_for_terminals_that_want_it(environ: dict[str, str], is_terminal: bool, expected: bool) -> None:
    config = launch("train.py", environ, is_terminal=is_terminal)
    assert config.has_color is expected


def test_a_home_directory_in_a_path_is_expanded() -> None:
    assert launch("train.py", {}, {"logs-dir": "~/runs"}).logs_dir == Path(os.path.expanduser("~/runs"))
