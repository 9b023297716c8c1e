"""Challenges, certificates and receipts: who gets them from the operator, and how often, with ssh-keygen."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.base.stamps import sha256
from bench.bundle.handshake import (
    BUNDLE_NAMESPACE,
    DRIFT_SECONDS,
    RECEIPT_NAMESPACE,
    REQUEST_NAMESPACE,
    CertificateRequest,
    Challenge,
    LedgerEntry,
    Receipt,
    certificate_fault,
    make_request,
    read,
    write,
)
from bench.bundle.pack import pack
from bench.bundle.statement import PREDICATE_SCHEMA, parse_statement
from bench.bundle.verify import TrustRules, verify_bundle
from bench.node_check.recompute_any import recompute
from bench.operator import certify_and_receive, ssh_keygen
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import Certificate, PublicKey
from bench.signing.sshsig import _armor, _signed_data, sign
from tests.authority import NONCE, RUN_ID, RUN_KEY, STRANGER, Token, contents
from tests.authority import certificate as run_certificate
from tests.bundle.test_attacks import REAL
from tests.cli.test_keys import ssh_key
from tests.needs import needs
from tests.ssh_agent import ssh_agent

pytestmark = needs("ssh-keygen")

NOW = 1_800_000_000
OLD = contents(REAL)
RUN = parse_statement(OLD["statement.json"]).predicate
FILES = {name: data for name, data in OLD.items() if not name.startswith("statement")}
TWO_HOURS = 7200


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ssh_key(tmp_path_factory.mktemp("keys") / "operator")


@pytest.fixture
def key(key_file: Path) -> OperatorKey:
    return OperatorKey.find(key_file)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    with Ledger(tmp_path / "ledger.jsonl") as empty:
        return empty


class Node:
    """A node that acts between the operator's steps; its manifest was measured before, in results/."""

    def __init__(self, challenge: Challenge) -> None:
        self.challenge = challenge
        self.key = Ed25519PrivateKey.generate()

    def request(self) -> bytes:
        return make_request(self.challenge, self.key)

    def bundle(self, path: Path, certificate: Certificate, **changes: Any) -> Path:
        results = json.loads(FILES["results.json"])
        results["run"]["id"] = self.challenge.run_id
        files: dict[str, bytes | Path] = {**FILES, "results.json": json.dumps(results).encode()}
        facts = {
            "run_id": self.challenge.run_id,
            "level": "operator",
            "nonce": self.challenge.nonce,
            "schema": PREDICATE_SCHEMA,
        }
        predicate = type(RUN)(**({f: getattr(RUN, f) for f in RUN.__slots__} | facts | changes))
        pack(path, files, predicate, self.key, certificate)
        return path


def asked(ledger: Ledger, run_id: str | None = None, now: int = NOW) -> Node:
    return Node(certify_and_receive.challenge(ledger, RUN.manifest_sha256, now, run_id))


def certified(ledger: Ledger, key: OperatorKey, node: Node, now: int = NOW + 1) -> Certificate:
    return certify_and_receive.certify(ledger, key, node.request(), now, TWO_HOURS)


def test_from_challenge_to_receipt(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    node = asked(ledger)
    certificate = certified(ledger, key, node)
    assert certificate_fault(certificate, node.challenge.run_id, node.challenge.nonce) is None
    assert (certificate.valid_after, certificate.valid_before) == (NOW, NOW + 1 + TWO_HOURS)
    assert certificate.authority == key.public
    bundle = node.bundle(tmp_path / "b.tar", certificate)
    verdict = certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute)
    assert (verdict.level, verdict.seen_seconds, verdict.received_at) == (
        "operator",
        600,
        "2027-01-15T08:10:00Z",
    )
    assert [line.event for line in ledger.lines] == ["challenged", "certified", "received"]
    # A stranger verifies a year later, with only the public key.
    trust = TrustPolicy.from_text(key.public.line(), "operator.pub")
    assert verify_bundle(bundle, recompute, TrustRules(trust, now=NOW + 3e7)).level == "operator"


def test_nobody_waits_for_the_ledger_while_a_bundle_is_verified(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    """A bundle may take minutes, and a node that asks for a certificate meanwhile cannot sign without it."""
    node, other = asked(ledger), asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    free = []

    def slow(*arguments: Any) -> Any:
        free.append(is_free(ledger.path))
        return recompute(*arguments)

    certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, slow)
    assert free == [True, True]  # as it came, and with its receipt
    assert certified(ledger, key, other)


