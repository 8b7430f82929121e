"""`summary()` and `final_summary()`: flat numbers that agree with what was recorded, and nothing else ever."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client.loop_server import LoopServer
from tests.client.rings import new_ring
from tests.contract.tree import ROOT
from tests.harness.noisy_run import write_noisy_run
from traceml_client import figures, steps
from traceml_client.protocol.columns import DEVICE_MEMORY_SAMPLE, IS_SKIPPED, IS_WARMUP, NOT_MEASURED, PROCESS_SAMPLE
from traceml_client.recorder import Recorder

MS = 1_000_000
PHASES = ("input_wait", "forward", "backward", "optimizer", "residual", "step")


@pytest.fixture
def recorder() -> Recorder:
    """A warm-up step, a skipped one, then steps of 11 to 20 ms; memory has been sampled twice."""
    recorder = Recorder(new_ring())
    tags = [IS_WARMUP, IS_SKIPPED, *[0] * 10]
    for place, tag in enumerate(tags):
        step_ms = 9 + place
        recorder.record_step((tag, place * MS, MS, NOT_MEASURED, 2 * MS, 4 * MS, MS, step_ms * MS))
    for rss in (100, 200):
        recorder.record_sample(PROCESS_SAMPLE, 1, (1, rss, 1, 1, rss, NOT_MEASURED))
        recorder.record_sample(DEVICE_MEMORY_SAMPLE, 1, (0, 10, 20, 10 * rss, 20, 99))
    return recorder


@pytest.fixture
def faults(recorder: Recorder) -> list[str]:
    """What goes wrong while this process is the rank of that recorder."""
    found: list[str] = []
    steps.start(recorder, lambda kind, error: found.append(f"{kind}: {error}"))
    return found


@pytest.mark.usefixtures("faults")
def test_figures_are_those_of_the_records() -> None:
    found = figures.final_summary()
    assert found["traceml/steps"] == 10
    assert found["traceml/skipped"] == 1
    assert found["traceml/step_p50_ms"] == pytest.approx(15.5)
    assert found["traceml/step_p95_ms"] == pytest.approx(19.55)
    assert found["traceml/backward_share"] == pytest.approx(4 / 15.5)
    assert found["traceml/residual_mean_ms"] == pytest.approx(7.5)
    assert found["traceml/throughput_steps_per_s"] == pytest.approx(1000 / 15.5)
    assert found["traceml/rss_bytes"] == 200
    assert found["traceml/device_peak_bytes"] == 2000
    assert not [name for name in found if "h2d" in name]
    assert sum(found[f"traceml/{name}_mean_ms"] for name in PHASES[:-1]) == pytest.approx(found["traceml/step_mean_ms"])


@pytest.mark.usefixtures("faults")
def test_summary_is_of_the_last_steps() -> None:
    found = figures.summary(last_steps=4)
    assert found["traceml/steps"] == 4
    assert found["traceml/step_p50_ms"] == pytest.approx(18.5)


def test_a_wrong_call_is_reported_and_never_raises(faults: list[str]) -> None:
    assert figures.summary("many") == {}  # type: ignore[arg-type]
    assert len(faults) == 1
    assert faults[0].startswith("summary: ")


def test_without_telemetry_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    code = "import traceml_client as t; print(t.summary(), t.final_summary(), t.final_summary('nowhere'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=30
    )
    assert (done.stdout, done.stderr) == ("{} {} {}\n", "")
    (tmp_path / "final_summary.json").write_text('{"step_time": []}')
    assert figures.final_summary(tmp_path) == {}


def test_the_report_of_a_run_is_as_flat(tmp_path: Path) -> None:
    run_dir = write_noisy_run(tmp_path / "run", 1)
    report = json.loads((run_dir / "final_summary.json").read_bytes())
    found = figures.final_summary(run_dir)
    assert found["traceml/step_p50_ms"] == report["step_time"]["phases"]["step"]["p50_ms"]
    assert (found["traceml/ranks"], found["traceml/exit_code"], found["traceml/steps"]) == (2, 0, 399)
    assert all(isinstance(value, int | float) for value in found.values())
    assert not [name for name in found if "h2d" in name]


@pytest.mark.torch
def test_a_script_logs_its_own_figures(tmp_path: Path) -> None:
    with LoopServer() as server:
        result = server.run("logs_figures", tmp_path)
    assert result.status == 0, result.output
    final, logged = result.facts["final"], result.facts["logged"]
    assert [each["traceml/steps"] for each in logged] == [9, 10, 10, 10]
    assert final["traceml/steps"] == len(result.laps) - 1
    durations = sorted(step.duration_ns for step in result.steps[1:])
    assert final["traceml/step_p50_ms"] == pytest.approx(durations[len(durations) // 2] / MS)
    assert all(math.isfinite(value) for each in logged for value in each.values())
    assert result.facts["written"] in (None, len(logged[-1]))


class Tracker:
    """Takes what the real ones take: a flat dict of names and numbers, and a step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.summary: dict[str, float] = {}
        self.log_metrics = self.log

    def log(self, values: dict[str, float], *, step: int) -> None:
        assert all(re.fullmatch(r"[\w/. -]+", name) and isinstance(v, int | float) for name, v in values.items())
        self.rows.append({**values, "step": step})

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.log({name: value}, step=step)


@pytest.mark.usefixtures("faults")
def test_the_example_in_readme_runs() -> None:
    (code,) = re.findall(
        r"```python\n((?:(?!```).)*traceml_client\.summary\(\).*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    tracker = Tracker()
    names: dict[str, Any] = {"loader": range(200), "train_on": lambda _: None}
    exec(code, names | {"wandb": tracker, "mlflow": tracker, "writer": tracker})
    assert [row["step"] for row in tracker.rows[:2]] == [99, 99]
    assert tracker.rows[0]["traceml/steps"] == 10
    assert tracker.summary["traceml/step_p50_ms"] == pytest.approx(15.5)
