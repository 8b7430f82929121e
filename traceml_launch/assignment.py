"""What is settled before any child is started: who this launcher is, and its part in the run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from traceml_client.protocol.manifest import LeaseHolder, lease_holder
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder.run_folder import RunFolder
from traceml_launch.system import processes
from traceml_launch.system.warden import Warden


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherIdentity:
    """The names by which its run, its daemon and its peers know this launcher."""

    holder: LeaseHolder
    """Host, pid and start time."""
    started_ns: int
    children_before: frozenset[int]
    """Children from before we were this program (`exec`): they are not the run's."""

    @classmethod
    def of_this_process(cls) -> LauncherIdentity:
        before = frozenset(processes.children_of(os.getpid()))
        return cls(holder=lease_holder(), started_ns=time.time_ns(), children_before=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    config: LaunchConfig
    me: LauncherIdentity
    is_owner: bool
    folder: RunFolder | None
    """Null for who joins a run of somebody else's: its folder is known later."""
    token: str
    """Empty: none is known so far, see `Node.token`."""
    is_token_offered: bool
    """The user gave none; ours is for nodes that share the run folder."""
    nonce: str
    """Marks the processes of *this launcher*; the run id where the launcher made it."""
    warden: Warden
