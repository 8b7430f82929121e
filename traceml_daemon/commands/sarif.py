"""A failure report as SARIF 2.1.0, which editors and code hosts open at the lines of the evidence. Blocks."""

from __future__ import annotations

import re
from collections import deque
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from traceml_daemon.log_files.catalog import load_entry
from traceml_daemon.report.form import Evidence, FailureReport

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LINES_BEFORE: Final = 200
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY: Final = re.compile(r"(?:site|dist)-packages|/lib/python\d|^<")


def build_sarif(report: FailureReport, folder: Path = Path()) -> dict[str, Any]:
    """`folder`: what the evidence's files are relative to."""
    entry = load_entry(report.category)
    own = [line for line in (_own_line(folder / one.file, one.line) for one in report.evidence) if line is not None]
    rule = {
        "id": report.category,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.cause},
        "help": {"text": f"{report.next_step}\n\n{report.command or ''}".strip()},
    }
    result = {
        "ruleId": report.category,
        "level": "none" if report.category == "ok" else "warning" if report.confidence == "unknown" else "error",
        "message": {"text": f"{report.summary} ({report.category}, {report.confidence}). {report.next_step}"},
        "locations": [_location(*line) for line in own[:1]] or [_of_evidence(one) for one in report.evidence[:1]],
        "relatedLocations": [
            {**_of_evidence(one), "id": number, "message": {"text": one.text}}
            for number, one in enumerate(report.evidence, 1)
        ],
        "properties": {"initiating_rank": report.initiating_rank, "confidence": report.confidence},
    }
    driver = {"name": "TraceML", "version": metadata.version("traceml-daemon"), "rules": [rule]}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": [result]}]}


def _of_evidence(evidence: Evidence) -> dict[str, Any]:
    return _location(evidence.file, evidence.line)


def _location(file: str, line: int | None) -> dict[str, Any]:
    uri = f"file://{quote(file)}" if file.startswith("/") else quote(file)
    place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if line is not None:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}


def _own_line(path: Path, line: int | None) -> tuple[str, int] | None:
    """The innermost frame of the user's own source in the traceback above this line."""
    if line is None:
        return None
    try:
        with path.open("rb") as file:
            before = deque(islice(file, line), maxlen=_LINES_BEFORE)
    except OSError:
        return None
    for raw in reversed(before):
        text = raw.decode("utf-8", "replace")
        if "Traceback (most recent" in text:
            return None
        found = _FRAME.search(text)
        if found is not None and not _LIBRARY.search(found[1]):
            return found[1], int(found[2])
    return None
