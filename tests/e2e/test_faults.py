"""One real fault of every kind under the real launcher, judged by the checker that `make test-faults` uses too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import Case, own_cases, why_not_here
from tests.faults.checks import complaints, exit_lag_s
from tests.faults.runner import run_case

WAITED_S = 5.0
"""A single-node run that takes longer has sat out a grace or a time-out for a rank that was known to be dead."""

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.mark.parametrize("case", own_cases(), ids=lambda case: case.id)
def test_fault_ends_as_promised(case: Case, tmp_path: Path) -> None:
    lacking = why_not_here(case.fault)
    if lacking:
        pytest.skip(lacking)
    outcome = run_case(case, tmp_path)
    assert complaints(outcome) == []
    if case.fault.nnodes == 1:
        lag_s = exit_lag_s(outcome)
        assert lag_s is not None
        assert lag_s < WAITED_S
