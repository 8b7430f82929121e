"""Whether an exception is torchrun's own, by its frames. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.observations import Raised

_AGENT_FRAME: Final = re.compile(
    r"torch/distributed/(?:run|launch|launcher/api|elastic/(?!multiprocessing/errors/__init__))[\w/]*\.py:"
    r"|/torchelastic/(?:distributed/launch|agent/|rendezvous/|metrics/)[\w/]*\.py:"
)
_OF_FILES: Final = frozenset({"FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError", "MemoryError"})
"""torchrun raises them when it starts a script or makes its folder for logs."""
_WORKER_FRAME: Final = re.compile(r"torch/distributed/(?:distributed_c10d|rendezvous)\.py:")


def is_agents(raised: Raised) -> bool:
    """Whether torchrun itself raised it: its own frames, and none of a worker's process group."""
    frames = "\n".join(raised.frames).replace("\\", "/")
    return _AGENT_FRAME.search(frames) is not None and _WORKER_FRAME.search(frames) is None


def is_own_error(raised: Raised) -> bool:
    """Whether its message says what went wrong in general: not what torchrun alone says."""
    return not is_agents(raised) or raised.short_type in _OF_FILES
