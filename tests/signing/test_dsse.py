"""DSSE envelopes: every form that the protocol allows is read, and one is written (see test_vectors.py)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import VerificationFailed
from bench.signing.dsse import pae, seal, unseal, verify_own
from bench.signing.ssh_keys import PublicKey

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = PublicKey.of(KEY)
PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
SEALED = seal(PAYLOAD, KEY)


def altered(**changes: Any) -> bytes:
    return json.dumps(json.loads(SEALED) | changes, sort_keys=True, separators=(",", ":")).encode()


@given(st.binary(max_size=200), st.text(max_size=30))
def test_what_was_sealed_is_unsealed(payload: bytes, payload_type: str) -> None:
    try:
        payload_type.encode()
    except UnicodeEncodeError:
        return
    assert unseal(seal(payload, KEY, payload_type), PUBLIC, payload_type) == payload


def test_type_and_payload_cannot_run_into_each_other() -> None:
    assert pae("a", b"b 1 c") != pae("a 5 b", b"c")


def test_the_key_id_is_the_fingerprint_and_is_not_checked() -> None:
    signatures = json.loads(SEALED)["signatures"]
    assert signatures[0]["keyid"] == PUBLIC.fingerprint
    assert unseal(altered(signatures=[signatures[0] | {"keyid": "another"}]), PUBLIC) == PAYLOAD


def test_one_fitting_signature_among_others_is_enough_for_the_protocol_but_not_for_a_bundle() -> None:
    other = {"keyid": "x", "sig": base64.b64encode(bytes(64)).decode()}
    several = altered(signatures=[other, *json.loads(SEALED)["signatures"]])
    assert unseal(several, PUBLIC) == PAYLOAD
    with pytest.raises(VerificationFailed, match="canonical form"):
        verify_own(several, PAYLOAD, PUBLIC)


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not a DSSE envelope"),
        (b"{}", "not a DSSE envelope"),
        (b"\xff", "not UTF-8"),
        (SEALED.replace(b'{"payload"', b'{"payload":"","payload"', 1), "stands twice"),
        (altered(payload=1), "a value that is not base64"),
        (altered(payload="!"), "is not base64"),
        (altered(payload="-_+/"), "mixes two alphabets"),
        (altered(payload="YQ"), "is not base64"),
        (altered(signatures=[]), "signature is missing"),
        (altered(signatures={}), "signature is missing"),
        (altered(signatures=[1]), "not a DSSE envelope"),
        (altered(signatures=[{"sig": None}]), "not base64 text"),
        (altered(payloadType=1), "payloadType or signature is missing"),
        (altered(payloadType="\ud800"), "malformed"),
        (altered(payloadType="text/plain"), "is not signed by"),
        (altered(payload=base64.b64encode(PAYLOAD + b" ").decode()), "is not signed by"),
    ],
)
def test_another_envelope_is_refused(envelope: bytes, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why):
        unseal(envelope, PUBLIC)


def test_an_unexpected_payload_type_is_refused_even_if_signed() -> None:
    with pytest.raises(VerificationFailed, match="holds 'text/plain', not application/vnd"):
        unseal(seal(PAYLOAD, KEY, "text/plain"), PUBLIC)


def test_no_byte_of_a_bundles_envelope_can_be_changed() -> None:
    verify_own(SEALED, PAYLOAD, PUBLIC)
    for at in range(len(SEALED)):
        with pytest.raises(VerificationFailed, match="the envelope"):
            verify_own(SEALED[:at] + bytes([SEALED[at] ^ 1]) + SEALED[at + 1 :], PAYLOAD, PUBLIC)


def test_an_envelope_of_another_statement_is_refused_as_such() -> None:
    with pytest.raises(VerificationFailed, match=r"holds another statement than statement\.json"):
        verify_own(seal(PAYLOAD + b" ", KEY), PAYLOAD, PUBLIC)


@pytest.mark.parametrize("count", [2, 1000])
def test_an_envelope_with_several_signatures_is_refused_unverified(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The attack is an envelope with thousands of signatures, each of which would be costly to refuse."""
    tried = []
    monkeypatch.setattr(PublicKey, "check", lambda *_: tried.append(1))
    many = altered(signatures=json.loads(SEALED)["signatures"] * count)
    with pytest.raises(VerificationFailed, match="canonical form"):
        verify_own(many, PAYLOAD, PUBLIC)
    assert tried == []
