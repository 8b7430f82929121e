"""Which files of a run folder its manifest lists, by which name. Daemon and launcher write manifests alike."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol import launch
from traceml_client.protocol.manifest import Manifest, write_manifest

SUMMARY_FILE: Final = "final_summary.json"
SUMMARY_TEXT_FILE: Final = "final_summary.txt"
HTML_FILE: Final = "final_summary.html"
FAILURE_FILE: Final = "failure_report.json"
FAILURE_TEXT_FILE: Final = "failure_report.txt"
_FIXED: Final = {
    **{name.replace(".", "_"): name for name in (SUMMARY_FILE, SUMMARY_TEXT_FILE, HTML_FILE)},
    **{name.replace(".", "_"): name for name in (FAILURE_FILE, FAILURE_TEXT_FILE)},
    "telemetry_database": launch.DATABASE_FILE,
    "aggregator_stderr": launch.AGGREGATOR_STDERR_FILE,
    "finalization_warning": f"{launch.AGGREGATOR_DIR}/finalization_warning.json",
    "finalization_error": f"{launch.AGGREGATOR_DIR}/finalization_error.json",
}
_FINAL_REPORTS: Final = frozenset(name for name in _FIXED if name.startswith(("final_summary", "failure")))
_OF_NODE: Final = {
    "stdout": launch.TRAINING_STDOUT_FILE,
    "stderr": launch.TRAINING_STDERR_FILE,
    "report": launch.NODE_FILE,
}


def find_artifacts(run_dir: Path, *, is_pending: bool) -> dict[str, str]:
    """Name to relative path of what exists. While telemetry is pending a report is provisional and not listed."""
    found = {
        name: path
        for name, path in _FIXED.items()
        if not (is_pending and name in _FINAL_REPORTS) and (run_dir / path).is_file()
    }
    for node_dir in sorted((run_dir / "nodes").glob("node_*")):
        for kind, name in _OF_NODE.items():
            if (node_dir / name).is_file():
                found[f"{node_dir.name}_{kind}"] = f"nodes/{node_dir.name}/{name}"
    return found


def write_with_artifacts(run_dir: Path, document: Manifest) -> None:
    """Write a manifest that lists the files which are there now. Blocks. Raises OSError."""
    artifacts = find_artifacts(run_dir, is_pending=document.telemetry_status == "pending")
    write_manifest(run_dir, msgspec.structs.replace(document, artifacts=artifacts))
