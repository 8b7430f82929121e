"""Stream files: exact without a cap, head and tail under one, and a full disk that only costs bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceml_launch.output.logfile import CappedLog, WholeLog, open_log, read_tail


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(2, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_capped_log_keeps_head_and_tail_and_says_what_it_cut(
    tmp_path: Path, pieces: list[bytes], max_bytes: int
) -> None:
    path = tmp_path / "stdout.log"
    path.unlink(missing_ok=True)
    log = CappedLog(path, max_bytes=max_bytes)
    for piece in pieces:
        log.write(piece)
    log.close()
    written, kept = b"".join(pieces), path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["stdout.log"]
    if len(written) <= max_bytes:
        assert kept == written
        return
    head, tail_bytes = max_bytes // 2, max_bytes - max_bytes // 2
    line = re.search(rb"\n\[TraceML\] (\d+) bytes were cut here \(--max-log-bytes \d+\)\n", kept[head:])
    assert line is not None
    assert kept[:head] == written[:head]
    assert kept[head + line.end() :] == written[-tail_bytes:]
    assert int(line[1]) == len(written) - max_bytes


def test_a_killed_launcher_leaves_the_parts_of_a_capped_log(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "stdout.log", max_bytes=8)
    log.write(b"headtail")
    assert (tmp_path / "stdout.log").read_bytes() == b"head"
    assert (tmp_path / "stdout.log.tail-0").read_bytes() == b"tail"
    log.close()


@pytest.mark.parametrize("max_bytes", [0, 64])
def test_a_full_volume_is_counted_and_never_raised(max_bytes: int) -> None:
    log = open_log(Path("/dev/full"), max_bytes=max_bytes)
    log.write(b"x" * 10)
    log.write(b"y" * 10)
    assert log.num_lost_bytes == 20
    assert log.error == "No space left on device"
    log.close()
    log.close()


def test_a_folder_that_is_not_there_costs_bytes_only(tmp_path: Path) -> None:
    log = WholeLog(tmp_path / "missing" / "stdout.log")
    log.write(b"abc")
    assert (log.num_lost_bytes, log.error) == (3, "No such file or directory")
    log.close()


def test_files_are_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    for data in (b"one\n", b"two\n"):
        log = WholeLog(path)
        log.write(data)
        log.close()
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_tail_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"0123456789")
    assert read_tail(tmp_path / "long", 4) == b"6789"
    assert read_tail(tmp_path / "long", 99) == b"0123456789"
    assert read_tail(tmp_path / "missing", 4) == b""
