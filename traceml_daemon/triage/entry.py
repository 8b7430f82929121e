"""One entry of the failure catalogue: a cause in plain words, what to do about it, and how to check that it is gone.

An entry is one TOML file below `catalog/`. The tables that speak of log text stand in the same file and are read
elsewhere; here they are passed over. Pure.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FAMILIES: Final = {
    "memory": "Memory",
    "signal": "Signals",
    "external": "Ended from outside",
    "communication": "Communication",
    "rendezvous": "Rendezvous",
    "gpu": "GPU",
    "launch": "Launch",
    "filesystem": "Files and hubs",
    "limits": "Limits",
    "code": "Code and configuration",
    "stall": "Stalls",
    "agent": "torchrun itself",
    "none": "No failure",
    "unknown": "Unknown",
}
"""In the order in which the catalogue is listed."""

CheckKind = Literal[
    "memory_limit",
    "shared_memory",
    "port_free",
    "port_permitted",
    "rendezvous_address",
    "path_exists",
    "path_permitted",
    "free_space",
    "file_whole",
    "open_files",
    "processes",
    "module_found",
    "command_found",
    "gpu_count",
    "gpu_present",
    "gpu_driver",
    "gpu_unused",
    "gpu_health",
]


class BadEntry(ValueError):
    """A file of the catalogue that cannot be used; the text names the field."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What would settle the cause, and the command that tells it."""

    fact: str
    command: str


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `traceml verify` looks whether the cause is still there."""

    kind: CheckKind
    find: tuple[str, ...] = ()
    """Regular expressions; their groups are what is checked (a port, a path). In order of trust."""
    when: str | None = None
    """The check is of use only where this is found in the evidence."""
    at_least: int = 0
    at_least_mib: int = 0


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """In commands `{stderr}` is the stream to read, `{next_stderr}` that of the next run, which shows whether the
    cause is gone, and `{run}` the run's folder; all of them only read.
    """

    category: str
    family: str
    title: str
    symptoms: tuple[str, ...]
    cause: str
    naive_reading: str
    """Why what first comes to mind is wrong."""
    next_step: str
    command: str
    """To run now."""
    verify_command: str
    verify: Check | None = None
    prevention: str
    missing: tuple[Fact, ...]
    related: tuple[str, ...]
    mistaken_for: tuple[str, ...]
    launchers: tuple[str, ...]
    exit_codes: tuple[int, ...] = ()
    """Of a rank, or of the command."""
    signals: tuple[str, ...] = ()
    example: str
    alert_line: str
    """A regular expression for a log pipeline."""
    references: tuple[str, ...]


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an exit code or a signal says by itself."""

    number: int
    meaning: str


class Endings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exit_codes: tuple[Ending, ...]
    signals: tuple[Ending, ...]


def parse_entry(text: str) -> CatalogEntry:
    """The entry that a file holds, its prose without the line breaks of the file.

    Raises:
        BadEntry: it is not TOML, or a field is missing or of another type.
    """
    try:
        entry = msgspec.toml.decode(text, type=CatalogEntry)
    except msgspec.DecodeError as error:
        raise BadEntry(str(error)) from None
    prose = {name: " ".join(getattr(entry, name).split()) for name in ("cause", "naive_reading", "prevention")}
    return msgspec.structs.replace(entry, example=entry.example.strip("\n"), **prose)


def parse_endings(text: str) -> Endings:
    """Raises BadEntry."""
    try:
        return msgspec.toml.decode(text, type=Endings)
    except msgspec.DecodeError as error:
        raise BadEntry(str(error)) from None
