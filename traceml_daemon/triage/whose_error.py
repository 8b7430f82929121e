"""Whether an exception is torchrun's own, by its frames, and whether it is one of its own at all. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.observations import Observations, Raised

_AGENT_FRAME: Final = re.compile(
    r"torch/distributed/(?:run|launch|launcher/api|elastic/(?!multiprocessing/errors/__init__))[\w/]*\.py:"
    r"|/torchelastic/(?:distributed/launch|agent/|rendezvous/|metrics/)[\w/]*\.py:"
)
_OF_FILES: Final = frozenset({"FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError", "MemoryError"})
"""torchrun raises them when it starts a script or makes its folder for logs."""
_NEAR_LINES: Final = 40
_WORKER_FRAME: Final = re.compile(r"torch/distributed/(?:distributed_c10d|rendezvous)\.py:")


def is_agents(raised: Raised) -> bool:
    """Whether torchrun itself raised it: its own frames, and none of a worker's process group."""
    frames = "\n".join(raised.frames).replace("\\", "/")
    return _AGENT_FRAME.search(frames) is not None and _WORKER_FRAME.search(frames) is None


def is_announcement(raised: Raised, seen: Observations) -> bool:
    """Whether it is only the message that a program prints by itself before the traceback of the same exception."""
    if raised.has_header or raised.frames or raised.is_in_table:
        return False
    if len({one.pid for one in seen.exits if one.source in ("agent", "table") and one.code == 1}) > 1:
        return False  # it may be all that is left of another worker's words
    said = [one for one in seen.raised if _is_said_alike(one, raised)]
    full = [one for one in said if one.has_header]
    is_near = len(full) == 1 and 0 < full[0].place.line - raised.place.line <= _NEAR_LINES
    return is_near and len(said) == 2 and full[0].speaker == raised.speaker


def _is_said_alike(one: Raised, other: Raised) -> bool:
    heads = [(each.place.file, each.type, each.message.partition("\n")[0]) for each in (one, other)]
    return heads[0] == heads[1]


def is_own_error(raised: Raised) -> bool:
    """Whether its message says what went wrong in general: not what torchrun alone says."""
    return not is_agents(raised) or raised.short_type in _OF_FILES
