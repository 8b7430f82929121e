"""What `traceml explain` was asked for: an entry of the catalogue, an exit code, a signal, or a message of a log."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traceml_client.protocol.errors import ConfigError
from traceml_daemon.log_files.log_reading import feed
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.entry import CatalogEntry, Ending, Endings
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.windows import described, status_of

Catalog = Mapping[str, CatalogEntry]

_NUMBER: Final = re.compile(r"[-+]?\d+")
_SHELL_SIGNAL: Final = 128
"""A shell and a container report a death by signal n as this plus n."""
_MAX_EXIT: Final = 255
_UNKNOWN_CODE: Final = "The program's own code: it means what its author meant by it."
_UNKNOWN_SIGNAL: Final = "No failure of training is known by this signal."


@dataclass(frozen=True, slots=True)
class ExplainedEnding:
    """An exit code or a signal: what it says by itself, and which causes end so."""

    title: str
    meaning: str
    causes: tuple[CatalogEntry, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries to choose from."""

    title: str
    entries: tuple[CatalogEntry, ...]


Answer = CatalogEntry | ExplainedEnding | Listing


def explain(words: Sequence[str], catalog: Catalog, endings: Endings) -> Answer:
    """Without words: all entries.

    Raises:
        ConfigError: nothing is known by that name; the text holds the nearest one.
    """
    if not words:
        return Listing("What can have ended a run", tuple(catalog.values()))
    first, rest = words[0].lower(), list(words[1:])
    if first in ("exit", "signal") and len(rest) <= 1:
        if not rest:
            raise ConfigError(f"{first}: give a {'code' if first == 'exit' else 'name or number'}")
        return _ending_of(first, rest[0], catalog, endings)
    name = "_".join(words).lower().replace("-", "_")
    if name in catalog:
        return catalog[name]
    if len(words) == 1 and _NUMBER.fullmatch(words[0]):
        return _of_exit(int(words[0]), catalog, endings)
    if len(words) == 1 and words[0].upper() in signal.Signals.__members__:
        return _of_signal(signal.Signals[words[0].upper()], catalog, endings)
    return _of_message(" ".join(words), name, catalog)


def _ending_of(kind: str, value: str, catalog: Catalog, endings: Endings) -> ExplainedEnding:
    if kind == "exit":
        if not _NUMBER.fullmatch(value):
            raise ConfigError(f"exit {value}: an exit code is a number, such as 137 or -9")
        return _of_exit(int(value), catalog, endings)
    if _NUMBER.fullmatch(value):
        try:
            return _of_signal(signal.Signals(abs(int(value))), catalog, endings)
        except ValueError:
            raise ConfigError(f"signal {value}: there is no such signal here; SIGKILL is 9") from None
    name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
    known = signal.Signals.__members__
    if name not in known:
        raise ConfigError(f"signal {value}: there is no such signal{_did_you_mean(name, list(known))}")
    return _of_signal(known[name], catalog, endings)


def _of_exit(code: int, catalog: Catalog, endings: Endings) -> ExplainedEnding:
    if (status := status_of(code)) is not None:
        of_signal = _of_signal(signal.Signals(status.number), catalog, endings)
        title = f"Exit code {code}: {described(code)} on Windows, elsewhere {of_signal.title}"
        return ExplainedEnding(title, of_signal.meaning, of_signal.causes)
    if code > _MAX_EXIT:
        raise ConfigError(f"exit {code}: an exit code is 0 to {_MAX_EXIT}, or minus the number of a signal")
    number = -code if code < 0 else code - _SHELL_SIGNAL
    if number > 0:
        try:
            of_signal = _of_signal(signal.Signals(number), catalog, endings)
        except ValueError:
            if code < 0:
                raise ConfigError(f"exit {code}: there is no signal {number} here") from None
        else:
            how = "as torchrun and Python write it" if code < 0 else "as a shell or a container reports it (128 + n)"
            return ExplainedEnding(f"Exit code {code}: {of_signal.title}, {how}", of_signal.meaning, of_signal.causes)
    causes = tuple(entry for entry in catalog.values() if code in entry.exit_codes)
    meaning = next((each.meaning for each in endings.exit_codes if each.number == code), _UNKNOWN_CODE)
    return ExplainedEnding(f"Exit code {code}", meaning, causes or (catalog["nonzero_exit"],))


def _of_signal(sent: signal.Signals, catalog: Catalog, endings: Endings) -> ExplainedEnding:
    meaning = _meaning(sent, endings.signals)
    causes = tuple(entry for entry in catalog.values() if sent.name in entry.signals)
    return ExplainedEnding(f"{sent.name} (signal {sent.value})", meaning, causes)


def _meaning(sent: signal.Signals, known: Sequence[Ending]) -> str:
    return next((each.meaning for each in known if each.number == sent.value), _UNKNOWN_SIGNAL)


def _of_message(message: str, name: str, catalog: Catalog) -> Answer:
    """A line of a log may be pasted in place of a name: the signs of a diagnosis know it, if its alert does not."""
    found = tuple(entry for entry in catalog.values() if re.search(entry.alert_line, message))
    if len(found) == 1:
        return found[0]
    if found:
        return Listing("More than one cause prints that", found)
    seen = Observations()
    feed(iter([f"{message}\n".encode(errors="replace")]), 0, seen, screen=None)
    if (category := judge(seen).category) not in ("ok", "insufficient_evidence"):
        return catalog[category]
    nearest = _did_you_mean(name, list(catalog))
    raise ConfigError(f"nothing is known by {message!r}{nearest or '; traceml explain lists all'}")


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    holding = [name for name in known if word in name]
    nearest = holding or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {' or '.join(nearest[:3])}?" if nearest else ""
