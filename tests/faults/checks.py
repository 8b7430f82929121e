"""What must be true after a fault: pure, from one `Outcome` to the list of what is wrong with it.

The median time to the command's exit is judged over several runs, see `table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.catalogue import Fault
from tests.faults.naming import complaints_of, naming
from tests.faults.runner import Outcome
from tests.harness.torchrun import signal_number

TWO_NODE_EXIT_S = 17.0
"""Other nodes get 10 s once the owner's torchrun has exited, a lost peer 5 s of grace, a small run 2 s."""


def complaints(outcome: Outcome) -> list[str]:
    """Everything that is not as it must be; empty if the run is as promised."""
    if not (outcome.folder.path / "manifest.json").exists():
        return [f"no manifest; the command ended with {outcome.launchers[0].exit_code}"]
    checks: tuple[Callable[[Outcome], Iterator[str]], ...] = (_exit_codes, _status, _failure_report, _rank_endings)
    if (outcome.folder.path / "final_summary.json").exists():
        checks += (_telemetry, _ranks_missing, _steps)
    else:
        checks += (_no_summary,)
    found = [complaint for check in (*checks, _leftovers) for complaint in check(outcome)]
    return [*found, *complaints_of(naming(outcome), outcome.case)]


def exit_lag_s(outcome: Outcome) -> float | None:
    """Seconds from torchrun's exit to the command's, the longest of the nodes; null where a launcher was killed."""
    return max(
        (
            (launcher.ended_ns - report["ended_ns"]) / 1e9
            for launcher, report in zip(outcome.launchers, outcome.reports, strict=True)
            if report is not None and report["ended_ns"] is not None
        ),
        default=None,
    )


def is_torch_restart_race(outcome: Outcome) -> bool:
    """Torch's second attempt read the first one's addresses from the store that both share: the run proves nothing.

    Under plain torchrun it then fails to connect, or hangs.
    """
    if outcome.case.fault.job_outcome != "succeeded_after_restart":
        return False
    return outcome.was_stopped or any(b"failed to connect" in launcher.stderr for launcher in outcome.launchers)


def _exit_codes(outcome: Outcome) -> Iterator[str]:
    fault, target = outcome.case.fault, outcome.case.target
    seen = tuple(launcher.exit_code for launcher in outcome.launchers)
    if target == "launcher":
        assert fault.action is not None
        expected = 128 + signal_number(fault.action.signal)
        if seen[0] != expected:
            yield f"exit code {seen[0]}, expected {expected} after {fault.action.signal} to the launcher"
        return
    for node, (code, report) in enumerate(zip(seen, outcome.reports, strict=True)):
        if report is None:
            if node not in outcome.hit_launchers:
                yield f"node {node}: no node.json"
        elif code != _own_code(report):
            yield f"node {node}: exit code {code}, its torchrun's was {_own_code(report)}"
    if target is None and fault.plain_exit_codes and not _is_known(outcome, seen):
        yield f"exit codes {seen}, plain torchrun's {' or '.join(map(str, fault.plain_exit_codes))}"
    if target == "torchrun" and fault.action is not None and fault.action.signal == "SIGKILL":
        hit = seen[fault.action.node]
        if hit != 137:
            yield f"exit code {hit} where torchrun was killed, expected 137"


def _is_known(outcome: Outcome, seen: tuple[int, ...]) -> bool:
    codes = outcome.case.fault.plain_exit_codes
    if seen == codes[0] or seen not in codes:
        return seen in codes
    return outcome.case.fault.category != "ok" or any(rank["signal"] == "SIGABRT" for rank in _rank_ends(outcome))


def _own_code(node: dict[str, Any]) -> int | None:
    return 128 + signal_number(node["signal"]) if node["signal"] else node["exit_code"]


def _status(outcome: Outcome) -> Iterator[str]:
    manifest = outcome.folder.manifest()
    if outcome.case.target == "launcher":
        expected = "interrupted"
    elif outcome.case.target is not None or any(launcher.exit_code for launcher in outcome.launchers):
        expected = "failed"
    else:
        expected = "completed"
    if manifest["status"] != expected:
        yield f"manifest says {manifest['status']}, expected {expected}"


def _failure_report(outcome: Outcome) -> Iterator[str]:
    has_report = (outcome.folder.path / "failure_report.json").exists()
    if has_report and outcome.folder.manifest()["status"] == "completed":
        yield "a failure report for a completed run"
    if not has_report and outcome.folder.manifest()["status"] != "completed":
        yield "no failure report"


def _no_summary(outcome: Outcome) -> Iterator[str]:
    yield f"no final_summary.json: telemetry {outcome.folder.manifest()['telemetry_reason']}"


