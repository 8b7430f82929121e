"""Tracebacks of ranks that write into one stream: each speaker's lines are put together again.

Ranks without a prefix may be mixed line by line; then frames are shared, and every message line ends one traceback.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from traceml_daemon.triage.endings import is_suspect
from traceml_daemon.triage.lines import Line, Speaker
from traceml_daemon.triage.observations import Place, Raised

_HEADER: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'\s*(?:\| ?)*File "([^"]+)", line (\d+)(?:,? in (.+))?$')
_BOX_FRAME: Final = re.compile(r"\s*\u2502 (\S+?):(\d+) in (\S+)")
_BOX: Final = "\u2502\u256d\u2570"
_MESSAGE: Final = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?: (.*))?)?$", re.DOTALL)
_CERTAIN: Final = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Warning|NotMet|Failed|Expired|NotFound|Mismatch|OutOfMemory"
    r"|StopIteration|Unavailable|Aborted|Denied|Cancelled|Refused|Group|Violation|Overflow|error|timeout)$"
)
_OF_ONE_LINE: Final = frozenset(
    {"KeyError", "IndexError", "AttributeError", "NameError", "UnboundLocalError", "ZeroDivisionError"}
)
"""What stands below these was printed by somebody else."""
_LEVELS: Final = frozenset(
    {"INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "NOTE", "Note", "HINT", "Epoch", "Message", "Arguments"}
)
FATAL: Final = "Fatal Python error"
"""The type under which the stacks of a fatal signal are kept."""
_FATAL: Final = re.compile(
    r"Fatal Python error: (.+)|Windows fatal exception: "
    r"((?:access violation|stack overflow|illegal instruction|int divide by zero)\b.*"
    r"|code 0x(?i:c0000005|c00000fd|c0000374|c0000409|c000001d|c0000094)\b.*)"
)
"""Of Windows only those that end a process: the others are told of each time that a library throws one."""
_CHAIN: Final = ("The above exception was the direct cause", "During handling of the above exception")
_IGNORED: Final = (
    "Exception ignored in",
    "Exception ignored on",
    "--- Logging error ---",
    "Error in atexit._run_exitfuncs",
)
_IN_THREAD: Final = "Exception in thread "
_IN_TASK: Final = "future: <Task "
"""Of asyncio, which prints what nobody asked for."""
_LABEL: Final = re.compile(r"(?i)(?:\b(?:global[_ ])?rank[\s:=#]*|^-- process )(\d{1,5})\b")
_HEADING: Final = re.compile(r":$|^[-=*#]{3,}|^\[?\w+ rank \d+\]?$")
"""What stands above a whole block of lines."""
_RELAYED: Final = re.compile(r"last\): \(RANK (\d{1,6})\)$")
"""How checkpoints of many ranks tell each of them what failed on another one."""
_OVER: Final = re.compile(
    r"[=*#-]{3,}|[\w.]+: (?:[\w./+-]+|\[.*\])$|(?i:step|epoch|iter(?:ation)?)\b.{0,3}\d"
    r"|(?:slurmstepd|srun|kernel|systemd)\b.*: |\S+:\d+:\d+ \[\d+\] |Exception ignored |terminate called "
)
"""What a job prints of its configuration or its progress, or what others say of it, does not go on with a message."""
_LOGGED: Final = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|EXCEPTION)\b")
_CPP_LOGGED: Final = re.compile(r"\[[VIWEF](?:\d{3,4} [^\]]*)? \S+\.(?:cpp|cc|cu|hpp):\d+\]")
_MAX_FRAMES: Final = 100
_MAX_FOREIGN: Final = 200
_MAX_TAIL: Final = 14
_MAX_MESSAGE: Final = 4000


@dataclass(slots=True)
class _State:
    """One speaker's traceback in the making."""

    num_open: int = 0
    frames: list[str] = field(default_factory=list)
    num_foreign: int = 0
    has_header: bool = False
    label_rank: int | None = None
    author: Speaker | None = None
    """Whose traceback the open one is: also of another rank, which the speaker repeats."""
    is_ignored: bool = False
    is_in_thread: bool = False
    last: Raised | None = None
    """Whose message may go on."""
    fatal: Raised | None = None
    tail: int = 0
    is_chained: bool = False
    previous: str = ""
    is_heading: bool = False
    """The line before speaks of what stands below it, not of what the rank had done by then."""
    logged_at: float | None = None
    """Of the record of an error that the traceback stands below."""


