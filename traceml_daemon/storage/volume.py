"""Which kind of file system a folder lies on: SQLite's shared memory does not work across a network."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NETWORK_TYPES = frozenset(
    {
        "nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs", "ceph", "panfs", "pvfs2",
        "orangefs", "9p", "afs", "gfs2", "ocfs2", "glusterfs", "wekafs", "vastnfs", "daos", "virtiofs",
    }
)  # fmt: skip
"""A fuse.* type counts too: most are remote, and a wrong yes costs no more than live readers."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def file_system_type(folder: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The kernel's name of the file system under `folder`; empty where it cannot be told.

    Read from the mount table, which names the type in words, where statfs gives a number of which no list is complete.
    """
    target = os.path.realpath(folder)
    best, found = -1, ""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        mount = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        if _is_under(target, mount) and len(mount) >= best:
            best, found = len(mount), right.split()[0]
    return found


def is_network_volume(type_name: str) -> bool:
    return type_name in _NETWORK_TYPES or type_name.startswith("fuse.")


def _is_under(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount.rstrip("/") + "/")
