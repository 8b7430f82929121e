"""One redacted archive for a ticket: the report, the manifest, and the ends of the streams. Blocks."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import FILE_NAME, encode_json
from traceml_daemon.commands.redaction import Redactor
from traceml_daemon.log_files.log_reading import read_tail
from traceml_daemon.report.form import FailureReport
from traceml_daemon.report.text import failure_text

_MAX_FILES: Final = 200


def write_bundle(path: Path, report: FailureReport, files: Iterable[Path], redactor: Redactor) -> None:
    """`report` is redacted already. An archive of that name is replaced only when the new one is whole.

    Raises:
        StoreError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with tarfile.open(partial, "w:gz") as archive:
            for name, content in _members(report, files, redactor):
                member = tarfile.TarInfo(f"traceml-bundle/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StoreError(f"--bundle {path}: {error.strerror or error}") from None


def _members(report: FailureReport, files: Iterable[Path], redactor: Redactor) -> Iterator[tuple[str, bytes]]:
    yield "failure_report.json", encode_json(report)
    yield "failure_report.txt", failure_text(report).encode(errors="backslashreplace")
    for number, file in enumerate(files):
        if number < _MAX_FILES and file.is_file():
            name = file.name if file.name == FILE_NAME else f"tails/{number:03}-{redactor.text(file.name)}"
            yield name, redactor.text(read_tail(file)).encode(errors="backslashreplace")
