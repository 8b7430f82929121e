"""Paths that the evidence names: there, permitted, with room, whole. They are only looked at, never made."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Final

from traceml_daemon.report.text import size_text
from traceml_daemon.verify.case import Case, CheckResult, NotCheckable, gone, not_checkable, printable, still_there

_MIB: Final = 1024 * 1024
_MAX_READ_BYTES: Final = 2 * 1024 * _MIB
"""Of a larger archive only the directory is checked."""
_FILE_TOO_LARGE: Final = r"\[Errno 27\]|File too large"
_SAFETENSORS_HEADER: Final = 8
_MAX_HEADER_BYTES: Final = 100 * _MIB


def path_exists(case: Case) -> CheckResult:
    paths = _absolute_paths(case)
    missing = [path for path in paths if not _exists(path)]
    if missing:
        return still_there(f"{_shown(missing)} not on this host")
    return gone(f"{_shown(paths)} on this host")


def path_permitted(case: Case) -> CheckResult:
    """As the user who asks; whether the run wanted to read or to write is not known, so both count."""
    path = _absolute_paths(case)[0]
    place = path if _exists(path) else path.parent
    if not _exists(place):
        return not_checkable(f"{_name(path)} is not on this host, nor is its folder")
    may_read, may_write = os.access(place, os.R_OK), os.access(place, os.W_OK)
    who = f"user {os.getuid()}"
    if not may_read or (place != path and not may_write):
        return still_there(f"{who} may not {'write' if may_read else 'read'} {_name(place)}")
    if not may_write:
        return not_checkable(f"{who} may read {_name(place)} and not write it; which of them the run wanted is unknown")
    return gone(f"{who} may read and write {_name(place)}")


def free_space(case: Case) -> CheckResult:
    """The volume of the path in the evidence, else that of the run folder."""
    if case.has_in_evidence(_FILE_TOO_LARGE):
        return _file_size_limit()
    place, is_named = case.run_dir, False
    with contextlib.suppress(NotCheckable):
        path = _absolute_paths(case)[0]
        place, is_named = next(parent for parent in (path, *path.parents) if _exists(parent)), True
    usage, inodes = shutil.disk_usage(place), os.statvfs(place)
    where = f"the volume of {_name(place)}"
    if usage.free < case.check.at_least_mib * _MIB:
        return still_there(f"{where} has {size_text(usage.free)} free of {size_text(usage.total)}")
    if inodes.f_files and inodes.f_favail < 1000:
        return still_there(f"{where} has {inodes.f_favail} inodes free")
    if not is_named:
        return not_checkable(f"the evidence names no path; {where} has {size_text(usage.free)} free")
    return gone(f"{where} has {size_text(usage.free)} free of {size_text(usage.total)}; a quota was not looked at")


def _file_size_limit() -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        return gone("there is no limit on the size of a file here (ulimit -f)")
    return still_there(f"a file may have {soft:,} bytes here (ulimit -f)")


def file_whole(case: Case) -> CheckResult:
    """Of archives and safetensors, without torch and without unpickling anything."""
    order = ("still there", "cannot be checked here", "gone")
    return min(map(_file_whole, _absolute_paths(case)), key=lambda result: order.index(result.state))


def _file_whole(path: Path) -> CheckResult:
    try:
        found = path.stat()
    except OSError as error:
        return not_checkable(f"{_name(path)}: {error.strerror}")
    if not stat.S_ISREG(found.st_mode):
        return not_checkable(f"{_name(path)} is not a regular file")
    if found.st_size == 0:
        return still_there(f"{_name(path)} is empty")
    try:
        with path.open("rb") as file:
            start = file.read(16)
        how = _read_through(path, start, found.st_size)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        return still_there(f"{_name(path)} ({found.st_size:,} bytes) is damaged: {printable(str(error))[:120]}")
    except RuntimeError as error:  # a zip with a password, or a compression that this Python lacks
        return not_checkable(f"{_name(path)} cannot be read here: {printable(str(error))[:120]}")
    if how is None:
        return not_checkable(f"{_name(path)} is no archive that can be tested without running its content")
    return gone(f"{_name(path)} ({found.st_size:,} bytes) is whole: {how}")


def _read_through(path: Path, start: bytes, size: int) -> str | None:
    """How it was tested; null where the form is not known. Raises what the reader raises of a damaged file."""
    if start.startswith(b"version https:"):
        raise ValueError("it is a Git LFS pointer")
    if start.startswith(b"PK") or path.suffix in (".pt", ".pth", ".zip", ".npz"):
        return _zip(path, start, size)
    if path.suffix == ".safetensors":
        return _safetensors(path, start, size)
    if start.startswith(b"\x1f\x8b"):
        with gzip.open(path) as file:
            while file.read(_MIB) and file.tell() < _MAX_READ_BYTES:
                pass
        return "it decompresses"
    return None


def _zip(path: Path, start: bytes, size: int) -> str | None:
    if not start.startswith(b"PK") and start.startswith(b"\x80"):
        return None  # torch's form before 1.6 is a bare pickle
    with zipfile.ZipFile(path) as archive:
        if size > _MAX_READ_BYTES:
            return f"its directory lists {len(archive.infolist())} members; too large to test them"
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"member {damaged} has a wrong checksum")
        return f"all {len(archive.infolist())} members have their checksum"


def _safetensors(path: Path, start: bytes, size: int) -> str:
    length = int.from_bytes(start[:_SAFETENSORS_HEADER], "little")
    if not 0 < length <= min(size - _SAFETENSORS_HEADER, _MAX_HEADER_BYTES):
        raise ValueError(f"its header says {length} bytes")
    with path.open("rb") as file:
        file.seek(_SAFETENSORS_HEADER)
        header = json.loads(file.read(length))
    ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
    expected = _SAFETENSORS_HEADER + length + max(ends, default=0)
    if size != expected:
        raise ValueError(f"it has {size} bytes and its header speaks of {expected}")
    return f"its size fits its header of {len(ends)} tensors"


def _absolute_paths(case: Case) -> list[Path]:
    values = case.values("path")
    paths = [Path(value) for value in values if value.startswith("/") and "\0" not in value]
    if not paths:
        raise NotCheckable(f"{printable(values[0])} is relative to a folder that the evidence does not name")
    return paths


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way that may not be searched, a name that is too long
        return False


def _name(path: Path) -> str:
    return printable(str(path))


def _shown(paths: list[Path]) -> str:
    more = f" and {len(paths) - 1} more are" if len(paths) > 1 else " is"
    return f"{_name(paths[0])}{more}"
