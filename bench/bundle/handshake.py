"""The documents that operator and node exchange around a run. Pure: no files, no clock.

operator              node
challenge.json   ->                   a fresh nonce for one run of one manifest
                 <-   request.json    a key made in the node's memory, signed by itself
run-cert.pub     ->                   the operator's SSH key certifies that key, for this run alone
                 <-   the bundle      signed by the key, with the nonce
receipt.json                          the nonce is consumed; the operator countersigns what arrived
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import is_nonce, is_run_id, is_sha256, sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads, to_json
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey, Signer
from bench.signing.sshsig import sign, verify

BUNDLE_NAMESPACE = "bench-bundle@v1"
REQUEST_NAMESPACE = "bench-request@v1"
RECEIPT_NAMESPACE = "bench-receipt@v1"
NAMESPACE_OPTION = "bench-namespace@v1"
NONCE_OPTION = "bench-nonce@v1"
# Seconds by which a run's own times may exceed the time from challenge to receipt: clocks drift.
DRIFT_SECONDS = 60

T = TypeVar("T", "Challenge", "CertificateRequest", "Receipt")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The operator's request for one run of one manifest."""

    run_id: str
    nonce: str
    manifest_sha256: str
    issued_at: int  # unix seconds by the operator's clock, like all times below
    schema: Literal["bench/challenge/v1"] = "bench/challenge/v1"


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """The node's request to certify its key, with a signature that proves possession of the key."""

    run_id: str
    nonce: str
    key: str
    schema: Literal["bench/request/v1"] = "bench/request/v1"
    signature: str = ""  # SSHSIG by the key, over this document without this field

    def signed_part(self) -> bytes:
        """Return the bytes that `signature` signs: all other fields."""
        return canonical_json({k: v for k, v in to_json(self).items() if k != "signature"})


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The line of the operator's ledger about a receipt, for an audit of the operator."""

    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The operator's statement that it received this bundle, and no other for the same nonce."""

    run_id: str
    nonce: str
    statement_sha256: str
    certificate_sha256: str
    challenged_at: int  # time of the first challenge: a run is challenged again after its node is lost
    received_at: int
    ledger: LedgerEntry
    schema: Literal["bench/receipt/v1"] = "bench/receipt/v1"


_NAMES: Mapping[type, str] = {Challenge: "challenge", CertificateRequest: "request", Receipt: "receipt"}


def write(document: Challenge | CertificateRequest | Receipt) -> bytes:
    """Return the content of a document's file: canonical JSON and a line feed."""
    return canonical_json(to_json(document)) + b"\n"


def read(kind: type[T], data: bytes) -> T:
    """Parse a document of this kind; VerificationFailed unless write() would make the same bytes."""
    name = _NAMES[kind]
    try:
        value = strict_loads(data)
        _check_schema(name, value)
        document = from_json(kind, value)
    except DecodeError as error:
        raise VerificationFailed(f"is not a {name} of bench: {error}") from None
    if write(document) != data:
        raise VerificationFailed(f"the {name} is not in its canonical form")
    if not is_run_id(document.run_id) or not is_nonce(document.nonce):
        raise VerificationFailed(f"the {name} has no run id or nonce of the right form")
    return document


def _check_schema(name: str, value: Any) -> None:
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, str) and schema.startswith(f"bench/{name}/") and schema != f"bench/{name}/v1":
        raise VerificationFailed(f"is of schema {schema!r:.60}; this version of bench knows only v1")


def make_request(challenge: Challenge, key: Signer) -> bytes:
    """Return the node's request to certify `key` for the run of a challenge, signed by that key."""
    unsigned = CertificateRequest(challenge.run_id, challenge.nonce, PublicKey.of(key).line())
    signature = sign(unsigned.signed_part(), key, REQUEST_NAMESPACE).decode()
    return write(replace(unsigned, signature=signature))


def check_request(data: bytes) -> tuple[CertificateRequest, PublicKey]:
    """Parse a request and its key; VerificationFailed unless that key signed the request."""
    request = read(CertificateRequest, data)
    try:
        key = PublicKey.from_line(request.key)
    except FormatError as error:
        raise VerificationFailed(f"the requested key {error}") from None
    if key.application is not None:
        raise VerificationFailed("the requested key is of a hardware token; a run's key is made in memory")
    signer = verify(request.signed_part(), request.signature.encode(), REQUEST_NAMESPACE)
    if signer.certificate is not None or signer.key != key or request.key != key.line():
        raise VerificationFailed("the request is not signed by the key that it is for")
    return request, key


def principal(run_id: str) -> str:
    """Return the principal under which a run's key signs; an allowed_signers file may list bench-run:*."""
    return f"bench-run:{run_id}"


def key_id(run_id: str) -> str:
    """Return the key id in the certificate of a run, by which ssh-keygen can revoke it."""
    return f"bench run {run_id}"


def certificate_fault(certificate: Certificate, run_id: str, nonce: str) -> str | None:
    """Say why a certificate is not for this run's bundle alone; None if it is."""
    options = {NAMESPACE_OPTION: BUNDLE_NAMESPACE, NONCE_OPTION: nonce}
    if certificate.key.application is not None:
        return "is for the key of a token"
    if certificate.principals != (principal(run_id),) or certificate.key_id != key_id(run_id):
        return f"is for {', '.join(certificate.principals)[:80] or 'anybody'}, not {principal(run_id)}"
    if certificate.options.get(NAMESPACE_OPTION) != BUNDLE_NAMESPACE:
        return f"is not for the namespace {BUNDLE_NAMESPACE}"
    if certificate.options != options:
        return "is for another challenge"
    return None


def receipt_fault(
    receipt: Receipt, run_id: str, nonce: str, statement: bytes, cert: Certificate
) -> str | None:
    """Say why a receipt is not for this bundle; None if it is."""
    if (receipt.run_id, receipt.nonce) != (run_id, nonce):
        return f"is of run {receipt.run_id}, or of another challenge"
    if receipt.statement_sha256 != sha256(statement):
        return "is for another statement"
    if receipt.certificate_sha256 != sha256(cert.blob):
        return "is for another certificate"
    in_order = 0 <= receipt.challenged_at <= receipt.received_at
    if not in_order or not is_sha256(receipt.ledger.sha256):
        return "contradicts itself"
    return None
