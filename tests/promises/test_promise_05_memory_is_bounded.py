"""Promise 5: whatever strangers send or hold, the daemon's memory stays under a fixed cap.

What members may hold is bounded in tests/daemon/test_limits.py, what waits for the disk in test_store.py there.
"""

from __future__ import annotations

import pytest

from tests.promises.attacked_run import Outcome, outcome

CAP_MIB = 128.0
"""Over what a quiet run of two ranks needs: 46 MiB."""
MAX_THREADS = 16


def test_an_attack_does_not_make_it_grow() -> None:
    check(outcome("finished", "small"))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_gigabytes_and_ten_thousand_connections_do_not_either() -> None:
    check(outcome("finished", "full"))


def check(attacked: Outcome) -> None:
    assert attacked.peak_mib < CAP_MIB
    assert attacked.num_threads < MAX_THREADS
