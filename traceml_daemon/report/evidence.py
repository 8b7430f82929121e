"""Finds the line of a file that a diagnosis rests on, so that a reader can look for himself.

Files may be huge, binary or gone: they are read in pieces up to a bound, and no evidence is better than a wrong line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol.launch import NODE_FILE, layout_node_dir
from traceml_daemon.report.categories import short_type
from traceml_daemon.report.failure import Diagnosis, stderr_of
from traceml_daemon.report.form import Evidence, FailureReport
from traceml_daemon.report.symptoms import Symptom

_MAX_FILE_BYTES: Final = 64 << 20
"""0.1 s of reading; the launcher keeps streams without a cap, but what is said last is at their end."""
_MAX_TEXT: Final = 500


def with_evidence(diagnosis: Diagnosis, run_dir: Path) -> FailureReport:
    """The report, with the line that its initiating rank's failure can be read from, if there is one."""
    report, initiator = diagnosis
    if initiator is None or report.evidence:
        return report
    read = initiator.reading.evidence if initiator.reading is not None else None
    found = _error_line(initiator, run_dir) or (read if initiator.signal is None else None)
    exit_line = _exit_line(initiator, run_dir)
    chosen = tuple(one for one in (found or exit_line, read if found is None else None) if one is not None)
    return msgspec.structs.replace(report, evidence=chosen)


def _error_line(initiator: Symptom, run_dir: Path) -> Evidence | None:
    """The last line of the traceback in the rank's own stream, behind a module's name or `[rank1]:` as it may be."""
    error = initiator.error
    if error is None:
        return None
    first_line = error.message.partition("\n")[0]
    name = short_type(error)
    return _last_line(run_dir, stderr_of(initiator.attempt), f"{name}: {first_line}" if first_line else name)


def _exit_line(initiator: Symptom, run_dir: Path) -> Evidence | None:
    """The rank's exit code or signal in its node's report."""
    file = f"{layout_node_dir(initiator.attempt.incarnation.node_index)}/{NODE_FILE}"
    name, value = ("signal", f'"{initiator.signal}"') if initiator.signal else ("exit_code", str(initiator.exit_code))
    is_own = False
    for number, line in enumerate(_lines(run_dir / file), 1):
        text = line.decode(errors="replace").strip()
        if text.startswith('"pid":'):
            is_own = text.rstrip(",") == f'"pid": {initiator.attempt.place.pid}'
        elif is_own and text.rstrip(",") == f'"{name}": {value}':
            return Evidence(file, number, text)
    return None


def _last_line(run_dir: Path, file: str, needle: str) -> Evidence | None:
    """The last line that holds `needle`: an error that ends a process is the last of its kind."""
    wanted, found = needle.encode(errors="surrogatepass"), None
    for number, line in enumerate(_lines(run_dir / file), 1):
        if wanted in line:
            found = number, line
    if found is None:
        return None
    text = found[1].decode(errors="replace").strip("\r\n")
    return Evidence(file, found[0], text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT])


def _lines(path: Path) -> Iterator[bytes]:
    """Lines end at a newline only. None where the file is not there, or too large to be read now."""
    try:
        if path.stat().st_size <= _MAX_FILE_BYTES:
            with path.open("rb") as file:
                yield from file
    except OSError:
        return
