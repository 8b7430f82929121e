"""`traceml diagnose`: reads log files in pieces, or a run folder, and prints what failed first. Blocks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import encode_json
from traceml_daemon.contrasting import contrast_files
from traceml_daemon.log_reading import CHUNK_BYTES, feed, large_screen, read_chunks, read_file
from traceml_daemon.report.form import FailureReport
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage_report import build_report

EXIT_FOUND: Final = 0
EXIT_UNKNOWN: Final = 3
STDIN: Final = "-"
FAILURE_FILE: Final = "failure_report.json"


def diagnose(names: Sequence[str], run_dir: Path | None = None, *, is_json: bool) -> int:
    """Print the diagnosis of these log files or standard input, or of this run; return the exit code.

    Raises:
        StoreError: one of them cannot be read, or is no log.
    """
    report = _diagnose_logs(names) if run_dir is None else _diagnose_run(run_dir)
    text = encode_json(report).decode() if is_json else _as_text(report)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return EXIT_UNKNOWN if report.confidence == "unknown" else EXIT_FOUND


def _diagnose_run(run_dir: Path) -> FailureReport:
    """As its daemon found; of a run without a report, what its nodes' streams tell."""
    try:
        return msgspec.json.decode((run_dir / FAILURE_FILE).read_bytes(), type=FailureReport)
    except FileNotFoundError:
        streams = sorted(run_dir.glob("nodes/*/training.*.log")) + sorted(run_dir.glob("nodes/*/ranks/*/*/std*.log"))
        names = [str(path) for path in streams if path.stat().st_size]
        return _diagnose_logs(names)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{run_dir / FAILURE_FILE}: {error}") from None


def _diagnose_logs(names: Sequence[str]) -> FailureReport:
    seen = Observations()
    for index, name in enumerate(names):
        try:
            _read(name, index, seen)
        except OSError as error:
            raise StoreError(f"{name}: {error.strerror or error}") from None
    try:
        return contrast_files(build_report(judge(seen), names), names)
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror or error}") from None


def _read(name: str, index: int, seen: Observations) -> None:
    """Raises OSError, StoreError."""
    if name == STDIN:
        start = sys.stdin.buffer.read(CHUNK_BYTES)
        _refuse_binary("standard input", start)
        screen = large_screen(1 << 30) if len(start) == CHUNK_BYTES else None
        feed(chain([start], read_chunks(sys.stdin.buffer)), index, seen, screen=screen)
        return
    path = Path(name)
    if path.is_dir():
        raise StoreError(f"{name} is a folder, not a log file")
    with path.open("rb") as file:
        _refuse_binary(name, file.read(1 << 16))
    read_file(path, index, seen)


def _refuse_binary(name: str, start: bytes) -> None:
    """Some NULs are what a crash leaves in a log; a file of them is none. Raises StoreError."""
    sample = start[: 1 << 16]
    if sample.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd", b"PK\x03\x04")):
        raise StoreError(f"{name} is compressed: unpack it first, or pipe it in: zcat {name} | traceml diagnose -")
    odd = sample.translate(None, delete=bytes(range(32, 256)) + b"\t\n\r\x1b\f\b")
    if len(odd) > 0.3 * len(sample):
        raise StoreError(f"{name} is no text: {len(odd)} of its first {len(sample)} bytes are control characters")


def _as_text(report: FailureReport) -> str:
    from traceml_daemon.report.text import failure_text

    return failure_text(report)
