"""Verify a bundle: signatures, certificate, receipt, files, and the recomputation of its summaries.

In: the path of a bundle, a function that recomputes its contents, the rules of trust. Out: a `Verdict`, or
VerificationFailed at the first check that fails. The signatures come first: nothing of a bundle is
interpreted before its signer is known. Reads the bundle, and the clock unless `TrustRules` has a time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import Untrusted, VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import YEAR_10000, sha256, utc
from bench.bundle.handshake import (
    BUNDLE_NAMESPACE,
    DRIFT_SECONDS,
    RECEIPT_NAMESPACE,
    Receipt,
    certificate_fault,
    read,
    receipt_fault,
)
from bench.bundle.statement import FIRST, Predicate, Statement, parse_statement
from bench.bundle.tar_format import (
    CERTIFICATE,
    ENVELOPE,
    MAX_LINE_BYTES,
    MAX_LINES,
    RECEIPT,
    RECEIPT_SIGNATURE,
    SIGNATURE,
    SIGNING,
    STATEMENT,
    Bundle,
    open_bundle,
    payload_fault,
)
from bench.bundle.verdict import C, Contents, Note, Verdict
from bench.records.marks import top_load
from bench.records.slowdown import has_bad_reason
from bench.signing.dsse import verify_own
from bench.signing.ssh_keys import Certificate
from bench.signing.sshsig import Signed, verify

if TYPE_CHECKING:
    from bench.signing.allowed_signers import TrustPolicy
    from bench.signing.revocation import Revoked

CLOCK_SECONDS = 3600  # tolerated difference of a node's clock from the operator's, for nodes without NTP
IF_REVOKED = (
    "do not rely on its figures, which any holder of the key may have made: measure again with another key"
)
_NOT_SIGNED = "its sha256 is not the signed one: it was changed"
_CHANGED = "changed while it was verified"


@dataclass(frozen=True, slots=True)
class TrustRules:
    """The keys that the user trusts, the revocation lists, and the time to judge by."""

    trust: TrustPolicy | None = None
    demanded: bool = True  # an untrusted signer fails the bundle; else its verdict is "not trusted"
    revoked: tuple[Revoked, ...] = ()
    now: float | None = None  # unix seconds; None: the clock is read

    def time(self) -> float:
        """Return the time to judge by, in unix seconds."""
        return time.time() if self.now is None else self.now


class Files:
    """The payload files of a bundle, checked against their signed digests, for recomputing its summaries."""

    def __init__(self, bundle: Bundle, statement: Statement, now: float) -> None:
        self._bundle = bundle
        self.run = statement.predicate
        self.now = now  # unix seconds, by the clock of the machine that verifies
        self.sha256 = statement.subjects  # of each file, as signed
        self.held_back = False  # whether telemetry has a reading of a GPU that was held back
        self.top_load = 0.0  # in telemetry; infinite if others used its GPUs
        self._check()

    def _check(self) -> None:
        """Refuse changed files, and search telemetry while it is read: it is the largest file."""
        for name, signed in self.sha256.items():
            if name == "telemetry.jsonl":
                for block in self.blocks(name, _NOT_SIGNED):
                    self.held_back = self.held_back or has_bad_reason(block)
                    self.top_load = max(self.top_load, top_load(block))
            elif self._bundle.digest(name) != signed:
                raise VerificationFailed(_NOT_SIGNED, where=name)

    def read(self, name: str) -> bytes:
        """Read a small file in one piece; `lines` and `blocks` read files of any size."""
        self._require_signed(name)
        data = self._bundle.read(name)
        self._require_unchanged(name, sha256(data))
        return data

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield a file line by line. Results from the lines may be used only once the iterator has ended."""
        for block in self.blocks(name):
            yield from block.removesuffix(b"\n").split(b"\n")

    def blocks(self, name: str, if_changed: str = _CHANGED) -> Iterator[bytes]:
        """Yield a file in blocks of whole lines. Results from blocks may be used only after the last one."""
        self._require_signed(name)
        digest = hashlib.sha256()
        rest = b""  # the bytes after the last line end of the last block
        lines = 0
        for chunk in self._bundle.chunks(name):
            digest.update(chunk)
            lines += len(chunk) - len(chunk.replace(b"\n", b""))  # `count` takes four times as long
            if lines > MAX_LINES:
                raise VerificationFailed(f"has more than {MAX_LINES:,} lines", where=name)
            end = chunk.rfind(b"\n") + 1
            if end:
                yield rest + chunk[:end]
                rest = chunk[end:]
            else:
                rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                raise VerificationFailed(f"has a line of more than {MAX_LINE_BYTES} bytes", where=name)
        if rest:
            yield rest
        self._require_unchanged(name, digest.hexdigest(), if_changed)

    def _require_signed(self, name: str) -> None:
        if name not in self.sha256:
            raise VerificationFailed("is missing in the bundle", where=name)

    def _require_unchanged(self, name: str, sha256: str, if_changed: str = _CHANGED) -> None:
        # The bytes that are used are hashed a second time: the file may have changed since _check.
        if sha256 != self.sha256[name]:
            raise VerificationFailed(if_changed, where=name)


