"""Certificates for one test: an authority, a daemon's certificate for the loopback address, and somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Files in PEM form."""

    ca: str
    cert: str
    key: str
    strange_ca: str
    """Of an authority that has signed nothing here."""
    elsewhere_cert: str
    elsewhere_key: str
    """By the same authority, for another host."""


def make_certificates(folder: Path) -> Certificates:
    authority, stranger = trustme.CA(key_type=trustme.KeyType.ECDSA), trustme.CA(key_type=trustme.KeyType.ECDSA)
    here = authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA)
    elsewhere = authority.issue_cert("elsewhere.example", key_type=trustme.KeyType.ECDSA)
    blobs = {
        "ca": authority.cert_pem,
        "cert": here.cert_chain_pems[0],
        "key": here.private_key_pem,
        "strange_ca": stranger.cert_pem,
        "elsewhere_cert": elsewhere.cert_chain_pems[0],
        "elsewhere_key": elsewhere.private_key_pem,
    }
    folder.mkdir(exist_ok=True)
    for name, blob in blobs.items():
        blob.write_to_path(str(folder / f"{name}.pem"))
    return Certificates(**{name: str(folder / f"{name}.pem") for name in blobs})
