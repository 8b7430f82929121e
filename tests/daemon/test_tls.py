"""Encrypted telemetry: the same run, and strangers that do not encrypt, do not end their handshake, or speak junk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.daemon.living_run import TOKEN
from tests.harness.certificates import Certificates, make_certificates
from tests.harness.clock import HandClock
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from traceml_client.protocol import messages
from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.tls import MAX_HANDSHAKE_BYTES, TlsTrust, client_context, server_context
from traceml_daemon.peers.server import HANDSHAKE_TIMEOUT_S


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")


async def test_a_run_over_tls_is_complete(run_dir: Path, files: Certificates) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config, tls=server_context(files.cert, files.key)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN, tls=client_context(TlsTrust(files.ca, "127.0.0.1")))
        await rank.join()
        await rank.send_steps(5000, per_frame=250)
        await rank.wait_acked()
        await rank.send_steps(25_000, per_frame=25_000)  # more than one record of TLS holds
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()

    assert manifest.telemetry_status == "complete"
    assert manifest.telemetry.records.stored == 30_000


async def test_who_waits_in_plain_text_is_told_and_cut_off(run_dir: Path, files: Certificates) -> None:
    hand = HandClock()
    async with run_daemon(run_config(run_dir), clock=hand, tls=server_context(files.cert, files.key)) as daemon:
        waiting = await Wire.open(daemon.port)
        await hand.advance(HANDSHAKE_TIMEOUT_S + 0.1)
        answer = await waiting.receive()
        assert isinstance(answer, messages.Refused)
        assert answer.reason == messages.TLS_REQUIRED
        assert await waiting.is_closed_by_daemon()
        await waiting.close()

    assert daemon.rejections.by_peer() == {"127.0.0.1": {"tls_required": 1}}


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(64 << 10),
        b"\x16\x03\x01\xff\xff" + bytes(MAX_HANDSHAKE_BYTES),
    ],
    ids=["plain text", "random bytes", "an endless hello"],
)
async def test_junk_in_place_of_a_handshake_is_cut_off_and_counted(
    run_dir: Path, files: Certificates, junk: bytes
) -> None:
    async with run_daemon(run_config(run_dir), tls=server_context(files.cert, files.key)) as daemon:
        stranger = await Wire.open(daemon.port)
        await stranger.send_bytes(junk)
        await until(lambda: daemon.server.num_connections == 0, "it is cut off")
        await stranger.hang_up()

    assert daemon.rejections.by_peer() == {"127.0.0.1": {"tls_failed": 1}}


def test_a_file_that_is_no_certificate_is_named(files: Certificates, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    for make, named in (
        (lambda: server_context(files.cert, str(tmp_path / "no")), f"--tls-key {tmp_path / 'no'} cannot be read"),
        (lambda: server_context(str(tmp_path / "no"), files.key), f"--tls-cert {tmp_path / 'no'} cannot be read"),
        (lambda: server_context(files.cert, files.elsewhere_key), f"--tls-cert {files.cert} and --tls-key"),
        (lambda: server_context(str(text), files.key), f"--tls-cert {text}"),
        (lambda: client_context(TlsTrust(str(text), "name")), f"--tls-ca {text}"),
        (lambda: client_context(TlsTrust(str(tmp_path / "no"))), f"--tls-cert {tmp_path / 'no'} cannot be read"),
    ):
        with pytest.raises(ConfigError, match="^" + named.replace("/", ".")) as caught:
            make()
        assert "\n" not in str(caught.value)
