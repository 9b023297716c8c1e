"""An operator and a node for tests: certificates and receipts, valid or with chosen mistakes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.stamps import sha256
from bench.bundle.handshake import (
    BUNDLE_NAMESPACE,
    NAMESPACE_OPTION,
    NONCE_OPTION,
    RECEIPT_NAMESPACE,
    LedgerEntry,
    Receipt,
    key_id,
    principal,
    write,
)
from bench.bundle.pack import pack, write_bundle
from bench.bundle.tar_format import RECEIPT, RECEIPT_SIGNATURE, STATEMENT, open_bundle
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.ssh_keys import CERTIFICATE, ED25519, TOKEN, Certificate, PublicKey, Signer, wire_string
from bench.signing.sshsig import sign
from tests.bundles import FILES, predicate

RUN_ID = "7f3a2c"
NONCE = "5e" * 32
CHALLENGED = 1_800_000_000  # unix seconds
UNTIL = CHALLENGED + 7200
RECEIVED = CHALLENGED + 3600
OPERATOR = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
RUN_KEY = Ed25519PrivateKey.from_private_bytes(b"r" * 32)
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)


class Token:
    """A FIDO token's key as OpenSSH uses it: a signature covers the data, a flag byte and a counter."""

    def __init__(self, seed: bytes = b"t" * 32, application: str = "ssh:") -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._private.public_key().public_bytes_raw(), application)

    def sign_wire(self, data: bytes, flags: int = 1, counter: int = 5) -> bytes:
        """Sign data; return the signature in SSH's encoding, with algorithm, flags and counter."""
        assert self.public.application is not None
        said = bytes([flags]) + counter.to_bytes(4, "big")
        told = hashlib.sha256(self.public.application.encode()).digest() + said
        raw = self._private.sign(told + hashlib.sha256(data).digest())
        return wire_string(TOKEN) + wire_string(raw) + said


def certificate_blob(key: Signer = RUN_KEY, authority: Signer | Token = OPERATOR, **changes: Any) -> bytes:
    """Make a certificate as ssh-keygen -s does, except for the given changes."""
    facts: dict[str, Any] = {
        "kind": CERTIFICATE,
        "serial": 7,
        "role": 1,
        "key_id": key_id(RUN_ID),
        "principals": (principal(RUN_ID),),
        "valid": (CHALLENGED, UNTIL),
        "options": {NAMESPACE_OPTION: BUNDLE_NAMESPACE, NONCE_OPTION: NONCE},
        "after_option": b"",
        "extensions": b"",
        "reserved": b"",
        "public": PublicKey.of(key).raw,
        "tail": b"",
    } | changes
    signed = b"".join(
        [
            wire_string(facts["kind"]),
            wire_string(bytes(32)),
            wire_string(facts["public"]),
            facts["serial"].to_bytes(8, "big"),
            facts["role"].to_bytes(4, "big"),
            wire_string(facts["key_id"]),
            wire_string(b"".join(wire_string(p) for p in facts["principals"])),
            *(at.to_bytes(8, "big") for at in facts["valid"]),
            wire_string(
                b"".join(
                    wire_string(k) + wire_string(wire_string(v) + facts["after_option"])
                    for k, v in facts["options"].items()
                )
            ),
            wire_string(facts["extensions"]),
            wire_string(facts["reserved"]),
            wire_string((authority.public if isinstance(authority, Token) else PublicKey.of(authority)).blob),
        ]
    )
    if isinstance(authority, Token):
        signature = authority.sign_wire(signed)
    else:
        signature = wire_string(ED25519) + wire_string(authority.sign(signed))
    return signed + wire_string(signature) + bytes(facts["tail"])


def certificate(key: Signer = RUN_KEY, authority: Signer | Token = OPERATOR, **changes: Any) -> Certificate:
    return Certificate.from_blob(certificate_blob(key, authority, **changes))


def certified(
    path: Path,
    cert: Certificate | None = None,
    files: Mapping[str, bytes | Path] = FILES,
    **changes: Any,
) -> Path:
    """Write a bundle as a challenged and certified node does."""
    facts = predicate(files, **{"run_id": RUN_ID, "level": "operator", "nonce": NONCE} | changes)
    pack(path, files, facts, RUN_KEY, cert or certificate())
    return path


def receipt_for(path: Path, cert: Certificate | None = None, **changes: Any) -> bytes:
    with open_bundle(path) as bundle:
        statement = bundle.read(STATEMENT)
    facts: dict[str, Any] = {
        "run_id": RUN_ID,
        "nonce": NONCE,
        "statement_sha256": sha256(statement),
        "certificate_sha256": sha256((cert or certificate()).blob),
        "challenged_at": CHALLENGED,
        "received_at": RECEIVED,
        "ledger": LedgerEntry(3, "a" * 64),
    }
    return write(Receipt(**(facts | changes)))


def countersign(
    path: Path,
    receipt: bytes | None = None,
    key: Signer = OPERATOR,
    namespace: str = RECEIPT_NAMESPACE,
    cert: Certificate | None = None,
) -> Path:
    """Add a receipt to a bundle without checking its content."""
    data = receipt_for(path) if receipt is None else receipt
    added = {RECEIPT: data, RECEIPT_SIGNATURE: sign(data, key, namespace, cert)}
    write_bundle(path, contents(path) | added)
    return path


def received(path: Path, **changes: Any) -> Path:
    """Write a certified and countersigned bundle, as an operator publishes it."""
    return countersign(certified(path, **changes))


def contents(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as bundle:
        return {name: bundle.read(name) for name in bundle.members}


def trusting(*keys: Signer) -> TrustPolicy:
    return TrustPolicy.from_text("\n".join(PublicKey.of(key).line() for key in keys), "trusted")
