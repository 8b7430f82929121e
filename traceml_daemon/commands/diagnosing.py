"""`traceml diagnose`: reads log files in pieces, or a run folder, and reports what failed first. Blocks."""

from __future__ import annotations

import contextlib
import getpass
import shlex
import socket
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from traceml_client.protocol.artifacts import FAILURE_FILE
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import TRAINING_STDERR_FILE, layout_node_dir
from traceml_client.protocol.manifest import FILE_NAME as MANIFEST_FILE
from traceml_client.protocol.manifest import encode_json, read_manifest
from traceml_daemon.commands.redaction import Redactor
from traceml_daemon.log_files.catalog import advice
from traceml_daemon.log_files.contrasting import contrast_files
from traceml_daemon.log_files.log_reading import CHUNK_BYTES, feed, large_screen, rank_of_name, read_chunks, read_tail
from traceml_daemon.report.form import Collateral, Evidence, FailureReport, TorchrunView
from traceml_daemon.report.saved import read_failure
from traceml_daemon.report.text import failure_text
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.ends import signal_of
from traceml_daemon.triage.observations import Observations, Place
from traceml_daemon.triage.own_source import source_of
from traceml_daemon.triage.verdict import Verdict
from traceml_daemon.triage.windows import is_of_windows
from traceml_daemon.triage.wording import SIGNAL_NAMES, headline

MAX_EVIDENCE = 8
STDIN: Final = "-"


def build_report(verdict: Verdict, files: Sequence[str]) -> FailureReport:
    """`files`: the names under which evidence is quoted, in the order in which they were read."""
    evidence = tuple(
        Evidence(files[place.file], _line(place, verdict), place.quote) for place in _chosen(verdict.evidence)
    )
    file = evidence[0].file if evidence else files[0] if files else STDIN
    raised = verdict.initiator.raised if verdict.initiator is not None else None
    code = verdict.exit_code
    number = signal_of(code) if code is not None and not is_of_windows(code) else 0
    return FailureReport(
        **advice(verdict.category, verdict.confidence, stderr="STDERR_LOG" if file == STDIN else shlex.quote(file)),
        initiating_rank=verdict.rank,
        exit_code=code if not number else None,
        signal=SIGNAL_NAMES.get(number),
        summary=headline(verdict),
        evidence=evidence,
        collateral=tuple(Collateral(rank, reason) for rank, reason in sorted(verdict.collateral.items())),
        torchrun=_torchrun(verdict),
        source=source_of(raised) if raised is not None else None,
    )


def _line(place: Place, verdict: Verdict) -> int | None:
    """None behind a carriage return that a progress bar left: half of the tools count it as the end of a line."""
    return place.line if place.line < verdict.first_returns.get(place.file, place.line + 1) else None


def _chosen(places: Sequence[Place]) -> list[Place]:
    """The first of each line, and no more than a reader wants."""
    chosen: dict[tuple[int, int], Place] = {}
    for place in places:
        if place.quote:
            chosen.setdefault((place.file, place.line), place)
    return list(chosen.values())[:MAX_EVIDENCE]


def _torchrun(verdict: Verdict) -> TorchrunView:
    if verdict.torchrun_rank is None:
        return TorchrunView(None, None, "torchrun named no rank in these logs")
    if verdict.rank is None:
        why = "torchrun names the process that it saw end first, which is no proof"
        return TorchrunView(verdict.torchrun_rank, None, why)
    return TorchrunView(verdict.torchrun_rank, verdict.torchrun_why is None, verdict.torchrun_why)


EXIT_FOUND: Final = 0
EXIT_UNKNOWN: Final = 3


Form = Literal["text", "json", "sarif"]


def diagnose(
    names: Sequence[str], run_dir: Path | None, *, form: Form = "text", is_redacted: bool = False, bundle: Path | None
) -> int:
    """Print the diagnosis of these log files or standard input, or of this run; return the exit code.

    `bundle`: an archive to write, redacted in any case.

    Raises:
        StoreError: one of them cannot be read, or is no log; the bundle cannot be written.
    """
    report = _diagnose_logs(names) if run_dir is None else _diagnose_run(run_dir)
    redactor = Redactor(_known_names())
    files = _run_files(run_dir) if run_dir is not None else [path for name in names if (path := Path(name)).is_file()]
    for file in files if is_redacted else ():
        with contextlib.suppress(OSError):
            redactor.learn(read_tail(file))
    if bundle is not None:
        from traceml_daemon.commands.bundling import write_bundle

        write_bundle(bundle, redactor.struct(report), files, redactor)
    sys.stdout.write(_rendered(report, redactor, form, is_redacted=is_redacted))
    return EXIT_UNKNOWN if report.confidence == "unknown" else EXIT_FOUND


