"""A run's status as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceml_client.protocol.manifest import TelemetryFacts
from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.run.run_status import STALLED_S, RunStatus

_MAX_RANKS: Final = 64


def status_text(status: RunStatus) -> str:
    return "\n".join((*_heading(status), *_ranks(status))) + "\n"


def _heading(status: RunStatus) -> Iterator[str]:
    training = status.training
    yield f"Run {status.run_name}: {status.status} ({status.run_dir})"
    if status.status == "abandoned":
        yield f"Nobody holds it any more; traceml view {status.run_dir} makes its report"
    ending = f", exit code {training.exit_code}" if training.exit_code is not None else ""
    ending += f", ended by {training.signal}" if training.signal is not None else ""
    yield f"Training: started {training.started_at or 'not yet'}, ended {training.ended_at or 'not yet'}{ending}"
    if status.failure_sentence is not None:
        yield f"Failure: {status.failure_sentence}"
    for node in training.nodes:
        if node.why is not None:
            yield f"Node {node.node_rank}: {node.why}"
    yield _telemetry(status.telemetry)
    if status.stalled_ranks:
        yield f"Stalled: no step on {ranks_text(status.stalled_ranks)} for {STALLED_S:.0f} s"


def _telemetry(facts: TelemetryFacts) -> str:
    records = facts.records
    reason = f" ({facts.reason})" if facts.reason else ""
    authenticated = "" if facts.authenticated else "; not authenticated"
    rejected = f", {facts.frames_rejected} frames refused" if facts.frames_rejected else ""
    return (
        f"Telemetry: {facts.status}{reason}; {records.stored} step records stored, {records.salvaged} salvaged,"
        f" {records.dropped} dropped{rejected}{authenticated}"
    )


def _ranks(status: RunStatus) -> Iterator[str]:
    finished = sum(rank.state == "finished" for rank in status.ranks)
    yield f"Ranks: {len(status.ranks)} expected, {finished} finished"
    if status.ranks:
        yield "  rank  state      last step  last seen"
    for rank in status.ranks[:_MAX_RANKS]:
        seen = "never" if rank.last_seen_s is None else f"{_duration(rank.last_seen_s)} ago"
        yield f"  {rank.rank:4}  {rank.state:9}  {rank.last_step:9}  {seen}"
    if len(status.ranks) > _MAX_RANKS:
        yield f"  and {len(status.ranks) - _MAX_RANKS} more; --json has all of them"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
