"""Bytes to attributed lines: who wrote a line, and when, from whatever launchers and loggers put before its text.

A line ends at a newline and nowhere else; what a progress bar writes between carriage returns are pieces of one line. A
line longer than a piece may be is cut, so that a file without a newline costs no memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from traceml_daemon.triage.foreign import ForeignPrefixes, rank_in, source_in, time_in
from traceml_daemon.triage.json_lines import record_in

MAX_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Speaker:
    """Whose line it is, as far as its prefixes tell."""

    rank: int | None = None
    local_rank: int | None = None
    """Of a tee prefix: `[default0]:` counts ranks on one node."""
    task: int | None = None
    """Of `srun --label`."""
    source: str | None = None
    """A pod, an actor or a host, in the words of the log."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """From 1; only newlines count."""
    raw: str
    """What stands in the file, for quotes."""
    text: str
    """Without prefixes and colours; of several lines where a collector made one of them."""
    speaker: Speaker
    time: float | None
    """Of the host's own clock, comparable with its like only: seconds within a year or a day, or of the epoch."""
    agent_pid: int | None
    is_agents: bool
    """Written by torchrun's own logger."""


class Pieces:
    """Cuts a stream into numbered pieces of lines; the same for any way in which the bytes arrive."""

    __slots__ = ("_number", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._number = 1

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first line, in order."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._rest += chunk
            yield from self._cut_rest()
            return
        block, self._rest = self._rest + chunk[: end + 1], chunk[end + 1 :]
        number, self._number = self._number, self._number + block.count(b"\n")
        yield number, block
        yield from self._cut_rest()

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """What stands behind the last newline."""
        if self._rest:
            yield self._number, self._rest
            self._rest = b""

    def _cut_rest(self) -> Iterator[tuple[int, bytes]]:
        """Of a line that does not end: whole pieces from its start, so that the cuts do not depend on the chunks."""
        whole = len(self._rest) - len(self._rest) % MAX_PIECE_BYTES
        if whole:
            yield self._number, self._rest[:whole]
            self._rest = self._rest[whole:]


_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RANK: Final = re.compile(r"\[rank(\d{1,6})\]:? ?")
_MPI: Final = re.compile(r"\[(?:[\w.@-]{1,80},)?(\d{1,6})\]<std(?:err|out)>: ?")
"""`[3]<stderr>:` of Horovod, `[1,3]<stderr>: ` and `[prterun-n1-77@1,3]<stderr>: ` of mpirun."""
_OF_TRACEBACK: Final = r"(?=Traceback|  +File|    |[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b)"
_PREPENDED: Final = re.compile(r"\[(\d{1,6})\] " + _OF_TRACEBACK)
"""`mpiexec -prepend-rank`, which counts as `srun --label` does; elsewhere such a number may be anything."""
_OWN: Final = re.compile(r"\[?[Rr]ank[ =:_]?(\d{1,6})(?:\]:?|:| ?\|| -)? ?" + _OF_TRACEBACK)
"""How scripts mark the lines of a traceback."""
_TEE: Final = re.compile(r"\[[A-Za-z_][A-Za-z_-]*?(\d{1,4})\]: ?")
_NODE: Final = re.compile(r"\[(node[-_: ]?\w+)\]:? ?")
_TASK: Final = re.compile(r" {0,3}(\d{1,4}): ")
_ISO: Final = re.compile(
    r"\[?\d{4}[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?(?: UTC)?\]?(?: -)? ?"
)
_CRI: Final = re.compile(r"(?:stdout|stderr)(?: [FP] |: )")
_POD: Final = re.compile(r"\[?(pod/[^\] ]+|[\w.-]+-(?:worker|master|launcher)-\d+)\]?(?: +\||:)? ")
_COMPOSE: Final = re.compile(r"([A-Za-z][\w.-]*[-_]\d+) +\| ")
_ACTOR: Final = re.compile(r"\((\w+(?:\(\w+\))? pid=\d+(?:, ip=[\d.a-f:]+)?)\) ?")
_NUMBER: Final = re.compile(r"\[\d{1,9}\] ")
_LEVEL: Final = re.compile(r"\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\] (?=\d{4}-)")
_LEVELED: Final = re.compile(
    r"(?:[-|] )?(?:[\w.]+ - )?\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) *[-|\]:] ?(?:[\w.]+:\w+:\d+ - )?"
)
"""What loggers put behind the time."""
_LISTED: Final = re.compile(r" {0,6}\d{1,8}\t")
"""`cat -n`."""
_SYSLOG: Final = re.compile(
    r"([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?) ([\w.-]+) (?:(?=kernel: )|[\w./@-]+(?:\[\d+\])?: )"
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HOST: Final = re.compile(
    r"((?:node|host|worker|master|slave|gpu|ip|dgx|hgx|compute|server|launcher)(?:[-_.]?\w+)*|\d+\.\d+\.\d+\.\d+): "
    r"(?!error:)"
)
_IN_GROUP: Final = re.compile(r"(?:  )+\| ?(?= |\w)")
"""Of an ExceptionGroup."""
_QUOTE: Final = re.compile(r"> ")
_GLOG: Final = re.compile(r"\[?([VIWECF])(\d\d?)(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?) (?:(\d{1,18}) )?(\S+?:\d+)\] ?")
_OLD_CPP: Final = re.compile(r"\[[VIWEF] (\w+\.cpp:\d+)\] ?")
_LOGGED: Final = re.compile(r"([\w.]+): \[(DEBUG|INFO|WARNING|ERROR|CRITICAL)\] ?")
_BASIC: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([\w.]+):")


def attribute(number: int, piece: bytes, foreign: ForeignPrefixes | None = None) -> Line:
    """Take the prefixes off, whatever their order, until plain text is left; `foreign`: those of this log."""
    raw = piece.decode("utf-8", "replace")
    record = record_in(_plain(raw))
    state = _Attribution(_plain(record.text), record.source)
    state.rank, state.time = record.rank, record.time
    state.take_prefixes()
    if foreign is not None:
        state.take_foreign(foreign)
    speaker = Speaker(state.rank, state.local_rank, state.task, state.source) if state.is_named else _NOBODY
    return Line(number, raw, state.text, speaker, state.time, state.agent_pid, state.is_agents)


def _plain(text: str) -> str:
    text = _ANSI.sub("", text) if "\x1b" in text else text
    return text.replace("\0", "") if "\0" in text else text


_NOBODY: Final = Speaker()
OWN_PREFIX: Final = "[TraceML]"
"""Of our own lines, which are no evidence: what goes wrong in us ends no training, and a conclusion proves nothing."""


class _Attribution:
    """One line while its prefixes are taken off."""

    __slots__ = ("agent_pid", "is_agents", "local_rank", "rank", "source", "task", "text", "time")

    def __init__(self, text: str, source: str | None) -> None:
        self.text = text
        self.rank: int | None = None
        self.local_rank: int | None = None
        self.task: int | None = None
        self.source = source
        self.time: float | None = None
        self.agent_pid: int | None = None
        self.is_agents = False

    @property
    def is_named(self) -> bool:
        return not (self.rank is None and self.local_rank is None and self.task is None and self.source is None)

    def take_prefixes(self) -> None:
        for _ in range(8):
            if not any(self._take(pattern, effect) for pattern, effect in _PREFIXES):
                return

    def take_foreign(self, foreign: ForeignPrefixes) -> None:
        prefix, self.text = foreign.cut(self.text)
        if prefix:
            self.rank = rank_in(prefix) if self.rank is None else self.rank
            self.source = self.source or source_in(prefix)
            self.time = time_in(prefix) if self.time is None else self.time
            self.take_prefixes()

    def _take(self, pattern: re.Pattern[str], effect: Callable[[_Attribution, re.Match[str]], bool]) -> bool:
        found = pattern.match(self.text)
        if found is None or not effect(self, found):
            return False
        self.text = self.text[found.end() :]
        return True

    def of_rank(self, found: re.Match[str]) -> bool:
        self.rank = int(found[1])
        return True

    def of_own_rank(self, found: re.Match[str]) -> bool:
        return self.rank is None and self.of_rank(found)

    def of_local_rank(self, found: re.Match[str]) -> bool:
        self.local_rank = int(found[1])
        return True

    def of_task(self, found: re.Match[str]) -> bool:
        is_first, self.task = self.task is None, int(found[1])
        return is_first

    def of_source(self, found: re.Match[str]) -> bool:
        self.source = found[1]
        return True

    def of_syslog(self, found: re.Match[str]) -> bool:
        if found[1] not in _MONTHS:
            return False
        self.source = found[6]
        self.time = _seconds(str(_MONTHS.index(found[1]) + 1), *found.group(2, 3, 4, 5))
        return True

    def of_clock(self, found: re.Match[str]) -> bool:
        self.time = _seconds(*found.group(1, 2, 3, 4, 5))
        return True

    def of_glog(self, found: re.Match[str]) -> bool:
        self.time = _seconds(*found.group(2, 3, 4, 5, 6))
        self._notice_logger(found[8])
        if self.is_agents and found[7] is not None:
            self.agent_pid = int(found[7])
        return True

    def of_logger(self, found: re.Match[str]) -> bool:
        if not found[1].startswith(("torch.", "__main__")):
            return False
        self._notice_logger(found[1])
        return True

    def of_basic_logger(self, found: re.Match[str]) -> bool:
        self._notice_logger(found[2])
        return True

    def nothing(self, found: re.Match[str]) -> bool:
        return True

    def behind_time(self, found: re.Match[str]) -> bool:
        return self.time is not None

    def _notice_logger(self, name: str) -> None:
        path = name.replace(".", "/")
        self.is_agents = self.is_agents or "torch/distributed/elastic" in path or "torch/distributed/run" in path


_PREFIXES: Final = (
    (_RANK, _Attribution.of_rank),
    (_MPI, _Attribution.of_rank),
    (_OWN, _Attribution.of_own_rank),
    (_ISO, _Attribution.of_clock),
    (_GLOG, _Attribution.of_glog),
    (_NODE, _Attribution.of_source),
    (_TEE, _Attribution.of_local_rank),
    (_PREPENDED, _Attribution.of_task),
    (_NUMBER, _Attribution.nothing),
    (_TASK, _Attribution.of_task),
    (_CRI, _Attribution.nothing),
    (_POD, _Attribution.of_source),
    (_ACTOR, _Attribution.of_source),
    (_OLD_CPP, _Attribution.nothing),
    (_LOGGED, _Attribution.of_logger),
    (_BASIC, _Attribution.of_basic_logger),
    (_LEVEL, _Attribution.nothing),
    (_LEVELED, _Attribution.behind_time),
    (_LISTED, _Attribution.nothing),
    (_IN_GROUP, _Attribution.nothing),
    (_SYSLOG, _Attribution.of_syslog),
    (_HOST, _Attribution.of_source),
    (_QUOTE, _Attribution.nothing),
    (_COMPOSE, _Attribution.of_source),
)


def _seconds(month: str, day: str, hour: str, minute: str, second: str) -> float:
    days = int(month) * 31 + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + float(second.replace(",", "."))
