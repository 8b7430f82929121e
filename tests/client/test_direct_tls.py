"""A rank of a direct launch over TLS, in a process of its own, and what it says where it cannot believe the daemon."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.certificates import Certificates, make_certificates
from tests.harness.daemon_process import serve_process
from tests.harness.torchrun import clean_environment
from tests.harness.until import until
from traceml_client.protocol.errors import StoreError

SCRIPT = """
import traceml_client
traceml_client.init()
for _ in range(25):
    with traceml_client.trace_step():
        pass
print("trained")
"""


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")


async def train(port: int, **variables: str) -> str:
    """Train to the end; return what was said on standard error."""
    environ = clean_environment(TRACEML_AGGREGATOR_PORT=str(port), **variables)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    return str(done.stderr)


@pytest.mark.parametrize("trusted", ["TRACEML_TLS_CA", "TRACEML_TLS_CERT"])
async def test_every_step_arrives(tmp_path: Path, files: Certificates, trusted: str) -> None:
    options = ("--aggregator-port=0", "--nproc-per-node=1", "--run-name=r", "--settle-sec=0.1")
    tls = (f"--tls-cert={files.cert}", f"--tls-key={files.key}")
    async with serve_process(tmp_path / "logs", *options, *tls) as daemon:
        trust = {trusted: files.ca if trusted == "TRACEML_TLS_CA" else files.cert}
        assert await train(daemon.port, **trust) == ""

        def status() -> str:
            try:
                return daemon.manifest().telemetry_status
            except StoreError:
                return "not there yet"

        await until(lambda: status() == "complete", "the run is complete")
        assert daemon.manifest().telemetry.records.stored == 25


async def test_a_daemon_that_cannot_be_believed_is_told_in_one_line(tmp_path: Path, files: Certificates) -> None:
    tls = (f"--tls-cert={files.cert}", f"--tls-key={files.key}")
    async with serve_process(tmp_path / "logs", "--aggregator-port=0", *tls) as daemon:
        said = await train(daemon.port, TRACEML_TLS_CA=files.strange_ca)
        missing = await train(daemon.port, TRACEML_TLS_CA=str(tmp_path / "nowhere"))
    async with serve_process(tmp_path / "logs", "--aggregator-port=0") as daemon:
        plain = await train(daemon.port, TRACEML_TLS_CA=files.ca)
    for text in (said, missing, plain):
        assert text.count("\n") == 1, text
        assert text.startswith("[TraceML]")
    assert "not the expected one" in said
    assert "nowhere cannot be read" in missing
    assert "does not speak TLS" in plain
