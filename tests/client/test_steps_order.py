"""Which optimizer step ends a training step: loops as sequences of events, and what the ring says after each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.rings import new_ring, read_steps
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL
from traceml_client.recorder import Recorder
from traceml_client.step_order import NO_SOURCE
from traceml_client.step_parts import StepWriter, joined

PART_NS = 10
REPLACING = {("B", "A"), ("A", "B")}
"""In the tables, A and B update the same parameters; no others do."""

# An event is a capital letter, the optimizer, after a small one where a loader was asked for a batch. The numbers are
# the steps in the ring after each event. `x:` says that the optimizer's object is gone.
TABLE = [
    ("one optimizer", "A A A A", [1, 2, 3, 4]),
    ("one optimizer and a loader", "lA lA lA", [1, 2, 3]),
    ("two, one after the other", "D G D G D G", [1, 1, 1, 2, 2, 3]),
    ("three", "D E G D E G D E G", [1, 1, 1, 1, 1, 2, 2, 2, 3]),
    ("two and one loader", "lD G lD G lD G", [1, 1, 1, 2, 2, 3]),
    ("two with a loader each", "kD lG kD lG kD lG", [1, 1, 1, 2, 2, 3]),
    ("the order changes", "D G G D D G", [1, 1, 2, 2, 3, 3]),
    ("second every third time", "D G D D D G D D D G D", [1, 1, 1, 3, 4, 4, 5, 6, 7, 7, 8]),
    ("second first, every third time", "G D D D G D D D G D", [1, 1, 2, 3, 4, 4, 5, 6, 7, 7]),
    ("alternating batches", "lD lG lD lG lD", [1, 2, 3, 4, 5]),
    ("in turns", "D D D G G G D D G G", [1, 2, 3, 3, 5, 6, 6, 8, 9, 10]),
    ("each alone, then both", "D D G G D G D G D G", [1, 2, 2, 4, 4, 5, 5, 6, 6, 7]),
    ("each alone in the other order, then both", "G G D D D G D G D G", [1, 2, 2, 4, 5, 5, 6, 6, 7, 7]),
    ("two together, then a third alone", "D G D G D G E E E", [1, 1, 1, 2, 2, 3, 3, 5, 6]),
    ("two together, then two others", "D G D G D G E F E F", [1, 1, 1, 2, 2, 3, 3, 3, 5, 5]),
    ("replaced over the same parameters", "A A A B B B", [1, 2, 3, 4, 5, 6]),
    ("replaced, stepping once", "A A A B", [1, 2, 3, 4]),
    ("replaced over other parameters", "C C C D D D", [1, 2, 3, 3, 5, 6]),
    ("replaced with a loader", "lC lC lC lD lD", [1, 2, 3, 4, 5]),
    ("replaced by a loop without a loader", "lA lA lA B B", [1, 2, 3, 3, 5]),
    ("dropped, then another", "C C C c: D D D", [1, 2, 3, 3, 4, 5, 6]),
    ("same parameters in one iteration", "A D B A D B A D B", [1, 1, 1, 1, 1, 2, 2, 2, 3]),
    ("a late second one", "C C C D C D C D C D", [1, 2, 3, 3, 4, 4, 4, 5, 5, 6]),
    ("a second one that stops", "D G D G D D D", [1, 1, 1, 2, 2, 4, 5]),
    ("gone while it is waited for", "D G D G D g: D D", [1, 1, 1, 2, 2, 2, 4, 5]),
]


class Loop:
    """A writer over a ring in memory, fed with the events of the table."""

    def __init__(self) -> None:
        self.recorder = Recorder(new_ring())
        self.writer = StepWriter(self.recorder, self._is_replacing)
        self.num_events = 0
        self.num_told = 0

    @staticmethod
    def _is_replacing(new: int, others: Iterable[int]) -> bool:
        return any((chr(new), chr(other)) in REPLACING for other in others)

    def take(self, event: str) -> int:
        """Returns how many steps the ring has after it."""
        if event.endswith(":"):
            self.writer.forget(ord(event[0].upper()))
            return self.num_steps
        source = ord(event[0]) if event[0].islower() else NO_SOURCE
        if source and self.writer.is_waiting:
            self.num_told += self.writer.see_batch(source)
        self.num_events += 1
        part = (0, PART_NS * self.num_events, -1, 0, 1, 2, 3, PART_NS)
        self.num_told += self.writer.add(ord(event[-1]), source, part)
        return self.num_steps

    def complete(self) -> None:
        self.num_told += self.writer.complete()

    @property
    def num_steps(self) -> int:
        return self.recorder.reader.head(0)


@pytest.mark.parametrize(("events", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_steps_after_each_event(events: str, expected: list[int]) -> None:
    loop = Loop()
    assert [loop.take(event) for event in events.split()] == expected
    assert loop.num_told == loop.num_steps


def test_a_loader_asked_again_completes_a_step_that_waits() -> None:
    loop = Loop()
    for event in ["lD", "G", "lD", "G", "lD"]:
        loop.take(event)
    assert (loop.writer.is_waiting, loop.num_steps) == (True, 2)
    loop.writer.see_batch(ord("k"))
    assert loop.num_steps == 2
    loop.writer.see_batch(ord("l"))
    assert (loop.writer.is_waiting, loop.num_steps) == (False, 3)


def test_the_end_completes_a_step_that_waits() -> None:
    loop = Loop()
    for event in ["D", "G", "D", "G", "D"]:
        loop.take(event)
    loop.complete()
    loop.complete()
    assert loop.num_steps == 3


def test_a_split_gives_both_steps_their_own_times() -> None:
    loop = Loop()
    for event in ["C", "C", "D", "D"]:
        loop.take(event)
    steps = read_steps(loop.recorder.reader)
    assert [(one.end_ns, one.duration_ns) for one in steps] == [(10, 10), (20, 10), (30, 10), (40, 10)]


@given(
    periods=st.lists(st.integers(1, 5), min_size=0, max_size=4),
    position=st.integers(0, 4),
    num_iterations=st.integers(1, 40),
    has_loader=st.booleans(),
)
def test_one_step_an_iteration_whatever_else_steps(
    periods: list[int], position: int, num_iterations: int, has_loader: bool
) -> None:
    """Beside one optimizer that steps every iteration, others step in every n-th, in any order: steps = iterations."""
    order = [("CDEF"[index], period) for index, period in enumerate(periods)]
    order.insert(min(position, len(order)), ("Z", 1))
    loop = Loop()
    for number in range(num_iterations):
        names = [name for name, period in order if number % period == 0]
        for index, name in enumerate(names):
            loop.take(f"l{name}" if has_loader and index == 0 else name)
        assert number <= loop.num_steps + loop.writer.is_waiting <= number + 1
    loop.complete()
    assert loop.num_steps == num_iterations


@given(names=st.integers(1, 5), num_iterations=st.integers(1, 20), has_loader=st.booleans())
def test_a_fixed_order_is_exact_after_every_iteration(names: int, num_iterations: int, has_loader: bool) -> None:
    loop = Loop()
    for number in range(1, num_iterations + 1):
        for index, name in enumerate("CDEFG"[:names]):
            count = loop.take(f"l{name}" if has_loader and index == 0 else name)
            is_last = index == names - 1
            assert count == (number if is_last or number == 1 else number - 1)


@given(st.lists(st.sampled_from(["A", "B", "C", "D", "lA", "lB", "kC", "lD", "a:", "c:"]), max_size=60))
def test_nothing_is_lost_or_counted_twice(events: list[str]) -> None:
    """In any order whatever: the count never falls, every part is in exactly one step, in order, without a gap."""
    loop = Loop()
    counts = [loop.take(event) for event in events]
    assert counts == sorted(counts)
    loop.complete()
    steps = read_steps(loop.recorder.reader)
    assert len(steps) == loop.num_told
    assert sum(one.duration_ns for one in steps) == PART_NS * loop.num_events
    assert all(one.duration_ns >= PART_NS for one in steps)
    ends = [0, *(one.end_ns for one in steps)]
    assert [later - earlier for earlier, later in itertools.pairwise(ends)] == [one.duration_ns for one in steps]
    assert all(one.phases["optimizer"] == 3 * one.duration_ns // PART_NS for one in steps)


def test_max_steps_stops_in_the_middle_of_an_order() -> None:
    recorder = Recorder(new_ring(), max_steps=2)
    writer = StepWriter(recorder, lambda _new, _others: False)
    numbers = [writer.add(number % 2, NO_SOURCE, (0, 10 * number, -1, 0, 1, 2, 3, 10)) for number in range(1, 11)]
    assert [one.duration_ns for one in read_steps(recorder.reader)] == [20, 20]
    assert sum(numbers) == 5


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((0, 0), 0),
        ((IS_SKIPPED, 0), 0),
        ((IS_SKIPPED, IS_SKIPPED), IS_SKIPPED),
        ((IS_UNUSUAL, 0), IS_UNUSUAL),
        ((IS_SKIPPED | IS_UNUSUAL, IS_SKIPPED), IS_SKIPPED | IS_UNUSUAL),
    ],
)
def test_a_joined_step_is_skipped_if_all_of_it_was(flags: tuple[int, int], expected: int) -> None:
    first, second = ((flag, 5, -1, 0, -1, 2, 3, 9) for flag in flags)
    assert joined([first, second]) == (expected, 5, -1, 0, -1, 4, 6, 18)
