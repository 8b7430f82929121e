"""The token proof: shows that a peer knows the run's secret without sending it.

The daemon's `Challenge` carries a fresh nonce per connection; the peer answers with an HMAC over that nonce and over
who it says it is. A recorded answer is useless on another connection, and an answer for one slot opens no other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 16


def new_token() -> str:
    """A random secret for one run, as text that fits an environment variable or a file."""
    return secrets.token_urlsafe(32)


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def prove(token: str, nonce: bytes, *claims: str | int) -> bytes:
    """Return the proof for `claims` (run, role, slot) on the connection with this `nonce`; empty without a token."""
    if not token:
        return b""
    text = "\0".join(str(claim) for claim in claims).encode()
    return hmac.new(token.encode(), nonce + text, hashlib.sha256).digest()


def is_proven(token: str, nonce: bytes, proof: bytes, *claims: str | int) -> bool:
    """Whether `proof` was made with `token`. Without a token everybody is let in, and the run says so."""
    return not token or hmac.compare_digest(prove(token, nonce, *claims), proof)
