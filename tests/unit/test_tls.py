"""TLS without sockets: two ends in memory, cut anywhere."""

from __future__ import annotations

import random

import pytest

from tests.harness.certificates import Certificates, make_certificates
from traceml_client.protocol.errors import TlsFailed
from traceml_client.protocol.tls import TlsStream, TlsTrust, client_context, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def ends(files: Certificates, trust: TlsTrust, *, cert: str = "", key: str = "") -> tuple[TlsStream, TlsStream]:
    client = TlsStream(client_context(trust), is_server=False, name=trust.name)
    return client, TlsStream(server_context(cert or files.cert, key or files.key), is_server=True)


def carry(sender: TlsStream, receiver: TlsStream, choose: random.Random | None = None) -> bytes:
    """Move what is there, in pieces; return what was understood."""
    data, received = sender.ciphertext(), b""
    while data:
        size = choose.randrange(1, 500) if choose else len(data)
        received += receiver.receive(data[:size])
        data = data[size:]
    return received


def shake_hands(client: TlsStream, server: TlsStream) -> None:
    for _ in range(4):
        carry(client, server)
        carry(server, client)
    assert client.is_established
    assert server.is_established


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_arrives_however_it_is_cut(files: Certificates, seed: int) -> None:
    choose = random.Random(seed)
    client, server = ends(files, TlsTrust(files.ca, "127.0.0.1"))
    server.send(b"the daemon speaks first")  # before there is anybody to encrypt it for
    received = [b"", b""]
    said = b"".join(choose.randbytes(choose.randrange(20_000)) for _ in range(10))
    for start in range(0, len(said), 10_000):
        client.send(said[start : start + 10_000])
        received[0] += carry(client, server, choose)
        received[1] += carry(server, client, choose)
    received[0] += carry(client, server, choose)
    assert received == [said, b"the daemon speaks first"]
    assert b"the daemon speaks first" not in server.ciphertext()


def test_a_certificate_in_the_file_is_enough_whatever_its_name(files: Certificates) -> None:
    shake_hands(*ends(files, TlsTrust(files.elsewhere_cert), cert=files.elsewhere_cert, key=files.elsewhere_key))


@pytest.mark.parametrize("trust", ["strange", "name", "other"])
def test_another_certificate_is_refused_with_the_reason(files: Certificates, trust: str) -> None:
    trusts = {
        "strange": (TlsTrust(files.strange_ca, "127.0.0.1"), "not the expected one: unable to get local issuer"),
        "name": (TlsTrust(files.ca, "node-a"), "not the expected one: Hostname mismatch"),
        "other": (TlsTrust(files.elsewhere_cert), "not the expected one: unable to get local issuer"),
    }
    client, server = ends(files, trusts[trust][0])
    with pytest.raises(TlsFailed, match=trusts[trust][1]):
        shake_hands(client, server)


def test_an_aggregator_without_tls_is_called_that(files: Certificates) -> None:
    client, _ = ends(files, TlsTrust(files.ca, "127.0.0.1"))
    with pytest.raises(TlsFailed, match="started without --tls-cert"):
        client.receive(b"\x14\x00\x00\x00\x93\x01\x01\xc4\x10" + bytes(16))


def test_a_silent_peer_costs_nothing(files: Certificates) -> None:
    _, server = ends(files, TlsTrust(files.ca, "127.0.0.1"))
    server.send(b"challenge")
    assert not server.has_begun
    assert server.ciphertext() == b""
