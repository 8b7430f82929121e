"""The goals, pure: figures of both sides in, the table out.

An advantage is how many times better than the peer we are: our rate over its rate, or its cost over ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    name: str
    unit: str
    key: str
    """Of both sides' figures."""
    is_rate: bool = False
    """More is better; otherwise less."""
    gate: float | None = None
    """Smallest advantage."""
    stretch: float | None = None
    gate_absolute: float | None = None
    """Largest cost or smallest rate of ours, whatever the peer does."""
    stretch_absolute: float | None = None


GOALS: tuple[Goal, ...] = (
    Goal(name="steps stored, 8 ranks, 10 a frame", unit="steps/s", key="ingest_8", is_rate=True, gate=40, stretch=80),
    Goal(
        name="steps stored, 1,024 ranks, 10 a frame",
        unit="steps/s",
        key="ingest_1024",
        is_rate=True,
        gate=40,
        stretch=150,
    ),
    Goal(name="daemon CPU a step, 8 ranks", unit="us", key="cpu_8", gate=20, stretch=40),
    Goal(name="daemon CPU a step, 1,024 ranks", unit="us", key="cpu_1024", gate=80, stretch=150),
    Goal(
        name="steps stored, 1,024 ranks, 100 a frame",
        unit="steps/s",
        key="ingest_1024_by_100",
        is_rate=True,
        gate_absolute=1e6,
        stretch_absolute=2e6,
    ),
    Goal(
        name="client, added a step (p10)",
        unit="us",
        key="client",
        gate=7,
        stretch=12,
        gate_absolute=12,
        stretch_absolute=7,
    ),
    Goal(name="finalize 8 x 1k", unit="s", key="finalize_8_1k"),
    Goal(name="finalize 8 x 10k", unit="s", key="finalize_8_10k"),
    Goal(name="finalize 8 x 100k", unit="s", key="finalize_8_100k", gate=30, stretch=50),
    Goal(name="finalize 1,024 x 1k", unit="s", key="finalize_1024_1k", gate=50, stretch=90),
    Goal(name="memory, idle", unit="MB", key="rss_idle", gate_absolute=40, stretch_absolute=30),
    Goal(name="memory, ingesting 1,024 ranks", unit="MB", key="rss_ingest", gate=5, stretch=7),
    Goal(name="memory, through finalize 8 x 100k", unit="MB", key="rss_finalize_8_100k", gate=15, stretch=23),
    Goal(name="memory, through finalize 1,024 x 1k", unit="MB", key="rss_finalize_1024_1k", gate=15, stretch=23),
    Goal(name="database, a step", unit="B", key="database", gate=20, stretch=23),
    Goal(name="wire, a step", unit="B", key="wire", gate=14, stretch=15),
    Goal(name="steps lost of 100,000 one-step frames", unit="", key="burst_lost", gate_absolute=0, stretch_absolute=0),
    Goal(
        name="paced load of 100k steps/s, 1,024 ranks: lost",
        unit="steps",
        key="paced_lost",
        gate_absolute=0,
        stretch_absolute=0,
    ),
    Goal(name="the same: p99 of a ping's answer", unit="ms", key="paced_answer", gate_absolute=50, stretch_absolute=25),
    Goal(name="the same: memory growth", unit="MB", key="paced_growth", gate_absolute=4, stretch_absolute=1),
    Goal(name="the same: finalize", unit="s", key="paced_finalize", gate_absolute=10, stretch_absolute=2),
    Goal(name="a rank at 5,000 steps/s: lost", unit="steps", key="fast_rank_lost", gate_absolute=0, stretch_absolute=0),
    Goal(name="start-up before torchrun starts", unit="s", key="startup", gate=5, stretch=10),
    Goal(name="last step to exit, healthy", unit="s", key="exit", gate=2, stretch=4),
    Goal(name="import traceml_client", unit="ms", key="import", gate_absolute=60, stretch_absolute=30),
    Goal(
        name="diagnose a large log",
        unit="MB/s",
        key="log_rate",
        is_rate=True,
        gate_absolute=100,
        stretch_absolute=200,
    ),
    Goal(name="diagnose 200 KB, whole command", unit="s", key="log_small", gate_absolute=0.4, stretch_absolute=0.3),
)


def advantage(goal: Goal, ours: float | None, peer: float | None) -> float | None:
    """How many times better; null where a side was not measured or is zero."""
    if not ours or not peer:
        return None
    return ours / peer if goal.is_rate else peer / ours


def verdict(goal: Goal, ours: float | None, peer: float | None) -> str:
    """`stretch`, `gate`, `missed`, `-` for a goal without a gate, or `not measured`."""
    if goal.gate is None and goal.gate_absolute is None:
        return "-"
    if ours is None or (goal.gate is not None and advantage(goal, ours, peer) is None):
        return "not measured"
    if _is_met(goal, ours, peer, goal.stretch, goal.stretch_absolute):
        return "stretch"
    return "gate" if _is_met(goal, ours, peer, goal.gate, goal.gate_absolute) else "missed"


def rows(ours: Mapping[str, float | None], peer: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """The same for programs, one object a goal; what was not measured is null."""
    return [
        {
            "goal": goal.name,
            "unit": goal.unit,
            "ours": (mine := ours.get(goal.key)),
            "peer": (its := peer.get(goal.key)),
            "ratio": advantage(goal, mine, its),
            "gate": _bound(goal, goal.gate, goal.gate_absolute),
            "stretch": _bound(goal, goal.stretch, goal.stretch_absolute),
            "met": verdict(goal, mine, its),
        }
        for goal in GOALS
    ]


def render(ours: Mapping[str, float | None], peer: Mapping[str, float | None]) -> str:
    """The table of goals as Markdown."""
    lines = ["| goal | unit | ours | peer | times better | gate | stretch | met |", "|---|---|---|---|---|---|---|---|"]
    for goal in GOALS:
        mine, its = ours.get(goal.key), peer.get(goal.key)
        times = advantage(goal, mine, its)
        cells = [goal.name, goal.unit, _figure(mine), _figure(its), "-" if times is None else f"{times:.1f}x"]
        cells += [_bound(goal, goal.gate, goal.gate_absolute), _bound(goal, goal.stretch, goal.stretch_absolute)]
        lines.append(f"| {' | '.join(cells)} | {verdict(goal, mine, its)} |")
    return "\n".join(lines) + "\n"


def _is_met(goal: Goal, ours: float, peer: float | None, times: float | None, absolute: float | None) -> bool:
    if absolute is not None and (ours < absolute if goal.is_rate else ours > absolute):
        return False
    return times is None or (advantage(goal, ours, peer) or 0.0) >= times


def _bound(goal: Goal, times: float | None, absolute: float | None) -> str:
    parts = [] if times is None else [f"{times:g}x"]
    if absolute is not None:
        parts.append(f"{'>=' if goal.is_rate else '<='} {absolute:,g}")
    return " and ".join(parts) or "-"


def _figure(value: float | None) -> str:
    if value is None:
        return "null"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
