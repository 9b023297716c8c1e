"""Issue challenges and certificates before a run, and receipts after it, as the ledger permits.

Reads and appends to the ledger, signs through ssh-keygen, and writes countersigned bundles. The ledger is
locked only while a decision is made from it and recorded in it.
"""

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

SKEW_SECONDS = 300  # a node's clock may be slow by this much and still find its certificate valid
MOST_VALID_SECONDS = 7 * 24 * 3600


def challenge(ledger: Ledger, manifest_sha256: str, now: int, run_id: str | None = None) -> Challenge:
    """Return a challenge with a fresh nonce for a new run, or for `run_id`, which was challenged before."""
    with ledger:
        if run_id is not None:
            before = ledger.find("challenged", run_id=run_id)
            if before is None or before.facts.get("manifest_sha256") != manifest_sha256:
                message = f"run {run_id} was never challenged with this manifest"
                raise BadInput(message, where=str(ledger.path))
        issued = Challenge(run_id or secrets.token_hex(6), secrets.token_hex(32), manifest_sha256, now)
        ledger.append("challenged", now, issued.run_id, issued.nonce, {"manifest_sha256": manifest_sha256})
        return issued


def certify(ledger: Ledger, key: OperatorKey, request: bytes, now: int, valid_seconds: int) -> Certificate:
    """Certify the key of a request that answers a challenge; VerificationFailed if its bundle was received.

    A challenge may be certified several times, since a run may continue after its node was lost.
    """
    answered, run_key = check_request(request)
    with ledger:
        issued = _open_challenge(ledger, answered.run_id, answered.nonce)
    serial = secrets.randbelow(2**63 - 1) + 1
    valid = (max(issued.at, now - SKEW_SECONDS), now + valid_seconds)
    certificate = key.certify(run_key, answered.run_id, answered.nonce, serial, valid)
    facts = {"key": run_key.fingerprint, "until": valid[1], "certificate_sha256": sha256(certificate.blob)}
    with ledger:
        _open_challenge(ledger, answered.run_id, answered.nonce)  # a bundle may have come in the meantime
        ledger.append("certified", now, answered.run_id, answered.nonce, facts)
    return certificate


def _open_challenge(ledger: Ledger, run_id: str, nonce: str) -> Line:
    """Return the line of a challenge; VerificationFailed if it is unknown or its bundle was received."""
    issued = _challenge_of(ledger, run_id, nonce)
    if received := ledger.find("received", nonce=nonce):
        message = f"the bundle of this challenge was received on {utc(received.at)}"
        advice = f"bench challenge MANIFEST --run {run_id} makes another challenge for this run"
        raise VerificationFailed(message, advice=advice)
    return issued


def _challenge_of(ledger: Ledger, run_id: str, nonce: str) -> Line:
    issued = ledger.find("challenged", nonce=nonce, run_id=run_id)
    if issued is None:
        message = f"run {run_id} answers a challenge that is not in the ledger {ledger.path}"
        raise VerificationFailed(message, advice="name another ledger with --ledger")
    return issued


def receive(
    ledger: Ledger,
    key: OperatorKey,
    bundle: Path,
    out: Path,
    now: int,
    recompute: Recompute[C],
    revoked: tuple[Revoked, ...] = (),
    *,
    run_id: str | None = None,
) -> Verdict[C]:
    """Verify a bundle, consume its nonce and write it to `out` with a receipt; return the verdict.

    A bundle that fails verification is not written, nor is one of another run than `run_id`, if that is
    given. Receiving a bundle again gives an identical receipt; another bundle of its challenge is refused as
    a replay.
    """
    rules = _rules(key, now, revoked)
    with open_bundle(bundle) as opened:
        verdict = verify_bundle(bundle, recompute, rules)
        if run_id not in (None, verdict.run_id):
            raise VerificationFailed(f"is of run {verdict.run_id}, not of run {run_id}", where=str(bundle))
        if verdict.nonce is None:  # then there is no certificate either
            message = "answers no challenge, so nothing proves that the run is recent"
            advice = "make a challenge with bench challenge, then run bench run --challenge"
            raise VerificationFailed(message, where=str(bundle), advice=advice)
        members: dict[str, Source] = {name: StoredMember(opened, name) for name in opened.members}
        if verdict.received_at is None:
            with ledger:
                consumed = _consume(ledger, verdict, bundle, now)
            receipt = write(consumed)
            members |= {RECEIPT: receipt, RECEIPT_SIGNATURE: key.sign(receipt, RECEIPT_NAMESPACE)}
        if verdict.received_at is None or out != bundle:
            write_bundle(out, members)
    return verify_bundle(out, recompute, rules)


def read_received(
    key: OperatorKey, bundle: Path, now: int, recompute: Recompute[C], revoked: tuple[Revoked, ...] = ()
) -> Verdict[C]:
    """Verify a bundle that was received before, and return its verdict; nothing is written."""
    return verify_bundle(bundle, recompute, _rules(key, now, revoked))


def _rules(key: OperatorKey, now: int, revoked: tuple[Revoked, ...]) -> TrustRules:
    trust = TrustPolicy(str(key.path), (AllowedSigner(key.public, ""),))
    return TrustRules(trust, revoked=revoked, now=float(now))


def _consume(ledger: Ledger, verdict: Verdict[Contents], bundle: Path, now: int) -> Receipt:
    assert verdict.nonce is not None
    assert verdict.certificate_sha256 is not None
    issued = _challenge_of(ledger, verdict.run_id, verdict.nonce)
    if issued.facts.get("manifest_sha256") != verdict.manifest_sha256:
        raise VerificationFailed("has another manifest than its challenge", where=str(bundle))
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
    digests = (verdict.statement_sha256, verdict.certificate_sha256)
    return Receipt(verdict.run_id, verdict.nonce, *digests, first.at, line.at, line.entry)