class Tracebacks:
    """Feed it the lines worth a look; it answers with exceptions as their messages are seen."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._states: dict[Speaker, _State] = {}

    @property
    def is_open(self) -> bool:
        return any(state.num_open or state.tail or state.fatal for state in self._states.values())

    def take(self, line: Line, quote: str) -> Raised | None:
        """The exception whose message this line is, new or going on; None for any other line."""
        state = self._state(line.speaker)
        text = line.text
        if state.fatal is not None and self._below_fatal(state, text):
            return None
        if fatal := _FATAL.search(text):
            state.fatal = self._raise(state, line, (FATAL, fatal[1] or fatal[2]), quote)
            state.fatal.frames = ()
            return state.fatal
        if _HEADER in text:
            self._open(state, line)
            return None
        stripped = text.strip()
        if state.num_open:
            return self._inside(state, line, stripped, quote)
        found = self._frame(text)
        if found is not None:
            state.num_open, state.frames, state.has_header, state.num_foreign = 1, [found], False, 0
            return None
        if state.tail:
            return self._going_on(state, line, stripped, quote)
        return self._outside(state, line, stripped, quote)

    def is_source(self, line: Line) -> bool:
        """Whether it is a line of code that the traceback of its speaker quotes: that says nothing of what happened."""
        return line.text[:4] == "    " and self._state(line.speaker).num_open > 0 and self._frame(line.text) is None

    def precede(self, speaker: Speaker, before: Line) -> None:
        """The line right before a traceback, which may say whose it is, and when it was logged."""
        state = self._state(speaker)
        state.previous = before.text.strip() if before.speaker == speaker else ""
        is_record = _LOGGED.search(before.raw) is not None
        state.is_heading = is_record or is_suspect(before.raw) or _HEADING.search(state.previous) is not None
        state.logged_at = before.time if state.previous and is_record else None

    def close(self) -> None:
        """Nothing that follows belongs to what was said before: torchrun speaks, or the file ends."""
        for state in self._states.values():
            state.tail = 0

    def _below_fatal(self, state: _State, text: str) -> bool:
        """The stacks that faulthandler writes after its message."""
        fatal, frame = state.fatal, self._frame(text)
        if fatal is not None and frame is not None and len(fatal.frames) < _MAX_FRAMES:
            fatal.frames += (frame,)
            return True
        if text.startswith(("Current thread", "Thread 0x", "Python runtime state")) or not text.strip():
            return True
        state.fatal = None
        return False

    def _state(self, speaker: Speaker) -> _State:
        state = self._states.get(speaker)
        if state is None:
            if len(self._states) >= 4096:
                self._states.clear()
            state = self._states[speaker] = _State()
        return state

    def _open(self, state: _State, line: Line) -> None:
        relayed = _RELAYED.search(line.text)
        state.author = Speaker(int(relayed[1])) if relayed is not None else state.author
        if not state.num_open:
            state.frames = []
            label_rank = _label(state.previous) if state.is_heading else None
            state.label_rank = _label(line.text.partition("Traceback")[0]) if label_rank is None else label_rank
            state.is_ignored = state.previous.startswith(_IGNORED)
            state.is_in_thread = _IN_THREAD in state.previous or state.previous.startswith(_IN_TASK)
        state.num_open = min(state.num_open + 1, 64) if state.has_header or not state.num_open else state.num_open
        state.has_header, state.num_foreign, state.tail = True, 0, 0

    def _frame(self, text: str) -> str | None:
        if '"' not in text and "\u2502" not in text:
            return None
        found = _FRAME.match(text) or _BOX_FRAME.match(text)
        return None if found is None else f"{found[1]}:{found[2]}:{found[3] or ''}"

    def _inside(self, state: _State, line: Line, stripped: str, quote: str) -> Raised | None:
        frame = self._frame(line.text)
        if frame is not None:
            if len(state.frames) < _MAX_FRAMES:
                state.frames.append(frame)
            state.num_foreign = 0
            return None
        if line.text[:1] in (" ", "\t") or not stripped or stripped[0] in _BOX:
            return None
        kind = kind_of(stripped, has_frames=bool(state.frames))
        if kind is None or line.is_agents:
            state.num_foreign += 1
            if state.num_foreign > _MAX_FOREIGN or line.is_agents:
                state.num_open = 0
            return None
        return self._raise(state, line, kind, quote)

    def _raise(self, state: _State, line: Line, kind: tuple[str, str], quote: str) -> Raised:
        raised = Raised(
            place=Place(self._file, line.number, quote),
            speaker=state.author or line.speaker,
            time=state.logged_at if line.time is None else line.time,
            type=kind[0],
            message=kind[1][:_MAX_MESSAGE],
            frames=tuple(state.frames),
            label_rank=state.label_rank,
            has_header=state.has_header,
            is_ignored=state.is_ignored,
            is_in_thread=state.is_in_thread,
        )
        if state.is_chained and state.last is not None:
            raised.earlier = state.last
            raised.label_rank = raised.label_rank or state.last.label_rank
            raised.time = state.last.time if raised.time is None else raised.time
            raised.is_in_thread = raised.is_in_thread or state.last.is_in_thread
        state.last, state.tail, state.is_chained = raised, _MAX_TAIL, False
        state.num_open -= 1 if state.num_open else 0
        if not state.num_open:
            state.has_header = False
            state.author = state.logged_at = None
        state.previous = ""
        return raised

    def _going_on(self, state: _State, line: Line, stripped: str, quote: str) -> Raised | None:
        """A message of several lines, or the words that chain it to the next traceback."""
        if any(words in line.text for words in _CHAIN):
            state.is_chained, state.tail, state.previous = True, _MAX_TAIL, ""
            return None
        kind = kind_of(stripped, has_frames=False)
        if kind is not None and state.last is not None and state.last.message.endswith("raised:"):
            state.is_chained = True
            return self._raise(state, line, kind, quote)
        if (
            line.is_agents
            or _OVER.match(stripped)
            or _CPP_LOGGED.search(line.raw)
            or (kind is not None and not state.is_chained and line.text[:1] not in (" ", "\t"))
        ):
            state.tail = 0
            return self._outside(state, line, stripped, quote) if not line.is_agents else None
        state.tail -= 1
        state.previous = stripped
        last = state.last
        if last is None or not stripped or state.is_chained or last.type in _OF_ONE_LINE:
            return None
        if len(last.message) < _MAX_MESSAGE:
            last.message += "\n" + stripped
        return last

    def _outside(self, state: _State, line: Line, stripped: str, quote: str) -> Raised | None:
        """A message whose traceback was cut off or drawn in a box."""
        state.previous = stripped
        kind = kind_of(stripped, has_frames=False)
        if kind is None or line.text[:1] in (" ", "\t") or line.is_agents:
            return None
        state.frames, state.label_rank, state.is_ignored, state.is_in_thread = [], None, False, False
        return self._raise(state, line, kind, quote)


def kind_of(stripped: str, *, has_frames: bool) -> tuple[str, str] | None:
    """Type and message, if this is what Python prints at the end of a traceback."""
    found = _MESSAGE.match(stripped)
    if found is None or found[1] in _LEVELS:
        return None
    name = found[1].rpartition(".")[2]
    if name.endswith("Warning") and not has_frames:
        return None
    if found[2] is None and ":" not in stripped and not _CERTAIN.search(name):
        return None
    is_certain = _CERTAIN.search(name) is not None and (name[0].isupper() or name[0] == "_" or "." in found[1])
    is_fair = has_frames and (name[0].isupper() or "." in found[1])
    return (found[1], found[2] or "") if is_certain or is_fair else None


def _label(text: str) -> int | None:
    """`rank 3: training failed` before a traceback, which was printed by the rank's own code."""
    found = _LABEL.search(text) if len(text) < 200 else None
    return int(found[1]) if found is not None else None
