"""From pipes to files and the terminal: exact per rank, whole lines in the merged file, live on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.until import until
from traceml_launch.output import streams as streams_module
from traceml_launch.output.streams import NodeStreams, StreamName, TailBuffer
from traceml_launch.output.terminal import TerminalWriter

Terminals = dict[StreamName, TerminalWriter]


class Screen:
    """Both ends of a pair of pipes in place of a terminal."""

    def __init__(self) -> None:
        pairs = {name: os.pipe() for name in streams_module.STREAM_NAMES}
        self.terminals: Terminals = {name: TerminalWriter(pair[1]) for name, pair in pairs.items()}
        self._pairs = pairs
        self._shown: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        for read_fd, _ in pairs.values():
            os.set_blocking(read_fd, False)

    def shown(self, name: StreamName) -> bytes:
        with contextlib.suppress(BlockingIOError):
            self._shown[name] += os.read(self._pairs[name][0], 1 << 20)
        return self._shown[name]

    def close(self) -> None:
        for name, pair in self._pairs.items():
            self.terminals[name].close(stall_s=5.0)
            for fd in pair:
                os.close(fd)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.close()


PIECES = st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=30)), max_size=20)


@given(PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_every_rank_keeps_its_exact_bytes_in_any_chunking(tmp_path: Path, pieces: list[tuple[int, bytes]]) -> None:
    screen = Screen()
    for file in tmp_path.iterdir():
        file.unlink()
    asyncio.run(_write_pieces(tmp_path, screen, pieces))
    written = [b"".join(data for rank, data in pieces if rank == number) for number in range(3)]
    assert [(tmp_path / f"{number}.log").read_bytes() for number in range(3)] == written
    merged = (tmp_path / "training.stdout.log").read_bytes()
    whole_lines = sorted(line for data in written for line in data.split(b"\n")[:-1])
    lines = merged.split(b"\n")
    for line in whole_lines:
        lines.remove(line)
    rests = [data.split(b"\n")[-1] for data in written]
    assert sorted(each for each in lines if each) == sorted(each for each in rests if each)
    screen.close()


async def _write_pieces(folder: Path, screen: Screen, pieces: list[tuple[int, bytes]]) -> None:
    streams = NodeStreams(screen.terminals)
    streams.open_merged(folder)
    write_fds = []
    for number in range(3):
        read_fd, write_fd = os.pipe()
        streams.follow(read_fd, "stdout", own_file=folder / f"{number}.log")
        write_fds.append(write_fd)
    for rank, data in pieces:
        os.write(write_fds[rank], data)
        await asyncio.sleep(0)
    for fd in write_fds:
        os.close(fd)
    await streams.drain(quiet_s=5.0, limit_s=5.0)
    streams.close()


async def test_streams_stay_apart_and_a_partial_line_is_shown_soon(tmp_path: Path, screen: Screen) -> None:
    streams = NodeStreams(screen.terminals)
    streams.open_merged(tmp_path)
    fds = _follow_both(streams)
    os.write(fds["stdout"], b"\r 10%")
    os.write(fds["stderr"], b"warning\n")
    await until(lambda: screen.shown("stdout") == b"\r 10%", "the bar is shown", within_s=5.0)
    await until(lambda: screen.shown("stderr") == b"warning\n", "the warning is shown", within_s=5.0)
    for fd in fds.values():
        os.close(fd)
    await streams.drain(quiet_s=5.0, limit_s=5.0)
    streams.close()
    assert (tmp_path / "training.stdout.log").read_bytes() == b"\r 10%"
    assert (tmp_path / "training.stderr.log").read_bytes() == b"warning\n"


async def test_bytes_before_the_folder_is_known_come_first(tmp_path: Path, screen: Screen) -> None:
    streams = NodeStreams(screen.terminals)
    fds = _follow_both(streams)
    os.write(fds["stdout"], b"early\n")
    await until(lambda: screen.shown("stdout") == b"early\n", "it is shown")
    streams.open_merged(tmp_path)
    os.write(fds["stdout"], b"late\n")
    for fd in fds.values():
        os.close(fd)
    await streams.drain(quiet_s=5.0, limit_s=5.0)
    streams.close()
    assert (tmp_path / "training.stdout.log").read_bytes() == b"early\nlate\n"


async def test_a_pipe_that_somebody_holds_open_is_not_waited_for(tmp_path: Path, screen: Screen) -> None:
    streams = NodeStreams(screen.terminals)
    streams.open_merged(tmp_path)
    fds = _follow_both(streams)
    os.write(fds["stdout"], b"last words")
    await asyncio.wait_for(streams.drain(quiet_s=0.05, limit_s=60.0), 30.0)
    streams.close()
    assert (tmp_path / "training.stdout.log").read_bytes() == b"last words"
    for fd in fds.values():
        os.close(fd)


async def test_a_talkative_holder_is_cut_off_at_the_limit(tmp_path: Path, screen: Screen) -> None:
    streams = NodeStreams(screen.terminals)
    streams.open_merged(tmp_path)
    fds = _follow_both(streams)

    async def talk() -> None:
        while True:
            os.write(fds["stdout"], b"still here\n")
            await asyncio.sleep(0.01)

    talking = asyncio.ensure_future(talk())
    await asyncio.wait_for(streams.drain(quiet_s=5.0, limit_s=0.2), 30.0)
    talking.cancel()
    streams.close()
    for fd in fds.values():
        os.close(fd)


async def test_a_full_log_volume_is_said_and_the_terminal_still_shows_everything(screen: Screen) -> None:
    streams = NodeStreams(screen.terminals)
    read_fd, write_fd = os.pipe()
    streams.follow(read_fd, "stdout", own_file=Path("/dev/full"))
    os.write(write_fd, b"words\n")
    os.close(write_fd)
    await streams.drain(quiet_s=5.0, limit_s=5.0)
    streams.close()
    assert streams.problems() == ["/dev/full lacks 6 bytes: No space left on device"]
    await until(lambda: screen.shown("stdout") == b"words\n", "the terminal shows it")


def test_a_tail_buffer_keeps_the_end() -> None:
    tail = TailBuffer(4)
    for piece in (b"abc", b"def", b""):
        tail.feed(piece)
    assert tail.content() == b"cdef"


def _follow_both(streams: NodeStreams) -> dict[str, int]:
    """Write ends of two pipes that are followed as this node's two streams."""
    write_fds = {}
    for name in streams_module.STREAM_NAMES:
        read_fd, write_fds[name] = os.pipe()
        streams.follow(read_fd, name)
    return write_fds
