"""Promise 13: the rank that is named is the one that failed first, whichever that is; else nobody is named.

The same failures under the real torchrun on other ranks and at other steps than in the table of the faults. All of the
matrix five times over is `make test-faults`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import Case, own_cases
from tests.faults.naming import naming
from tests.faults.runner import run_case
from tests.faults.variants import variant

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(240)]

CASES = {case.id: case for case in own_cases()}
OFTEN_BLAMED_WRONGLY = ("raise_late_exit", "uneven_inputs", "collective_size")
"""torchrun names another rank in most runs of these."""


@pytest.mark.parametrize("name", OFTEN_BLAMED_WRONGLY)
def test_another_rank_at_another_step(tmp_path: Path, name: str) -> None:
    check(name, 1, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("index", [2, 3, 4])
@pytest.mark.parametrize("name", OFTEN_BLAMED_WRONGLY)
def test_every_rank_at_every_step(tmp_path: Path, name: str, index: int) -> None:
    check(name, index, tmp_path)


def check(name: str, index: int, folder: Path) -> None:
    fault = variant(CASES[name].fault, index)
    found = naming(run_case(Case(fault, CASES[name].scripts), folder))
    assert found is not None
    assert found.rank in (fault.initiating_rank, None)
    assert found.rank is not None or found.confidence != "confirmed"
    assert found.is_category_right
