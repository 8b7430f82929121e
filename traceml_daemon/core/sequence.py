"""What of a stream has arrived: each record counted once, whatever is sent twice or never.

Sequences start at 0 and grow by one a record. A peer sends in order; after a reconnect it may repeat what we have, and
what it had to discard shows as a gap. A dead rank's launcher hands in the rest under the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Sequence:
    """One stream of one incarnation."""

    next_seq: int = 0
    """Everything before it has arrived or is known to be lost."""
    num_received: int = 0
    """Distinct records that reached us."""
    num_gap: int = 0
    """Records that the peer discarded before it could send them."""

    def accept(self, first_seq: int, count: int) -> int:
        """Take note of `count` records from `first_seq` on; return how many at their front we have already.

        `count` back means that all of them are repeats.
        """
        missing = first_seq - self.next_seq
        if missing >= 0:
            self.num_gap += missing
            self.num_received += count
            self.next_seq = first_seq + count
            return 0
        repeated = min(count, -missing)
        self.num_received += count - repeated
        self.next_seq += count - repeated
        return repeated

    def close_at(self, num_recorded: int) -> None:
        """The peer says how many it ever recorded: what is missing at the end will not come any more."""
        if num_recorded > self.next_seq:
            self.num_gap += num_recorded - self.next_seq
            self.next_seq = num_recorded
