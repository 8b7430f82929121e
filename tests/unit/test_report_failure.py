"""Which rank is blamed, for what, and when the answer is withheld: a table of ends and diagnoses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.harness.facts import START_NS, Rank, error, node_report, run_facts
from traceml_client.protocol.manifest import NodeOutcome, TrainingStatus
from traceml_client.protocol.node import NodeReport, RankError
from traceml_daemon.report.failure import diagnose, diagnose_history
from traceml_daemon.report.form import FailureReport
from traceml_daemon.report.text import failure_lines, failure_sentence

PEER = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40512"
STORE = "wait timeout after 3000ms, keys: /default_pg/0//shards/ready"
LATE = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"


def lost_peer(rank: int, *, at_ms: float = 1200.0, **more: object) -> Rank:
    return Rank(rank=rank, error=error("RuntimeError", PEER, at_ms=at_ms), exit_code=1, died_ms=at_ms + 50, **more)


def handled(*, at_ms: float, step: int = 21) -> RankError:
    return msgspec.structs.replace(error("ValueError", "boom", at_ms=at_ms, step=step), kind="handled")


def at_line(message: str, line: int) -> RankError:
    traceback = f'Traceback (most recent call last):\n  File "/data/job/train.py", line {line}, in load\n'
    found = error("ValueError", message, at_ms=1000.0 + len(message) + ord(message[0]))
    return msgspec.structs.replace(found, traceback=f"{traceback}ValueError: {message}\n")


def raised(rank: int, kind: str = "ValueError", *, at_ms: float = 1000.0, **more: object) -> Rank:
    return Rank(rank=rank, error=error(kind, "boom", at_ms=at_ms), exit_code=1, died_ms=at_ms + 900, **more)


def killed(rank: int, signal: str, *, died_ms: float = 1000.0, **more: object) -> Rank:
    return Rank(rank=rank, signal=signal, exit_code=None, died_ms=died_ms, state="lost", **more)


@dataclass(frozen=True)
class Row:
    name: str
    ranks: list[Rank]
    category: str
    rank: int | None
    confidence: str
    collateral: dict[int, str] = field(default_factory=dict)
    status: TrainingStatus = "failed"
    reports: list[NodeReport] | None = None
    interrupted_ns: int | None = None


TORCHRUN_SIGNALLED = [killed(0, "SIGTERM", died_ms=1000.2), killed(1, "SIGTERM", died_ms=1000.4)]
SIGNALLED_ON_BUSY_MACHINE = [killed(1, "SIGTERM", died_ms=1000.0), killed(0, "SIGTERM", died_ms=1092.0)]
ORPHANS = [killed(0, "SIGTERM", stopped_by_launcher="SIGTERM"), killed(1, "SIGTERM", stopped_by_launcher="SIGTERM")]
ENDED_BY_LAUNCHER = [killed(0, "SIGTERM"), Rank(rank=1, exit_code=1, died_ms=1000.0)]
FAR = {"node_index": 1, "local_rank": 0}
CANCELLED_NODE = [lost_peer(0), killed(1, "SIGTERM", died_ms=1000.0, **FAR)]
SEEN_LATE = [lost_peer(0, at_ms=980.0), killed(1, "SIGTERM", died_ms=1000.0, **FAR)]
CANCELLED_LATE = [lost_peer(0, at_ms=1000.0), killed(1, "SIGTERM", died_ms=4000.0, **FAR)]
CANCELLED_AFTER_A_FAILURE = [raised(0), killed(1, "SIGTERM", died_ms=900.0, **FAR)]


SIDE_THREAD = error("KeyError", "dashboard", at_ms=500.0, step=11, is_thread=True)
QUEUED = error("KeyError", "shard", at_ms=900.0, step=18, is_thread=True)


def cancelled(ranks: list[Rank]) -> list[NodeReport]:
    """Somebody ended the launcher of node 1 alone."""
    return [node_report(ranks), node_report(ranks, node_index=1, interrupted_by="SIGTERM")]


ROWS = [
    Row(
        "one rank raises, its peers lose it",
        [lost_peer(0), lost_peer(1), raised(2)],
        "python_exception",
        2,
        "confirmed",
        {0: "peer_lost", 1: "peer_lost"},
    ),
    Row(
        "the peers fail before the initiator's process ends, as torchrun sees it",
        [lost_peer(0, at_ms=1001.5), raised(1, at_ms=1000.0)],
        "python_exception",
        1,
        "confirmed",
        {0: "peer_lost"},
    ),
    Row(
        "an original error beats a lost peer also where it was raised later",
        [lost_peer(0, at_ms=900.0), raised(1, at_ms=1000.0)],
        "python_exception",
        1,
        "confirmed",
        {0: "peer_lost"},
    ),
    Row(
        "DistBackendError is a consequence",
        [raised(0, "torch.distributed.DistBackendError", at_ms=900.0), raised(1, at_ms=1000.0)],
        "python_exception",
        1,
        "confirmed",
        {0: "peer_lost"},
    ),
    Row(
        "two originals, 20 ms apart: the earlier raise, less surely",
        [raised(1, at_ms=1020.0), raised(2, "KeyError", at_ms=1000.0), lost_peer(0)],
        "python_exception",
        2,
        "likely",
        {0: "peer_lost"},
    ),
    Row(
        "two originals inside the same millisecond: a tie",
        [raised(0, "KeyError", at_ms=1000.0), raised(1, "ImportError", at_ms=1000.5)],
        "insufficient_evidence",
        None,
        "unknown",
    ),
    Row(
        "a tie of the same category keeps the category",
        [raised(0, "KeyError", at_ms=1000.0), raised(1, "ValueError", at_ms=1000.5), lost_peer(2)],
        "python_exception",
        None,
        "likely",
        {2: "peer_lost"},
    ),
    Row(
        "all ranks alike",
        [raised(rank, "ModuleNotFoundError", at_ms=1000.0 + 300 * rank) for rank in range(3)],
        "import_error",
        None,
        "confirmed",
    ),
    Row(
        "across hosts the measured offset decides",
        [
            raised(0, at_ms=1000.0, host="a", clock_bound_ns=1_000_000),
            raised(1, "KeyError", at_ms=3000.0, host="b", clock_offset_ns=-2_500_000_000, clock_bound_ns=1_000_000),
        ],
        "python_exception",
        1,
        "likely",
    ),
    Row(
        "across hosts an order inside the bound is a tie",
        [
            raised(0, "ImportError", at_ms=1000.0, host="a", clock_bound_ns=40_000_000),
            raised(1, "KeyError", at_ms=1050.0, host="b", clock_bound_ns=40_000_000),
        ],
        "insufficient_evidence",
        None,
        "unknown",
    ),
    Row(
        "across hosts without a measured offset there is no order",
        [raised(0, "ImportError", at_ms=1000.0, host="a"), raised(1, "KeyError", at_ms=9000.0, host="b")],
        "insufficient_evidence",
        None,
        "unknown",
    ),
    Row("memory", [raised(0, "MemoryError"), lost_peer(1)], "host_memory_error", 0, "confirmed", {1: "peer_lost"}),
    Row("device memory", [raised(0, "torch.OutOfMemoryError")], "cuda_oom", 0, "confirmed"),
    Row("a bare RuntimeError has many causes", [raised(0, "RuntimeError")], "python_exception", 0, "likely"),
    Row(
        "an error number tells more than its type",
        [Rank(rank=0, error=error("OSError", "[Errno 28] No space left on device", at_ms=1.0), exit_code=1)],
        "disk_full",
        0,
        "confirmed",
    ),
    Row("SIGKILL", [killed(1, "SIGKILL"), lost_peer(0)], "sigkill_unattributed", 1, "unknown", {0: "peer_lost"}),
    Row("SIGSEGV", [killed(1, "SIGSEGV"), lost_peer(0)], "segfault", 1, "confirmed", {0: "peer_lost"}),
    Row(
        "an exit code without an exception",
        [Rank(rank=1, exit_code=3, died_ms=1000.0), lost_peer(0)],
        "nonzero_exit",
        1,
        "likely",
        {0: "peer_lost"},
    ),
    Row(
        "an exit code of a rank without a launcher",
        [Rank(rank=0, exit_code=3)],
        "nonzero_exit",
        0,
        "likely",
        reports=[],
    ),
    Row(
        "a rank that ignored torchrun's SIGTERM is not to blame for its SIGKILL",
        [killed(0, "SIGKILL", died_ms=31_500.0), lost_peer(1), raised(2)],
        "python_exception",
        2,
        "confirmed",
        {0: "sigkill_by_agent", 1: "peer_lost"},
    ),
    Row(
        "a rank at SIGTERM well before the others is the cause",
        [killed(1, "SIGTERM", died_ms=1000.0), lost_peer(0)],
        "sigterm_unattributed",
        1,
        "unknown",
        {0: "peer_lost"},
    ),
    Row(
        "all ranks at SIGTERM together",
        TORCHRUN_SIGNALLED,
        "sigterm_unattributed",
        None,
        "likely",
        {0: "sigterm_by_agent", 1: "sigterm_by_agent"},
    ),
    Row(
        "all ranks at SIGTERM, and a busy machine lets one die later",
        SIGNALLED_ON_BUSY_MACHINE,
        "sigterm_unattributed",
        None,
        "likely",
        {0: "sigterm_by_agent", 1: "sigterm_by_agent"},
    ),
    Row(
        "torchrun saw one rank end at SIGTERM and stopped the other",
        SIGNALLED_ON_BUSY_MACHINE,
        "sigterm_unattributed",
        1,
        "unknown",
        {0: "sigterm_by_agent"},
        reports=[node_report(SIGNALLED_ON_BUSY_MACHINE, root_cause_rank=1)],
    ),
    Row(
        "one rank ended at SIGTERM, torchrun saw it first, and its peer noticed within a millisecond",
        [lost_peer(0, at_ms=999.0), killed(1, "SIGTERM", died_ms=1000.0)],
        "sigterm_unattributed",
        1,
        "unknown",
        {0: "peer_lost"},
        reports=[node_report([lost_peer(0, at_ms=999.0), killed(1, "SIGTERM", died_ms=1000.0)], root_cause_rank=0)],
    ),
    Row(
        "one rank left the group in a `finally` that takes its time: torchrun ended it for the peers that lost it",
        [lost_peer(0, at_ms=900.0), killed(1, "SIGTERM", died_ms=1000.0)],
        "insufficient_evidence",
        1,
        "unknown",
        {0: "peer_lost"},
        reports=[node_report([lost_peer(0, at_ms=900.0), killed(1, "SIGTERM", died_ms=1000.0)], root_cause_rank=1)],
    ),
    Row(
        "sys.exit, and torchrun's SIGTERM caught it on its way out",
        [
            lost_peer(0, at_ms=1500.0),
            Rank(
                rank=1,
                error=error("SystemExit", "no data", at_ms=1000.0),
                exit_code=3,
                signal="SIGTERM",
                died_ms=2000.0,
            ),
        ],
        "nonzero_exit",
        1,
        "likely",
        {0: "peer_lost"},
    ),
    Row(
        "the ranks could not meet: who gives up first is not to blame",
        [
            Rank(rank=0, error=error("RuntimeError", STORE, at_ms=900.0, step=0), exit_code=1, step=0),
            killed(1, "SIGTERM", step=0),
        ],
        "rendezvous_failed",
        None,
        "confirmed",
        {1: "sigterm_by_agent"},
    ),
    Row(
        "in the middle of training one rank waits for a key that nobody sets",
        [lost_peer(0), Rank(rank=1, error=error("RuntimeError", STORE, at_ms=900.0), exit_code=1)],
        "rendezvous_failed",
        1,
        "confirmed",
        {0: "peer_lost"},
    ),
    Row(
        "a rank in a long `finally`, ended by torchrun for the peers that lost it before",
        [
            lost_peer(0, at_ms=1100.0),
            Rank(rank=1, error=handled(at_ms=1000.0), signal="SIGTERM", state="lost", died_ms=2000.0),
        ],
        "python_exception",
        1,
        "likely",
        {0: "peer_lost"},
    ),
    Row(
        "a rank that handled the end of its loader when another one raised",
        [raised(0, at_ms=1500.0), Rank(rank=1, error=handled(at_ms=1000.0), signal="SIGTERM", state="lost")],
        "python_exception",
        0,
        "confirmed",
        {1: "sigterm_by_agent"},
    ),
    Row(
        "all were ended from outside, one of them while it waited to try again",
        [killed(0, "SIGTERM", died_ms=2000.0), Rank(rank=1, error=handled(at_ms=1.0), signal="SIGTERM", state="lost")],
        "sigterm_unattributed",
        None,
        "likely",
        {0: "sigterm_by_agent", 1: "sigterm_by_agent"},
    ),
    Row(
        "a rank that handled an error, trained on, and was ended for another one",
        [raised(0, at_ms=1500.0), Rank(rank=1, error=handled(at_ms=1.0, step=3), signal="SIGTERM", state="lost")],
        "python_exception",
        0,
        "confirmed",
        {1: "sigterm_by_agent"},
    ),
    Row(
        "all ranks raised at the same line, each of its own shard",
        [Rank(rank=rank, error=at_line(f"{name} is empty", 7), exit_code=1) for rank, name in enumerate("ab")],
        "python_exception",
        None,
        "confirmed",
    ),
    Row(
        "a wrong command line is wrong on the rank that was stopped too",
        [Rank(rank=0, exit_code=2, died_ms=1000.0, step=0), killed(1, "SIGTERM", died_ms=1100.0, step=0)],
        "nonzero_exit",
        None,
        "likely",
        {1: "sigterm_by_agent"},
    ),
    Row(
        "an exit code in the middle of training, its peers were stopped where they waited",
        [Rank(rank=0, exit_code=7, died_ms=1000.0), killed(1, "SIGTERM", died_ms=1100.0)],
        "nonzero_exit",
        0,
        "likely",
        {1: "sigterm_by_agent"},
    ),
    Row(
        "all ranks at Ctrl-C",
        [raised(rank, "KeyboardInterrupt", at_ms=1000.0 + rank / 10) for rank in range(2)],
        "interrupted",
        None,
        "likely",
        {0: "sigterm_by_agent", 1: "sigterm_by_agent"},
    ),
    Row(
        "torchrun itself is killed, the launcher ends its orphans",
        ORPHANS,
        "sigkill_unattributed",
        None,
        "unknown",
        {0: "sigterm_by_agent", 1: "sigterm_by_agent"},
        reports=[node_report(ORPHANS, exit_code=None, signal="SIGKILL")],
    ),
    Row(
        "the rank that waits for nobody did not arrive",
        [
            Rank(rank=0, error=error("RuntimeError", LATE, at_ms=6000.0), exit_code=1),
            Rank(rank=1, error=error("RuntimeError", LATE, at_ms=6001.0), exit_code=1),
            killed(2, "SIGTERM", died_ms=6500.0),
        ],
        "collective_timeout",
        2,
        "likely",
        {0: "collective_timeout", 1: "collective_timeout"},
    ),
    Row(
        "only consequences",
        [lost_peer(0), lost_peer(1)],
        "collateral_only",
        None,
        "unknown",
        {0: "peer_lost", 1: "peer_lost"},
    ),
    Row(
        "one rank ended well while the others still waited for it",
        [lost_peer(0), lost_peer(1), Rank(rank=2)],
        "collective_mismatch",
        2,
        "likely",
        {0: "peer_lost", 1: "peer_lost"},
    ),
    Row(
        "one rank is gone without a word",
        [lost_peer(0), Rank(rank=1, exit_code=None, state="lost")],
        "insufficient_evidence",
        1,
        "unknown",
        {0: "peer_lost"},
    ),
    Row("torchrun fails before any rank starts", [], "insufficient_evidence", None, "unknown"),
    Row(
        "an error in a thread, then somebody ends the hang",
        [
            Rank(rank=1, error=error("KeyError", "20", at_ms=900.0, is_thread=True), exit_code=None, signal="SIGTERM"),
            killed(0, "SIGTERM", died_ms=3000.0),
        ],
        "python_exception",
        1,
        "confirmed",
        {0: "sigterm_by_agent"},
        status="interrupted",
    ),
    Row(
        "an interruption, and nothing had failed",
        ENDED_BY_LAUNCHER,
        "sigterm_unattributed",
        None,
        "confirmed",
        {0: "sigterm_by_agent"},
        status="interrupted",
        reports=[node_report(ENDED_BY_LAUNCHER, interrupted_by="SIGTERM")],
    ),
    Row(
        "a thread of a rank had failed, which trained on until another rank raised",
        [raised(0), lost_peer(1, thread_error=SIDE_THREAD, step=41)],
        "python_exception",
        0,
        "confirmed",
        {1: "peer_lost"},
    ),
    Row(
        "a thread of a rank had failed a few steps before another rank was killed",
        [killed(0, "SIGKILL"), lost_peer(1, thread_error=QUEUED)],
        "sigkill_unattributed",
        0,
        "unknown",
        {1: "peer_lost"},
    ),
    Row(
        "a thread of a rank had failed long before its main thread did",
        [lost_peer(0), raised(1, thread_error=SIDE_THREAD, step=41)],
        "python_exception",
        1,
        "confirmed",
        {0: "peer_lost"},
    ),
    Row(
        "a thread that reads ahead fails, and its rank stands still when what it had read is used up",
        [
            Rank(rank=0, error=error("RuntimeError", LATE, at_ms=9000.0), exit_code=1, died_ms=9100.0),
            killed(1, "SIGTERM", died_ms=9200.0, thread_error=QUEUED),
        ],
        "python_exception",
        1,
        "confirmed",
        {0: "collective_timeout"},
    ),
    Row(
        "only the launcher of another node was ended, and its peers lost its ranks",
        CANCELLED_NODE,
        "sigterm_unattributed",
        None,
        "confirmed",
        {0: "peer_lost", 1: "sigterm_by_agent"},
        reports=cancelled(CANCELLED_NODE),
    ),
    Row(
        "somebody ended torchrun of one node, and its peers lost its ranks",
        CANCELLED_NODE,
        "sigterm_unattributed",
        None,
        "confirmed",
        {0: "peer_lost", 1: "sigterm_by_agent"},
        reports=[node_report(CANCELLED_NODE), node_report(CANCELLED_NODE, node_index=1, torchrun_got="SIGTERM")],
    ),
    Row(
        "a peer notices that a rank is gone a little before its launcher does",
        SEEN_LATE,
        "sigterm_unattributed",
        None,
        "likely",
        {0: "peer_lost", 1: "sigterm_by_agent"},
        reports=[node_report(SEEN_LATE), node_report(SEEN_LATE, node_index=1, torchrun_got="SIGTERM")],
    ),
    Row(
        "peers were lost well before another node's launcher was ended: that was the answer to it",
        CANCELLED_LATE,
        "insufficient_evidence",
        1,
        "unknown",
        {0: "peer_lost"},
        reports=cancelled(CANCELLED_LATE),
    ),
    Row(
        "another node's launcher was ended because a rank here had failed",
        CANCELLED_AFTER_A_FAILURE,
        "python_exception",
        0,
        "confirmed",
        {1: "sigterm_by_agent"},
        reports=cancelled(CANCELLED_AFTER_A_FAILURE),
    ),
    Row(
        "what failed before the signal is the cause, what failed after it is not",
        [Rank(rank=0, exit_code=7, died_ms=1000.0), raised(1, at_ms=3000.0)],
        "nonzero_exit",
        0,
        "likely",
        status="interrupted",
        interrupted_ns=START_NS + 2_000_000_000,
    ),
]


def report_of(row: Row) -> FailureReport:
    facts = run_facts(row.ranks, status=row.status, reports=row.reports, interrupted_ns=row.interrupted_ns)
    diagnosis = diagnose(facts)
    assert diagnosis is not None
    return diagnosis.report


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_table(row: Row) -> None:
    report = report_of(row)

    assert (report.category, report.initiating_rank, report.confidence) == (row.category, row.rank, row.confidence)
    assert {item.rank: item.reason for item in report.collateral} == row.collateral


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_at_most_six_lines_and_none_of_them_empty(row: Row) -> None:
    lines = failure_lines(report_of(row))

    assert 3 <= len(lines) <= 6
    assert all(line.strip() and "\n" not in line and "None" not in line for line in lines)


def test_the_initiator_is_described_where_it_was() -> None:
    report = report_of(ROWS[0])

    assert (report.step, report.phase, report.node_rank, report.attempt) == (21, "forward", 0, 0)
    assert report.summary == "rank 2 (node 0) raised ValueError: boom, in step 21 (forward)"
    assert failure_sentence(report) == f"{report.summary} (python_exception, confidence confirmed)"
    assert report.command is not None
    assert "nodes/node_0/ranks/rank_2/attempt_0/stderr.log" in report.command


def test_a_completed_run_has_no_failure() -> None:
    assert diagnose(run_facts([Rank(rank=0)], status="completed", exit_code=0)) is None


def test_what_torchrun_says_is_compared() -> None:
    ranks = [lost_peer(0), raised(1)]
    wrong, right = (diagnose(run_facts(ranks, reports=[node_report(ranks, root_cause_rank=rank)])) for rank in (0, 1))
    assert wrong is not None
    assert right is not None
    assert (wrong.report.torchrun.root_cause_rank, wrong.report.torchrun.agrees) == (0, False)
    assert right.report.torchrun.agrees is True
    said = "torchrun names rank 0: the rank whose process it saw end first; rank 1 raised earlier"
    assert said in failure_lines(wrong.report)


def test_node_1_is_named_where_its_rank_failed_first() -> None:
    ranks = [lost_peer(0), raised(1, **FAR)]
    diagnosis = diagnose(run_facts(ranks, reports=[node_report(ranks), node_report(ranks, node_index=1)]))

    assert diagnosis is not None
    assert (diagnosis.report.initiating_rank, diagnosis.report.node_rank) == (1, 1)


def test_the_error_that_ended_a_rank_is_told_and_not_that_of_a_thread_long_before() -> None:
    (row,) = (row for row in ROWS if row.name == "a thread of a rank had failed long before its main thread did")

    assert "ValueError: boom" in report_of(row).summary


def test_the_node_whose_launcher_was_ended_is_named() -> None:
    diagnosis = diagnose(run_facts(CANCELLED_NODE, reports=cancelled(CANCELLED_NODE)))

    assert diagnosis is not None
    assert diagnosis.report.node_rank == 1
    assert diagnosis.report.summary == "the launcher of node 1 was interrupted by SIGTERM"


def test_where_only_consequences_are_seen_the_lost_node_is_named() -> None:
    ranks = [
        lost_peer(0),
        *(Rank(rank=1 + i, node_index=1, local_rank=i, exit_code=None, state="lost") for i in (0, 1)),
    ]
    lost = NodeOutcome(node_rank=1, exit_code=None, signal=None, why="node 1's launcher was lost")
    diagnosis = diagnose(run_facts(ranks, nodes=(lost,)))

    assert diagnosis is not None
    assert (diagnosis.report.category, diagnosis.report.node_rank) == ("collateral_only", 1)
    assert diagnosis.report.summary.startswith("node 1's launcher was lost; every error")


def test_a_failure_that_a_restart_recovered_is_history() -> None:
    first = [lost_peer(0), raised(1)]
    second = [Rank(rank=0, attempt=1), Rank(rank=1, attempt=1)]
    facts = run_facts([*first, *second], status="completed", exit_code=0)

    (report,) = diagnose_history(facts)
    assert diagnose(facts) is None
    assert (report.category, report.initiating_rank, report.attempt) == ("python_exception", 1, 0)


def test_the_last_of_two_failures_is_the_failure_and_the_other_one_history() -> None:
    first = [lost_peer(0), raised(1)]
    second = [killed(0, "SIGSEGV", attempt=1), lost_peer(1, attempt=1)]
    facts = run_facts([*first, *second])
    diagnosis = diagnose(facts)

    assert diagnosis is not None
    assert (diagnosis.report.category, diagnosis.report.initiating_rank, diagnosis.report.attempt) == ("segfault", 0, 1)
    assert [report.category for report in diagnose_history(facts)] == ["python_exception"]


def test_the_report_survives_its_own_json() -> None:
    report = report_of(ROWS[0])

    assert msgspec.json.decode(msgspec.json.encode(report), type=FailureReport) == report


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (killed(1, "SIGSEGV"), "was killed by SIGSEGV in step 21 (forward)"),
        (
            Rank(rank=1, error=error("SystemExit", "no data", at_ms=1.0), exit_code=1),
            "exited with code 1: no data, in step 21 (forward)",
        ),
        (
            Rank(rank=1, error=handled(at_ms=1.0), signal="SIGTERM", state="lost"),
            "was still handling ValueError: boom, in step 21 (forward)",
        ),
        (
            Rank(rank=1, error=error("SystemExit", "3", at_ms=1.0), exit_code=3),
            "exited with code 3 without an exception in step 21 (forward)",
        ),
        (
            Rank(rank=1, error=error("RuntimeError", "Error(s) in loading:\n\tsize mismatch", at_ms=1.0), exit_code=1),
            "raised RuntimeError: Error(s) in loading: size mismatch, in step 21 (forward)",
        ),
    ],
)
def test_what_a_rank_did_is_said_in_its_own_words(rank: Rank, said: str) -> None:
    diagnosis = diagnose(run_facts([lost_peer(0), rank]))
    assert diagnosis is not None
    assert diagnosis.report.summary == f"rank 1 (node 0) {said}"


def test_the_users_own_line_and_the_wrapped_error_are_in_the_first_two_lines() -> None:
    at = 'Traceback (most recent call last):\n  File "/data/job/{}", line {}, in {}\n    code\n'
    traceback = (
        at.format("data.py", 31, "load")
        + "KeyError: 'labels'\n\nThe above exception was the direct cause of the following exception:\n\n"
        + at.format("train.py", 88, "main")
        + "ValueError: boom\n"
    )
    failed = msgspec.structs.replace(error("ValueError", "boom", at_ms=1000.0), traceback=traceback)
    diagnosis = diagnose(run_facts([lost_peer(0), Rank(rank=1, error=failed, exit_code=1, died_ms=1900.0)]))

    assert diagnosis is not None
    assert failure_lines(diagnosis.report)[:2] == (
        "Rank 1 (node 0) raised ValueError: boom, from KeyError: 'labels', in step 21 (forward)",
        'Cause: python_exception, confidence confirmed; File "/data/job/data.py", line 31, in load',
    )


def test_who_did_not_arrive_is_told_with_its_step_from_the_streams_of_those_that_waited() -> None:
    ranks = [
        Rank(rank=0, error=error("RuntimeError", LATE, at_ms=6000.0), exit_code=1),
        killed(1, "SIGTERM", died_ms=6500.0, step=26),
    ]
    facts = run_facts(ranks, reports=[node_report(ranks, root_cause_rank=0)])
    found = diagnose(facts, Path("/logs/r"))
    assert found is not None
    report = found.report
    assert report.summary == "rank 1 (node 0) did not arrive at a collective in time; it was in step 26 (forward)"
    assert report.torchrun.why == "torchrun names the rank whose process it saw end first; it waited for rank 1"
    assert report.command is not None
    assert "/logs/r/nodes/node_0/training.stderr.log" in report.command
    assert report.verify_command == "traceml status --logs-dir /logs"
    assert found.witness is not None
    assert found.witness.rank == 0
