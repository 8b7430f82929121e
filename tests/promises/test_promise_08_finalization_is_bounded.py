"""Promise 8: finalization never waits for a stranger or a dead rank, and names whom it misses.

The matrix of deaths is in tests/daemon/test_dead_ranks.py, the timeout in its last test and in test_sealing.py there;
here strangers idle, trickle and send half frames while the run ends.
"""

from __future__ import annotations

import json

import pytest

from tests.promises.attacked_run import Ending, Outcome, outcome

SLACK_S = 15.0
"""In normal tests, where a busy machine is no failure."""
PROMISED_S = 0.2 + 2.0
"""The settle window of these runs, and two seconds."""
MISSING = {"finished": [], "killed": [1], "interrupted": [1]}
ENDINGS: list[Ending] = ["finished", "killed", "interrupted"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_strangers_do_not_delay_the_end(ending: Ending) -> None:
    check(outcome(ending, "small"), ending, within_s=SLACK_S)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ending", ENDINGS)
def test_ten_thousand_of_them_do_not_either(ending: Ending) -> None:
    check(outcome(ending, "full"), ending, within_s=PROMISED_S)


def check(attacked: Outcome, ending: Ending, *, within_s: float) -> None:
    assert attacked.finalized_s < within_s
    telemetry = json.loads(attacked.files["final_summary.json"][1])["telemetry"]
    assert [missing["rank"] for missing in telemetry["ranks_missing"]] == MISSING[ending]
