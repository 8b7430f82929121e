"""Recorded ends joined with what the ranks printed: causes and ranks that neither of them gives alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.harness.facts import START_NS, Rank, attempt_facts, error, node_report, run_facts
from traceml_client.protocol.launch import layout_node_dir, layout_rank_dir
from traceml_daemon.report.failure import diagnose, with_evidence
from traceml_daemon.report.form import FailureReport
from traceml_daemon.report.hang import Progress, blame_hang
from traceml_daemon.report.symptoms import find_symptoms

TRACE = 'Traceback (most recent call last):\n  File "/data/job/eval.py", line 34, in main\n'
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59031.\n"
LATE = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"
S = 1_000_000_000


def say(run_dir: Path, rank: int, text: str) -> None:
    folder = run_dir / layout_rank_dir(0, rank, 0)
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(text)


def report(run_dir: Path, ranks: list[Rank]) -> FailureReport:
    diagnosis = diagnose(run_facts(ranks), run_dir)
    assert diagnosis is not None
    return with_evidence(diagnosis, run_dir)


def test_an_error_that_was_caught_and_printed_is_the_cause_though_its_rank_ended_last(tmp_path: Path) -> None:
    say(tmp_path, 0, f"rank 0: evaluation failed\n{TRACE}ValueError: label 1000 out of range\n")
    say(tmp_path, 1, f"rank 1: evaluation failed\n{TRACE}{PEER}")
    found = report(
        tmp_path,
        [Rank(rank=0, exit_code=None, signal="SIGTERM", died_ms=9000.0), Rank(rank=1, exit_code=1, died_ms=3000.0)],
    )
    assert (found.category, found.initiating_rank, found.confidence) == ("python_exception", 0, "confirmed")
    assert [(one.rank, one.reason) for one in found.collateral] == [(1, "peer_lost")]
    line = next(one for one in found.evidence if one.file.endswith("stderr.log"))
    assert (line.line, line.text) == (4, "ValueError: label 1000 out of range")


HANDLED = f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: 'part-7'\nnext part\n"
OURS = "[TraceML] error record: [Errno 13] Permission denied: 'error.json' (training goes on)\n"


@pytest.mark.parametrize("before", [HANDLED, OURS])
@pytest.mark.parametrize("kind", ["KeyError", "RuntimeError"])
def test_what_was_recorded_is_not_what_was_printed_before(tmp_path: Path, before: str, kind: str) -> None:
    """Neither an exception that the script got over, nor a line of our own."""
    say(tmp_path, 1, f"{before}{TRACE}{kind}: 'seven'\n")
    found = report(tmp_path, [Rank(rank=0), Rank(rank=1, error=error(kind, "'seven'", at_ms=900.0), exit_code=1)])
    assert (found.category, found.initiating_rank) == ("python_exception", 1)
    assert "'seven'" in found.evidence[0].text


def test_ranks_whose_own_watchdog_dumped_their_stacks_hung(tmp_path: Path) -> None:
    for rank in (0, 1):
        say(
            tmp_path,
            rank,
            'Timeout (0:00:05)!\nThread 0x00007fd2 (most recent call first):\n  File "a.py", line 2 in f\n',
        )
    found = report(tmp_path, [Rank(rank=rank, exit_code=1, died_ms=1000.0 + rank) for rank in (0, 1)])
    assert (found.category, found.initiating_rank) == ("hang", None)


def test_an_exception_of_a_child_is_what_its_parent_failed_of(tmp_path: Path) -> None:
    say(tmp_path, 1, f"{HANDLED}{TRACE}subprocess.CalledProcessError: status 1\n")
    raised = error("subprocess.CalledProcessError", "status 1", at_ms=900.0)
    found = report(tmp_path, [Rank(rank=0), Rank(rank=1, error=raised, exit_code=1)])
    assert (found.category, found.initiating_rank, found.confidence) == ("file_not_found", 1, "likely")


def test_what_was_printed_some_time_before_an_exit_need_not_be_its_reason(tmp_path: Path) -> None:
    say(tmp_path, 1, HANDLED)
    left = Rank(rank=1, error=error("SystemExit", "3", at_ms=900.0), exit_code=3)
    found = report(tmp_path, [Rank(rank=0), left])
    assert (found.category, found.initiating_rank, found.confidence) == ("file_not_found", 1, "likely")


def test_a_script_that_is_not_there_is_no_single_ranks_fault(tmp_path: Path) -> None:
    for rank in (0, 1):
        say(
            tmp_path,
            rank,
            "/opt/bin/python: can't open file '/data/job/trian.py': [Errno 2] No such file or directory\n",
        )
    found = report(tmp_path, [Rank(rank=rank, exit_code=2, died_ms=1000.0 + rank, step=0) for rank in (0, 1)])
    assert (found.category, found.initiating_rank) == ("file_not_found", None)


def test_the_rank_that_aborts_at_a_wrong_size_did_not_send_it(tmp_path: Path) -> None:
    say(
        tmp_path,
        1,
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 268 vs 28\n",
    )
    found = report(
        tmp_path,
        [
            Rank(rank=0, error=error("RuntimeError", PEER[14:-1], at_ms=1100.0), exit_code=1, died_ms=1200.0),
            Rank(rank=1, exit_code=None, signal="SIGABRT", died_ms=1000.0),
        ],
    )
    assert (found.category, found.initiating_rank) == ("collective_mismatch", None)
    assert "op.preamble.length" in found.evidence[0].text


def test_the_one_rank_that_waited_in_another_collective_is_the_odd_one() -> None:
    def late(rank: int, call: str) -> Rank:
        raised = error("RuntimeError", LATE, at_ms=6000.0 + rank)
        frames = f'  File "/opt/torch/distributed/distributed_c10d.py", line 3252, in {call}\n'
        return Rank(rank=rank, error=msgspec.structs.replace(raised, traceback=frames), exit_code=1)

    ranks = [late(0, "all_reduce"), late(1, "all_reduce"), late(2, "broadcast")]
    diagnosis = diagnose(run_facts(ranks))
    assert diagnosis is not None
    assert (diagnosis.report.category, diagnosis.report.initiating_rank) == ("collective_mismatch", 2)


SMALL, LARGE = ("all_reduce(float32[40])", 160), ("all_reduce(float32[400])", 1600)
TOO_MUCH = "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 268 vs 28\n"


@pytest.mark.parametrize(
    ("calls", "odd"),
    [
        ({0: SMALL, 1: None, 2: LARGE}, 2),  # the silent one got more than it expected: it is a small one too
        ({0: SMALL, 1: SMALL, 2: None}, 2),
        ({0: SMALL, 1: SMALL, 2: LARGE, 3: None}, 2),
        ({0: LARGE, 1: LARGE, 2: None, 3: LARGE}, 2),
        ({0: SMALL, 1: LARGE, 2: LARGE, 3: None}, None),
        ({0: SMALL, 1: None}, None),
        ({0: SMALL, 1: None, 2: None}, None),
    ],
)
def test_of_several_sizes_the_odd_one_is_found_by_majority(
    tmp_path: Path, calls: dict[int, tuple[str, int] | None], odd: int | None
) -> None:
    ranks = []
    for rank, call in calls.items():
        if call is None:
            say(tmp_path, rank, TOO_MUCH)
            ranks.append(Rank(rank=rank, exit_code=None, signal="SIGABRT", died_ms=1000.0))
        else:
            lost = error("RuntimeError", PEER[14:-1], at_ms=1100.0)
            lost = msgspec.structs.replace(lost, collective=call[0], collective_bytes=call[1])
            ranks.append(Rank(rank=rank, error=lost, exit_code=1, died_ms=1200.0))
    found = report(tmp_path, ranks)
    assert (found.category, found.initiating_rank) == ("collective_mismatch", odd)


def test_a_rank_that_was_stopped_before_it_said_its_size_is_the_only_one_that_can_have_sent_so_much(
    tmp_path: Path,
) -> None:
    say(tmp_path, 2, TOO_MUCH)
    lost = msgspec.structs.replace(
        error("RuntimeError", PEER[14:-1], at_ms=1100.0), collective=SMALL[0], collective_bytes=SMALL[1]
    )
    ranks = [
        Rank(rank=0, exit_code=None, signal="SIGTERM", died_ms=1200.0),
        Rank(rank=1, error=lost, exit_code=None, signal="SIGTERM", died_ms=1210.0),
        Rank(rank=2, exit_code=None, signal="SIGABRT", died_ms=1000.0),
    ]
    found = report(tmp_path, ranks)
    assert (found.category, found.initiating_rank) == ("collective_mismatch", 0)


def test_a_rank_whose_tensor_comes_in_pieces_of_the_expected_size_did_not_send_larger_ones(tmp_path: Path) -> None:
    say(tmp_path, 0, TOO_MUCH.replace("268 vs 28", "136 vs 68"))
    lost = msgspec.structs.replace(
        error("RuntimeError", PEER[14:-1], at_ms=1100.0), collective="all_reduce(float32[100])", collective_bytes=400
    )
    ranks = [
        Rank(rank=0, exit_code=None, signal="SIGABRT", died_ms=1000.0),
        Rank(rank=1, exit_code=None, signal="SIGTERM", died_ms=1200.0),
        Rank(rank=2, error=lost, exit_code=None, signal="SIGTERM", died_ms=1210.0),
    ]
    found = report(tmp_path, ranks)
    assert (found.category, found.initiating_rank) == ("collective_mismatch", 1)


@pytest.mark.parametrize(
    ("lost_at_ms", "expected"), [(6010.0, ("collective_mismatch", 2)), (9000.0, ("collective_timeout", None))]
)
def test_a_peer_that_was_lost_in_another_call_is_odd_only_if_it_stood_there_at_that_time(
    lost_at_ms: float, expected: tuple[str, int | None]
) -> None:
    def in_call(rank: int, call: str, message: str, at_ms: float) -> Rank:
        raised = msgspec.structs.replace(
            error("RuntimeError", message, at_ms=at_ms), collective=call, collective_bytes=256
        )
        return Rank(rank=rank, error=raised, exit_code=1)

    ranks = [in_call(rank, "all_reduce(float32[64])", LATE, 6000.0 + rank) for rank in (0, 1)]
    ranks.append(in_call(2, "broadcast(float32[64])", PEER[14:-1], lost_at_ms))
    diagnosis = diagnose(run_facts(ranks))
    assert diagnosis is not None
    assert (diagnosis.report.category, diagnosis.report.initiating_rank) == expected


IN_BACKWARD = (
    '  File "/opt/env/lib/python3.12/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward\n'
)
STACKS = (
    "Fatal Python error: Aborted\n\nThread 0x00007f01 (most recent call first):\n"
    '  File "/opt/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    '  File "/data/job/train.py", line 17 in main\n'
)


@pytest.mark.parametrize("has_aborted", [True, False])
def test_a_collective_of_one_rank_while_the_others_exchanged_gradients_is_the_odd_one(
    tmp_path: Path, has_aborted: bool
) -> None:
    def in_backward(rank: int) -> Rank:
        raised = error("RuntimeError", PEER[14:-1] if has_aborted else LATE, at_ms=1000.0 + rank)
        return Rank(rank=rank, error=msgspec.structs.replace(raised, traceback=IN_BACKWARD), exit_code=1)

    odd = Rank(rank=2, exit_code=None, signal="SIGABRT", died_ms=990.0)
    if has_aborted:
        say(tmp_path, 2, TOO_MUCH + STACKS)
    else:
        raised = msgspec.structs.replace(error("RuntimeError", LATE, at_ms=1004.0), collective="all_reduce(float32[3])")
        odd = Rank(rank=2, error=raised, exit_code=1)
    found = report(tmp_path, [in_backward(0), in_backward(1), odd])
    assert (found.category, found.initiating_rank) == ("collective_mismatch", 2)
    assert "ranks 0-1 in backward" in found.summary
    assert "rank 2 in all_reduce" in found.summary
    assert found.summary.startswith("rank 2 (node 0) ")
    assert str(found.source) == ('File "/data/job/train.py", line 17, in main' if has_aborted else "None")


def test_a_rank_that_printed_its_error_and_ended_well_is_whom_the_others_lost(tmp_path: Path) -> None:
    say(tmp_path, 1, f"{TRACE}ValueError: label 1000 out of range\n")
    lost = Rank(rank=0, error=error("RuntimeError", PEER[14:-1], at_ms=1100.0), exit_code=1)
    found = report(tmp_path, [lost, Rank(rank=1, died_ms=1090.0)])
    assert (found.category, found.initiating_rank, found.confidence) == ("python_exception", 1, "likely")
    assert str(found.source) == 'File "/data/job/eval.py", line 34, in main'


def test_an_error_of_the_script_that_quotes_a_lost_peer_is_its_own(tmp_path: Path) -> None:
    quoting = "2 fields are invalid:\n  - reason: RuntimeError: Connection closed by peer\n"
    first = error("ValueError", quoting, at_ms=1000.0)
    first = msgspec.structs.replace(first, traceback=f"{TRACE}    check(row)\nValueError: {quoting}")
    lost = error("RuntimeError", PEER[14:-1], at_ms=1001.0)
    found = report(tmp_path, [Rank(rank=0, error=lost, exit_code=1), Rank(rank=1, error=first, exit_code=1)])
    assert (found.category, found.initiating_rank) == ("python_exception", 1)


def test_torchruns_own_words_explain_a_run_without_ranks(tmp_path: Path) -> None:
    folder = tmp_path / layout_node_dir(0)
    folder.mkdir(parents=True)
    (folder / "training.stderr.log").write_text(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
    )
    diagnosis = diagnose(run_facts([], reports=[node_report([])]), tmp_path)
    assert diagnosis is not None
    assert (diagnosis.report.category, diagnosis.report.initiating_rank) == ("port_in_use", None)
    assert diagnosis.report.evidence[0].file.endswith("training.stderr.log")


def test_a_stalled_rank_is_told_from_those_that_waited_for_it() -> None:
    ended = [Rank(rank=rank, exit_code=None, signal="SIGTERM", died_ms=9000.0) for rank in (0, 1)]
    facts = [attempt_facts(rank, 2) for rank in ended]
    reports = [node_report(ended)]
    ends = {one.incarnation: end for one, end in zip(facts, reports[0].ranks, strict=True)}
    waiting, stuck = find_symptoms(facts, ends, {})
    symptoms = [replace(waiting, phase="backward"), replace(stuck, phase="residual")]
    progress = {one.incarnation: Progress(START_NS + 6 * S, 10_000_000) for one in facts}

    found = blame_hang(symptoms, progress, START_NS + 9 * S)
    assert found is not None
    assert (found.category, found.initiator) == ("hang", symptoms[1])
    assert blame_hang(symptoms, progress, START_NS + 6 * S + S // 2) is None
    assert blame_hang([symptoms[0], symptoms[0]], progress, START_NS + 9 * S) is None
    assert blame_hang(symptoms, {}, START_NS + 9 * S) is None
