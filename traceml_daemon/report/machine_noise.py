"""Whether what makes the steps of two runs uneven is the machine and not the script.

Somebody else on the machine slows everything down by one factor, for seconds at a time, and lets it be fast again in
between. A script's own unevenness sits in one phase, or is spread evenly over the run. So three things are asked: are
there slow stretches of steps; are the shares of the phases in them those of the fast stretches; and is there a floor,
a time that many steps take almost exactly because nothing disturbed them? Then the floor is what the script costs,
and comparing the floors of two runs compares the scripts. Without a floor nothing can be compared.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from traceml_daemon.report.bootstrap import QUIET_SHARE, Floats, RunStretches, quantile
from traceml_daemon.report.form import PHASE_NAMES

_FLOOR_SHARE: Final = 0.01
_FLOOR_WIDTH: Final = 1.03
"""Of the fastest twentieth over the fastest hundredth; undisturbed, 1.01 to 1.02."""
_NO_FLOOR_WIDTH: Final = 1.05
"""In runs that were disturbed throughout it was 1.06 to 1.2."""
_SLOW: Final = 1.06
"""The slow half of the stretches over the fast half; steps that are uneven one by one differ by less over a stretch."""
_QUARTILES: Final = 1.35
"""Standard deviations of a normal distribution between its quartiles."""
_UNEVEN: Final = 0.4
"""Of what the shares would move by if all the excess were in the largest phase. Measured: 0.05 to 0.2."""


Cause = Literal["none", "machine", "script"]


def is_the_machines(a: RunStretches, b: RunStretches) -> bool:
    """Of one run or both, and no unevenness of the script beside it."""
    causes = {_cause(run) for run in (a, b)}
    return "machine" in causes and "script" not in causes and max(map(_floor_width, (a, b))) <= _FLOOR_WIDTH


def is_disturbed_throughout(run: RunStretches) -> bool:
    """Slow stretches that are the machine's, and hardly a step without disturbance."""
    return _floor_width(run) > _NO_FLOOR_WIDTH and _cause(run) == "machine"


def _floor_width(run: RunStretches) -> float:
    """Infinite without steps."""
    counts, middles = run.phases["step"].compact()
    cumulated = np.cumsum(counts.sum(axis=0, keepdims=True, dtype=np.float64), axis=1)
    lowest, quiet = (float(quantile(cumulated, middles, share)[0]) for share in (_FLOOR_SHARE, QUIET_SHARE))
    return quiet / lowest if lowest > 0 else math.inf


def _cause(run: RunStretches) -> Cause:
    """Of slow stretches. Where nearly all of a step is one phase it cannot be told, and the script stands for it.

    A stretch is slow by its median: single long steps are no neighbour's.
    """
    medians, times, chance = _by_stretch(run)
    if len(medians) < 2:
        return "none"
    fast, slow = np.array_split(np.argsort(medians), 2)
    factor = float(medians[slow].mean() / medians[fast].mean())
    if factor < _SLOW + 2 * chance:
        return "none"
    fast_shares, slow_shares = (times[:, places].sum(axis=1) / times[:, places].sum() for places in (fast, slow))
    moved = 0.5 * float(np.abs(slow_shares - fast_shares).sum())
    is_even = moved <= _UNEVEN * (1 - float(fast_shares.max())) * (1 - 1 / factor)
    return "machine" if is_even else "script"


def _by_stretch(run: RunStretches) -> tuple[Floats, Floats, float]:
    """(median step, mean time by phase) of each stretch that has steps, over all ranks.

    Then what two halves of the medians would differ by if steps were uneven one by one.
    """
    steps = run.steps.reshape(run.num_groups, -1).sum(axis=0)
    counts, middles = run.phases["step"].compact()
    counts = counts.reshape(run.num_groups, len(steps), -1).sum(axis=0)
    cumulated = np.cumsum(counts, axis=1, dtype=np.float64)
    lower, medians, upper = (quantile(cumulated, middles, share)[steps > 0] for share in (0.25, 0.5, 0.75))
    sigma = float(np.median((upper - lower) / medians)) / _QUARTILES if len(medians) else 0.0
    chance = 2 * sigma / math.sqrt(max(float(steps.mean()), 1.0))
    sums = np.stack([run.phases[name].sums for name in PHASE_NAMES[:-1]]).reshape(-1, run.num_groups, len(steps))
    return medians, sums.sum(axis=1)[:, steps > 0] / steps[steps > 0], chance
