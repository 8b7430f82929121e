"""Reads what the ranks of a failed job printed, and its last good run, for the lines that stand out. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import read_manifest
from traceml_daemon.log_files.log_reading import large_screen, rank_of_name, read_chunks
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.report.form import Evidence, FailureReport
from traceml_daemon.report.saved import read_node_reports
from traceml_daemon.run.run_lookup import runs_in
from traceml_daemon.triage.contrast import WORDS, Contrast, Odd, StreamReader

_MAX_BYTES: Final = 64 << 20
"""Of all streams together: a second of reading. With more nothing is compared."""
_MAX_ITEMS: Final = 3


def contrast_run(report: FailureReport, run_dir: Path) -> FailureReport:
    """The report and the lines that stand out of the last attempt of each rank of this run.

    Raises:
        OSError: a stream or the folder of runs cannot be read.
    """
    names = [str(path.relative_to(run_dir)) for path in _streams(run_dir)]
    return contrast_files(report, names, run_dir, _last_good_run(run_dir))


def contrast_files(
    report: FailureReport, names: Sequence[str], folder: Path = Path(), good_run: Path | None = None
) -> FailureReport:
    """The same of log files; a line belongs to the rank that its prefix names, or its file.

    Raises:
        OSError: one of them cannot be read.
    """
    paths = [folder / name for name in names]
    good_paths = list(_streams(good_run)) if good_run is not None else []
    if report.category == "ok" or not all(path.is_file() for path in paths) or _num_bytes(paths) > _MAX_BYTES:
        return report
    contrast, returns = Contrast(large_screen(_num_bytes([*paths, *good_paths]), WORDS)), {}
    for file, path in enumerate(paths):
        reader = contrast.reader(file, rank_of_name(path.as_posix()))
        _feed(reader, path)
        returns[file] = reader.first_return
    if good_paths and _num_bytes(good_paths) <= _MAX_BYTES:
        for path in good_paths:
            _feed(contrast.good_run_reader(), path)
    lines = contrast.odd_lines(load_book())
    good_name = good_run.name if good_run is not None else ""
    quoted = [item.text for item in report.evidence]
    items = [_evidence(line, names[line.place.file], returns[line.place.file], good_name) for line in lines]
    items = [item for item in items if not any(item.text in text or text in item.text for text in quoted)][:_MAX_ITEMS]
    rank = contrast.odd_rank(lines) if report.confidence == "unknown" and report.initiating_rank is None else None
    summary = report.summary if rank is None else f"{report.summary}; look first at rank {rank}, whose errors stand out"
    return msgspec.structs.replace(report, summary=summary, evidence=(*report.evidence, *items))


def _evidence(line: Odd, name: str, first_return: int | None, good_name: str) -> Evidence:
    number, rank = line.place.line, line.rank
    contrast = f"Only rank {rank} printed" if rank is not None else f"Not in the last good run ({good_name})"
    return Evidence(name, number if first_return is None or number < first_return else None, line.place.quote, contrast)


def _streams(run_dir: Path) -> Iterator[Path]:
    """Of each rank's last attempt."""
    for folder in sorted(run_dir.glob("nodes/node_*/ranks/rank_*")):
        attempts = sorted(folder.glob("attempt_*"), key=lambda path: (len(path.name), path.name))
        yield from (path for path in sorted(attempts[-1].glob("std*.log")) if path.is_file()) if attempts else ()


def _last_good_run(run_dir: Path) -> Path | None:
    """The newest completed run of the same script and world size before this one, in the same folder."""
    try:
        own = read_manifest(run_dir)
    except StoreError:
        return None
    script = _script(run_dir)
    for path, manifest in runs_in(run_dir.absolute().parent) if script else ():
        is_earlier = manifest.status == "completed" and manifest.created_at < own.created_at
        if is_earlier and manifest.topology.world_size == own.topology.world_size and _script(path) == script:
            return path
    return None


def _script(run_dir: Path) -> str:
    """Empty where no node tells."""
    return next((report.script for report in read_node_reports(run_dir)), "")


def _num_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _feed(reader: StreamReader, path: Path) -> None:
    with path.open("rb") as file:
        for chunk in read_chunks(file):
            reader.feed(chunk)
    reader.finish()