def _rendered(report: FailureReport, redactor: Redactor, form: Form, *, is_redacted: bool) -> str:
    if form == "sarif":
        from traceml_daemon.commands.sarif import build_sarif

        document = build_sarif(report)
        text = encode_json(redactor.value(document) if is_redacted else document).decode()
    else:
        shown = redactor.struct(report) if is_redacted else report
        text = encode_json(shown).decode() if form == "json" else failure_text(shown)
    return text if text.endswith("\n") else text + "\n"


def _known_names() -> list[str]:
    """This user and this machine, as far as they are known."""
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    with contextlib.suppress(OSError, KeyError):
        names.append(getpass.getuser())
    return [name for name in names if name not in ("root", "localhost")]


def _run_files(run_dir: Path) -> list[Path]:
    return [run_dir / "manifest.json", *_streams(run_dir)]


def _streams(run_dir: Path) -> list[Path]:
    """torchrun's own streams, then those of the ranks."""
    return sorted(run_dir.glob("nodes/*/training.*.log")) + sorted(run_dir.glob("nodes/*/ranks/*/*/std*.log"))


def _diagnose_run(run_dir: Path) -> FailureReport:
    """As its daemon found; of a run without a report, what its manifest or its nodes' streams tell."""
    if (run_dir / FAILURE_FILE).exists():
        return read_failure(run_dir)
    return _of_completed(run_dir) or _diagnose_logs([str(path) for path in _streams(run_dir) if path.stat().st_size])


def _of_completed(run_dir: Path) -> FailureReport | None:
    """That nothing failed, where the run says so itself; null for any other."""
    try:
        manifest, lines = read_manifest(run_dir), (run_dir / MANIFEST_FILE).read_text().splitlines()
    except (OSError, StoreError):
        return None
    if manifest.status != "completed":
        return None
    said = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip() == '"status": "completed",']
    stderr_file = run_dir / layout_node_dir(0) / TRAINING_STDERR_FILE
    stderr, run = shlex.quote(str(stderr_file)), shlex.quote(str(run_dir))
    return FailureReport(
        **advice("ok", "confirmed", stderr=stderr, run=run),
        initiating_rank=None,
        exit_code=manifest.training.exit_code,
        signal=None,
        summary="training completed, nothing failed",
        evidence=tuple(Evidence(MANIFEST_FILE, *one) for one in said[:1]),
        collateral=(),
        torchrun=TorchrunView(None, None, "torchrun named no rank"),
    )


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
    """In pieces and once: a pipe, such as a shell's `<(...)`, cannot be read again. Raises OSError, StoreError."""
    with contextlib.nullcontext(sys.stdin.buffer) if name == STDIN else Path(name).open("rb") as file:
        start = file.read(CHUNK_BYTES)
        _refuse_binary("standard input" if name == STDIN else name, start)
        screen = large_screen(1 << 30) if len(start) == CHUNK_BYTES else None
        feed(chain([start], read_chunks(file)), index, seen, screen=screen, rank=rank_of_name(name))


def _refuse_binary(name: str, start: bytes) -> None:
    """Some NULs are what a crash leaves in a log; a file of them is none. Raises StoreError."""
    sample = start[: 1 << 16]
    if sample.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd", b"PK\x03\x04")):
        raise StoreError(f"{name} is compressed: unpack it first, or pipe it in: zcat {name} | traceml diagnose -")
    if sample.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{name} is a database and no log; name the run's folder for its diagnosis")
    odd = sample.translate(None, delete=bytes(range(32, 256)) + b"\t\n\r\x1b\f\b\a")
    if len(odd) > 0.3 * len(sample) or len(odd) - odd.count(0) > 0.03 * len(sample):
        raise StoreError(f"{name} is no text: {len(odd)} of its first {len(sample)} bytes are control characters")
