"""`traceml prune`: removes old run folders. Never one that may be alive, nor anything that is no run of ours."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil

from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.manifest import wall_ns
from traceml_client.protocol.node import NodeReport
from traceml_daemon.report.saved import read_node_reports
from traceml_daemon.run.run_lookup import runs_in
from traceml_daemon.run.run_manifest import may_be_alive

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """`30d`, `12h`: a whole number and one of s, m, h, d, w. Raises ConfigError."""
    number, unit = text[:-1], text[-1:]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS or len(number) > 6:
        raise ConfigError(f"--older-than {text!r}: a whole number and a unit, such as 30d or 12h (s, m, h, d, w)")
    return timedelta(**{_UNITS[unit]: int(number)})


def old_runs(logs: Path, *, keep: int | None, older_than: timedelta | None, now_ns: int) -> list[Path]:
    """The runs in `logs` that may go, oldest last: all but the `keep` newest, or all that ended that long ago."""
    over = [(path, found) for path, found in runs_in(logs) if not may_be_alive(found, now_ns=now_ns)]
    over = [(path, found) for path, found in over if not _has_living_launcher(path)]
    if keep is not None:
        return [path for path, _ in over[keep:]]
    assert older_than is not None
    limit_ns = now_ns - int(older_than.total_seconds() * 1e9)
    return [path for path, found in over if wall_ns(found.updated_at) <= limit_ns]


def remove(run_dir: Path) -> None:
    """Take it away in one step for whoever looks, then delete it.

    Raises:
        StoreError: it cannot be removed, or not completely; the text says what is left.
    """
    aside = run_dir.with_name(f".{run_dir.name}.removed-{secrets.token_hex(4)}")
    try:
        os.rename(run_dir, aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise StoreError(f"{error.filename or run_dir} cannot be removed: {error.strerror}") from None


def _has_living_launcher(run_dir: Path) -> bool:
    """Whether a launcher of this host, whose run has ended, still waits for what its ranks detached."""
    reports = read_node_reports(run_dir)
    return any(report.host == socket.gethostname() and _is_launcher(report) for report in reports)


def _is_launcher(report: NodeReport) -> bool:
    """Whether the process of that number is the launcher, and not a later one."""
    try:
        return psutil.Process(report.launcher_pid).create_time() * 1e9 <= (report.ended_ns or report.started_ns)
    except (psutil.Error, ValueError):
        return False
