"""The peer, traceml-ai 0.5.0, in an environment of its own, by the runners that lie in SHARED_DIR/bench/peer.

PEER_PYTHON names an interpreter that has it already; otherwise one is built in PEER_VENV. Where neither works, or the
runners are not there, every figure is null and the table says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUIREMENT = "traceml-ai==0.5.0"
INSTALL_LIMIT_S = 900


@dataclass(frozen=True, slots=True)
class Peer:
    python: Path
    runners: Path

    @property
    def traceml(self) -> Path:
        return self.python.parent / "traceml"

    def ingest(self, num_ranks: int, num_steps: int, steps_per_frame: int) -> dict[str, Any]:
        """`peer_ingest.py`'s own JSON: steps_per_s, cpu_us_per_step, base_rss_mb, peak_rss_mb and so on."""
        return self._json("peer_ingest.py", num_ranks, num_steps, steps_per_frame, limit_s=240)

    def finalize(self, num_ranks: int, num_steps: int, cap_s: int) -> dict[str, Any]:
        """`peer_finalize.py`'s own JSON: finalize_s, peak_rss_mb, done."""
        return self._json("peer_finalize.py", num_ranks, num_steps, cap_s, limit_s=cap_s + 240)

    def client_added_us(self, num_modules: int, num_pairs: int, num_bursts: int, burst: int) -> dict[str, float]:
        """Added microseconds a step, by statistic (p10_us, median_us, cpu_us_per_step)."""
        text = self._run("run_client_overhead.py", num_modules, num_pairs, num_bursts, burst, limit_s=600)
        found = re.findall(r"^(\w+) peer overhead us: median of pairs (-?[\d.]+)", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def _json(self, script: str, *arguments: int, limit_s: float) -> dict[str, Any]:
        text = self._run(script, *arguments, limit_s=limit_s)
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"{script} printed no figures: {text[-300:]}")
        result: dict[str, Any] = json.loads(lines[0])
        return result

    def _run(self, script: str, *arguments: int, limit_s: float) -> str:
        with tempfile.TemporaryDirectory(prefix="peer_") as scratch:
            done = subprocess.run(
                [str(self.python), str(self.runners / script), *map(str, arguments)],
                env={**os.environ, "PEER_PYTHON": str(self.python), "BENCH_OUT": scratch},
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout


def find_peer() -> tuple[Peer | None, str]:
    """The peer, or null and one line that says why there is none."""
    runners = Path(os.environ.get("SHARED_DIR", "../shared"), "bench", "peer").resolve()
    if not runners.is_dir():
        return None, f"no runners of the peer in {runners.parent.name}/{runners.name} of SHARED_DIR"
    python = Path(os.environ["PEER_PYTHON"]) if "PEER_PYTHON" in os.environ else _build()
    if python is None or not _has_peer(python):
        return None, f"{REQUIREMENT} cannot be installed here"
    return Peer(python, runners), ""


def _build() -> Path | None:
    folder = Path(os.environ.get("PEER_VENV", ".venv-peer")).resolve()
    python = folder / "bin" / "python"
    if _has_peer(python):
        return python
    torch = os.environ.get("TORCH", "torch==2.13.0")
    print(f"building an environment for the peer: {REQUIREMENT}, {torch}", file=sys.stderr, flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=INSTALL_LIMIT_S)
        command = [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT, torch]
        subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.SubprocessError, OSError):
        return None
    return python


def _has_peer(python: Path) -> bool:
    if not python.exists():
        return False
    return (
        subprocess.run([str(python), "-c", "import traceml_ai, torch"], capture_output=True, timeout=120).returncode
        == 0
    )
