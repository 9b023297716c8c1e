"""Before a run: challenge and certificate. After it: the receipt. What the ledger says decides."""

from __future__ import annotations

import secrets
from pathlib import Path

from bench.base.errors import BadInput, VerificationFailed
from bench.base.stamps import sha256, utc
from bench.bundle.handshake import RECEIPT_NAMESPACE, Challenge, Receipt, check_request, write
from bench.bundle.pack import Source, StoredMember, write_bundle
from bench.bundle.tar_format import RECEIPT, RECEIPT_SIGNATURE, open_bundle
from bench.bundle.verdict import C, Contents, Verdict
from bench.bundle.verify import Recompute, TrustRules, check_time, verify_bundle
from bench.operator.ledger import Ledger, Line
from bench.operator.ssh_keygen import OperatorKey
from bench.signing.allowed_signers import AllowedSigner, TrustPolicy
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import Certificate

SKEW_SECONDS = 300  # by which a stranger's clock may be slow without finding it "not valid yet"
MOST_VALID_SECONDS = 7 * 24 * 3600


def challenge(ledger: Ledger, manifest_sha256: str, now: int, run_id: str | None = None) -> Challenge:
    """A fresh nonce: for a new run, or for one that was challenged before and goes on."""
    if run_id is not None:
        before = ledger.find("challenged", run_id=run_id)
        if before is None or before.facts.get("manifest_sha256") != manifest_sha256:
            raise BadInput(f"this manifest was never asked for as run {run_id}", where=str(ledger.path))
    asked = Challenge(run_id or secrets.token_hex(6), secrets.token_hex(32), manifest_sha256, now)
    ledger.append("challenged", now, asked.run_id, asked.nonce, {"manifest_sha256": manifest_sha256})
    return asked


def certify(ledger: Ledger, key: OperatorKey, request: bytes, now: int, valid_seconds: int) -> Certificate:
    """For the key of a request that answers one of our challenges. Again, for a run whose node was lost."""
    wanted, run_key = check_request(request)
    asked = _challenge_of(ledger, wanted.run_id, wanted.nonce)
    if received := ledger.find("received", nonce=wanted.nonce):
        message = f"the bundle of this challenge was received on {utc(received.at)}"
        advice = f"bench challenge MANIFEST --run {wanted.run_id} makes another for the same run"
        raise VerificationFailed(message, advice=advice)
    serial = secrets.randbelow(2**63 - 1) + 1
    valid = (max(asked.at, now - SKEW_SECONDS), now + valid_seconds)
    certificate = key.certify(run_key, wanted.run_id, wanted.nonce, serial, valid)
    facts = {"key": run_key.fingerprint, "until": valid[1], "certificate_sha256": sha256(certificate.blob)}
    ledger.append("certified", now, wanted.run_id, wanted.nonce, facts)
    return certificate


def _challenge_of(ledger: Ledger, run_id: str, nonce: str) -> Line:
    asked = ledger.find("challenged", nonce=nonce, run_id=run_id)
    if asked is None:
        message = f"run {run_id} answers a challenge that is not in the ledger {ledger.path}"
        raise VerificationFailed(message, advice="--ledger FILE is another ledger")
    return asked


def receive(
    ledger: Ledger,
    key: OperatorKey,
    bundle: Path,
    out: Path,
    now: int,
    recompute: Recompute[C],
    revoked: tuple[Revoked, ...] = (),
) -> Verdict[C]:
    """Verifies, consumes the nonce, countersigns. Nothing is written before all of it holds.

    Again for the same bundle it gives the same receipt; for another bundle of the same challenge, none.
    """
    rules = _rules(key, now, revoked)
    with open_bundle(bundle) as opened:
        verdict = verify_bundle(bundle, recompute, rules)
        if verdict.nonce is None or verdict.certificate_sha256 is None:
            message = "answers no challenge: nothing says that it is fresh"
            advice = "bench challenge, then bench run --challenge"
            raise VerificationFailed(message, where=str(bundle), advice=advice)
        members: dict[str, Source] = {name: StoredMember(opened, name) for name in opened.members}
        if verdict.received_at is None:
            receipt = write(_consume(ledger, verdict, bundle, now))
            members |= {RECEIPT: receipt, RECEIPT_SIGNATURE: key.sign(receipt, RECEIPT_NAMESPACE)}
        if verdict.received_at is None or out != bundle:
            write_bundle(out, members)
    return verify_bundle(out, recompute, rules)


def read_received(
    key: OperatorKey, bundle: Path, now: int, recompute: Recompute[C], revoked: tuple[Revoked, ...] = ()
) -> Verdict[C]:
    """One that is here already."""
    return verify_bundle(bundle, recompute, _rules(key, now, revoked))


def _rules(key: OperatorKey, now: int, revoked: tuple[Revoked, ...]) -> TrustRules:
    trust = TrustPolicy(str(key.path), (AllowedSigner(key.public, ""),))
    return TrustRules(trust, revoked=revoked, now=float(now))


def _consume(ledger: Ledger, verdict: Verdict[Contents], bundle: Path, now: int) -> Receipt:
    assert verdict.nonce is not None
    assert verdict.certificate_sha256 is not None
    asked = _challenge_of(ledger, verdict.run_id, verdict.nonce)
    if asked.facts.get("manifest_sha256") != verdict.manifest_sha256:
        raise VerificationFailed("is of another manifest than the one asked for", where=str(bundle))
    certified = [line.facts.get("certificate_sha256") for line in ledger.lines if line.event == "certified"]
    if verdict.certificate_sha256 not in certified:
        raise VerificationFailed(f"its certificate is not in the ledger {ledger.path}", where=str(bundle))
    first = ledger.find("challenged", run_id=verdict.run_id)
    assert first is not None
    line = ledger.find("received", nonce=verdict.nonce)
    check_time((line.at if line else now) - first.at, verdict.contents)
    if line is None:
        facts = {"statement_sha256": verdict.statement_sha256}
        line = ledger.append("received", now, verdict.run_id, verdict.nonce, facts)
    elif line.facts.get("statement_sha256") != verdict.statement_sha256:
        message = f"its challenge was answered on {utc(line.at)} by another bundle: a replay"
        raise VerificationFailed(message, where=str(bundle))
    return Receipt(
        verdict.run_id,
        verdict.nonce,
        verdict.statement_sha256,
        verdict.certificate_sha256,
        first.at,
        line.at,
        line.entry,
    )
