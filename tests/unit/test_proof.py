"""Who knows the run's token, without ever sending it."""

from __future__ import annotations

import pytest

from traceml_client.protocol.proof import NONCE_BYTES, is_proven, new_nonce, new_token, prove

NONCE = bytes(range(NONCE_BYTES))
CLAIMS = ("rank", "run-1", 0, 3, 1)


def test_a_proof_of_the_same_token_and_claims_holds() -> None:
    assert is_proven("secret", NONCE, prove("secret", NONCE, *CLAIMS), *CLAIMS)


@pytest.mark.parametrize("place", range(len(CLAIMS)))
def test_a_proof_for_one_slot_opens_no_other(place: int) -> None:
    proof = prove("secret", NONCE, *CLAIMS)
    changed = [*CLAIMS]
    changed[place] = "other"

    assert not is_proven("secret", NONCE, proof, *changed)


def test_claims_do_not_run_into_each_other() -> None:
    assert prove("secret", NONCE, "rank", "1", 23) != prove("secret", NONCE, "rank", "12", 3)


@pytest.mark.parametrize("proof", [b"", b"x" * 32, bytes(32)])
def test_without_the_token_there_is_no_proof(proof: bytes) -> None:
    assert not is_proven("secret", NONCE, proof, *CLAIMS)


def test_a_recorded_proof_is_useless_for_another_nonce() -> None:
    proof = prove("secret", NONCE, *CLAIMS)

    assert not is_proven("secret", new_nonce(), proof, *CLAIMS)


def test_the_token_is_not_in_the_proof() -> None:
    assert b"secret" not in prove("secret", NONCE, *CLAIMS)


def test_where_there_is_no_token_everybody_is_let_in() -> None:
    assert prove("", NONCE, *CLAIMS) == b""
    assert is_proven("", NONCE, b"whatever", *CLAIMS)


def test_tokens_and_nonces_are_fresh() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_nonce()) == NONCE_BYTES
    assert len(new_token()) >= 32
