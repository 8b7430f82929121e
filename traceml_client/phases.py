"""The phases of a step by number, as in `protocol.ring.RUNNING_PHASES`."""

from __future__ import annotations

from typing import Final

WAITED: Final = 0
"""No phase: the part of the backwards that was spent waiting for other ranks' gradients."""
INPUT_WAIT: Final = 1
H2D: Final = 2
FORWARD: Final = 3
BACKWARD: Final = 4
OPTIMIZER: Final = 5
RESIDUAL: Final = 6

NOT_OURS: Final = -1
"""In place of the phase that the end of another one needs: nothing was begun."""
