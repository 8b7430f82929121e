"""Pure: how torchrun, the daemon and we ended -> the command's exit code and the last lines on the terminal.

Training and telemetry never influence one another: the exit code is made from the first alone.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceml_client.protocol.manifest import TelemetryReason, TelemetryStatus, TrainingStatus

MAX_FAILURE_LINES = 6
PREFIX = "[TraceML]"

Tone = Literal["plain", "good", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """How training ended on this node."""

    exit_code: int | None
    """torchrun's; null if a signal ended it or it was never started."""
    signal: str | None = None
    """The signal that ended torchrun itself, such as SIGKILL."""
    interrupted_by: str | None = None
    """The first signal that the launcher got, or the terminal sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryEnd:
    status: TelemetryStatus
    reason: TelemetryReason | None
    report: Path | None = None
    """The summary's text, where one was written."""


@dataclass(frozen=True, slots=True)
class FinalLine:
    text: str
    tone: Tone = "plain"


def exit_code_of(training: TrainingEnd) -> int:
    """The command's exit code: 128 + n for a signal to the launcher or the end of torchrun by one, else torchrun's."""
    ending = training.interrupted_by or training.signal
    if ending is not None:
        return 128 + int(signal.Signals[ending])
    return 1 if training.exit_code is None else training.exit_code


def training_status_of(training: TrainingEnd) -> TrainingStatus:
    if training.interrupted_by is not None:
        return "interrupted"
    return "completed" if training.signal is None and training.exit_code == 0 else "failed"


def final_lines(
    training: TrainingEnd,
    *,
    verdict_lines: Sequence[str] = (),
    stderr_path: Path | None = None,
    stdout_path: Path | None = None,
    telemetry: TelemetryEnd | None = None,
    is_quiet: bool = False,
) -> list[FinalLine]:
    """What the launcher prints last, in the contract's order.

    Args:
        verdict_lines: the diagnosis, in whole lines without a prefix; beyond six they are cut.
        stderr_path: the saved streams of this node; null where none are saved.
        telemetry: null on nodes that do not own the run: they cannot know.
        is_quiet: only what went wrong.
    """
    has_failed = training_status_of(training) != "completed"
    tone: Tone = "bad" if has_failed else "plain"
    said = verdict_lines[:MAX_FAILURE_LINES] if has_failed or not is_quiet else ()
    lines = [FinalLine(f"{PREFIX} {text}", tone) for text in said]
    if not is_quiet or has_failed:
        if stderr_path is not None:
            lines.append(FinalLine(f"{PREFIX} Stderr: {stderr_path}"))
        if stdout_path is not None:
            lines.append(FinalLine(f"{PREFIX} Stdout: {stdout_path}"))
    if telemetry is not None and (not is_quiet or telemetry.status == "failed"):
        lines.append(_telemetry_line(telemetry))
    if not is_quiet or has_failed:
        lines.append(_outcome_line(training))
    return lines


def render(line: FinalLine, *, has_color: bool) -> str:
    """The line as the terminal gets it."""
    color = {"plain": "", "good": "\x1b[32m", "bad": "\x1b[31m"}[line.tone]
    return f"{color}{line.text}\x1b[0m" if has_color and color else line.text


def _telemetry_line(telemetry: TelemetryEnd) -> FinalLine:
    reason = f" ({telemetry.reason})" if telemetry.reason else ""
    report = f"; report: {telemetry.report}" if telemetry.report else ""
    tone: Tone = "bad" if telemetry.status == "failed" else "plain"
    return FinalLine(f"{PREFIX} Telemetry: {telemetry.status}{reason}{report}", tone)


def _outcome_line(training: TrainingEnd) -> FinalLine:
    code = exit_code_of(training)
    if training.interrupted_by is not None:
        return FinalLine(f"{PREFIX} Training was interrupted by {training.interrupted_by} (exit code {code}).", "bad")
    if training.signal is not None:
        return FinalLine(
            f"{PREFIX} Training failed: torchrun was ended by {training.signal} (exit code {code}).", "bad"
        )
    if training.exit_code is None:
        return FinalLine(f"{PREFIX} Training failed: torchrun could not be started (exit code {code}).", "bad")
    if training.exit_code == 0:
        return FinalLine(f"{PREFIX} Training completed (exit code 0).", "good")
    return FinalLine(f"{PREFIX} Training failed: torchrun exited with code {code}.", "bad")
