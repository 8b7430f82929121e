"""The bytes of training: from the pipes of torchrun and its ranks to their files and to the terminal.

Nothing here decodes, and nothing here may hold training up: files are written as bytes arrive and a failing one is
counted, the terminal has a thread and a bounded buffer of its own (`terminal.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from traceml_client.protocol import launch
from traceml_launch.output.logfile import WholeLog, open_log
from traceml_launch.output.merge import LineMerger
from traceml_launch.output.terminal import TerminalWriter
from traceml_launch.waiting import unless

StreamName = Literal["stdout", "stderr"]
STREAM_NAMES: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")
MERGED_FILE: Final = {"stdout": launch.TRAINING_STDOUT_FILE, "stderr": launch.TRAINING_STDERR_FILE}

READ_BYTES: Final = 64 * 1024
"""A whole pipe at its usual size."""
TERMINAL_HOLD_S: Final = 0.1
"""A progress bar is live at ten frames a second; a line that takes longer to write is shown in pieces."""
FILE_HOLD_S: Final = 2.0
"""Lines in the merged file stay whole although a writer pauses; a killed launcher loses no more than this of it."""
EARLY_BYTES: Final = 1 << 20
"""What is kept of a merged file until the node's folder is known (a dynamic rendezvous waits for its index)."""


class MergedStream:
    """Standard output or error of this node: all its ranks and torchrun, into one file and to the terminal."""

    def __init__(self, terminal: TerminalWriter) -> None:
        self.log: WholeLog | None = None
        self.num_lost_early_bytes = 0
        self._terminal = terminal
        self._shown = LineMerger(hold_s=TERMINAL_HOLD_S)
        self._kept = LineMerger(hold_s=FILE_HOLD_S)
        self._early = b""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def open_log(self, log: WholeLog) -> None:
        """From here on there is a file; what came before goes first."""
        self.log = log
        log.write(self._early)
        self._early = b""

    def feed(self, source: int, data: bytes, *, is_shown: bool) -> None:
        now_s = self._loop.time()
        if is_shown:
            self._terminal.write(self._shown.feed(source, data, now_s=now_s))
        self._keep(self._kept.feed(source, data, now_s=now_s))
        self._arm()

    def end(self, source: int) -> None:
        self._terminal.write(self._shown.end(source))
        self._keep(self._kept.end(source))

    def close(self) -> None:
        """After the last source has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.log is not None:
            self.log.close()

    def _keep(self, data: bytes) -> None:
        if self.log is not None:
            self.log.write(data)
        elif len(self._early) + len(data) <= EARLY_BYTES:
            self._early += data
        else:
            self.num_lost_early_bytes += len(data)

    def _arm(self) -> None:
        deadlines = [each for each in (self._shown.next_deadline_s(), self._kept.next_deadline_s()) if each is not None]
        if not deadlines or (self._timer is not None and self._timer.when() <= min(deadlines)):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(deadlines), self._advance)

    def _advance(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        self._terminal.write(self._shown.advance(now_s=now_s))
        self._keep(self._kept.advance(now_s=now_s))
        self._arm()


@dataclass(slots=True, kw_only=True)
class _Pipe:
    fd: int
    source: int
    merged: MergedStream
    log: WholeLog | None
    tap: Callable[[bytes], None] | None
    is_shown: bool


class NodeStreams:
    """Every captured pipe of this node. Only for a running loop; `close` at the end, whatever happened."""

    def __init__(self, terminals: dict[StreamName, TerminalWriter], *, max_log_bytes: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_log_bytes = max_log_bytes
        self._merged = {name: MergedStream(terminals[name]) for name in STREAM_NAMES}
        self._pipes: dict[int, _Pipe] = {}
        self._num_sources = 0
        self._changed = asyncio.Event()
        self._last_bytes_at_s = 0.0
        self._logs: list[WholeLog] = []

    def open_merged(self, node_dir: Path) -> None:
        """The node's folder is known and exists: open both merged files."""
        for name, merged in self._merged.items():
            merged.open_log(self._open(node_dir / MERGED_FILE[name]))

    def merged_path(self, name: StreamName) -> Path | None:
        """Null where there is no such file."""
        log = self._merged[name].log
        return log.path if log is not None and log.path.exists() else None

    def follow(
        self,
        fd: int,
        name: StreamName,
        *,
        own_file: Path | None = None,
        tap: Callable[[bytes], None] | None = None,
        is_shown: bool = True,
    ) -> None:
        """Read this pipe until its end. Takes `fd` over.

        Args:
            own_file: gets exactly the bytes of this pipe.
            tap: is shown them too.
            is_shown: also on the terminal.
        """
        os.set_blocking(fd, False)
        self._num_sources += 1
        log = self._open(own_file) if own_file is not None else None
        merged = self._merged[name]
        pipe = _Pipe(fd=fd, source=self._num_sources, merged=merged, log=log, tap=tap, is_shown=is_shown)
        self._pipes[fd] = pipe
        self._loop.add_reader(fd, self._on_readable, pipe)

    async def drain(self, *, quiet_s: float, limit_s: float) -> None:
        """Training is over: read to the end of every pipe, or until those that somebody still holds open are quiet."""
        start_s = self._loop.time()
        while self._pipes:
            now_s = self._loop.time()
            until_s = min(max(start_s, self._last_bytes_at_s) + quiet_s, start_s + limit_s)
            if until_s <= now_s:
                return
            self._changed.clear()
            await unless(self._changed.wait(), timeout_s=until_s - now_s)

    def close(self) -> None:
        """Stop reading, write what was held back, close the files. Legal twice."""
        for pipe in list(self._pipes.values()):
            self._end(pipe)
        for merged in self._merged.values():
            merged.close()

    def problems(self) -> list[str]:
        """One sentence for each file that lacks bytes, most often because the disk did not take them."""
        found = [
            f"{log.path} lacks {log.num_lost_bytes} bytes: {log.error}" for log in self._logs if log.num_lost_bytes
        ]
        for name, merged in self._merged.items():
            if merged.num_lost_early_bytes:
                found.append(f"{MERGED_FILE[name]} lacks {merged.num_lost_early_bytes} bytes from before it was opened")
        return found

    def _open(self, path: Path) -> WholeLog:
        log = open_log(path, max_bytes=self._max_log_bytes)
        self._logs.append(log)
        return log

    def _on_readable(self, pipe: _Pipe) -> None:
        try:
            data = os.read(pipe.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(pipe)
            return
        self._last_bytes_at_s = self._loop.time()
        self._changed.set()
        if pipe.log is not None:
            pipe.log.write(data)
        if pipe.tap is not None:
            pipe.tap(data)
        pipe.merged.feed(pipe.source, data, is_shown=pipe.is_shown)

    def _end(self, pipe: _Pipe) -> None:
        self._loop.remove_reader(pipe.fd)
        os.close(pipe.fd)
        del self._pipes[pipe.fd]
        pipe.merged.end(pipe.source)
        if pipe.log is not None:
            pipe.log.close()
        self._changed.set()


class TailBuffer:
    """The last bytes of a stream, in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = b""

    def feed(self, data: bytes) -> None:
        self._data = (self._data + data)[-self._max_bytes :]

    def content(self) -> bytes:
        return self._data
