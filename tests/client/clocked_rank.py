"""A step clock whose time is moved by hand, and a training loop in hand-made times."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.client.rings import Step, new_ring, read_steps
from traceml_client.phases import BACKWARD, FORWARD, NOT_OURS
from traceml_client.recorder import Recorder
from traceml_client.step_clock import StepClock

LOADER = 77
A, B = 1, 2


class Rank:
    """A step clock whose time is moved by hand."""

    def __init__(self, *, max_steps: int | None = None) -> None:
        self.now_ns = 1_000_000
        self.recorder = Recorder(new_ring(), max_steps=max_steps)
        self.clock = StepClock(self.recorder, now_ns=lambda: self.now_ns)

    def spend(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def batch(self, duration_ns: int, loader: int = LOADER) -> None:
        before = self.clock.enter_input(loader)
        self.spend(duration_ns)
        if before != NOT_OURS:
            self.clock.leave(before)

    def phase(self, phase: int, duration_ns: int) -> None:
        before = self.clock.enter(phase)
        self.spend(duration_ns)
        self.clock.leave(before)

    def optimizer(self, duration_ns: int, optimizer: int = A) -> None:
        self.clock.begin_optimizer(optimizer)
        self.spend(duration_ns)
        self.clock.end_optimizer(optimizer)

    def step(self) -> None:
        """A plain one of 100 ns: 10 input wait, 20 forward, 30 backward, 15 optimizer, 25 between them."""
        self.batch(10)
        self.spend(5)
        self.phase(FORWARD, 20)
        self.spend(10)
        self.phase(BACKWARD, 30)
        self.spend(10)
        self.optimizer(15)

    @property
    def steps(self) -> list[Step]:
        return read_steps(self.recorder.reader)

    @property
    def progress(self) -> tuple[int, str | None, int]:
        return self.recorder.reader.progress()


def in_thread(action: Callable[[], object]) -> None:
    """Run it in another thread, to its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
