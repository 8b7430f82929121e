"""The table of goals: which way a ratio points, and when a gate is met."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import readme
from benchmarks.goals import GOALS, Goal, advantage, render, rows, verdict

RATE = Goal(name="rate", unit="1/s", key="rate", is_rate=True, gate=40, stretch=80)
COST = Goal(name="cost", unit="us", key="cost", gate=7, stretch=12, gate_absolute=12, stretch_absolute=7)
LOSS = Goal(name="loss", unit="", key="loss", gate_absolute=0, stretch_absolute=0)


def test_advantage_is_above_one_where_we_are_better() -> None:
    assert advantage(RATE, 400.0, 10.0) == 40.0
    assert advantage(COST, 2.0, 100.0) == 50.0
    assert advantage(COST, 2.0, None) is None


@pytest.mark.parametrize(
    ("goal", "ours", "peer", "expected"),
    [
        (RATE, 399.0, 10.0, "missed"),
        (RATE, 400.0, 10.0, "gate"),
        (RATE, 800.0, 10.0, "stretch"),
        (RATE, 800.0, None, "not measured"),
        (COST, 11.0, 100.0, "gate"),
        (COST, 13.0, 1000.0, "missed"),
        (COST, 6.0, 40.0, "missed"),
        (COST, 6.0, 100.0, "stretch"),
        (LOSS, 0.0, None, "stretch"),
        (LOSS, 1.0, None, "missed"),
        (LOSS, None, None, "not measured"),
    ],
)
def test_verdict(goal: Goal, ours: float | None, peer: float | None, expected: str) -> None:
    assert verdict(goal, ours, peer) == expected


def test_table_has_a_row_for_every_goal_and_null_for_a_missing_peer() -> None:
    table = render({goal.key: 1.0 for goal in GOALS}, {})
    assert table.count("\n") == len(GOALS) + 2
    assert all(f"| {goal.name} |" in table for goal in GOALS)
    assert "| null |" in table


def test_rows_are_null_where_nothing_was_measured() -> None:
    found = {row["goal"]: row for row in rows({"client": 8.0}, {"client": 80.0})}
    client = found.pop("client, added a step (p10)")
    assert (client["ours"], client["peer"], client["ratio"], client["met"]) == (8.0, 80.0, 10.0, "gate")
    assert all(row["ours"] is row["peer"] is row["ratio"] is None for row in found.values())


def test_only_what_stands_between_the_marks_of_the_readme_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "README.md"
    copy.write_text(readme.README.read_text())
    monkeypatch.setattr(readme, "README", copy)
    before, _, after = copy.read_text().partition("<!-- bench:")
    readme.write("| new |\\1")
    text = copy.read_text()
    assert text.startswith(before)
    assert text.endswith(after.partition("<!-- /bench -->")[2])
    assert "| new |\\1\n<!-- /bench -->" in text
