"""The end of a run, step by step: manifest at once, then drain, seal, reports, manifest again, launchers told.

Every step is bounded by the seal's deadline, and the last manifest is written whatever the others did. Training's
outcome is in the manifest before any of this begins.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceml_client.protocol.launch import TOKEN_FILE
from traceml_client.protocol.manifest import TelemetryFacts, rfc3339
from traceml_client.protocol.messages import RunFinalized
from traceml_daemon.core import events as ev
from traceml_daemon.errors import ReportError
from traceml_daemon.report.facts import Reported
from traceml_daemon.run.final_files import (
    ERROR_FILE,
    WARNING_FILE,
    error_document,
    forget_earlier,
    has_warnings,
    in_thread,
    warning_document,
    write_reports,
)
from traceml_daemon.run.run_facts import RunKnowledge, final_fields, run_facts, telemetry_facts, training_outcome
from traceml_daemon.storage.reserve import MANIFEST_BYTES
from traceml_daemon.storage.rows import INTERRUPTED_NS

if TYPE_CHECKING:
    from traceml_daemon.run.session import Session

_LEAST_S: Final = 0.5
"""What a step gets even where the budget is spent: a quick one then still succeeds."""

_log = logging.getLogger("traceml_daemon")


_MAX_NEWS_NS: Final = 5_000_000_000
"""So long the news of a signal may be on its way; what was said to be earlier was said by another clock."""


def signalled_ns(*, said_ns: int, heard_ns: int) -> int:
    """When the launcher got its signal: what ranks do in answer may be faster than its message to the daemon."""
    return said_ns if 0 <= heard_ns - said_ns <= _MAX_NEWS_NS else heard_ns


class Sealing:
    """Executes what the core says about the end of one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._training_ended_ns: int | None = None
        self.interrupted_ns: int | None = None
        """The owner's first signal; from the database where an earlier daemon heard of it."""
        self._provisional: asyncio.Task[None] | None = None

    # --- commands -------------------------------------------------------------------------------------------------

    def mark_interrupted(self, command: ev.MarkInterrupted) -> None:
        """The first signal: an `interrupted` manifest and a provisional summary, both replaced at the end."""
        session = self._session
        if self.interrupted_ns is None:
            self.interrupted_ns = signalled_ns(said_ns=command.at_ns, heard_ns=session.clock.wall_ns())
            session.store.put_meta(INTERRUPTED_NS, str(self.interrupted_ns))
        session.say(f"interrupted by {command.signal}")
        session.manifest.update(status="interrupted")
        if session.config.has_history and session.store.has_live_readers:
            self._provisional = session.start_task(self._report_provisionally())

    def end_training(self, command: ev.EndTraining) -> None:
        session, verdict = self._session, command.verdict
        session.store.when_committed(lambda: None)  # from now on nothing waits for company
        self._training_ended_ns = self._wall_ns(command)
        session.say(f"training {verdict.status}, exit code {verdict.exit_code}, signal {verdict.signal}")
        session.files.submit(session.files.reserve.lend, MANIFEST_BYTES)
        session.manifest.update(
            status=verdict.status,
            lifecycle=session.manifest.lifecycle_with(training_ended_at=rfc3339(self._training_ended_ns)),
            training=training_outcome(self._knowledge(), verdict),
        )

    async def seal(self, command: ev.SealRun) -> None:
        """From the last record to the last file. Does not raise."""
        session = self._session
        try:
            telemetry, reported = await self._finalize(command)
        except Exception as error:  # noqa: BLE001 - the daemon's outermost boundary: the manifest is written regardless
            _log.error("finalization failed\n%s", traceback.format_exc())
            telemetry, reported = self._failed(command, f"{type(error).__name__}: {error}"), Reported()
        session.files.submit((session.config.run_dir / TOKEN_FILE).unlink, True)  # where it was offered: it is over
        session.manifest.finish(
            lifecycle=session.manifest.lifecycle_with(finalized_at=rfc3339(session.clock.wall_ns())),
            **final_fields(self._knowledge(), command, telemetry, reported.failure_sentence),
        )
        await session.files.flush()
        session.say(f"telemetry {telemetry.status}, reason {telemetry.reason}")
        session.conclude(RunFinalized(telemetry.status, telemetry.reason, reported.verdict_lines))

    # --- steps ----------------------------------------------------------------------------------------------------

    async def _finalize(self, command: ev.SealRun) -> tuple[TelemetryFacts, Reported]:
        session = self._session
        session.files.submit(forget_earlier, session.config.run_dir)
        try:
            async with asyncio.timeout(self._remaining_s(command)):
                await self._close_telemetry()
        except TimeoutError:
            raise ReportError("the database could not be closed in time") from None
        finally:  # what the database could not have, the reports may need
            session.files.submit(session.files.reserve.release)
        known = self._knowledge()
        telemetry = telemetry_facts(known, command)
        self._warn(command, telemetry)
        facts = run_facts(known, command, telemetry, generated_ns=session.clock.wall_ns())
        await session.files.flush()
        try:
            async with asyncio.timeout(self._remaining_s(command)):
                reported = await in_thread(write_reports, session.config.run_dir, facts, session.config)
        except TimeoutError:
            return self._failed(command, "the reports were not written in time", "finalize_timeout"), Reported()
        except ReportError as error:
            return self._failed(command, str(error)), error.reported
        if reported.faults:
            for fault in reported.faults:
                session.warn(fault)
            self._warn(command, telemetry)
        return telemetry, reported

    async def _close_telemetry(self) -> None:
        """Drain, cut the ranks off, write what is known of each, make the database whole."""
        session = self._session
        if self._provisional is not None:
            await asyncio.wait([self._provisional])
        await session.store.drain()
        for slot in session.roster:
            if slot.connection is not None:
                slot.connection.close()
            slot.close()
            session.keep(slot)
        await session.store.seal()

    async def _report_provisionally(self) -> None:
        """A summary of what is stored so far, in case nothing better follows."""
        session, core = self._session, self._session.core
        await session.store.drain()
        finished, missing = core.split_ranks()
        seal = ev.SealRun(reason="ranks_missing", verdict=core.verdict(), finished=finished, missing=missing)
        known = self._knowledge()
        telemetry = telemetry_facts(known, seal, is_pending=True)
        facts = run_facts(known, seal, telemetry, generated_ns=session.clock.wall_ns(), is_provisional=True)
        try:
            await in_thread(write_reports, session.config.run_dir, facts, session.config)
        except ReportError as error:
            session.warn(f"the provisional summary could not be written: {error}")

    def _warn(self, command: ev.SealRun, telemetry: TelemetryFacts) -> None:
        """finalization_warning.json, where there is something to warn of."""
        session = self._session
        if not has_warnings(session.all_warnings(), telemetry):
            return
        now_ns, rejected = session.clock.wall_ns(), session.rejected_by_peer()
        session.files.write_json(
            WARNING_FILE,
            warning_document(self._knowledge(), command, telemetry, rejected_by_peer=rejected, now_ns=now_ns),
        )

    def _failed(self, command: ev.SealRun, text: str, reason: Any = "finalization_error") -> TelemetryFacts:
        """No report: finalization_error.json says why."""
        session = self._session
        session.files.write_json(ERROR_FILE, error_document(session.config.run_id, text, session.clock.wall_ns()))
        telemetry = telemetry_facts(self._knowledge(), command)
        return msgspec.structs.replace(telemetry, status="failed", reason=reason)

    # --- what is known --------------------------------------------------------------------------------------------

    def _knowledge(self) -> RunKnowledge:
        session = self._session
        return RunKnowledge(
            config=session.config,
            roster=session.roster,
            core=session.core,
            node_reports=session.node_reports,
            training_started_ns=session.training_started_ns,
            training_ended_ns=self._training_ended_ns,
            interrupted_ns=self.interrupted_ns,
            warnings=session.all_warnings(),
            frames_rejected=session.num_frames_rejected,
            is_authenticated=session.roster.is_authenticated,
            storage_failure=session.store.failure,
        )

    def _wall_ns(self, command: ev.EndTraining) -> int:
        """When training ended: as the owner's launcher said, else as the core found."""
        session = self._session
        for node in session.roster.nodes.values():
            report = session.node_reports.get(node.node_index)
            if node.is_owner and report is not None and report.ended_ns is not None:
                return report.ended_ns
        return session.clock.wall_ns() - int((session.clock.now_s() - command.ended_s) * 1e9)

    def _remaining_s(self, command: ev.SealRun) -> float:
        return max(_LEAST_S, command.deadline_s - self._session.clock.now_s())