def test_nobody_waits_for_the_ledger_while_the_operator_touches_a_token(
    ledger: Ledger, key: OperatorKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = []
    run = ssh_keygen.run_ssh_keygen

    def touched(*arguments: Any, **more: Any) -> bytes:
        free.append(is_free(ledger.path))
        return run(*arguments, **more)

    monkeypatch.setattr(ssh_keygen, "run_ssh_keygen", touched)
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute)
    assert free == [True, True]  # the certificate and the receipt


def test_a_bundle_that_arrives_while_the_operator_signs_ends_its_challenge(
    ledger: Ledger, key: OperatorKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command receives the bundle after this one looked at the ledger, and before it notes a line."""
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    sign_certificate = OperatorKey.certify

    def meanwhile(*arguments: Any) -> Certificate:
        other = Ledger(ledger.path)
        certify_and_receive.receive(other, key, bundle, tmp_path / "one.tar", NOW + 600, recompute)
        return sign_certificate(*arguments)

    monkeypatch.setattr(OperatorKey, "certify", meanwhile)
    with pytest.raises(VerificationFailed, match="the bundle of this challenge was received"):
        certified(ledger, key, node)
    with ledger:
        assert [line.event for line in ledger.lines] == ["challenged", "certified", "received"]


def test_of_two_bundles_that_are_verified_at_once_one_consumes_the_challenge(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node = asked(ledger)
    certificate = certified(ledger, key, node)
    first = node.bundle(tmp_path / "one.tar", certificate)
    more = {**RUN.node, "gpus": [*RUN.node["gpus"], "another"]}
    second = node.bundle(tmp_path / "two.tar", certificate, node=more)

    def while_the_other(*arguments: Any) -> Any:
        certify_and_receive.receive(Ledger(ledger.path), key, first, first, NOW + 600, recompute)
        return recompute(*arguments)

    with pytest.raises(VerificationFailed, match="a replay"):
        certify_and_receive.receive(ledger, key, second, second, NOW + 601, while_the_other)


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_receiving_a_bundle_again_gives_the_same_receipt(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    """A receipt that was lost, or not written because of a crash, can be obtained again."""
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, bundle, tmp_path / "one.tar", NOW + 600, recompute)
    certify_and_receive.receive(ledger, key, bundle, tmp_path / "two.tar", NOW + 900, recompute)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    before = (tmp_path / "one.tar").read_bytes()
    again = certify_and_receive.receive(
        ledger, key, tmp_path / "one.tar", tmp_path / "one.tar", NOW + 10**6, recompute
    )
    assert again.level == "operator"
    assert (tmp_path / "one.tar").read_bytes() == before
    assert len(ledger.lines) == 3


def test_a_bundle_that_has_its_receipt_and_its_place_is_not_written_again(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node, place = asked(ledger), tmp_path / "received.tar"
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, bundle, place, NOW + 600, recompute)
    before = place.stat().st_ino
    certify_and_receive.receive(ledger, key, place, place, NOW + 900, recompute)
    assert place.stat().st_ino == before


def test_a_bundle_of_another_run_than_the_expected_one_is_not_received(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node, place = asked(ledger), tmp_path / "received.tar"
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    given = (ledger, key, bundle, place, NOW + 600, recompute)
    with pytest.raises(VerificationFailed, match=f"is of run {node.challenge.run_id}, not of run another"):
        certify_and_receive.receive(*given, run_id="another")
    assert not place.exists()
    assert certify_and_receive.receive(*given, run_id=node.challenge.run_id).level == "operator"


def test_replayed_nonce(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    """The attack: a node answers one challenge twice, and the operator keeps the better answer."""
    node = asked(ledger)
    certificate = certified(ledger, key, node)
    first = node.bundle(tmp_path / "first.tar", certificate)
    certify_and_receive.receive(ledger, key, first, first, NOW + 600, recompute)
    more = {**RUN.node, "gpus": [*RUN.node["gpus"], "another"]}
    second = node.bundle(tmp_path / "second.tar", certificate, node=more)
    before = second.read_bytes()
    with pytest.raises(VerificationFailed, match=r"second\.tar: its challenge was answered on .*: a replay"):
        certify_and_receive.receive(ledger, key, second, second, NOW + 601, recompute)
    assert second.read_bytes() == before
    with pytest.raises(VerificationFailed, match="was received on") as caught:
        certified(ledger, key, node)
    assert "--run" in str(caught.value.advice)


def test_a_bundle_that_measured_longer_than_the_operator_waited_is_refused(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    before, lines = bundle.read_bytes(), len(ledger.lines)
    with pytest.raises(VerificationFailed, match="but the operator saw 2 s from challenge to receipt"):
        certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 2, recompute)
    assert (bundle.read_bytes(), len(ledger.lines)) == (before, lines)


def test_a_node_that_was_lost_gets_a_new_certificate_for_its_new_key(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node = asked(ledger)
    lost = certified(ledger, key, node)
    again = Node(node.challenge)
    certificate = certified(ledger, key, again, NOW + 100)
    assert certificate.key != lost.key
    bundle = again.bundle(tmp_path / "b.tar", certificate)
    assert certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute).level == "operator"


def test_a_partially_received_run_continues_under_a_new_challenge(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node = asked(ledger)
    part = node.bundle(tmp_path / "part.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, part, part, NOW + 600, recompute)
    later = asked(ledger, node.challenge.run_id, NOW + 10_000)
    assert later.challenge.run_id == node.challenge.run_id
    assert later.challenge.nonce != node.challenge.nonce
    whole = later.bundle(tmp_path / "whole.tar", certified(ledger, key, later, NOW + 10_001))
    verdict = certify_and_receive.receive(ledger, key, whole, whole, NOW + 10_600, recompute)
    assert verdict.seen_seconds == 10_600  # counted from the first challenge, since earlier samples count too


def test_a_run_without_a_challenge_cannot_continue(ledger: Ledger) -> None:
    node = asked(ledger)
    for run_id, manifest in (("other", RUN.manifest_sha256), (node.challenge.run_id, "0" * 64)):
        with pytest.raises(BadInput, match="was never challenged with this manifest"):
            certify_and_receive.challenge(ledger, manifest, NOW, run_id)


# --- who gets no certificate ----------------------------------------------------------------------------


def refused_request(ledger: Ledger, key: OperatorKey, request: bytes, why: str) -> None:
    before = ledger.path.read_bytes()
    with pytest.raises(VerificationFailed, match=why):
        certify_and_receive.certify(ledger, key, request, NOW, TWO_HOURS)
    assert ledger.path.read_bytes() == before


def test_a_challenge_that_nobody_made(ledger: Ledger, key: OperatorKey) -> None:
    made_up = Challenge("7f3a2c", "5e" * 32, RUN.manifest_sha256, NOW)
    refused_request(ledger, key, Node(made_up).request(), "a challenge that is not in the ledger")


def test_another_runs_challenge(ledger: Ledger, key: OperatorKey) -> None:
    one, two = asked(ledger).challenge, asked(ledger).challenge
    mixed = Challenge(one.run_id, two.nonce, RUN.manifest_sha256, NOW)
    refused_request(ledger, key, Node(mixed).request(), "a challenge that is not in the ledger")


def request_for(ledger: Ledger, key: str) -> CertificateRequest:
    """Make a request that is right, except that its signature is missing."""
    challenge = asked(ledger).challenge
    return CertificateRequest(challenge.run_id, challenge.nonce, key)


def test_another_key_put_into_a_signed_request(ledger: Ledger, key: OperatorKey) -> None:
    request = read(CertificateRequest, asked(ledger).request())
    data = write(replace(request, key=PublicKey.of(STRANGER).line()))
    refused_request(ledger, key, data, "the signature does not fit the signed bytes")


@pytest.mark.parametrize(
    ("comment", "signer", "certificate"),
    [
        ("", STRANGER, None),
        ("", RUN_KEY, run_certificate(RUN_KEY)),
        ("root@node", RUN_KEY, None),
    ],
    ids=["by another key", "by the key of a certificate", "for a key with a comment"],
)
def test_a_request_that_its_very_key_did_not_sign(
    ledger: Ledger, key: OperatorKey, comment: str, signer: Ed25519PrivateKey, certificate: Certificate | None
) -> None:
    """A node could otherwise obtain a certificate for a key that it does not have."""
    request = request_for(ledger, PublicKey.of(RUN_KEY).line(comment))
    signature = sign(request.signed_part(), signer, REQUEST_NAMESPACE, certificate)
    data = write(replace(request, signature=signature.decode()))
    refused_request(ledger, key, data, "the request is not signed by the key that it is for")


def test_a_token_that_asks_for_a_certificate(ledger: Ledger, key: OperatorKey) -> None:
    token = Token()
    request = request_for(ledger, token.public.line())
    signed = token.sign_wire(_signed_data(request.signed_part(), REQUEST_NAMESPACE))
    signature = _armor(token.public.blob, REQUEST_NAMESPACE, signed)
    data = write(replace(request, signature=signature.decode()))
    refused_request(ledger, key, data, "the requested key is of a hardware token")


def test_a_certificate_for_a_token_is_not_for_a_run() -> None:
    certificate = run_certificate()
    assert certificate_fault(certificate, RUN_ID, NONCE) is None
    of_a_token = replace(certificate, key=Token().public)
    assert certificate_fault(of_a_token, RUN_ID, NONCE) == "is for the key of a token"


DOCUMENTS = [
    Challenge(RUN_ID, NONCE, "a" * 64, NOW),
    CertificateRequest(RUN_ID, NONCE, ""),
    Receipt(RUN_ID, NONCE, "a" * 64, "a" * 64, NOW, NOW, LedgerEntry(1, "a" * 64)),
]
NAMES = ["challenge", "request", "receipt"]


@pytest.mark.parametrize("wrong", [{"run_id": "../x"}, {"nonce": "5E" * 32}, {"nonce": "5e" * 31}])
@pytest.mark.parametrize(("document", "name"), list(zip(DOCUMENTS, NAMES, strict=True)), ids=NAMES)
def test_a_document_without_a_run_id_or_nonce_of_the_right_form(
    document: Any, name: str, wrong: dict[str, str]
) -> None:
    assert read(type(document), write(document)) == document
    with pytest.raises(VerificationFailed, match=f"^the {name} has no run id or nonce of the right form"):
        read(type(document), write(replace(document, **wrong)))


@pytest.mark.parametrize(("document", "name"), list(zip(DOCUMENTS, NAMES, strict=True)), ids=NAMES)
def test_a_document_is_refused_by_its_own_name(document: Any, name: str) -> None:
    data = write(document)
    later = data.replace(f"bench/{name}/v1".encode(), f"bench/{name}/v2".encode())
    with pytest.raises(VerificationFailed, match=f"^is of schema 'bench/{name}/v2'; this version of bench"):
        read(type(document), later)
    with pytest.raises(VerificationFailed, match=f"^is not a {name} of bench: "):
        read(type(document), b"{}")
    with pytest.raises(VerificationFailed, match=f"^the {name} is not in its canonical form"):
        read(type(document), b" " + data)


@pytest.mark.parametrize(
    ("found", "written", "why"),
    [
        (b"bench/request/v1", b"bench/request/v2", "knows only v1"),
        (b"bench/request/v1", b"bench/other/v1", "is not a request"),
        (b"ssh-ed25519 ", b"ssh-rsa ", "the requested key is not an ssh-ed25519"),
        (b"\n", b"\n\n", "canonical form"),
        (b"{", b'{"more":1,', "unknown field"),
        (b"BEGIN SSH", b"BEGIN PGP", "is not an SSH signature"),
    ],
)
def test_a_request_in_another_form(
    ledger: Ledger, key: OperatorKey, found: bytes, written: bytes, why: str
) -> None:
    data = asked(ledger).request()
    at = data.rindex(found) if found == b"\n" else data.index(found)
    refused_request(ledger, key, data[:at] + written + data[at + len(found) :], why)


def test_a_malformed_request(ledger: Ledger, key: OperatorKey) -> None:
    for data in (b"", b"{}", b"null", b"\xff", b"[" * 9999, FILES["manifest.json"]):
        refused_request(ledger, key, data, "is not a request of bench")


# --- what gets no receipt -------------------------------------------------------------------------------


def refused_bundle(ledger: Ledger, key: OperatorKey, bundle: Path, why: str, now: int = NOW + 600) -> None:
    ledger_before, before = ledger.path.read_bytes(), bundle.read_bytes()
    with pytest.raises(VerificationFailed, match=why) as caught:
        certify_and_receive.receive(ledger, key, bundle, bundle, now, recompute)
    assert str(caught.value).count(str(bundle)) == 1
    assert (ledger.path.read_bytes(), bundle.read_bytes()) == (ledger_before, before)


def test_a_bundle_that_answers_no_challenge(
    ledger: Ledger, key: OperatorKey, key_file: Path, tmp_path: Path
) -> None:
    from bench.signing.key_file import load_key

    path = tmp_path / "b.tar"
    facts = {f: getattr(RUN, f) for f in RUN.__slots__} | {"schema": PREDICATE_SCHEMA}
    pack(path, FILES, type(RUN)(**facts), load_key(key_file).private)
    refused_bundle(ledger, key, path, "answers no challenge")


def test_a_bundle_of_another_operator(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    other = OperatorKey.find(ssh_key(tmp_path / "other"))
    theirs = Ledger(tmp_path / "theirs.jsonl")
    node = asked(theirs)
    bundle = node.bundle(tmp_path / "b.tar", certified(theirs, other, node))
    refused_bundle(ledger, key, bundle, "certified by the key SHA256:.*, which is not listed")
    refused_bundle(ledger, other, bundle, "a challenge that is not in the ledger")


def test_a_certificate_that_the_ledger_does_not_know(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    """The certificate was made with the operator's key by another program, which may be a theft."""
    node = asked(ledger)
    valid = (NOW, NOW + TWO_HOURS)
    public = PublicKey.of(node.key)
    certificate = key.certify(public, node.challenge.run_id, node.challenge.nonce, 1, valid)
    bundle = node.bundle(tmp_path / "b.tar", certificate)
    refused_bundle(ledger, key, bundle, "its certificate is not in the ledger")
    named = {"certificate_sha256": sha256(certificate.blob)}  # in a line that certifies nothing
    with ledger:
        ledger.append("challenged", NOW, "another", "00" * 32, named)
    refused_bundle(ledger, key, bundle, "its certificate is not in the ledger")


def test_a_bundle_that_comes_too_late(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    refused_bundle(ledger, key, bundle, "the run's certificate had expired", NOW + 1 + TWO_HOURS)


def test_a_bundle_of_another_manifest(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    node = Node(certify_and_receive.challenge(ledger, "0" * 64, NOW))
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    refused_bundle(ledger, key, bundle, "has another manifest than its challenge")


def test_a_damaged_bundle_does_not_consume_the_nonce(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    node = asked(ledger)
    good = node.bundle(tmp_path / "good.tar", certified(ledger, key, node))
    bad = tmp_path / "bad.tar"
    bad.write_bytes(good.read_bytes().replace(b'"seconds":', b'"seconds" ', 1))
    refused_bundle(ledger, key, bad, "sha256")
    assert certify_and_receive.receive(ledger, key, good, good, NOW + 600, recompute).level == "operator"


def test_a_revoked_certificate(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    revoked = Revoked.from_bytes(PublicKey.of(node.key).line().encode(), "list")
    with pytest.raises(VerificationFailed, match="is revoked"):
        certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute, (revoked,))
    assert ledger.find("received") is None


# --- where the key lies ---------------------------------------------------------------------------------


def test_a_key_in_an_agent(
    ledger: Ledger, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the .pub file exists; the private key is in ssh-agent, as with a token."""
    socket = tmp_path / "agent"
    with ssh_agent(socket):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", key_file], check=True, stdin=subprocess.DEVNULL)
        public = tmp_path / "only.pub"
        public.write_text(key_file.with_suffix(".pub").read_text())
        key = OperatorKey.find(public)
        assert key.in_agent
        node = asked(ledger)
        bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
        assert (
            certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute).level == "operator"
        )
        subprocess.run(["ssh-add", "-q", "-D"], check=True)
        with pytest.raises(EnvironmentCannot, match="ssh-keygen refused") as caught:
            certified(ledger, key, asked(ledger))
        assert "\n" not in caught.value.message


def test_a_passphrase_without_a_terminal_is_reported(ledger: Ledger, tmp_path: Path) -> None:
    """The session has no terminal; with a terminal, ssh-keygen asks there."""
    locked = ssh_key(tmp_path / "locked", passphrase="secret")
    (tmp_path / "request.json").write_bytes(asked(ledger).request())
    command = ["setsid", "-w", sys.executable, "-m", "bench", "certify", tmp_path / "request.json"]
    command += ["--key", locked, "--ledger", tmp_path / "copy.jsonl"]
    (tmp_path / "copy.jsonl").write_bytes(ledger.path.read_bytes())
    without = {k: v for k, v in os.environ.items() if k not in ("SSH_AUTH_SOCK", "DISPLAY", "SSH_ASKPASS")}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=without
    )
    assert done.returncode == 3
    assert done.stderr.startswith(f"{locked}: ssh-keygen refused: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run-cert.pub").exists()


def test_a_missing_key_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no key to certify with") as caught:
        OperatorKey.find(tmp_path / "absent")
    assert "bench keys new" in str(caught.value.advice)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_a_key_of_another_type_certifies_nothing(tmp_path: Path, kind: str) -> None:
    path = ssh_key(tmp_path / "id", kind)
    for file in (path, path.with_suffix(".pub")):
        with pytest.raises(BadInput):
            OperatorKey.find(file)


def test_without_ssh_keygen_it_says_so(
    ledger: Ledger, key: OperatorKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match="ssh-keygen is not installed"):
        certified(ledger, key, asked(ledger))


# --- what the ledger and the receipt say ----------------------------------------------------------------


def test_the_ledger_says_whose_key_was_certified_and_until_when(ledger: Ledger, key: OperatorKey) -> None:
    node = asked(ledger)
    certificate = certified(ledger, key, node)
    assert ledger.lines[-1].facts == {
        "key": PublicKey.of(node.key).fingerprint,
        "until": NOW + 1 + TWO_HOURS,
        "certificate_sha256": sha256(certificate.blob),
    }


@pytest.mark.parametrize(("drawn", "serial"), [(0, 1), (2**63 - 2, 2**63 - 1)])
def test_serial_numbers_are_drawn_from_one_to_the_largest_of_63_bits(
    ledger: Ledger, key: OperatorKey, monkeypatch: pytest.MonkeyPatch, drawn: int, serial: int
) -> None:
    """A certificate with the serial number 0 has none, and could not be revoked by it."""
    node = asked(ledger)
    below = []
    monkeypatch.setattr(certify_and_receive.secrets, "randbelow", lambda most: below.append(most) or drawn)
    assert certified(ledger, key, node).serial == serial
    assert below == [2**63 - 1]


def test_time_counts_from_the_first_challenge_of_the_run_itself(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    asked(ledger, now=NOW - 5000)
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    verdict = certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute)
    assert (verdict.challenged_at, verdict.seen_seconds) == ("2027-01-15T08:00:00Z", 600)


def test_a_bundle_with_a_receipt_needs_no_ledger(ledger: Ledger, key: OperatorKey, tmp_path: Path) -> None:
    """The receipt is the proof; a ledger on another machine has no line of this run."""
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, bundle, bundle, NOW + 600, recompute)
    another = Ledger(tmp_path / "another.jsonl")
    verdict = certify_and_receive.receive(another, key, bundle, tmp_path / "copy.tar", NOW + 700, recompute)
    assert verdict.level == "operator"
    with another:
        assert another.lines == []
    assert (tmp_path / "copy.tar").read_bytes() == bundle.read_bytes()


def test_a_certificate_is_valid_from_five_minutes_before_it_was_made(
    ledger: Ledger, key: OperatorKey
) -> None:
    """A node's clock may be slow; but not before the challenge."""
    early, late = asked(ledger, now=NOW - 5000), asked(ledger, now=NOW - 100)
    assert certified(ledger, key, early, NOW).valid_after == NOW - 300
    assert certified(ledger, key, late, NOW).valid_after == NOW - 100


def test_a_bundle_is_received_again_even_if_the_clock_was_set_back(
    ledger: Ledger, key: OperatorKey, tmp_path: Path
) -> None:
    """The time that counts is that of the first receipt, which the ledger has."""
    node = asked(ledger)
    bundle = node.bundle(tmp_path / "b.tar", certified(ledger, key, node))
    certify_and_receive.receive(ledger, key, bundle, tmp_path / "one.tar", NOW + 600, recompute)
    verdict = certify_and_receive.receive(ledger, key, bundle, tmp_path / "two.tar", NOW + 2, recompute)
    assert verdict.seen_seconds == 600


def test_a_new_run_has_an_id_of_12_digits_and_a_nonce_of_64(ledger: Ledger) -> None:
    one, two = asked(ledger).challenge, asked(ledger).challenge
    assert (len(one.run_id), len(one.nonce)) == (12, 64)
    assert (one.run_id, one.nonce) != (two.run_id, two.nonce)


def test_what_is_signed_has_the_namespaces_of_the_format() -> None:
    """docs/bundle.md promises the namespaces to other programs; a signature for one is none for another."""
    assert BUNDLE_NAMESPACE == "bench-bundle@v1"
    assert REQUEST_NAMESPACE == "bench-request@v1"
    assert RECEIPT_NAMESPACE == "bench-receipt@v1"


def test_the_clocks_of_an_operator_and_a_node_may_differ_by_a_minute() -> None:
    assert DRIFT_SECONDS == 60
