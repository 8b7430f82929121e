"""`python -m benchmarks [--full] [--only PART ...] [--readme]`: measure both systems in one session, print the goals.

The short form takes under five minutes: one run each, smaller inputs, the peer only where it takes seconds. Every
single figure, the machine and the commit are kept in `benchmarks/results/`, the goals alone in `latest.json` there.
Exit code 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import client_process, client_step, daemon, launches, logs, readme
from benchmarks.daemon import DaemonFigures
from benchmarks.goals import GOALS, render, rows, verdict
from benchmarks.machine import describe
from benchmarks.peer import Peer, find_peer

RESULTS = Path(__file__).parent / "results"
FINALIZE_LOADS = {"8_1k": (8, 1_000), "8_10k": (8, 10_000), "8_100k": (8, 100_000), "1024_1k": (1024, 1_000)}
PEER_CAP_S = 300
PEER_TRIES = 2
"""Its runners fail now and then."""
SHORT_STEPS = 100_000
"""More than this costs the peer minutes."""
GRID_RANKS = (1, 8, 64, 256, 1024, 4096)
GRID_STEPS_PER_FRAME = (1, 10, 100, 250)
GRID_FINALIZE = (*FINALIZE_LOADS.values(), (8, 1_000_000), (4096, 1_000))
PACE_STEPS_PER_S = 100_000


@dataclass(slots=True)
class Session:
    """What was measured so far: figures by goal, and everything behind them."""

    peer: Peer | None
    num_repeats: int
    is_full: bool
    ours: dict[str, float | None] = field(default_factory=dict)
    peers: dict[str, float | None] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    """For the README, by heading."""

    def load(
        self, num_ranks: int, num_steps: int, steps_per_frame: int, steps_per_s: int = 0, *, num_repeats: int = 0
    ) -> DaemonFigures:
        """The median run of one load on our daemon: by steps a second, or by the time to finalize if it was filled."""
        count = num_repeats or self.num_repeats
        runs = [daemon.measure(num_ranks, num_steps, steps_per_frame, steps_per_s) for _ in range(count)]
        self.details.extend({"ours": asdict(run)} for run in runs)
        by_finalize = steps_per_frame == daemon.FILL_STEPS_PER_FRAME
        return sorted(runs, key=lambda run: run.finalize_s if by_finalize else run.steps_per_s)[len(runs) // 2]

    def ask_peer(self, part: str, ask: Callable[[Peer], dict[str, Any]], keys: dict[str, str]) -> None:
        """Note what the peer's runner says; `keys`: our goal -> its field. Where it fails the figures stay null."""
        if self.peer is None:
            return
        result: dict[str, Any] = {}
        for _ in range(PEER_TRIES):
            try:
                result = ask(self.peer)
                break
            except (RuntimeError, subprocess.SubprocessError, TimeoutError) as error:
                print(f"the peer's {part} gave no figure: {str(error)[:200]}", file=sys.stderr, flush=True)
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


