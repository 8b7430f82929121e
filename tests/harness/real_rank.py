"""A real rank of a direct launch in a process of its own: the real client, no torch, steps on command."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

from tests.harness.torchrun import clean_environment

SCRIPT = """
import sys
import traceml_client

traceml_client.init()
for line in sys.stdin:
    for _ in range(int(line)):
        with traceml_client.trace_step():
            pass
    print(line.strip(), flush=True)
"""


class RealRank:
    """Trains as it is told, and ends at `end` or by whatever a test does to `process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.num_steps = 0

    async def train(self, num_steps: int) -> None:
        """So many more steps; returns when they are made."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"%d\n" % num_steps)
        self.process.stdin.flush()
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line == b"%d\n" % num_steps
        self.num_steps += num_steps

    async def end(self, *, within_s: float = 30.0) -> str:
        """An orderly end; what it said on standard error."""
        _, said = await asyncio.to_thread(self.process.communicate, timeout=within_s)
        assert self.process.returncode == 0, said.decode()
        return said.decode()


@contextlib.asynccontextmanager
async def real_rank(port: int, **variables: str) -> AsyncIterator[RealRank]:
    """Start it; it is killed if it is still there when the block is left."""
    process = _spawn(clean_environment(TRACEML_AGGREGATOR_PORT=str(port), **variables))
    try:
        yield RealRank(process)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _spawn(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environ, **pipes)
