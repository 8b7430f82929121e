"""torchrun's summary of failures: old form (1.9, root first) and new one (1.10 on, root last), whole or cut off."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import Exit, Place

_ROOT: Final = re.compile(r"Root Cause(?: \(first observed failure\))?:\s*$")
_OTHERS: Final = re.compile(r"(?:Other )?Failures:\s*$")
_INDEX: Final = re.compile(r"\[\d+\]:\s*$")
_RULE: Final = re.compile(r"\s*[-=*]{10,}\s*$")
_FIELD: Final = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_RANK: Final = re.compile(r"(\d{1,12}) \(local_rank: (\d{1,12})\)")
_CODE: Final = re.compile(r"(-?\d{1,12}) \(pid: (\d{1,12})\)")
_TIME: Final = re.compile(r"\d+-(\d{1,12})-(\d{1,12})_(\d{1,12}):(\d{1,12}):(\d{1,12})")
_SOLE: Final = "<NO_OTHER_FAILURES>"
_TRACEBACK: Final = "Traceback"
_MAX_REST: Final = 20


class Table:
    """One summary, line by line; it ends with the first line that cannot be part of one."""

    __slots__ = ("_fields", "_in_root", "_is_sole", "_last", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._reset()

    def _reset(self) -> None:
        self._fields: dict[str, str] = {}
        self._in_root = self._is_sole = False
        self._last: Exit | None = None

    def accepts(self, line: Line) -> bool:
        """Whether the line is part of a table: of the one that is open, or the first line of a new one."""
        text = line.text
        stripped = text.strip()
        if _ROOT.match(stripped) or _OTHERS.match(stripped):
            if not self.is_open:
                self._reset()
            self.is_open = True
            return True
        field = _FIELD.match(text)
        if not self.is_open:
            if field is None or field[1] != "exitcode" or _CODE.match(field[2]) is None or text[:1] != " ":
                return False
            self._reset()
            self.is_open = True
            return True
        is_part = field is not None or text[:2] == "  " or _INDEX.match(stripped) or _RULE.match(text)
        if not is_part and not (not stripped and self._last is not None and self._last.has_traceback):
            self.is_open = False
        return self.is_open

    def take(self, line: Line, place: Place) -> Exit | None:
        """The exit that this line completes."""
        stripped = line.text.strip()
        if _ROOT.match(stripped):
            self._in_root = True
        elif _OTHERS.match(stripped):
            self._in_root = False
        elif stripped == _SOLE:
            self._is_sole = True
            if self._last is not None:
                self._last.is_sole = True
        elif not _INDEX.match(stripped) and not _RULE.match(line.text):
            return self._take_field(line, place)
        return None

    def _take_field(self, line: Line, place: Place) -> Exit | None:
        found = _FIELD.match(line.text)
        if found is None or line.text[:4] == "    ":
            self._continue_traceback(line, place)
            return None
        name, value = found[1], found[2].strip()
        if name == "time":
            self._fields = {}
        self._fields[name] = value
        if name == "exitcode":
            return self._new_exit(line, place)
        if name == "error_file" and value == "<N/A>" and self._last is not None:
            self._last.no_error_file = place
        if name in ("traceback", "msg") and self._last is not None:
            self._last.message, self._last.message_place = value.strip('"'), place
            self._last.has_traceback = value.startswith(_TRACEBACK)
        return None

    def _continue_traceback(self, line: Line, place: Place) -> None:
        """Below the frames stands what was raised, in one line or more, and then maybe what was raised from that."""
        last, text = self._last, line.text.strip()
        if last is None or not last.has_traceback or not text:
            return
        if text.startswith(_TRACEBACK):
            if last.message_place is not None and not last.message.startswith(_TRACEBACK):
                last.message_rest.insert(0, last.message_place)
            last.message, last.message_place = text, place
        elif not last.message.startswith(_TRACEBACK):
            if len(last.message_rest) < _MAX_REST:
                last.message_rest.append(place)
        elif line.text[:3] == "   ":
            last.frames.append(text)
        else:
            last.message, last.message_place = text, place

    def _new_exit(self, line: Line, place: Place) -> Exit | None:
        code = _CODE.match(self._fields["exitcode"])
        if code is None:
            return None
        rank = _RANK.match(self._fields.get("rank", ""))
        when = _TIME.match(self._fields.get("time", ""))
        self._last = Exit(
            place=place,
            source="table",
            code=int(code[1]),
            rank=int(rank[1]) if rank else None,
            local_rank=int(rank[2]) if rank else None,
            pid=int(code[2]),
            agent=(place.file, None, line.speaker.task, self._fields.get("host")),
            time=_seconds(when) if when else None,
            is_root=self._in_root,
            is_sole=self._is_sole,
        )
        return self._last


def _seconds(when: re.Match[str]) -> float:
    month, day, hour, minute, second = (int(value) for value in when.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
