"""Decides which optimizer step ends a training step, from the order in which a loop's optimizers step.

Input is one event per finished optimizer step: which optimizer, and which loader was asked for a batch since the event
before. Consecutive events form an *iteration*; each iteration is one training step.

An event opens a new iteration
  1. if its optimizer has already stepped in the open one (a loop's optimizer steps at most once an iteration);
  2. else, where loaders feed the loop, exactly if one that fed the open iteration was asked again in between;
  3. else, if the open iteration's optimizers are all gone, or all have been seen to fill iterations on their own, and
     this one leads the learned order, or is new and updates the same parameters (it replaces them);
otherwise it joins the open iteration. If what joined a complete iteration by rule 3 then comes again without it, a
loop of its own had begun: the iteration is split again.

An iteration is written as soon as its last expected optimizer has stepped. Expected are those of the first complete
iteration, later ones after two iterations in a row; one that ever stayed away is never expected again. While a known
order is being repeated, nothing is written before its last expected optimizer; in every other case (the first
iteration, any deviation) the step is written at once and written again if another optimizer joins: a rank that is
killed has its last step in the ring, and a regular loop has exactly its own steps there at every instant after its
first iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

NO_SOURCE = 0
_TRUSTED = 2
"""Iterations in a row after which an optimizer that came later is expected."""
_UNRELIABLE = -1


def never_replacing(_new: int, _open: Iterable[int]) -> bool:
    """Nothing is known of any optimizer's parameters."""
    return False


class Verdict(NamedTuple):
    is_start: bool
    """This event opens a new iteration; the one before it is over."""
    split: int
    """The iteration that is over was two: this many events were the first. 0: it was one."""
    is_complete: bool
    """Write the open iteration now."""


class StepOrder:
    """Learns the order of one loop. Optimizers and loaders are integers that the caller chooses.

    Args:
        is_replacing: (new optimizer, optimizers of the open iteration) -> it updates the same parameters.
    """

    def __init__(self, is_replacing: Callable[[int, Iterable[int]], bool]) -> None:
        self._is_replacing = is_replacing
        self._open: dict[int, bool] = {}
        """Optimizers of the open iteration in their order; False once the object is gone."""
        self._sources: set[int] = set()
        self._last: tuple[int, ...] = ()
        self._order: list[int] = []
        self._streak: dict[int, int] = {}
        self._alone: set[int] = set()
        self._closer: int | None = None
        self._is_repeating = False
        self._gone: list[int] = []

    def stepped(self, optimizer: int, source: int) -> Verdict:
        """Take one event; `source` is the loader that was asked since the event before, or NO_SOURCE."""
        self._forget_gone()
        is_start = self._is_start(optimizer, source)
        split = 0
        if is_start and self._open:
            split = self._find_split(optimizer)
            self._end_iteration(split)
        if source != NO_SOURCE:
            self._sources.add(source)
        position = len(self._open)
        self._open[optimizer] = True
        self._is_repeating = (
            (self._is_repeating or position == 0) and position < len(self._last) and (self._last[position] == optimizer)
        )
        return Verdict(is_start, split, not self._is_waiting())

    def is_boundary(self, source: int) -> bool:
        """A loader that fed the open iteration is asked again after an optimizer stepped: the iteration is over."""
        return source in self._sources

    @property
    def only(self) -> int | None:
        """The optimizer that fills iterations on its own just now: its next step is a whole step again."""
        if len(self._open) == 1 and len(self._last) == 1 and self._last[0] in self._open:
            return self._last[0]
        return None

    def resume(self, source: int) -> None:
        """The only optimizer went on alone, unseen by this object; its last iteration was fed by `source`."""
        self._sources = {source} if source != NO_SOURCE else set()

    def forget(self, optimizer: int) -> None:
        """The optimizer's object is gone. May be called at any instant, from within a collection."""
        self._gone.append(optimizer)

    def _is_start(self, optimizer: int, source: int) -> bool:
        if not self._open or optimizer in self._open:
            return True
        if self._sources:
            return source in self._sources
        if not any(self._open.values()):
            return True
        if not all(key in self._alone for key in self._open):
            return False
        if optimizer not in self._order:
            return self._is_replacing(optimizer, self._open)
        return self._is_leading(optimizer)

    def _is_leading(self, optimizer: int) -> bool:
        positions = [self._order.index(key) for key in self._open if key in self._order]
        return bool(positions) and self._order.index(optimizer) < min(positions)

    def _find_split(self, optimizer: int) -> int:
        """How many optimizers of the open iteration were a complete one before this optimizer came, the first time."""
        keys = tuple(self._open)
        if optimizer not in keys or keys == self._last:
            return 0
        before = keys[: keys.index(optimizer)]
        is_complete = before == self._last or all(key in self._alone for key in before)
        return len(before) if is_complete else 0

    def _end_iteration(self, split: int) -> None:
        keys = tuple(self._open)
        for iteration in [keys[:split], keys[split:]] if split else [keys]:
            self._learn(iteration)
        self._open = {}
        self._sources = set()

    def _learn(self, iteration: tuple[int, ...]) -> None:
        if len(iteration) == 1:
            self._alone.add(iteration[0])
        is_first = not self._order
        for key in self._order:
            if key not in iteration:
                self._streak[key] = _UNRELIABLE
            elif self._streak[key] != _UNRELIABLE:
                self._streak[key] += 1
        for index, key in enumerate(iteration):
            if key not in self._streak:
                after = self._order.index(iteration[index - 1]) + 1 if index else 0
                self._order.insert(after, key)
                self._streak[key] = _TRUSTED if is_first else 1
        self._last = iteration
        self._find_closer()

    def _find_closer(self) -> None:
        expected = [key for key in self._order if self._streak[key] >= _TRUSTED]
        self._closer = expected[-1] if expected else None

    def _is_waiting(self) -> bool:
        return self._is_repeating and self._closer is not None and self._closer not in self._open

    def _forget_gone(self) -> None:
        while self._gone:
            key = self._gone.pop()
            if key in self._open:
                self._open[key] = False
            if key in self._streak:
                self._order.remove(key)
                del self._streak[key]
                self._alone.discard(key)
                self._find_closer()
