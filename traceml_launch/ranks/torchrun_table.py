"""Pure: what torchrun itself says on standard error about its end: the summary of its workers, or the signal it got."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Final

TAIL_BYTES: Final = 256 * 1024
"""Room for a summary of some hundred ranks with tracebacks."""

_ENTRY: Final = re.compile(r"\[\d+\]:\s*$")
_FIELD: Final = re.compile(r"\s+(rank|exitcode)\s*:\s*(-?\d+)")
_ROOT_CAUSE: Final = "Root Cause (first observed failure)"
_OTHERS: Final = "Failures:"
_GOT: Final = re.compile(r"torch\.distributed\.elastic\.\S+\.SignalException: Process \d+ got signal: (\d+)$")


@dataclass(frozen=True, slots=True)
class TorchrunTable:
    """The last summary in the text; empty where torchrun printed none."""

    root_cause_rank: int | None = None
    exit_codes: dict[int, int] = field(default_factory=dict)
    """Global rank -> exit code as torchrun writes it: negative for a signal."""
    signal: str | None = None
    """What it ended its workers for, instead of a summary."""


def parse_table(text: bytes) -> TorchrunTable:
    """Read the summary, wherever it stands."""
    exit_codes: dict[int, int] = {}
    root_cause_rank: int | None = None
    got: str | None = None
    is_inside = is_root = False
    rank: int | None = None
    for line in text.decode(errors="replace").splitlines():
        if line.startswith((_ROOT_CAUSE, _OTHERS)):
            if line.startswith(_OTHERS):
                exit_codes, root_cause_rank = {}, None
            is_inside, is_root, rank = True, line.startswith(_ROOT_CAUSE), None
        elif is_inside and _ENTRY.match(line):
            rank = None
        elif is_inside and (found := _FIELD.match(line)):
            if found[1] == "rank":
                rank = int(found[2])
                root_cause_rank = rank if is_root else root_cause_rank
            elif rank is not None:
                exit_codes.setdefault(rank, int(found[2]))
        elif line.startswith("====") and is_root:
            is_inside = False
        if found := _GOT.match(line):
            got = _signal_name(int(found[1])) or got
    return TorchrunTable(root_cause_rank, exit_codes, got)


def _signal_name(number: int) -> str | None:
    return signal.Signals(number).name if number in set(signal.Signals) else None
