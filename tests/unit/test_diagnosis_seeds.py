"""Twenty seeds of everything that can be wrong, of varied size: the right verdict, and never a wrong critical one."""

from __future__ import annotations

import pytest

from tests.harness.ailments import AILMENTS, wrong
from tests.harness.synthetic import healthy

SEEDS = range(20)
ALLOWED = 1
"""Of twenty: 95 % are right."""


@pytest.mark.parametrize("name", AILMENTS)
def test_an_ailment_is_named(name: str) -> None:
    faults = {seed: found for seed in SEEDS if (found := list(wrong(AILMENTS[name](seed))))}
    assert len(faults) <= ALLOWED, "\n".join(f"seed {seed}: {'; '.join(found)}" for seed, found in faults.items())
    assert not [found for found in faults.values() if found[0].startswith("critical")]


@pytest.mark.parametrize("first_seed", [0, 100, 200])
def test_a_healthy_run_raises_no_alarm(first_seed: int) -> None:
    for seed in SEEDS:
        findings = healthy(first_seed + seed).findings()
        assert [f.summary for f in findings if f.severity != "info"] == [], f"seed {first_seed + seed}"
