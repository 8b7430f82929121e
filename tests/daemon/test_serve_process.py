"""`traceml-daemon` as a process: its ready line, its options, its secret, its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness.daemon_process import serve_process
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol.manifest import read_manifest

TOKEN = "a secret"


async def test_serve_says_where_it_listens_and_finalizes_at_sigterm(tmp_path: Path) -> None:
    logs_dir = tmp_path / "logs"
    options = ("--run-name", "mine", "--aggregator-port", "0")
    async with serve_process(logs_dir, *options, TRACEML_SETTLE_SEC="0.1", TRACEML_TOKEN=TOKEN) as daemon:
        assert daemon.ready["run_dir"] == str(logs_dir / "mine")
        assert daemon.ready["pid"] == daemon.process.pid
        secret = TOKEN.encode()
        assert secret not in visible_to_ps(daemon.process.pid)
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await until(lambda: daemon.manifest().status == "completed", "the run is completed")
        other = SimRank(port=daemon.port, token=TOKEN, run="other")
        await other.join()
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0
        await other.close()
        stdout, stderr = daemon.process.communicate()

    assert secret not in stdout + stderr
    assert read_manifest(logs_dir / "other").status == "interrupted"
    assert read_manifest(logs_dir / "mine").telemetry_status == "complete"
    assert all(secret not in path.read_bytes() for path in logs_dir.rglob("*") if path.is_file())
    assert {path.stat().st_mode & 0o777 for path in logs_dir.rglob("*") if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in logs_dir.rglob("*") if path.is_file()} == {0o600}


def visible_to_ps(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


async def test_serve_goes_on_with_a_run_whose_daemon_was_killed(tmp_path: Path) -> None:
    options = ("--run-name", "mine", "--aggregator-port", "0", "--settle-sec", "0.1")
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank = SimRank(port=daemon.port)
        welcome = await rank.join()
        await rank.send_steps(50)
        await rank.wait_acked()
        daemon.process.kill()
        await daemon.exit_code()
        await rank.hang_up()
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank.port = daemon.port
        again = await rank.rejoin()
        assert (again.run_id, again.attempt, again.next_seq) == (welcome.run_id, 0, (50, 0))
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await until(lambda: daemon.manifest().telemetry_status == "complete", "the run is complete")

    assert daemon.manifest().telemetry.records.stored == 60
    async with serve_process(tmp_path / "logs", *options) as daemon:
        assert await daemon.exit_code() == 2


async def test_serve_takes_its_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    options = ("--token-file", str(tmp_path / "token"), "--aggregator-port", "0")
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank = SimRank(port=daemon.port, token="from a file")
        await rank.join()
        await rank.close()


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--aggregator-port", "70000"], 2, "--aggregator-port"),
        (["--nnodes", "0"], 2, "--nnodes"),
        (["--run-name", "../x"], 2, "--run-name"),
        (["--settle-sec", "soon"], 2, "--settle-sec"),
        (["--finalize-timeout-sec", "0"], 2, "--finalize-timeout-sec"),
        (["--token-file", "/nowhere"], 2, "--token-file"),
        (["--tls-cert", "x"], 2, "--tls-cert"),
        (["--bogus"], 2, "--bogus"),
        (["extra"], 2, "extra"),
        (["--logs-dir", "/proc/nowhere"], 2, "--logs-dir"),
        (["--aggregator-bind-host", "203.0.113.1"], 1, "203.0.113.1"),
    ],
)
async def test_a_wrong_option_is_one_line_that_names_it(
    tmp_path: Path, options: list[str], code: int, named: str
) -> None:
    async with serve_process(tmp_path / "logs", *options) as daemon:
        assert await daemon.exit_code() == code
        assert daemon.process.stderr is not None
        lines = daemon.process.stderr.read().decode().splitlines()

    assert len(lines) == 1
    assert named in lines[0]


async def test_a_variable_that_does_not_parse_is_named(tmp_path: Path) -> None:
    async with serve_process(tmp_path / "logs", TRACEML_NNODES="many") as daemon:
        assert await daemon.exit_code() == 2
        assert daemon.process.stderr is not None
        assert b"TRACEML_NNODES" in daemon.process.stderr.read()
