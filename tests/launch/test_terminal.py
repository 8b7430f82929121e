"""A terminal or pipe that does not read: it loses bytes, and nobody waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.harness.processes import wait_until
from traceml_launch.output.terminal import TerminalWriter

STALL_S = 0.05
FAR_OVER_A_PIPE = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        os.close(fd)


def test_everything_arrives_in_order(pipe: tuple[int, int]) -> None:
    read_fd, write_fd = pipe
    writer = TerminalWriter(write_fd)
    for number in range(100):
        writer.write(b"%d\n" % number)
    writer.close(stall_s=5.0)
    assert os.read(read_fd, 1 << 16) == b"".join(b"%d\n" % number for number in range(100))
    assert writer.num_dropped_bytes == 0


def test_a_full_pipe_drops_what_the_buffer_does_not_hold_and_counts_all_of_it(pipe: tuple[int, int]) -> None:
    read_fd, write_fd = pipe
    writer = TerminalWriter(write_fd, max_buffered_bytes=FAR_OVER_A_PIPE)
    for _ in range(4):
        writer.write(b"x" * (FAR_OVER_A_PIPE // 2))
    assert writer.num_dropped_bytes == FAR_OVER_A_PIPE
    writer.close(stall_s=STALL_S)
    # The thread sits in a write; the reader lets it go, and nothing that was dropped comes after all.
    os.set_blocking(read_fd, False)
    num_read = 0
    while piece := _read_what_is_there(read_fd):
        num_read += len(piece)
    wait_until(lambda: not _read_what_is_there(read_fd), "no more bytes", within_s=5.0)
    assert num_read < FAR_OVER_A_PIPE
    assert writer.num_dropped_bytes > FAR_OVER_A_PIPE


def test_a_closed_reader_ends_writing_for_good() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    writer = TerminalWriter(write_fd)
    writer.write(b"into the void\n")
    writer.close(stall_s=5.0)
    writer.write(b"more\n")
    assert writer.num_dropped_bytes == len(b"into the void\nmore\n")
    os.close(write_fd)


def test_a_non_blocking_descriptor_is_waited_for(pipe: tuple[int, int]) -> None:
    read_fd, write_fd = pipe
    os.set_blocking(write_fd, False)
    writer = TerminalWriter(write_fd)
    writer.write(b"x" * FAR_OVER_A_PIPE)
    received = 0
    while received < FAR_OVER_A_PIPE:
        received += len(os.read(read_fd, 1 << 16))
    writer.close(stall_s=5.0)
    assert writer.num_dropped_bytes == 0


def test_closing_without_a_byte_starts_nothing(pipe: tuple[int, int]) -> None:
    threads = set(threading.enumerate())
    writer = TerminalWriter(pipe[1])
    writer.write(b"")
    assert set(threading.enumerate()) == threads
    writer.close(stall_s=STALL_S)
    writer.close(stall_s=STALL_S)


def _read_what_is_there(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
