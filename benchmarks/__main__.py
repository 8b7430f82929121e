"""`python -m benchmarks [--quick] [--full] [--only PART ...]`: measure both systems in one session, print the goals.

The result, with every single figure and the machine, is kept in `benchmarks/results/`. Exit code 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import client_step, daemon, launches
from benchmarks.daemon import DaemonFigures
from benchmarks.goals import GOALS, render, verdict
from benchmarks.machine import describe
from benchmarks.peer import Peer, find_peer

RESULTS = Path(__file__).parent / "results"
FINALIZE_LOADS = {"8_1k": (8, 1_000), "8_10k": (8, 10_000), "8_100k": (8, 100_000), "1024_1k": (1024, 1_000)}
PEER_CAP_S = 300


@dataclass(slots=True)
class Session:
    """What was measured so far: figures by goal, and everything behind them."""

    peer: Peer | None
    num_repeats: int
    is_quick: bool
    ours: dict[str, float | None] = field(default_factory=dict)
    peers: dict[str, float | None] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    def load(self, num_ranks: int, num_steps: int, steps_per_frame: int) -> DaemonFigures:
        """The median run, by steps a second, of one load on our daemon."""
        runs = [daemon.measure(num_ranks, num_steps, steps_per_frame) for _ in range(self.num_repeats)]
        self.details.extend({"ours": asdict(run)} for run in runs)
        return sorted(runs, key=lambda run: run.steps_per_s)[len(runs) // 2]

    def note_peer(self, part: str, result: dict[str, Any]) -> dict[str, Any]:
        self.details.append({"peer": part, **result})
        return result


def ingest(session: Session) -> None:
    """Steps stored a second, CPU, memory, bytes: ten steps a frame, and a burst of one-step frames."""
    few, many = session.load(8, 50_000, 10), session.load(1024, 500, 10)
    dense, burst = session.load(1024, 1_000, 100), session.load(8, 12_500, 1)
    session.ours |= {
        "ingest_8": few.steps_per_s,
        "ingest_1024": many.steps_per_s,
        "cpu_8": few.cpu_us_per_step,
        "cpu_1024": many.cpu_us_per_step,
        "ingest_1024_by_100": dense.steps_per_s,
        "rss_idle": many.rss_idle_mb,
        "rss_ingest": many.rss_ingest_mb,
        "database": many.database_bytes_per_step,
        "wire": many.wire_bytes_per_step,
        "burst_lost": float(burst.num_lost),
    }
    if session.peer:
        few_p = session.note_peer("ingest", session.peer.ingest(8, 5_000, 10))
        many_p = session.note_peer("ingest", session.peer.ingest(1024, 30, 10))
        session.peers |= {
            "ingest_8": few_p["steps_per_s"],
            "ingest_1024": many_p["steps_per_s"],
            "cpu_8": few_p["cpu_us_per_step"],
            "cpu_1024": many_p["cpu_us_per_step"],
            "rss_idle": few_p["base_rss_mb"],
            "rss_ingest": many_p["peak_rss_mb"],
            "database": few_p["db_bytes_per_step"],
            "wire": few_p["bytes_per_step"],
        }


def finalize(session: Session) -> None:
    """From the end of training to the written report, and the memory it takes."""
    for name, (num_ranks, num_steps) in FINALIZE_LOADS.items():
        figures = session.load(num_ranks, num_steps, daemon.FILL_STEPS_PER_FRAME)
        session.ours |= {f"finalize_{name}": figures.finalize_s, f"rss_finalize_{name}": figures.rss_peak_mb}
        if session.peer and not (session.is_quick and num_ranks * num_steps > 100_000):
            result = session.note_peer("finalize", session.peer.finalize(num_ranks, num_steps, PEER_CAP_S))
            session.peers |= {f"finalize_{name}": result["finalize_s"], f"rss_finalize_{name}": result["peak_rss_mb"]}


def client(session: Session) -> None:
    """What recording adds to a step in the rank, at one submodule."""
    session.ours["client"] = client_step.measure_added_us()["p10_us"]
    if session.peer:
        added = session.note_peer("client", dict(session.peer.client_added_us(1, 3, 3, 1500)))
        session.peers["client"] = added["p10_us"]


def launch(session: Session) -> None:
    """Start-up, exit and import."""
    num_runs = 1 if session.is_quick else 5
    mine = launches.ours(num_runs)
    session.ours |= {"startup": mine.startup_s, "exit": mine.exit_s}
    session.ours["import"] = launches.import_ms("import traceml_client")
    if session.peer:
        its = launches.peers(session.peer, num_runs)
        session.peers |= {"startup": its.startup_s, "exit": its.exit_s}


PARTS: dict[str, Callable[[Session], None]] = {
    "client": client,
    "ingest": ingest,
    "launch": launch,
    "finalize": finalize,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="one run each, and the peer only where it takes seconds")
    parser.add_argument("--full", action="store_true", help="five runs of each load instead of three")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    peer, why_not = find_peer()
    session = Session(peer, 1 if options.quick else 5 if options.full else 3, options.quick)
    machine = describe()
    for part in options.only:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        PARTS[part](session)
    table = render(session.ours, session.peers)
    print(f"\n{table}")
    if why_not:
        print(f"The peer's column is null: {why_not}.")
    _keep(session, machine, table, why_not)
    missed = [goal.name for goal in GOALS if verdict_of(session, goal.key) == "missed"]
    print(f"gates missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def verdict_of(session: Session, key: str) -> str:
    goal = next(goal for goal in GOALS if goal.key == key)
    return verdict(goal, session.ours.get(key), session.peers.get(key))


def _keep(session: Session, machine: dict[str, Any], table: str, why_not: str) -> None:
    """Write the dated result file."""
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "peer": why_not or "traceml-ai 0.5.0",
        "ours": session.ours,
        "peers": session.peers,
        "table": table.splitlines(),
        "runs": session.details,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"kept in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    sys.exit(main())
