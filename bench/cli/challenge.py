"""`bench challenge`, `certify` and `receive`: the operator's commands for a run on an untrusted node."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, VerificationFailed, one_line
from bench.base.files import open_regular, write_whole
from bench.base.kinds_of_file import REQUEST, kind_of, require_kind
from bench.base.paths import using
from bench.base.stamps import utc
from bench.bundle.handshake import CertificateRequest, read, write
from bench.node_check.check_manifest import CheckManifest, load_any
from bench.node_check.recompute_any import recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.records.text import seconds_text
from bench.signing.revocation import own_revocations

MAX_REQUEST_BYTES = 16 * 2**10


@dataclass(frozen=True, slots=True)
class ChallengeArguments:
    """The options of `bench challenge`; `run_id` None: the challenge is for a new run."""

    manifest: Path
    out: Path | None
    run_id: str | None
    ledger: Path | None


@dataclass(frozen=True, slots=True)
class CertifyArguments:
    """The options of `bench certify`; `out` None: the certificate is written beside the request."""

    request: Path
    out: Path | None
    valid_seconds: float
    key: Path | None
    ledger: Path | None


@dataclass(frozen=True, slots=True)
class ReceiveArguments:
    """The options of `bench receive`; `out` None: the countersigned bundle replaces the given one."""

    bundle: Path
    out: Path | None
    key: Path | None
    ledger: Path | None


def challenge(request: ChallengeArguments) -> int:
    """Write a challenge for one run of a manifest, and note it in the ledger."""
    manifest = load_any(request.manifest)
    if request.out and request.out.exists():
        advice = "name another file, or remove this one"
        raise BadInput("exists; nothing is overwritten", where=str(request.out), advice=advice)
    digest = manifest.digest.removeprefix("sha256:")
    made = certify_and_receive.challenge(Ledger(request.ledger), digest, int(time.time()), request.run_id)
    path = request.out or Path(f"challenge-{made.run_id}.json")
    with using(path):
        write_whole(path, write(made))
    print(path)
    command = "check" if isinstance(manifest, CheckManifest) else "run"
    print(
        f"run {made.run_id}: on the node, bench {command} {request.manifest} --challenge {path}",
        file=sys.stderr,
    )
    return 0


def certify(request: CertifyArguments) -> int:
    """Write a certificate for the key in a node's request, after checking it against the ledger."""
    if not 60 <= request.valid_seconds <= certify_and_receive.MOST_VALID_SECONDS:
        message = "--valid: a certificate is valid for at least a minute and at most seven days"
        raise BadInput(message, advice="--valid 2h")
    with open_regular(request.request) as file:
        data = file.read(MAX_REQUEST_BYTES)
    require_kind(REQUEST, kind_of(data), str(request.request))
    try:
        read(CertificateRequest, data)
    except VerificationFailed as error:
        advice = "give the request.json of the run's folder"
        raise BadInput(error.message, where=str(request.request), advice=advice) from None
    key = OperatorKey.find(request.key)
    try:
        certificate = certify_and_receive.certify(
            Ledger(request.ledger), key, data, int(time.time()), int(request.valid_seconds)
        )
    except VerificationFailed as error:
        raise VerificationFailed(error.message, where=str(request.request), advice=error.advice) from None
    path = request.out or request.request.with_name("run-cert.pub")
    with using(path):
        write_whole(path, f"{certificate.line()}\n".encode())
    print(path)
    left = seconds_text(certificate.valid_before - time.time())
    print(f"certified {certificate.principals[0]}, key {certificate.key.fingerprint}", file=sys.stderr)
    print(f"  until {utc(certificate.valid_before)}, in {left}", file=sys.stderr)
    return 0


def receive(request: ReceiveArguments) -> int:
    """Verify a run's bundle, consume its nonce, and add the operator's receipt."""
    key, revoked = OperatorKey.find(request.key), own_revocations()
    ledger, out = Ledger(request.ledger), request.out or request.bundle
    verdict = certify_and_receive.receive(
        ledger, key, request.bundle, out, int(time.time()), recompute, revoked
    )
    print(verdict.path, *map(one_line, verdict.to_lines()), sep="\n")
    return 0