Recompute = Callable[[Files], C]


@dataclass(frozen=True, slots=True)
class Origin:
    """The signer of a bundle and who vouches for it, known before the statement is parsed."""

    signed: Signed
    receipt: Receipt | None
    trusted_by: str | None  # the file that lists the key or its authority, and the name in that file
    doubt: str | None  # why no trusted key vouches for it


def _origin(bundle: Bundle, statement: bytes, rules: TrustRules) -> Origin:
    """Check every signature, the revocation lists and the trust list."""
    signed = verify(statement, bundle.read(SIGNATURE), BUNDLE_NAMESPACE)
    if signed.key.application is not None:
        raise VerificationFailed(
            "the signature is by a hardware token, which signs certificates, not bundles"
        )
    if ENVELOPE in bundle.members:
        verify_own(bundle.read(ENVELOPE), statement, signed.key)
    _check_certificate_file(bundle, signed.certificate)
    receipt = _receipt(bundle, signed.certificate)
    for listed in rules.revoked:
        if why := listed.refusal(signed.key, signed.certificate):
            raise VerificationFailed(f"{why}, says {listed.source}", advice=IF_REVOKED)
    at = float(receipt.received_at) if receipt else rules.time()
    if receipt:
        assert signed.certificate is not None, "a receipt belongs to one"
        if why := _out_of_time(signed.certificate, at):
            raise VerificationFailed(f"was received at a time when {why}")
    if rules.trust is None:
        return Origin(signed, receipt, None, "not trusted: no list of trusted keys is given or kept")
    try:
        return Origin(signed, receipt, _trusted_by(signed, receipt, at, rules.trust), None)
    except VerificationFailed as error:
        if rules.demanded:
            raise
        doubt = error.doubt if isinstance(error, Untrusted) else error.message
        return Origin(signed, receipt, None, doubt)


def _check_certificate_file(bundle: Bundle, certificate: Certificate | None) -> None:
    """Refuse a certificate file that does not hold the certificate of the signature."""
    expected = f"{certificate.line()}\n".encode() if certificate else None
    if expected != (bundle.read(CERTIFICATE) if CERTIFICATE in bundle.members else None):
        raise VerificationFailed("is not the certificate of the signature", where=CERTIFICATE)


def _receipt(bundle: Bundle, certificate: Certificate | None) -> Receipt | None:
    """Read the receipt, signed by the authority that certified the run's key; None if there is none."""
    if RECEIPT not in bundle.members and RECEIPT_SIGNATURE not in bundle.members:
        return None
    data = bundle.read(RECEIPT)
    signer = verify(data, bundle.read(RECEIPT_SIGNATURE), RECEIPT_NAMESPACE, "the receipt's signature")
    if certificate is None or signer.certificate is not None or signer.key != certificate.authority:
        message = "is not signed by the authority that certified the run's key"
        raise VerificationFailed(message, where=RECEIPT)
    return read(Receipt, data)


def _out_of_time(certificate: Certificate, at: float) -> str | None:
    """Say why a certificate is not valid at a time, in unix seconds; None if it is."""
    if at < certificate.valid_after:
        return f"the run's certificate was not valid yet: it is from {utc(certificate.valid_after)}"
    if at >= certificate.valid_before:
        return f"the run's certificate had expired: at {utc(certificate.valid_before)}"
    return None


def _trusted_by(signed: Signed, receipt: Receipt | None, at: float, trust: TrustPolicy) -> str:
    """Find the entry of the trust list that vouches for the signer or its authority, or raise Untrusted."""
    certificate = signed.certificate
    if certificate is None:
        return trust.accept(signed.key, BUNDLE_NAMESPACE, at)
    name = certificate.principals[0] if len(certificate.principals) == 1 else ""
    listed = trust.accept(certificate.authority, BUNDLE_NAMESPACE, at, name)
    if receipt:
        trust.accept(certificate.authority, RECEIPT_NAMESPACE, at)
    elif why := _out_of_time(certificate, at):
        advice = "on its node, bench run --challenge --resume signs it again; then bench receive, in time"
        raise VerificationFailed(f"no receipt, and {why}", advice=advice)
    return listed


