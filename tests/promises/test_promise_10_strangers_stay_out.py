"""Promise 10: who does not know the token is refused and counted, and leaves no trace in the report.

What a single stranger can say is in tests/daemon/test_bad_peers.py; here all of it is said at once, while two ranks of
fixed data send their steps and end.
"""

from __future__ import annotations

import pytest

from tests.harness.attacker import SCALES
from tests.promises.attacked_run import NUM_STEPS, Ending, Outcome, outcome

ENDINGS: list[Ending] = ["finished", "killed", "interrupted"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_attacked_run_has_the_report_of_a_quiet_one(ending: Ending) -> None:
    check(outcome(ending, None), outcome(ending, "small"), scale="small")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_long_attack_changes_nothing_either(ending: Ending) -> None:
    check(outcome(ending, None), outcome(ending, "full"), scale="full")


def check(quiet: Outcome, attacked: Outcome, *, scale: str) -> None:
    assert quiet.frames_rejected == 0
    assert f'"stored": {2 * NUM_STEPS}' in quiet.reports["manifest.json"]
    assert attacked.reports == quiet.reports
    counts = attacked.attacks
    assert counts["idle"] == SCALES[scale].num_idle
    assert counts["names"] == SCALES[scale].num_names
    assert counts["zero bytes"] >= SCALES[scale].num_zero_bytes
    refused = [name for name in counts if name.startswith(("forged", "words", "random", "replays"))]
    assert len(refused) == 8
    assert attacked.frames_rejected >= sum(counts[name] for name in refused)
