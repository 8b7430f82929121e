"""What a whole rank costs: hooks, sender and samplers, with the daemon up, stopped, or not there at all.

Each state in a process of its own, between two without telemetry; every step must be in the report afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from contextlib import ExitStack

from benchmarks.aggregator import RUN_NAME, Aggregator, running
from benchmarks.daemon import ROOT
from benchmarks.machine import free_port, wait_until
from benchmarks.train_steps import WARM_UP_STEPS

STATES = ("up", "stopped", "down")
FAST_STEPS_PER_S = 5_000


def measure_added_us(num_steps: int, num_repeats: int) -> dict[str, dict[str, float]]:
    """By state: what is added to the p10 step (`p10_us`) and to the process's CPU time of a step (`cpu_us`)."""
    added: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    before = _run("off", num_steps)
    for _ in range(num_repeats):
        for state in STATES:
            middle, after = _run(state, num_steps), _run("off", num_steps)
            added[state].append({key: middle[key] - (before[key] + after[key]) / 2 for key in middle})
            before = after
    return {
        state: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for state, runs in added.items()
    }


def lost_at_full_speed(duration_s: int) -> int:
    """Steps that are not in the report of a rank that makes 5,000 a second."""
    num_steps = FAST_STEPS_PER_S * duration_s
    return num_steps + WARM_UP_STEPS - int(_run("up", num_steps, FAST_STEPS_PER_S)["num_stored"])


def _run(state: str, num_steps: int, steps_per_s: int = 0) -> dict[str, float]:
    with ExitStack() as stack:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRACEML_")}
        daemon = stack.enter_context(running(1)) if state in ("up", "stopped") else None
        if state != "off":
            port = daemon.port if daemon else free_port()
            environment |= {"TRACEML_AGGREGATOR_HOST": "127.0.0.1", "TRACEML_AGGREGATOR_PORT": str(port)}
            environment |= {"TRACEML_RUN_NAME": RUN_NAME, "TRACEML_TOKEN": daemon.token if daemon else ""}
        figures = _train(environment, num_steps, steps_per_s, daemon if state == "stopped" else None)
        if daemon is None:
            return figures
        wait_until(daemon.is_finalized, "the report", within_s=60)
        num_stored = daemon.summary()["ranks"][0]["attempts"][-1]["steps"]
        if steps_per_s:
            return figures | {"num_stored": num_stored}
        if num_stored != num_steps + WARM_UP_STEPS:
            raise ValueError(f"{state}: {num_stored} of {num_steps + WARM_UP_STEPS} steps are in the report")
        return figures


def _train(
    environment: dict[str, str], num_steps: int, steps_per_s: int, to_stop: Aggregator | None
) -> dict[str, float]:
    """Run the rank; `to_stop` is stopped while it trains."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.train_steps", str(num_steps), str(steps_per_s)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        if to_stop:
            to_stop.process.send_signal(signal.SIGSTOP)
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if to_stop:
            to_stop.process.send_signal(signal.SIGCONT)
        if process.wait(60) or not line:
            raise RuntimeError(f"the rank ended with {process.returncode}")
        figures: dict[str, float] = json.loads(line)
        return figures
