"""Our aggregator, started as a user starts it: `traceml serve` on loopback, in a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import free_port, wait_until

RUN_NAME = "bench"
RANKS_PER_NODE = 8
TRACEML = Path(sys.executable).parent / "traceml"


@dataclass(frozen=True, slots=True)
class Aggregator:
    process: subprocess.Popen[bytes]
    port: int
    token: str
    run_dir: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_finalized(self) -> bool:
        """Reports are written, and the manifest, last of all, says so."""
        try:
            manifest = json.loads((self.run_dir / "manifest.json").read_bytes())
        except FileNotFoundError:
            return False
        return bool(manifest["telemetry_status"] != "pending")

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_dir / "final_summary.json").read_bytes())
        return document

    def database_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.run_dir.glob("telemetry.sqlite*"))


@contextlib.contextmanager
def running(num_ranks: int) -> Iterator[Aggregator]:
    """A ready aggregator for one run of `num_ranks` ranks, eight a node.

    Raises:
        TimeoutError, RuntimeError: it did not come up; the text says what it printed.
    """
    logs_dir, port, token = Path(tempfile.mkdtemp(prefix="bench_")), free_port(), secrets.token_urlsafe()
    nproc = min(num_ranks, RANKS_PER_NODE)
    options = ["--run-name", RUN_NAME, "--logs-dir", str(logs_dir), "--aggregator-port", str(port)]
    options += ["--nnodes", str(num_ranks // nproc), "--nproc-per-node", str(nproc)]
    log = logs_dir / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(TRACEML), "serve", *options],
            env={**os.environ, "TRACEML_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: process.poll() is not None or _is_listening(port), "the aggregator", within_s=30)
        if process.poll() is not None:
            raise RuntimeError(f"the aggregator ended with {process.returncode}: {log.read_text()[-2000:]}")
        yield Aggregator(process, port, token, logs_dir / RUN_NAME)
    finally:
        _stop(process)
        shutil.rmtree(logs_dir, ignore_errors=True)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