def grid(session: Session) -> None:
    """Ingest by ranks and frame size, about two million steps or forty thousand frames each; finalize by size."""
    runs = []
    for num_ranks in GRID_RANKS if session.is_full else (1, 256):
        for per_frame in GRID_STEPS_PER_FRAME if session.is_full else (10, 100):
            num_frames = max(2, min(40_000, 2_000_000 // per_frame) // num_ranks)
            runs.append(session.load(num_ranks, num_frames * per_frame, per_frame, num_repeats=1))
    session.tables["ingest"] = readme.ingest_table(runs)
    loads = GRID_FINALIZE if session.is_full else ((8, 1_000), (8, 100_000))
    filled = [session.load(*load, daemon.FILL_STEPS_PER_FRAME, num_repeats=1) for load in loads]
    session.tables["finalize"] = readme.finalize_table(filled)


def paced(session: Session) -> None:
    """100k steps/s from 1,024 ranks, a frame a second each, for a minute (ten seconds in the short form)."""
    figures = session.load(1024, 60 * 98 if session.is_full else 10 * 98, 98, PACE_STEPS_PER_S, num_repeats=1)
    session.ours |= {
        "paced_lost": float(figures.num_lost),
        "paced_answer": figures.answer_p99_ms,
        "paced_growth": figures.rss_growth_mb,
        "paced_finalize": figures.finalize_s,
    }


def finalize(session: Session) -> None:
    """From the end of training to the written report, and the memory it takes."""
    for name, load in FINALIZE_LOADS.items():
        figures = session.load(*load, daemon.FILL_STEPS_PER_FRAME)
        session.ours |= {f"finalize_{name}": figures.finalize_s, f"rss_finalize_{name}": figures.rss_peak_mb}
        if session.is_full or load[0] * load[1] <= SHORT_STEPS:
            keys = {f"finalize_{name}": "finalize_s", f"rss_finalize_{name}": "peak_rss_mb"}
            session.ask_peer("finalize", lambda peer, load=load: peer.finalize(*load, PEER_CAP_S), keys)


def client(session: Session) -> None:
    """What recording adds to a step in the rank: hooks by body, the whole process by the state of the daemon."""
    bodies = client_step.measure_all_us() if session.is_full else {}
    session.ours["client"] = client_step.measure_added_us()["p10_us"]
    session.ask_peer("client", lambda peer: dict(peer.client_added_us(1, 3, 3, 1500)), {"client": "p10_us"})
    states = client_process.measure_added_us(20_000, 5) if session.is_full else {}
    session.details.append({"client_bodies": bodies, "client_states": states})
    if session.is_full:
        session.tables["client"] = readme.client_table(bodies, states)
    session.ours["fast_rank_lost"] = float(client_process.lost_at_full_speed(30 if session.is_full else 5))


def launch(session: Session) -> None:
    """Start-up, exit and import."""
    num_runs = 5 if session.is_full else 1
    mine = launches.ours(num_runs)
    session.ours |= {"startup": mine.startup_s, "exit": mine.exit_s}
    session.ours["import"] = launches.import_ms("import traceml_client")
    keys = {"startup": "startup_s", "exit": "exit_s"}
    session.ask_peer("launch", lambda peer: asdict(launches.peers(peer, num_runs)), keys)


def log(session: Session) -> None:
    """Diagnosis of bare log files: 1 GB (100 MB in the short form) less the time of a small one, and a small one."""
    num_bytes = 1_000_000_000 if session.is_full else 100_000_000
    small_s = sorted(logs.diagnose_s(logs.SMALL_BYTES) for _ in range(5))[2]
    rate = num_bytes / 1e6 / (logs.diagnose_s(num_bytes) - small_s)
    session.ours |= {"log_rate": rate, "log_small": small_s}


PARTS: dict[str, Callable[[Session], None]] = {
    "client": client,
    "log": log,
    "ingest": ingest,
    "paced": paced,
    "launch": launch,
    "finalize": finalize,
    "grid": grid,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--full", action="store_true", help="all inputs, three runs of each load, the peer everywhere")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--readme", action="store_true", help="write the tables into README.md")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # both sides' start-ups are those of installed packages
    peer, why_not = find_peer()
    session = Session(peer, 3 if options.full else 1, options.full)
    machine = describe()
    path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.json"
    for part in options.only:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        PARTS[part](session)
        _keep(path, session, machine, why_not)
    print(f"\n{render(session.ours, session.peers)}")
    if why_not:
        print(f"The peer's column is null: {why_not}.")
    if not options.full:
        print("Short form: smaller inputs, one run each; the peer is null where it takes minutes.")
    if options.readme:
        readme.write(_section(session, machine))
    print(f"kept in benchmarks/results/{path.name}")
    missed = [goal.name for goal in GOALS if verdict_of(session, goal.key) == "missed"]
    print(f"gates missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def verdict_of(session: Session, key: str) -> str:
    goal = next(goal for goal in GOALS if goal.key == key)
    return verdict(goal, session.ours.get(key), session.peers.get(key))


def _section(session: Session, machine: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d", time.gmtime())
    form = "full" if session.is_full else "short"
    first = f"Measured on {when}, {form} form, {machine['cores']} cores ({machine['cpu']}), "
    first += f"load {machine['load_1min']} at the start, commit {machine['commit']}."
    return "\n\n".join([first, render(session.ours, session.peers), *session.tables.values()])


def _keep(path: Path, session: Session, machine: dict[str, Any], why_not: str) -> None:
    """Write what is known so far into the dated result file, and the goals into `latest.json`."""
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "form": "full" if session.is_full else "short",
        "machine": machine,
        "peer": why_not or "traceml-ai 0.5.0",
        "goals": rows(session.ours, session.peers),
        "tables": {name: table.splitlines() for name, table in session.tables.items()},
        "runs": session.details,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    (path.parent / "latest.json").write_text(json.dumps(document["goals"], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
