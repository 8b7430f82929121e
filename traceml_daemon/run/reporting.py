"""The way to the reports: on a thread that can be left behind, and imported only when there is one to make."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from traceml_client.protocol.errors import TracemlError
from traceml_daemon.config import RunConfig
from traceml_daemon.errors import ReportError
from traceml_daemon.report.facts import Reported, RunFacts

_P = ParamSpec("_P")
_T = TypeVar("_T")


def write_reports(run_dir: Path, facts: RunFacts, config: RunConfig) -> Reported:
    """Write final_summary and failure_report as this run asks for them. Blocks.

    Raises:
        ReportError: one of them could not be made or written.
    """
    from traceml_daemon.report import write  # numpy: 25 MB and 100 ms that no run pays before its end

    try:
        return write.write_reports(run_dir, facts, config.has_history, has_html=config.has_html)
    except ReportError:
        raise
    except (TracemlError, OSError) as error:
        raise ReportError(f"{type(error).__name__}: {error}") from None


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
