"""The line of the user's own source behind an exception, and the exception that it was raised from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from traceml_daemon.triage.observations import Raised
from traceml_daemon.triage.tracebacks import FATAL, kind_of

RAISED_BY_SCRIPTS: Final = frozenset(
    {"ValueError", "KeyError", "TypeError", "IndexError", "AttributeError", "AssertionError"}
)
"""A line of the script itself raises these; of a machine, a peer or a stop their words only tell at second hand."""
_FRAME: Final = re.compile(r'^(.*?)File "([^"]+)", line (\d+)(?:,? in (.+))?$', re.MULTILINE)
_FOREIGN: Final = re.compile(r"(?:site|dist)-packages|/lib(?:64)?/python\d|^<|/traceml_(?:client|daemon|launch)/")
_DIRECT: Final = "\nThe above exception was the direct cause of the following exception:\n"
_DURING: Final = "\nDuring handling of the above exception, another exception occurred:\n"
_NESTED: Final = re.compile(r"Traceback \(most recent call last\)")


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the job's own code."""

    file: str
    line: int
    function: str
    """Empty where Python names none: a syntax error."""

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}' + (f", in {self.function}" if self.function else "")


def innermost(frames: Iterable[str]) -> Source | None:
    """Of `path:line:function`, the last that is neither Python's, nor a package's, nor ours."""
    found = None
    for frame in frames:
        path, _, rest = frame.rpartition(":")[0].rpartition(":")
        if rest.isdigit() and not _FOREIGN.search(path):
            found = Source(path, int(rest), frame.rpartition(":")[2])
    return found


def source_of(raised: Raised) -> Source | None:
    """Of the exception itself, else of the one before it. A fatal error shows the innermost frame first."""
    if raised.type == FATAL:
        return innermost(raised.frames[::-1])
    return next((found for one in raised.chain()[::-1] if (found := innermost(one.frames)) is not None), None)


def source_in(traceback: str) -> Source | None:
    """Of what it was raised from, as far as that has a line of the user's."""
    return innermost(frames_of(_root_of(traceback))) or innermost(frames_of(traceback))


def frames_of(traceback: str) -> tuple[str, ...]:
    """As Python printed it, in its order."""
    return tuple(f"{path}:{line}:{name}" for _, path, line, name in _FRAME.findall(traceback))


def _root_of(traceback: str) -> str:
    """The part that tells of the exception from which the last one was explicitly raised, or of the last one itself.

    What was only being handled meanwhile may have nothing to do with it.
    """
    return traceback.rpartition(_DURING)[2].partition(_DIRECT)[0]


def wrapped(traceback: str) -> str | None:
    """The `Type: message` of what a wrapping exception stands for; null where it stands for itself.

    That is an exception of another process, whose traceback is part of the message, a member of a group, or what it
    was raised from.
    """
    root = _root_of(traceback)
    if root == traceback.rpartition(_DURING)[2] and len(_NESTED.findall(root)) < 2:
        return None
    frames = list(_FRAME.finditer(root))
    depth = len(frames[-1][1]) if frames else 0
    below = root[frames[-1].end() :] if frames else root
    for line in below.splitlines():
        text = line.strip(" |")
        is_message = not frames or len(line) - len(line.lstrip(" |+-")) < depth
        if text and is_message and kind_of(text, has_frames=True) is not None:
            return text
    return None
