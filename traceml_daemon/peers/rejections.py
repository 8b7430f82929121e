"""What was refused, per peer and reason, in bounded memory and a bounded log."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from traceml_client.protocol import messages

MAX_PEERS: Final = 256
"""Addresses that are told apart; the rest counts as `others`."""
MAX_LINES: Final = 100
"""Lines written about refused peers in the life of a daemon; counting goes on."""
NOT_FRAMES: Final = frozenset(
    {"handshake_timeout", messages.TOO_MANY, "does_not_read", "slowed_down", "tls_required", messages.UNKNOWN_NODE}
)
"""Reasons that count a connection and no frame."""

_log = logging.getLogger("traceml_daemon")


class Rejections:
    """Counts by (address, reason)."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.num_frames = 0
        self._addresses: set[str] = set()
        self._num_lines = 0

    def count(self, address: str, reason: str, detail: str = "") -> None:
        if address not in self._addresses:
            if len(self._addresses) < MAX_PEERS:
                self._addresses.add(address)
            else:
                address = "others"
        key = (address, reason)
        self.counts[key] += 1
        self.num_frames += reason not in NOT_FRAMES
        if self.counts[key] == 1 and self._num_lines < MAX_LINES:
            self._num_lines += 1
            _log.warning("refused a peer at %s: %s%s", address, reason, f": {detail[:200]!r}" if detail else "")

    def by_peer(self) -> dict[str, dict[str, int]]:
        """Address to reason to count."""
        result: dict[str, dict[str, int]] = {}
        for (address, reason), number in sorted(self.counts.items()):
            result.setdefault(address, {})[reason] = number
        return result
