"""torchrun's own failure summary, as it prints it."""

from __future__ import annotations

from traceml_launch.ranks.torchrun_table import TorchrunTable, parse_table

SUMMARY = b"""\
[rank0]: Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_03:04:05
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 31506)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 31506
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : node-a
  rank      : 12 (local_rank: 2)
  exitcode  : 7 (pid: 31508)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
=======================================================
"""


def test_the_root_cause_and_every_exit_code() -> None:
    assert parse_table(SUMMARY) == TorchrunTable(12, {0: -15, 12: 7})


def test_the_last_summary_counts() -> None:
    earlier = SUMMARY.replace(b"rank      : 12", b"rank      : 3").replace(b"rank      : 0 ", b"rank      : 4 ")
    assert parse_table(earlier + SUMMARY) == TorchrunTable(12, {0: -15, 12: 7})


def test_lines_of_training_that_look_alike_are_not_read() -> None:
    assert parse_table(b"  rank      : 1\n  exitcode  : 5\n") == TorchrunTable()
    assert parse_table(SUMMARY + b"  rank : 99\n  exitcode : 9\n").exit_codes == {0: -15, 12: 7}


def test_bytes_that_are_no_text() -> None:
    assert parse_table(b"\xff\xfe\0" * 100 + SUMMARY).root_cause_rank == 12


SIGNALLED = b"""\
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15
"""


def test_the_signal_that_torchrun_gave_up_for() -> None:
    assert parse_table(SIGNALLED).signal == "SIGTERM"
    assert parse_table(SIGNALLED.replace(b": 15", b": 1")).signal == "SIGHUP"
    assert parse_table(SIGNALLED.replace(b"torch.", b"[rank1]: torch.")).signal is None
    assert parse_table(SIGNALLED.replace(b": 15", b": 4096")).signal is None
    assert parse_table(SUMMARY).signal is None


def test_no_summary() -> None:
    assert parse_table(b"") == TorchrunTable()
