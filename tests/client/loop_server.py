"""Runs the scripts of `loops/`, each in a process of its own, with a ring in a file and the hooks set.

As a program it imports torch once and forks for every script: thirty scripts in the time of a few imports. The import
of torch under the hooks has tests of its own.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import runpy
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.client.rings import Step, read_steps
from traceml_client.protocol import ring

LOOPS = Path(__file__).parent / "loops"
_LIMIT_S = 50
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a script did, by its own account, and what the ring holds of it."""

    status: int
    """As of waitpid."""
    output: str
    laps: list[int]
    facts: dict[str, Any]
    steps: list[Step]
    reader: ring.RingReader

    def median_ns(self, phase: str) -> float | None:
        values = [value for step in self.steps if (value := step.phases[phase]) is not None]
        return statistics.median(values) if values else None


class LoopServer:
    """Use as a context manager."""

    def __enter__(self) -> LoopServer:
        environment = os.environ | _ENVIRONMENT
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_LIMIT_S)
        self._process.stdout.close()

    def run(self, name: str, folder: Path, *arguments: str, is_measured: bool = True) -> LoopResult:
        """Run `loops/NAME.py` to its end, at most 50 s; without the hooks for comparison, if asked to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "script": str(LOOPS / f"{name}.py"),
            "folder": str(folder),
            "arguments": arguments,
            "is_measured": is_measured,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        output = (folder / "output").read_text()
        last = output.rstrip().rpartition("\n")[2]
        said = json.loads(last) if last.startswith("{") else {"laps": []}
        reader = ring.RingReader((folder / "ring").read_bytes())
        return LoopResult(status, output, said.pop("laps"), said, read_steps(reader), reader)


def _serve() -> None:
    import torch
    import torch._dynamo  # every optimizer imports it

    torch.set_num_threads(1)
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.alarm(_LIMIT_S)
            _become(order)
        print(os.waitpid(pid, 0)[1], flush=True)


def _become(order: dict[str, Any]) -> None:
    """Be the script from here on. A fault of a hook is a failed script."""
    folder, script = Path(order["folder"]), order["script"]
    code = 1
    try:
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = [script, *order["arguments"]]
        sys.path[0] = str(Path(script).parent)
        code = _run(script, folder / "ring", is_measured=order["is_measured"])
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - a forked child must end here, whatever happens
        import traceback

        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(script: str, ring_path: Path, *, is_measured: bool) -> int:
    from traceml_client import steps, torch_hooks
    from traceml_client.recorder import Recorder

    faults = []

    def report_fault(kind: str, error: BaseException) -> None:
        faults.append(kind)
        print(f"fault in {kind}: {error!r}", file=sys.stderr)

    ring_path.write_bytes(bytes(ring.ring_bytes()))
    with ring_path.open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    ring.initialize(memory)
    if is_measured:
        torch_hooks.install_when_imported(Recorder(memory), report_fault)
    runpy.run_path(script, run_name="__main__")
    steps.finish(has_error=False)
    return 3 if faults else 0


if __name__ == "__main__":
    _serve()
