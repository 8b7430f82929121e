"""What the client adds to a training step: `python -m benchmarks.client_step` prints JSON.

A block of steps with the hooks stands between two without, in one process, many times over. An added time is the median
over these of how much the p10 (or p50) step of the middle block is above the mean of its neighbours', so that a machine
that slows down or speeds up does it to both sides. A step is timed from outside, around the whole body.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

_STEPS_PER_BLOCK = 150
_WARM_UP_STEPS = 20


@dataclass(frozen=True, slots=True)
class Body:
    """A loop's body. Without modules it is empty: then only `trace_step()` can add anything."""

    name: str
    num_modules: int
    is_traced: bool

    @property
    def blocks_divisor(self) -> int:
        """A hundred modules take a hundred times as long: fewer blocks, fewer differences."""
        return 5 if self.num_modules >= 100 else 1


_MAIN_BODY = "1 Linear"
BODIES = (
    Body("empty, traced", 0, True),
    Body(_MAIN_BODY, -1, False),
    Body("1 Linear, traced", -1, True),
    Body("1 submodule", 1, False),
    Body("10 submodules", 10, False),
    Body("10 submodules, traced", 10, True),
    Body("100 submodules", 100, False),
    Body("100 submodules, traced", 100, True),
)


def measure_added_us(*, num_blocks: int = 30) -> dict[str, float]:
    """Added to an unedited step of one Linear layer: `p10_us`, `p50_us`, and `base_p10_us`, the step without us.

    In a process of its own: importing torch and replacing its functions is not for the caller.
    """
    return _in_process("--blocks", str(num_blocks), "--only", _MAIN_BODY)[_MAIN_BODY]


def measure_all_us() -> dict[str, dict[str, float]]:
    """The same by body."""
    return _in_process()


def _in_process(*options: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.client_step", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    result: dict[str, dict[str, float]] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--only", help="measure the body of this name")
    options = parser.parse_args()
    bodies = [body for body in BODIES if options.only in (None, body.name)]
    results = {body.name: _measure(body, max(3, options.blocks // body.blocks_divisor)) for body in bodies}
    json.dump(results, sys.stdout, indent=1)
    print()


def _measure(body: Body, num_blocks: int) -> dict[str, float]:
    step = _empty if body.num_modules == 0 else training_step(body.num_modules)
    added: dict[int, list[float]] = {10: [], 50: []}
    bases: list[float] = []
    for _ in range(num_blocks):
        before, middle, after = (_block(step, is_on=is_on, is_traced=body.is_traced) for is_on in (False, True, False))
        bases.append(_percentile(before, 10))
        for percent, values in added.items():
            base = (_percentile(before, percent) + _percentile(after, percent)) / 2
            values.append(_percentile(middle, percent) - base)
    result = {f"p{percent}_us": round(statistics.median(values), 2) for percent, values in added.items()}
    return {"base_p10_us": round(statistics.median(bases), 2), **result}


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


def training_step(num_modules: int) -> Callable[[], None]:
    import torch
    import torch._dynamo  # every optimizer imports it

    torch.set_num_threads(1)
    gc.freeze()  # the search for the model, once a block, has nothing to do with a step
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
