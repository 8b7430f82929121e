"""Which check belongs to which kind, and whether this is the machine to make it on."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from traceml_daemon.report.form import FailureReport
from traceml_daemon.triage.entry import CatalogEntry, CheckKind
from traceml_daemon.verify import files, gpus, limits, ports, programs
from traceml_daemon.verify.case import Case, CheckResult, NotCheckable, gone, not_checkable, read_case

CHECKS: Final[dict[CheckKind, Callable[[Case], CheckResult]]] = {
    "memory_limit": limits.memory_limit,
    "shared_memory": limits.shared_memory,
    "port_free": ports.port_free,
    "port_permitted": ports.port_permitted,
    "rendezvous_address": ports.rendezvous_address,
    "path_exists": files.path_exists,
    "path_permitted": files.path_permitted,
    "free_space": files.free_space,
    "file_whole": files.file_whole,
    "open_files": limits.open_files,
    "processes": limits.processes,
    "module_found": programs.module_found,
    "command_found": programs.command_found,
    "gpu_count": gpus.gpu_count,
    "gpu_present": gpus.gpu_present,
    "gpu_driver": gpus.gpu_driver,
    "gpu_unused": gpus.gpu_unused,
    "gpu_health": gpus.gpu_health,
}


def verify(
    run_dir: Path,
    report: FailureReport,
    entry: CatalogEntry | None,
    environ: Mapping[str, str],
    *,
    is_here_enough: bool,
) -> CheckResult:
    """Make the check of the diagnosis on this machine. Blocks.

    Args:
        entry: of the diagnosed category; null where this version does not know it.
        is_here_enough: check this machine also where another one failed.
    """
    if report.category == "ok":
        return gone("nothing had failed")
    if entry is None or entry.verify is None:
        return not_checkable("no check of this machine could tell")
    case = read_case(run_dir, report, entry.verify, environ)
    host = _other_host(case)
    if host is not None and not is_here_enough:
        return not_checkable(f"it failed on {host} and this is {socket.gethostname()} (--here checks this one)")
    if entry.verify.when is not None and not case.has_in_evidence(entry.verify.when):
        return not_checkable("the evidence does not say which resource it was")
    try:
        result = CHECKS[entry.verify.kind](case)
    except NotCheckable as error:
        result = not_checkable(str(error))
    if report.confidence == "unknown":
        return not_checkable(f"the cause is not certain; {result.why}")
    return result


def _other_host(case: Case) -> str | None:
    """The host that failed, where it is known and not this one."""
    hosts = {case.node.host} if case.node is not None else {node.host for node in case.nodes.values()}
    if not hosts or socket.gethostname() in hosts:
        return None
    return re.sub(r"[^\w.-]", "?", sorted(hosts)[0])
