"""`python -m benchmarks [--quick] [--full] [--only PART ...]`: measure both systems in one session, print the goals.

The result, with every single figure and the machine, is kept in `benchmarks/results/`. Exit code 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
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
QUICK_STEPS = 100_000
"""More than this costs the peer minutes."""


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

    def ask_peer(self, part: str, ask: Callable[[Peer], dict[str, Any]], keys: dict[str, str]) -> None:
        """Note what the peer's runner says; `keys`: our goal -> its field. Where it fails the figures stay null."""
        if self.peer is None:
            return
        try:
            result = ask(self.peer)
        except (RuntimeError, subprocess.SubprocessError, TimeoutError) as error:
            print(f"the peer's {part} gave no figure: {str(error)[:200]}", file=sys.stderr, flush=True)
            result = {}
        self.details.append({"peer": part, **result})
        self.peers |= {goal: result.get(field) for goal, field in keys.items()}


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
    few_keys = {"ingest_8": "steps_per_s", "cpu_8": "cpu_us_per_step", "rss_idle": "base_rss_mb"}
    few_keys |= {"database": "db_bytes_per_step", "wire": "bytes_per_step"}
    many_keys = {"ingest_1024": "steps_per_s", "cpu_1024": "cpu_us_per_step", "rss_ingest": "peak_rss_mb"}
    session.ask_peer("ingest", lambda peer: peer.ingest(8, 5_000, 10), few_keys)
    session.ask_peer("ingest", lambda peer: peer.ingest(1024, 30, 10), many_keys)


def finalize(session: Session) -> None:
    """From the end of training to the written report, and the memory it takes."""
    for name, load in FINALIZE_LOADS.items():
        figures = session.load(*load, daemon.FILL_STEPS_PER_FRAME)
        session.ours |= {f"finalize_{name}": figures.finalize_s, f"rss_finalize_{name}": figures.rss_peak_mb}
        if not (session.is_quick and load[0] * load[1] > QUICK_STEPS):
            keys = {f"finalize_{name}": "finalize_s", f"rss_finalize_{name}": "peak_rss_mb"}
            session.ask_peer("finalize", lambda peer, load=load: peer.finalize(*load, PEER_CAP_S), keys)


def client(session: Session) -> None:
    """What recording adds to a step in the rank, at one submodule."""
    session.ours["client"] = client_step.measure_added_us()["p10_us"]
    session.ask_peer("client", lambda peer: dict(peer.client_added_us(1, 3, 3, 1500)), {"client": "p10_us"})


def launch(session: Session) -> None:
    """Start-up, exit and import."""
    num_runs = 1 if session.is_quick else 5
    mine = launches.ours(num_runs)
    session.ours |= {"startup": mine.startup_s, "exit": mine.exit_s}
    session.ours["import"] = launches.import_ms("import traceml_client")
    keys = {"startup": "startup_s", "exit": "exit_s"}
    session.ask_peer("launch", lambda peer: asdict(launches.peers(peer, num_runs)), keys)


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
    path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.json"
    for part in options.only:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        PARTS[part](session)
        _keep(path, session, machine, why_not)
    print(f"\n{render(session.ours, session.peers)}")
    if why_not:
        print(f"The peer's column is null: {why_not}.")
    print(f"kept in benchmarks/results/{path.name}")
    missed = [goal.name for goal in GOALS if verdict_of(session, goal.key) == "missed"]
    print(f"gates missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def verdict_of(session: Session, key: str) -> str:
    goal = next(goal for goal in GOALS if goal.key == key)
    return verdict(goal, session.ours.get(key), session.peers.get(key))


def _keep(path: Path, session: Session, machine: dict[str, Any], why_not: str) -> None:
    """Write what is known so far into the dated result file."""
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "peer": why_not or "traceml-ai 0.5.0",
        "ours": session.ours,
        "peers": session.peers,
        "table": render(session.ours, session.peers).splitlines(),
        "runs": session.details,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