def _telemetry(outcome: Outcome) -> Iterator[str]:
    manifest, summary = outcome.folder.manifest(), outcome.folder.summary()
    telemetry = summary["telemetry"]
    if summary["training"]["status"] != manifest["status"]:
        yield f"the summary's status is {summary['training']['status']}, the manifest's {manifest['status']}"
    has_loss = bool(telemetry["ranks_missing"]) or telemetry["records"]["dropped"] > 0
    expected = ("degraded", "finalization_warning") if has_loss else ("complete", None)
    for name, found in (("manifest", manifest["telemetry"]), ("summary", telemetry)):
        if (found["status"], found["reason"]) != expected:
            yield f"{name}: telemetry {found['status']}/{found['reason']}, expected {expected[0]}/{expected[1]}"
    if manifest["telemetry_status"] != expected[0]:
        yield f"manifest: telemetry_status {manifest['telemetry_status']}, expected {expected[0]}"
    if manifest["aggregator_exit_code"] != 0:
        yield f"the aggregator ended with {manifest['aggregator_exit_code']}"


def _ranks_missing(outcome: Outcome) -> Iterator[str]:
    fault, telemetry = outcome.case.fault, outcome.folder.summary()["telemetry"]
    world = set(range(fault.nproc * fault.nnodes))
    finished = {rank for rank, ends in _last_ends(outcome).items() if ends["is_marker_sent"]}
    named = [missing["rank"] for missing in telemetry["ranks_missing"]]
    if sorted(named) != sorted(world - finished):
        yield f"ranks_missing {sorted(named)}, but {sorted(world - finished)} sent no marker"
    if set(telemetry["ranks_finished"]) != finished:
        yield f"ranks_finished {telemetry['ranks_finished']}, but {sorted(finished)} sent a marker"
    yield from (f"rank {m['rank']} is missing without a why" for m in telemetry["ranks_missing"] if not m["why"])
    killed = fault.signal in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
    if killed and fault.initiating_rank in finished and not outcome.case.is_disturbed:
        yield f"rank {fault.initiating_rank} died by {fault.signal} and is said to have finished"


def _steps(outcome: Outcome) -> Iterator[str]:
    """Every step that a rank's recorder counted is in the summary, and where the truth gives a number it is that."""
    summary = {entry["rank"]: entry["attempts"] for entry in outcome.folder.summary()["ranks"]}
    for end in _rank_ends(outcome):
        counted = end["num_steps_recorded"] - end["num_steps_dropped"]
        match = [a for a in summary.get(end["rank"], []) if _is_same(a, end)]
        found = match[0]["steps"] if match else 0
        if found != counted:
            yield f"rank {end['rank']} attempt {end['attempt']}: {found} of {counted} recorded steps in the summary"
    if outcome.case.is_disturbed:
        return
    fault = outcome.case.fault
    for rank, expected in enumerate(fault.steps_completed):
        wanted = [expected] if fault.steps_after_restart is None else [expected, fault.steps_after_restart]
        found = [attempt["steps"] for attempt in summary.get(rank, [])] or [0]
        if found != wanted and (any(wanted) or any(found)):
            yield f"rank {rank}: steps by attempt {found}, completed {wanted}"


def _is_same(attempt: dict[str, Any], end: dict[str, Any]) -> bool:
    return (attempt["local_rank"], attempt["torch_restart_count"]) == (end["local_rank"], end["torch_restart_count"])


def _rank_endings(outcome: Outcome) -> Iterator[str]:
    """The rank that failed ended as the truth says; one that was slow to exit may have met the agent's SIGTERM."""
    fault = outcome.case.fault
    if outcome.case.is_disturbed or fault.initiating_rank is None or fault.nnodes > 1:
        return
    ends = [end for end in _rank_ends(outcome) if end["rank"] == fault.initiating_rank and end["attempt"] == 0]
    if not ends:
        yield f"rank {fault.initiating_rank} is not in node.json"
        return
    found = (ends[0]["exit_code"], ends[0]["signal"])
    allowed = {(fault.exit_code, None), (None, fault.signal)} - {(None, None)}
    if fault.racy and fault.exit_code:
        allowed.add((None, "SIGTERM"))
    if allowed and found not in allowed:
        yield f"rank {fault.initiating_rank} ended with {found}, the truth is {sorted(map(str, allowed))}"


def _leftovers(outcome: Outcome) -> Iterator[str]:
    yield from (f"left behind: {command[:160]}" for command in outcome.left)
    if outcome.was_stopped and not outcome.case.is_disturbed:
        yield f"did not end by itself within {outcome.case.fault.limit_seconds:g} s"
    lag_s = exit_lag_s(outcome)
    if lag_s is not None and outcome.case.fault.nnodes > 1 and lag_s > TWO_NODE_EXIT_S:
        yield f"{lag_s:.1f} s from torchrun's exit to the command's"


def _rank_ends(outcome: Outcome) -> list[dict[str, Any]]:
    """What every node's launcher says of every incarnation of its ranks."""
    return [end for report in outcome.reports if report is not None for end in report["ranks"]]


def _last_ends(outcome: Outcome) -> dict[int, dict[str, Any]]:
    last: dict[int, dict[str, Any]] = {}
    for end in sorted(_rank_ends(outcome), key=lambda end: end["started_ns"]):
        last[end["rank"]] = end
    return last


def plain_code(fault: Fault) -> str:
    """For the table: the first recorded outcome of plain torchrun."""
    return ", ".join(map(str, fault.plain_exit_codes[0])) if fault.plain_exit_codes else "not recorded"
