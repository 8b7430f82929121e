"""A failure report as SARIF 2.1.0, which editors and code hosts open at the lines of the evidence. Blocks."""

from __future__ import annotations

from importlib import metadata
from typing import Any, Final
from urllib.parse import quote

from traceml_daemon.log_files.catalog import load_entry
from traceml_daemon.report.form import Evidence, FailureReport

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def build_sarif(report: FailureReport) -> dict[str, Any]:
    entry = load_entry(report.category)
    own = [_location(report.source.file, report.source.line)] if report.source is not None else []
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
        "locations": own or [_of_evidence(one) for one in report.evidence[:1]],
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
