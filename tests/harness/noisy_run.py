"""Run folders with the noise of real machines: of each step, over minutes, from rank to rank and from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.harness.database import Content, Sample, Step, write_database
from tests.harness.facts import START_NS, Rank, run_facts
from traceml_client.protocol import columns
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_daemon.report.facts import RunFacts
from traceml_daemon.report.write import write_reports

Floats = npt.NDArray[np.float64]
PHASE_MS = {"input_wait": 0.8, "forward": 3.0, "backward": 5.0, "optimizer": 1.0}
RESIDUAL_MS = 0.2


def write_noisy_run(
    folder: Path,
    seed: int,
    *,
    num_steps: int = 400,
    num_ranks: int = 2,
    slower: dict[str, float | Floats] | None = None,
    all_slower: float | Floats = 1.0,
    stall_every: int = 0,
    jitter: float = 0.05,
    is_of_two_kinds: bool = False,
    facts: RunFacts | None = None,
) -> Path:
    """One run of the script.

    `slower`: phase to factor, one or one for each step; `all_slower`: the same of everything; `stall_every`: one of so
    many steps takes ten times as long; `jitter`: sigma of each phase of each step; `is_of_two_kinds`: about every other
    step is thrice as long.
    """
    generator = np.random.default_rng(seed)
    shared = _shared_noise(generator, num_steps) * all_slower
    if stall_every:
        shared[::stall_every] *= 10
    if is_of_two_kinds:
        shared *= np.where(generator.random(num_steps) < 0.5, 3, 1)
    facts = facts or run_facts([Rank(rank=rank) for rank in range(num_ranks)], status="completed", exit_code=0)
    folder.mkdir()
    contents = {}
    for attempt in facts.attempts:
        of_rank = shared * (1 + 0.02 * attempt.place.rank)
        contents[attempt.incarnation] = Content(
            rank=attempt.place.rank,
            steps=_steps(generator, of_rank, slower or {}, jitter),
            samples=_memory(generator),
            world_size=num_ranks,
        )
    write_database(folder / DATABASE_FILE, contents)
    write_reports(folder, facts, True)
    return folder


def _shared_noise(generator: np.random.Generator, num_steps: int) -> Floats:
    """What all ranks feel, for they wait for one another."""
    run_to_run = generator.normal(1.0, 0.01)
    places = np.arange(num_steps) / num_steps
    drift = 1 + 0.01 * np.sin(2 * np.pi * (places * generator.uniform(0.5, 2) + generator.uniform()))
    slow_noise = np.zeros(num_steps)
    for place in range(1, num_steps):
        slow_noise[place] = 0.95 * slow_noise[place - 1] + generator.normal(0, 0.006)
    neighbours = np.ones(num_steps)
    for _ in range(generator.poisson(num_steps / 400)):
        start = generator.integers(num_steps)
        neighbours[start : start + 20] = 1.4
    spikes = np.where(generator.random(num_steps) < 0.01, generator.uniform(1.5, 4, num_steps), 1.0)
    return run_to_run * drift * (1 + slow_noise) * neighbours * spikes


def _memory(generator: np.random.Generator) -> list[Sample]:
    """Resident memory once a second for half a minute."""
    sizes = (300 + 20 * np.sqrt(np.arange(30)) + generator.normal(0, 3, 30)) * (1 << 20)
    return [
        Sample(kind=columns.PROCESS_SAMPLE, values=(second * 10**9, int(size), 12, 30), at_ns=START_NS + second * 10**9)
        for second, size in enumerate(sizes)
    ]


def _steps(
    generator: np.random.Generator, factor: Floats, slower: dict[str, float | Floats], jitter: float
) -> list[Step]:
    times = {
        name: mean_ms * 1e6 * slower.get(name, 1.0) * factor * generator.lognormal(0, jitter, len(factor))
        for name, mean_ms in PHASE_MS.items()
    }
    whole = sum(times.values()) + RESIDUAL_MS * 1e6 * factor
    warmup_tags = [columns.IS_WARMUP, *[0] * (len(factor) - 2), columns.IS_UNUSUAL]
    return [
        Step(tag=tag, step=int(step), **{name: int(column[i]) for name, column in times.items()})
        for i, (tag, step) in enumerate(zip(warmup_tags, whole, strict=True))
    ]