def _check_run(statement: Statement, data: bytes, origin: Origin, *, enveloped: bool) -> None:
    """Refuse a certificate, a receipt or an envelope that does not belong to this run."""
    run, certificate, receipt = statement.predicate, origin.signed.certificate, origin.receipt
    if enveloped == (run.schema == FIRST):
        reason = "does not belong into a bundle of this version" if enveloped else "is missing in the bundle"
        raise VerificationFailed(reason, where=ENVELOPE)
    if (certificate is None) != (run.nonce is None):
        contrast = "but has a certificate" if certificate else "but has no certificate"
        raise VerificationFailed(f"the statement says level {run.level}, {contrast}")
    if certificate is None:
        return
    assert run.nonce is not None, "it belongs to the certificate"
    if fault := certificate_fault(certificate, run.run_id, run.nonce):
        raise VerificationFailed(f"the run's certificate {fault}")
    if receipt is None:
        return
    if fault := receipt_fault(receipt, run.run_id, run.nonce, data, certificate):
        raise VerificationFailed(f"the receipt {fault}")


def check_time(seconds: int, contents: Contents) -> None:
    """Refuse more measured time than the `seconds` from challenge to receipt by the operator's clock."""
    measured = contents.measured_seconds
    if measured > seconds + DRIFT_SECONDS:
        raise VerificationFailed(
            f"its samples take {measured:.0f} s, but the operator saw {seconds} s from challenge to receipt"
        )


def _of_other_times(receipt: Receipt, run: Predicate) -> Iterator[Note]:
    """Yield a note for a run that states times before its challenge or after its receipt.

    A wrong clock is not fraud, but a run that chooses its time could count as the newest forever.
    """
    first = utc(max(0, receipt.challenged_at - CLOCK_SECONDS))
    last = utc(min(YEAR_10000 - 1, receipt.received_at + CLOCK_SECONDS))
    if not first <= run.started_at <= run.ended_at <= last:
        seen = f"from {utc(receipt.challenged_at)} to {utc(receipt.received_at)}"
        yield Note(
            None, f"by its own clock it ran at other times than {seen}, as the operator saw: taken on trust"
        )


def _check_names(bundle: Bundle, subjects: Mapping[str, str]) -> None:
    """Refuse added and missing files: the statement lists each."""
    payload = bundle.members.keys() - SIGNING
    if extra := sorted(payload - subjects.keys()):
        raise VerificationFailed("is not in the statement: it was added", where=extra[0])
    if missing := sorted(subjects.keys() - payload):
        raise VerificationFailed("is in the statement, but missing in the bundle", where=missing[0])
    if fault := payload_fault(payload):
        raise VerificationFailed(fault)


def verify_bundle(path: Path, recompute: Recompute[C], rules: TrustRules | None = None) -> Verdict[C]:
    """Verify a bundle; VerificationFailed, with the file and the reason, if a check fails.

    `recompute` derives every summary once more from the raw samples in the payload files; it raises
    VerificationFailed if one differs, and returns the contents of the verdict.
    """
    rules = rules or TrustRules()
    with open_bundle(path) as bundle:
        data = bundle.read(STATEMENT)
        origin = _origin(bundle, data, rules)
        statement = parse_statement(data)
        _check_run(statement, data, origin, enveloped=ENVELOPE in bundle.members)
        _check_names(bundle, statement.subjects)
        contents = recompute(Files(bundle, statement, rules.time()))
        if receipt := origin.receipt:
            check_time(receipt.received_at - receipt.challenged_at, contents)
            contents = replace(
                contents, notes=(*contents.notes, *_of_other_times(receipt, statement.predicate))
            )
        return _verdict(path, bundle, statement.predicate, data, origin, contents)


def _verdict(
    path: Path, bundle: Bundle, run: Predicate, statement: bytes, origin: Origin, contents: C
) -> Verdict[C]:
    certificate, receipt = origin.signed.certificate, origin.receipt
    trusted = origin.trusted_by is not None
    return Verdict(
        path=str(path),
        files=len(bundle.members),
        size_bytes=bundle.size,
        run_id=run.run_id,
        fingerprint=origin.signed.key.fingerprint,
        certified_by=certificate.authority.fingerprint if certificate else None,
        certificate_sha256=sha256(certificate.blob) if certificate else None,
        certified_until=utc(certificate.valid_before) if certificate else None,
        trusted=trusted,
        trusted_by=origin.trusted_by,
        doubt=origin.doubt,
        level="operator" if trusted and receipt else "self",
        level_claimed=run.level,
        nonce=run.nonce,
        challenged_at=utc(receipt.challenged_at) if receipt else None,
        received_at=utc(receipt.received_at) if receipt else None,
        seen_seconds=receipt.received_at - receipt.challenged_at if receipt else None,
        complete=run.complete,
        started_at=run.started_at,
        ended_at=run.ended_at,
        manifest_sha256=run.manifest_sha256,
        statement_sha256=sha256(statement),
        contents=contents,
    )
