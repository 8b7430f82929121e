"""The small pure parts around a session: volumes, rejections, back-pressure, whys, serve's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.manifest import RecordCounts
from traceml_client.protocol.node import RankEnd
from traceml_daemon.config import check_run_name
from traceml_daemon.peers.intake import FlowControl
from traceml_daemon.peers.node_ending import why_no_marker
from traceml_daemon.peers.rejections import MAX_PEERS, Rejections
from traceml_daemon.serve_options import build_serve_config
from traceml_daemon.storage.volume import file_system_type, is_network_volume

MOUNTS = """\
22 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /shared rw - nfs4 server:/export rw
31 30 0:41 / /shared/fast\\040disk rw - lustre mgs@tcp:/l rw
32 22 0:42 / /shared2 rw - tmpfs tmpfs rw
a damaged line
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_network"),
    [
        ("/data/logs", "ext4", False),
        ("/shared/logs", "nfs4", True),
        ("/shared/fast disk/logs", "lustre", True),
        ("/shared2/logs", "tmpfs", False),
        ("/sharedness", "ext4", False),
    ],
)
def test_the_deepest_mount_above_a_folder_counts(tmp_path: Path, folder: str, kind: str, is_network: bool) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)

    assert file_system_type(Path(folder), mountinfo=table) == kind
    assert is_network_volume(kind) is is_network


def test_without_a_mount_table_nothing_is_known(tmp_path: Path) -> None:
    assert file_system_type(tmp_path, mountinfo=tmp_path / "nothing") == ""
    assert not is_network_volume("")
    assert is_network_volume("fuse.sshfs")


def test_rejections_are_counted_by_peer_and_reason_in_bounded_memory() -> None:
    rejections = Rejections()
    for number in range(MAX_PEERS + 100):
        rejections.count(f"10.0.{number // 256}.{number % 256}", "bad_frame")
    rejections.count("10.0.0.1", "bad_frame")
    rejections.count("10.0.0.1", "handshake_timeout")

    by_peer = rejections.by_peer()
    assert len(by_peer) == MAX_PEERS + 1
    assert by_peer["10.0.0.1"] == {"bad_frame": 2, "handshake_timeout": 1}
    assert by_peer["others"] == {"bad_frame": 100}
    assert rejections.num_frames == MAX_PEERS + 101


class Faucet:
    def __init__(self) -> None:
        self.story: list[str] = []

    def pause(self) -> None:
        self.story.append("pause")

    def resume(self) -> None:
        self.story.append("resume")


def test_all_are_paused_at_once_and_newcomers_too() -> None:
    flow, first, second, gone = FlowControl(), Faucet(), Faucet(), Faucet()
    flow.add(first)
    flow.add(gone)
    flow.remove(gone)
    flow.pause()
    flow.pause()
    flow.add(second)
    flow.resume()
    flow.resume()

    assert (first.story, second.story, gone.story) == (["pause", "resume"], ["pause", "resume"], [])
    assert (flow.num_pauses, flow.is_paused) == (1, False)


def end(**changes: object) -> RankEnd:
    values: dict[str, object] = {
        "rank": 0, "local_rank": 0, "attempt": 0, "torch_restart_count": 0, "pid": 1, "started_ns": 1, "died_ns": 2,
        "death_order": 0, "exit_code": None, "signal": None, "exit_source": "unknown", "is_marker_sent": False,
    }  # fmt: skip
    return RankEnd(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"signal": "SIGKILL"}, "killed by SIGKILL"),
        ({"signal": "SIGTERM", "stopped_by_launcher": "SIGTERM"}, "stopped by its launcher with SIGTERM"),
        ({"exit_code": 7}, "exit code 7 without cleanup"),
        ({}, "its process ended without a marker"),
        ({"died_ns": None}, "was still alive when its launcher reported the end"),
    ],
)
def test_why_a_rank_left_no_marker(changes: dict[str, object], why: str) -> None:
    assert why_no_marker(end(**changes)) == why


def test_counts_have_defaults_of_nothing() -> None:
    assert RecordCounts() == RecordCounts(0, 0, 0, 0, 0)


# --- serve's options --------------------------------------------------------------------------------------------------


def build(flags: dict[str, str] | None = None, variables: dict[str, str] | None = None, file: object = None) -> object:
    assert file is None or isinstance(file, dict)
    return build_serve_config(flags or {}, variables or {}, file or {}, folder=Path("/here"))[0]


def test_flag_before_variable_before_file_before_default() -> None:
    flags, variables, file = {"settle-sec": "1"}, {"TRACEML_SETTLE_SEC": "2"}, {"settle-sec": 3.0}

    assert build(flags, variables, file).settle_s == 1  # type: ignore[attr-defined]
    assert build({}, variables, file).settle_s == 2  # type: ignore[attr-defined]
    assert build({}, {}, file).settle_s == 3  # type: ignore[attr-defined]
    assert build({}, {"TRACEML_SETTLE_SEC": ""}, {}).settle_s == 1  # type: ignore[attr-defined]


def test_relative_paths_are_relative_to_the_working_directory() -> None:
    config, token_file = build_serve_config({"token-file": "t", "logs-dir": "l"}, {}, {}, folder=Path("/here"))

    assert (config.logs_dir, token_file) == (Path("/here/l"), Path("/here/t"))


@pytest.mark.parametrize(
    ("flags", "variables", "file", "named"),
    [
        ({"nnodes": "0"}, {}, {}, "--nnodes '0'"),
        ({}, {"TRACEML_AGGREGATOR_PORT": "65536"}, {}, "TRACEML_AGGREGATOR_PORT '65536'"),
        ({}, {}, {"finalize-timeout-sec": "never"}, "traceml.toml: finalize-timeout-sec 'never'"),
        ({"settle-sec": "-1"}, {}, {}, "--settle-sec '-1'"),
        ({"settle-sec": "nan"}, {}, {}, "--settle-sec 'nan'"),
        ({"aggregator-bind-host": "a b"}, {}, {}, "--aggregator-bind-host 'a b'"),
        ({"logs-dir": ""}, {}, {}, "--logs-dir ''"),
        ({"run-name": "a/b"}, {}, {}, "--run-name 'a/b'"),
    ],
)
def test_a_wrong_value_names_where_it_stands(
    flags: dict[str, str], variables: dict[str, str], file: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError) as error:
        build(flags, variables, file)

    assert str(error.value).startswith(named)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a", "2026-01-01_x", "run 1", "\u00e4" * 60])
def test_plain_names_are_run_names(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a\\b", "a\0b", "a\nb", "x" * 129])
def test_names_that_lead_elsewhere_are_not(name: str) -> None:
    with pytest.raises(ConfigError, match="--run-name"):
        check_run_name(name)
