"""Pure: the text of an option -> its value. A text that does not parse is an error that names where it stood."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.options import DEVICE_WORDS, Option

MAX_PORT = 65535
MAX_NAME_BYTES = 200
"""Below the 255 that file systems allow, with room for a suffix and for the name of a temporary file."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

Value = bool | int | float | str | Path | tuple[int, int]


def parse(option: Option, text: str, *, source: str) -> Value:
    """Return bool (flag), int (port, count), float (seconds), (MIN, MAX) (nnodes), Path (path) or str.

    Args:
        source: the option as it was spelled, the variable, or the key with its file.

    Raises:
        ConfigError: one line that begins with the source.
    """
    try:
        return _PARSERS[option.kind](option, text)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _flag(option: Option, text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"{text!r} is neither true nor false")


def _text(option: Option, text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError(f"{text!r} is empty or has a blank in it")
    return text


def _path(option: Option, text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is no path")
    return Path(text).expanduser()


def _port(option: Option, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_PORT:
        raise ValueError(f"{text!r} is no port; a port is a number from 1 to {MAX_PORT}")
    return int(text)


def _count(option: Option, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < option.minimum:
        raise ValueError(f"{text!r} is no whole number of at least {option.minimum:g}")
    return int(text)


def _seconds(option: Option, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < option.minimum:
        raise ValueError(f"{text!r} is no number of seconds of at least {option.minimum:g}")
    return seconds


def _nproc(option: Option, text: str) -> str:
    if text in DEVICE_WORDS or (text.isascii() and text.isdigit() and int(text) > 0):
        return text
    raise ValueError(f"{text!r} is neither a number of at least 1 nor one of {', '.join(DEVICE_WORDS)}")


def _nnodes(option: Option, text: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{text!r} is neither a number of nodes nor MIN:MAX")
    least, most = int(parts[0]), int(parts[-1])
    if not 0 < least <= most:
        raise ValueError(f"{text!r}: there is at least one node, and MIN is not above MAX")
    return least, most


def _choice(option: Option, text: str) -> str:
    if text not in option.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(option.choices)}")
    return text


def _run_name(option: Option, text: str) -> str:
    if not is_run_name(text):
        raise ValueError(
            f"{text!r} cannot be a folder's name; use letters, digits, '.', '_' and '-', without '..' or '/'"
        )
    return text


def is_run_name(text: str) -> bool:
    """Whether the text can name a run: one plain folder name, not hidden, not an option."""
    return (
        bool(text)
        and not text.startswith((".", "-"))
        and not {"/", "\\", "\0", os.sep} & set(text)
        and ".." not in text
        and text.isprintable()
        and text == text.strip()
        and len(text.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES
    )


def as_run_name(text: str) -> str:
    """The nearest valid run name to a job's id; empty where nothing of it can stay."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text)
    while ".." in kept:
        kept = kept.replace("..", ".")
    return kept.strip("-.")[:MAX_NAME_BYTES]


_PARSERS: dict[str, Callable[[Option, str], Value]] = {
    "flag": _flag,
    "text": _text,
    "path": _path,
    "port": _port,
    "count": _count,
    "seconds": _seconds,
    "nproc": _nproc,
    "nnodes": _nnodes,
    "choice": _choice,
    "run_name": _run_name,
}
