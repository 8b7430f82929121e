"""What is true of every fault: our own table `truths.toml`, or a folder of failing scripts with a `manifest.toml`.

Both have the same fields, so one runner and one checker serve both.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

HERE = Path(__file__).parent
OWN_TRUTHS = HERE / "truths.toml"
OWN_SCRIPTS = HERE / "scripts"
WARNING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
"""Signals of an action that a person sends either to the launcher or to torchrun; the two end differently."""

Target = Literal["launcher", "torchrun", "node"]


class Action(msgspec.Struct, frozen=True):
    """A signal that is sent while the job runs."""

    when_stdout: str
    signal: str
    target: Literal["agent", "node"]
    delay: float = 0.5
    node: int = 0


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Field names are those of the manifest; what is left out there has a default here."""

    name: str
    script: str
    args: tuple[str, ...] = ()
    nproc: int = 2
    nnodes: int = 1
    agents: int | None = None
    category: str
    accept: tuple[str, ...] = ()
    """Other categories that a careful reader could defend."""
    condition: str | None = None
    initiating_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    steps_completed: tuple[int, ...] = ()
    racy: bool = False
    needs: tuple[str, ...] = ()
    launcher_args: tuple[str, ...] | None = None
    env: dict[str, str] = {}
    helper: Literal["hold_port"] | None = None
    action: Action | None = None
    limit_seconds: float = 120.0
    """After this long torchrun is told to stop: a job that does not end by itself was meant to be ended."""
    kill_after_seconds: float = 36.0
    job_outcome: str | None = None
    steps_after_restart: int | None = None
    plain_exit_codes: tuple[tuple[int, ...], ...] = ()
    """Every outcome that plain torchrun was seen to have, one code an agent; empty where none was recorded."""

    @property
    def num_launchers(self) -> int:
        return self.nnodes if self.agents is None else self.agents


class Case(msgspec.Struct, frozen=True):
    """A fault, and whom its action's signal hits."""

    fault: Fault
    scripts: Path
    target: Target | None = None

    @property
    def id(self) -> str:
        is_split = self.target is not None and _is_warning(self.fault)
        return f"{self.fault.name}-to-{self.target}" if is_split else self.fault.name

    @property
    def is_disturbed(self) -> bool:
        return self.target is not None


class _Table(msgspec.Struct):
    fault: list[Fault]


def own_cases() -> list[Case]:
    """The cases of this folder."""
    return _split(_read(OWN_TRUTHS), OWN_SCRIPTS)


def shared_cases(shared: Path) -> list[Case]:
    """The cases of `shared/faults`, with the exit codes that were recorded in `shared/cases/lab`.

    Raises:
        FileNotFoundError: the folder has no fault matrix.
    """
    recorded: dict[str, list[tuple[int, ...]]] = {}
    for path in sorted((shared / "cases" / "lab").glob("*/expected.json")):
        expected = json.loads(path.read_text())
        recorded.setdefault(expected["fault"], []).append(tuple(expected["agent_exit_codes"]))
    faults = []
    for fault in _read(shared / "faults" / "manifest.toml"):
        restarted = 60 if fault.job_outcome == "succeeded_after_restart" else None
        codes = tuple(dict.fromkeys(recorded.get(fault.name, ())))
        faults.append(msgspec.structs.replace(fault, plain_exit_codes=codes, steps_after_restart=restarted))
    return _split(faults, shared / "faults")


def why_not_here(fault: Fault) -> str | None:
    """What this machine lacks for a fault, or null."""
    here = {
        "linux": sys.platform == "linux",
        "root": os.geteuid() == 0,
        "tmpfs": os.geteuid() == 0,
        "x86-64": os.uname().machine == "x86_64",
        "memory_cgroup": False,
    }
    lacking = [need for need in fault.needs if not here[need]]
    return f"needs {', '.join(lacking)}" if lacking else None


def _read(path: Path) -> list[Fault]:
    return msgspec.toml.decode(path.read_bytes(), type=_Table).fault


def _split(faults: list[Fault], scripts: Path) -> list[Case]:
    cases = []
    for fault in faults:
        action = fault.action
        if action is None:
            cases.append(Case(fault, scripts))
        elif action.target == "node":
            cases.append(Case(fault, scripts, "node"))
        else:
            if _is_warning(fault):
                cases.append(Case(fault, scripts, "launcher"))
            cases.append(Case(fault, scripts, "torchrun"))
    return cases


def _is_warning(fault: Fault) -> bool:
    action = fault.action
    return action is not None and action.target == "agent" and action.signal in WARNING_SIGNALS
