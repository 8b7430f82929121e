"""Lines that a container runtime, a collector of logs or a logger wrote as JSON: what, when, and whose. Pure."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r'"(?:log|message|msg|textPayload|text|line|event)"\s*:\s*("(?:[^"\\]|\\.)*")')
_STACK: Final = re.compile(r'"(?:exc_info|exception|stack_?trace|traceback|stack)"\s*:\s*("(?:[^"\\]|\\.)*")')
_POD: Final = re.compile(r'"(?:pod_name|pod|container_name|host(?:name)?)"\s*:\s*"([^"\\]+)"')
_RANK: Final = re.compile(r'"(?:(?:global|world)_?)?rank"\s*:\s*"?(\d{1,6})\b', re.IGNORECASE)
_DATE: Final = re.compile(r'"(?:@?timestamp|(?:asc|date)?time|ts)"\s*:\s*"(\d{4}-[^"\\]+)"')
_EPOCH: Final = re.compile(r'"(?:@?timestamp|time|ts)"\s*:\s*"?(1\d{9})(?:\.(\d+)|(\d{3}))?\b')


class Record(NamedTuple):
    """Of one line."""

    text: str
    """As the process wrote it, the date before it; of several lines where the message has them."""
    source: str | None
    rank: int | None
    time: float | None
    """Seconds of the epoch, where the record counts them."""


def record_in(text: str) -> Record:
    """The line itself, where it is none."""
    found = _TEXT.search(text) if text.startswith("{") and text.endswith("}") else None
    if found is None:
        return Record(text, None, None, None)
    rest = text[: found.start()] + text[found.end() :]
    stack = _STACK.search(rest)
    try:
        parts = [json.loads(one[1], strict=False) for one in (found, stack) if one is not None]
    except ValueError:
        return Record(text, None, None, None)
    date, pod, rank, epoch = (pattern.search(rest) for pattern in (_DATE, _POD, _RANK, _EPOCH))
    return Record(
        (f"{date[1]} " if date is not None else "") + "\n".join(part.strip("\r\n") for part in parts),
        pod[1] if pod is not None else None,
        int(rank[1]) if rank is not None else None,
        float(f"{epoch[1]}.{epoch[2] or epoch[3] or 0}") if epoch is not None else None,
    )
