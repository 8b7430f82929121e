"""The files of a finalization: the reports, what to be warned of, and why there is no report.

Reports are made on a thread that can be left behind, by code that is imported only when there is one to make.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from traceml_client.protocol.launch import AGGREGATOR_DIR
from traceml_client.protocol.manifest import TelemetryFacts, rfc3339
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.report.facts import Reported, RunFacts
from traceml_daemon.run.run_facts import RunKnowledge

SCHEMA_VERSION: Final = 1
WARNING_FILE: Final = f"{AGGREGATOR_DIR}/finalization_warning.json"
ERROR_FILE: Final = f"{AGGREGATOR_DIR}/finalization_error.json"


def forget_earlier(run_dir: Path) -> None:
    """What an earlier finalization of this run warned of need not be true any more. Blocks. Raises OSError."""
    for name in (WARNING_FILE, ERROR_FILE):
        (run_dir / name).unlink(missing_ok=True)


def has_warnings(warnings: tuple[str, ...], telemetry: TelemetryFacts) -> bool:
    """Whether a finalization warning is to be written."""
    return bool(warnings or telemetry.ranks_missing) or telemetry.status not in ("complete", "unavailable")


def warning_document(
    known: RunKnowledge,
    seal: ev.SealRun,
    telemetry: TelemetryFacts,
    *,
    rejected_by_peer: Mapping[str, Mapping[str, int]],
    now_ns: int,
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": known.config.run_id,
        "generated_at": rfc3339(now_ns),
        "reason": seal.reason,
        "telemetry_status": telemetry.status,
        "telemetry_reason": telemetry.reason,
        "ranks_expected": telemetry.ranks_expected,
        "ranks_finished": telemetry.ranks_finished,
        "ranks_missing": telemetry.ranks_missing,
        "records": telemetry.records,
        "frames_rejected": rejected_by_peer,
        "warnings": known.warnings,
    }


def error_document(run_id: str, error: str, now_ns: int) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "run_id": run_id, "generated_at": rfc3339(now_ns), "error": error}


_P = ParamSpec("_P")
_T = TypeVar("_T")


@cache
def import_ahead(*, has_history: bool) -> None:
    """The first rank has finished: what makes reports is imported beside the ends of ranks and torchrun.

    numpy alone is 25 MB and 100 ms: no run pays them before its end, and nobody waits for them there.
    """

    def work() -> None:
        import_module("traceml_daemon.report.write")
        if has_history:
            import_module("traceml_daemon.report.summary")

    threading.Thread(target=work, name="import", daemon=True).start()


def write_reports(run_dir: Path, facts: RunFacts, config: RunConfig) -> Reported:
    """Write final_summary and failure_report as this run asks for them. Blocks.

    Raises:
        ReportError: one of them could not be made or written.
    """
    from traceml_daemon.report import write

    return write.write_reports(run_dir, facts, config.has_history, has_html=config.has_html)


async def in_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Await `work` on a thread of its own. If this is cancelled, the thread goes on and its result is nobody's.

    Unlike a pool's threads it is a daemon thread: a report that hangs on a dead disk cannot keep the process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - handed over to whoever awaits it
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop is closed: nobody awaits it any more
            return

    threading.Thread(target=run, name="report", daemon=True).start()
    return await future
