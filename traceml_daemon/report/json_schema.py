"""The JSON Schemas that ship with the package, made from the very types that are written.

    python -m traceml_daemon.report.json_schema

writes them anew after a change of a type; a test fails where that was forgotten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from traceml_client.protocol.manifest import Manifest, encode_json
from traceml_client.protocol.node import NodeReport
from traceml_daemon.report.compare_form import Comparison, RunTable
from traceml_daemon.report.form import FailureReport, FinalSummary
from traceml_daemon.run.run_status import RunStatus

DIRECTORY: Final = Path(__file__).parent / "schemas"
TYPES: Final[dict[str, type]] = {
    "final_summary": FinalSummary,
    "failure_report": FailureReport,
    "manifest": Manifest,
    "node": NodeReport,
    "comparison": Comparison,
    "run_table": RunTable,
    "status": RunStatus,
}


def document(name: str) -> dict[str, Any]:
    """The schema of `name`.json. Every field that we write is required, also where reading gets by without it."""
    schema = msgspec.json.schema(TYPES[name])
    for definition in schema["$defs"].values():
        if definition.get("type") == "object" and "properties" in definition:
            definition["required"] = list(definition["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def path_of(name: str) -> Path:
    return DIRECTORY / f"{name}.schema.json"


if __name__ == "__main__":
    for each in TYPES:
        path_of(each).write_bytes(encode_json(document(each)))
