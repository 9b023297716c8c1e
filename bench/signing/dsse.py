"""Seal and open DSSE envelopes, which in-toto tools and cosign read. Pure.

Protocol: https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

import re
from typing import Any

from bench.base.errors import VerificationFailed
from bench.base.strict_json import DecodeError, canonical_json, strict_loads
from bench.signing.ssh_keys import FormatError, PublicKey, Signer, WrongSignature, from_base64, to_base64

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: type and payload, each after its length, which fixes their boundary."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, key: Signer, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Sign a payload; return the envelope in canonical JSON. Its key id is the key's SSH fingerprint."""
    return _envelope(payload_type, payload, PublicKey.of(key), key.sign(pae(payload_type, payload)))


def _envelope(payload_type: str, payload: bytes, key: PublicKey, signature: bytes) -> bytes:
    signatures = [{"keyid": key.fingerprint, "sig": to_base64(signature)}]
    document = {"payload": to_base64(payload), "payloadType": payload_type, "signatures": signatures}
    return canonical_json(document)


def unseal(envelope: bytes, key: PublicKey, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return the payload of an envelope; VerificationFailed if it is invalid or `key` did not sign it."""
    payload, found_type, signatures = _open(envelope)
    signed = pae(found_type, payload)
    if not any(_fits(signature, signed, key) for signature in signatures):
        raise VerificationFailed(f"the envelope is not signed by {key.fingerprint}")
    if found_type != payload_type:
        raise VerificationFailed(f"the envelope holds {found_type!r:.60}, not {payload_type}")
    return payload


def verify_own(envelope: bytes, statement: bytes, key: PublicKey) -> None:
    """Refuse an envelope whose bytes differ from those that seal() makes of `statement`."""
    payload, _, signatures = _open(envelope)
    if payload != statement:
        raise VerificationFailed("the envelope holds another statement than statement.json")
    if len(signatures) > 1:  # refused before they are verified: a stranger could send thousands
        raise VerificationFailed("the envelope is not in its canonical form")
    unseal(envelope, key)
    if _envelope(PAYLOAD_TYPE, statement, key, signatures[0]) != envelope:
        raise VerificationFailed("the envelope is not in its canonical form")


def _fits(signature: bytes, data: bytes, key: PublicKey) -> bool:
    try:
        key.check(signature, data)
    except WrongSignature:
        return False
    return True


def _open(envelope: bytes) -> tuple[bytes, str, list[bytes]]:
    try:
        document: Any = strict_loads(envelope)
        payload = _from_any_base64(document["payload"])
        signatures = [_from_any_base64(entry["sig"]) for entry in document["signatures"]]
        payload_type = document["payloadType"]
        if not isinstance(payload_type, str) or not signatures:
            raise DecodeError("payloadType or signature is missing")
    except (DecodeError, FormatError) as error:
        raise VerificationFailed(f"the envelope is malformed: {error}") from None
    except (KeyError, TypeError):
        raise VerificationFailed("the envelope is malformed: not a DSSE envelope") from None
    return payload, payload_type, signatures


def _from_any_base64(text: Any) -> bytes:
    """Decode base64 of the standard or the URL-safe alphabet; DSSE requires readers to accept both."""
    if not isinstance(text, str):
        raise FormatError("has a value that is not base64 text")
    mixed = re.search(r"[-_]", text) and re.search(r"[+/]", text)
    if mixed:
        raise FormatError("mixes two alphabets of base64")
    return from_base64(text.replace("-", "+").replace("_", "/"))
