"""GPUs of this host: how many, for whom, in what health, and whether driver and torch fit together."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Final

from traceml_daemon.verify.case import Case, CheckResult, NotCheckable, gone, not_checkable, still_there

_QUERY_TIMEOUT_S: Final = 30
_DEVICES: Final = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA, of AMD, and of NVIDIA below WSL."""
_TORCH_CUDA: Final = re.compile(r"^cuda\b[^=]*= (?:None|'(\d+)\.(\d+)')", re.MULTILINE)


def gpu_count(case: Case) -> CheckResult:
    """Against the workers of the failed run."""
    visible = _visible(case)
    if case.nproc_per_node is None:
        return not_checkable(f"{visible} GPUs are visible; how many workers the run had is not known")
    found = f"{visible} GPUs are visible here and the run had {case.nproc_per_node} workers on a node"
    return still_there(found) if visible < case.nproc_per_node else gone(found)


def gpu_present(case: Case) -> CheckResult:
    build = _torch_build()
    if build is not None and build.cuda is None and not build.is_rocm:
        return still_there(f"torch {build.version} here is built for the CPU only")
    try:
        visible = _visible(case)
    except NotCheckable:
        if any(Path(device).exists() for device in _DEVICES):
            return not_checkable("there is a GPU device here and nvidia-smi does not answer")
        return still_there("this host has no GPU device and no nvidia-smi")
    return gone(f"{visible} GPUs are visible here") if visible else still_there("no GPU is visible here")


def gpu_driver(case: Case) -> CheckResult:
    """A driver runs any CUDA of its own major version or an older one (minor version compatibility, CUDA 11 on)."""
    driver, build = _driver_cuda(), _torch_build()
    if driver is None:
        return not_checkable("no CUDA driver can be loaded here")
    if build is None or build.cuda is None:
        return not_checkable("no torch with CUDA is found by this Python")
    found = f"the driver runs CUDA {driver[0]}.{driver[1]}, torch {build.version} is built with {build.cuda_text}"
    return gone(found) if driver[0] >= build.cuda[0] else still_there(found)


def gpu_unused(case: Case) -> CheckResult:
    rows = _query("--query-gpu=index,compute_mode")
    if any(mode == "Prohibited" for _, mode in rows):
        return still_there("a GPU here is in compute mode Prohibited")
    exclusive = [index for index, mode in rows if mode.startswith("Exclusive")]
    if exclusive and _query("--query-compute-apps=pid"):
        return still_there(f"GPU {', '.join(exclusive)} allows one process only, and there are processes on GPUs")
    return gone("no GPU here is in a mode that forbids another process, or none is in use")


def gpu_health(case: Case) -> CheckResult:
    """Errors can be seen to be there; that a GPU is sound cannot be seen from outside."""
    rows = _query("--query-gpu=index,ecc.errors.uncorrected.volatile.total")
    for index, errors in rows:
        if errors.isdecimal() and int(errors):
            return still_there(f"GPU {index} counts {errors} uncorrected memory errors since its last reset")
    return not_checkable(f"{len(rows)} GPUs count no uncorrected memory error since their last reset; dcgmi diag tests")


def _visible(case: Case) -> int:
    """GPUs that a rank would see. Raises NotCheckable."""
    rows = _query("--query-gpu=index")
    chosen = case.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return len(rows)
    return min(len(rows), len([device for device in chosen.split(",") if device.strip() not in ("", "-1")]))


def _query(what: str) -> list[list[str]]:
    """Rows of a query of nvidia-smi; the words are ours. Raises NotCheckable."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise NotCheckable("nvidia-smi does not answer here") from None
    return [[field.strip() for field in line.split(",")] for line in asked.stdout.splitlines() if line.strip()]


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, from its own library."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


class TorchBuild:
    """What torch's own version file says; torch is not imported."""

    def __init__(self, text: str) -> None:
        version, cuda = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE), _TORCH_CUDA.search(text)
        self.version = version[1] if version else "?"
        self.cuda = (int(cuda[1]), int(cuda[2])) if cuda and cuda[1] else None
        self.cuda_text = f"{self.cuda[0]}.{self.cuda[1]}" if self.cuda else "none"
        self.is_rocm = re.search(r"^hip\b[^=]*= '", text, re.MULTILINE) is not None


def _torch_build() -> TorchBuild | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return TorchBuild((Path(spec.origin).parent / "version.py").read_text())
    except OSError:
        return None
