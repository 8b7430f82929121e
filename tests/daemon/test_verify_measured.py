"""`traceml verify` where the answer depends on what the failed run was given and used."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.daemon.test_verify import ENTRIES, report_of
from tests.harness.database import Content, Step, write_database
from tests.harness.facts import Rank, node_report, run_facts
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.node import NodeReport
from traceml_daemon.report.measured_form import NodeSystem, RankMemory, RankProcess
from traceml_daemon.report.write import write_reports
from traceml_daemon.verify import gpus
from traceml_daemon.verify.case import Case, CheckResult
from traceml_daemon.verify.checks import verify

GIB = 2**30
TOTAL = psutil.virtual_memory().total
RANKS = [Rank(rank=0, signal="SIGKILL", exit_code=None, died_ms=1000.0), Rank(rank=1)]


def level(size: int) -> dict[str, float]:
    return {"mean": size / 2, "max": float(size), "last": float(size)}


def nothing_but(row: type[msgspec.Struct], **known: Any) -> dict[str, Any]:
    """A row of the summary in which nothing else was measured."""
    fields = msgspec.structs.fields(row)
    empty = {field.name: [] if str(field.type).startswith("tuple") else None for field in fields}
    return {**empty, **known}


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Path]:
    """A real summary whose samples are replaced by what is given; all sizes in bytes."""

    def write(*, system: dict[str, Any], peaks: list[int] | None = None, open_files: int | None = None) -> Path:
        node: NodeReport = msgspec.structs.replace(node_report(RANKS), host=socket.gethostname())
        facts = run_facts(RANKS, reports=[node])
        contents = {a.incarnation: Content(rank=a.place.rank, steps=[Step()] * 5) for a in facts.attempts}
        (tmp_path / DATABASE_FILE).unlink(missing_ok=True)
        write_database(tmp_path / DATABASE_FILE, contents)
        write_reports(tmp_path, facts, True)
        place = tmp_path / "nodes" / "node_0"
        place.mkdir(parents=True, exist_ok=True)
        (place / "node.json").write_bytes(msgspec.json.encode(node))
        path = tmp_path / "final_summary.json"
        summary = json.loads(path.read_bytes())
        summary["system"]["by_node"] = [nothing_but(NodeSystem, node_rank=0, **system)]
        summary["memory"]["by_rank"] = [
            nothing_but(RankMemory, rank=rank, peak_rss_bytes=peak) for rank, peak in enumerate(peaks or [])
        ]
        if open_files is not None:
            summary["process"]["by_rank"] = [nothing_but(RankProcess, rank=0, max_open_files=open_files)]
        path.write_text(json.dumps(summary))
        return tmp_path

    return write


def check(run_dir: Path, category: str, *evidence: str, **changes: int) -> CheckResult:
    entry = ENTRIES[category]
    if changes and entry.verify is not None:
        entry = msgspec.structs.replace(entry, verify=msgspec.structs.replace(entry.verify, **changes))
    return verify(run_dir, report_of(category, *evidence), entry, dict(os.environ), is_here_enough=False)


@pytest.mark.parametrize("category", ["host_oom_kill", "sigkill_unattributed", "host_memory_error"])
def test_memory_limit_that_was_raised_is_gone(category: str, measured: Callable[..., Path]) -> None:
    run_dir = measured(system={"memory_total_bytes": TOTAL, "cgroup_memory_limit_bytes": 64 * 2**20})
    result = check(run_dir, category)
    assert result.state == "gone"
    assert "64 MiB" in result.why


def test_the_same_memory_limit_used_up_is_still_there(measured: Callable[..., Path]) -> None:
    half = TOTAL // 2
    assert check(measured(system={"memory_total_bytes": TOTAL}, peaks=[half, half]), "host_oom_kill").state == (
        "still there"
    )
    by_group = {"memory_total_bytes": TOTAL, "cgroup_memory_bytes": level(TOTAL)}
    assert check(measured(system=by_group), "host_oom_kill").state == "still there"


def test_the_same_memory_limit_that_was_not_seen_used_up_says_nothing(measured: Callable[..., Path]) -> None:
    result = check(measured(system={"memory_total_bytes": TOTAL}, peaks=[GIB // 64, 0]), "host_oom_kill")
    assert result.state == "cannot be checked here"
    assert "16 MiB" in result.why


def test_shared_memory_no_larger_than_it_was_says_nothing(measured: Callable[..., Path]) -> None:
    shm = os.statvfs("/dev/shm")
    total = shm.f_frsize * shm.f_blocks
    same = check(measured(system={"shm_total_bytes": total}), "bus_error_shm", "Bus error", at_least_mib=1)
    assert same.state == "cannot be checked here"
    larger = check(measured(system={"shm_total_bytes": total // 4}), "bus_error_shm", "Bus error", at_least_mib=1)
    assert larger.state == "gone"


def test_open_files_are_measured_against_what_a_rank_had_open(measured: Callable[..., Path]) -> None:
    line = "Too many open files"
    assert check(measured(system={}, open_files=10**9), "too_many_open_files", line).state == "still there"
    assert check(measured(system={}, open_files=10), "too_many_open_files", line, at_least=1).state == "gone"


def install_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    """A program of that name that lists devices; there is no GPU where tests run."""
    program = folder / "nvidia-smi"
    listed = "\\n".join(str(number) for number in range(devices))
    program.write_text(f'#!/bin/sh\n[ "$1" = --query-gpu=index ] && printf "{listed}\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("devices", "visible", "nproc", "state"),
    [
        (8, None, 8, "gone"),
        (4, None, 8, "still there"),
        (8, "0,1,2,3", 8, "still there"),
        (8, "0,1,2,3", 4, "gone"),
        (8, "", 1, "still there"),
        (8, None, None, "cannot be checked here"),
    ],
)
def test_gpus_against_workers(
    devices: int, visible: str | None, nproc: int | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvidia_smi(tmp_path, monkeypatch, devices)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    entry_check = ENTRIES["invalid_device_ordinal"].verify
    assert entry_check is not None
    case = Case(tmp_path, report_of("invalid_device_ordinal"), entry_check, environ, {}, nproc, None)
    assert gpus.gpu_count(case).state == state


VERSION_FILES = [
    ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", None, False),
    ("__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n", (12, 4), False),
    ("__version__ = '1.9.0+cu111'\ncuda = '11.1'\nhip = None\n", (11, 1), False),
    ("__version__ = '2.6.0+rocm6'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.2.4'\n", None, True),
]


@pytest.mark.parametrize(("text", "cuda", "is_rocm"), VERSION_FILES)
def test_version_file_of_torch(text: str, cuda: tuple[int, int] | None, is_rocm: bool) -> None:
    build = gpus.TorchBuild(text)
    assert (build.cuda, build.is_rocm) == (cuda, is_rocm)


@pytest.mark.torch
def test_a_cpu_build_has_no_gpu(tmp_path: Path) -> None:
    version = metadata.version("torch")
    if not version.endswith("+cpu"):
        pytest.skip("the torch here is not a CPU build")
    result = check(tmp_path, "no_gpu", "AssertionError: Torch not compiled with CUDA enabled")
    assert result.state == "still there"
    assert version in result.why
