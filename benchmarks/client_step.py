"""What the client adds to a training step: `python -m benchmarks.client_step` prints JSON.

Blocks of steps with and without the hooks take turns in one process, in the order on-off-off-on, so that a machine that
slows down or speeds up does it to both. An added time is the median over pairs of neighbouring blocks of the difference
of their p10 (or p50) step; a step is timed from outside, around the whole body.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

_STEPS_PER_BLOCK = 250
_WARM_UP_STEPS = 20


@dataclass(frozen=True, slots=True)
class Body:
    """A loop's body. Without modules it is empty: then only `trace_step()` can add anything."""

    name: str
    num_modules: int
    is_traced: bool


BODIES = (
    Body("empty, traced", 0, True),
    Body("1 Linear", -1, False),
    Body("1 Linear, traced", -1, True),
    Body("1 submodule", 1, False),
    Body("10 submodules", 10, False),
    Body("10 submodules, traced", 10, True),
    Body("100 submodules", 100, False),
    Body("100 submodules, traced", 100, True),
)


def measure_added_us(*, num_pairs: int = 40) -> dict[str, Any]:
    """Added to a step of one Linear layer, unedited: `p10_us`, `p50_us` and `all`, the same for every body.

    In a process of its own: importing torch and replacing its functions is not for the caller.
    """
    command = [sys.executable, "-m", "benchmarks.client_step", "--pairs", str(num_pairs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", help="measure the body of this name")
    options = parser.parse_args()
    bodies = [body for body in BODIES if options.only in (None, body.name)]
    results = {body.name: _measure(body, options.pairs) for body in bodies}
    json.dump({**results.get("1 Linear", {}), "all": results}, sys.stdout, indent=1)
    print()


def _measure(body: Body, num_pairs: int) -> dict[str, float]:
    step = _empty if body.num_modules == 0 else _training_step(body.num_modules)
    differences: dict[int, list[float]] = {10: [], 50: []}
    bases: list[float] = []
    for pair in range(num_pairs):
        blocks = {}
        for is_on in (True, False) if pair % 2 == 0 else (False, True):
            blocks[is_on] = _block(step, is_on=is_on, is_traced=body.is_traced)
        bases.append(_percentile(blocks[False], 10))
        for percent, values in differences.items():
            values.append(_percentile(blocks[True], percent) - _percentile(blocks[False], percent))
    added = {f"p{percent}_us": round(statistics.median(values), 2) for percent, values in differences.items()}
    return {"base_p10_us": round(statistics.median(bases), 2), **added}


def _block(step: Callable[[], None], *, is_on: bool, is_traced: bool) -> list[int]:
    from traceml_client import trace_step

    context = trace_step if is_traced and is_on else nullcontext
    clock = time.perf_counter_ns
    times = []
    with _hooks() if is_on else nullcontext():
        for _ in range(_STEPS_PER_BLOCK):
            begin = clock()
            with context():
                step()
            times.append(clock() - begin)
    return times[_WARM_UP_STEPS:]


@contextmanager
def _hooks() -> Iterator[None]:
    """Everything that a rank has, into a ring in memory."""
    from traceml_client import steps
    from traceml_client.protocol import ring
    from traceml_client.recorder import Recorder
    from traceml_client.torch_hooks.install import install
    from traceml_client.torch_hooks.optimizer_table import OptimizerTable

    memory = memoryview(bytearray(ring.ring_bytes()))
    ring.initialize(memory)
    recorder = Recorder(memory)
    table = OptimizerTable()
    measuring = steps.start(recorder, _stop, is_replacing=table.is_replacing)
    patches = install(measuring, table)
    try:
        yield
    finally:
        patches.undo()
    if recorder.reader.head(0) < _STEPS_PER_BLOCK:
        raise RuntimeError(f"{recorder.reader.head(0)} of {_STEPS_PER_BLOCK} steps were recorded")


def _stop(kind: str, error: BaseException) -> None:
    raise RuntimeError(f"a hook failed: {kind}") from error


def _percentile(times_ns: list[int], percent: int) -> float:
    return sorted(times_ns)[len(times_ns) * percent // 100] / 1e3


def _empty() -> None:
    pass


def _training_step(num_modules: int) -> Callable[[], None]:
    import torch

    torch.set_num_threads(1)
    width = 16 if num_modules < 0 else 8
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(abs(num_modules))))
    if num_modules < 0:
        model = model[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(4, width)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
