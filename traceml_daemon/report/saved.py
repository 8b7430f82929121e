"""Reads a report back that was written before."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceml_client.protocol.errors import StoreError
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.write import SUMMARY_FILE


def read_summary(run_dir: Path) -> FinalSummary:
    """Raises StoreError with one line that names the file if it is missing, damaged or of another form."""
    path = run_dir / SUMMARY_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=FinalSummary)
    except FileNotFoundError:
        raise StoreError(
            f"{path} is missing; `traceml view {run_dir}` makes it, unless the run was made with --no-history"
        ) from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged or of another version: {error}") from None
