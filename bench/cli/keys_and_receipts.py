"""`bench challenge`, `certify`, `receive` and `keys`: from arguments to what the operator reads."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed, one_line
from bench.base.files import open_regular, write_whole
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path, ledger_path
from bench.base.stamps import utc
from bench.bundle.handshake import CertificateRequest, read, write
from bench.node_check.any_manifest import load_any
from bench.node_check.check_manifest import CheckManifest
from bench.node_check.recompute_any import recompute
from bench.operator import certify_and_receive, keyring
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.records.text import seconds_text
from bench.signing.key_file import default_key_path, public_half
from bench.signing.revocation import Revoked

MAX_REQUEST_BYTES = 16 * 2**10


def challenge(manifest: Path, out: Path | None, run_id: str | None, ledger: Path | None) -> int:
    loaded = load_any(manifest)
    if out and out.exists():
        raise BadInput("exists; nothing is overwritten", where=str(out))
    with _ledger(ledger) as opened:
        asked = certify_and_receive.challenge(
            opened, loaded.digest.removeprefix("sha256:"), int(time.time()), run_id
        )
    path = out or Path(f"challenge-{asked.run_id}.json")
    _write(path, write(asked))
    print(path)
    command = "check" if isinstance(loaded, CheckManifest) else "run"
    print(f"run {asked.run_id}: on the node, bench {command} {manifest} --challenge {path}", file=sys.stderr)
    return 0


def certify(
    request: Path, out: Path | None, key: Path | None, valid_seconds: float, ledger: Path | None
) -> int:
    if not 60 <= valid_seconds <= certify_and_receive.MOST_VALID_SECONDS:
        raise BadInput("a certificate is valid for a minute at least and seven days at most")
    with open_regular(request) as file:
        data = file.read(MAX_REQUEST_BYTES)
    try:
        read(CertificateRequest, data)
    except VerificationFailed as error:
        advice = "give the request.json of the run's folder"
        raise BadInput(error.message, where=str(request), advice=advice) from None
    found = OperatorKey.find(key)
    try:
        with _ledger(ledger) as opened:
            certificate = certify_and_receive.certify(
                opened, found, data, int(time.time()), int(valid_seconds)
            )
    except VerificationFailed as error:
        raise VerificationFailed(error.message, where=str(request), advice=error.advice) from None
    path = out or request.with_name("run-cert.pub")
    _write(path, f"{certificate.line()}\n".encode())
    print(path)
    left = seconds_text(certificate.valid_before - time.time())
    print(f"certified {certificate.principals[0]}, key {certificate.key.fingerprint}", file=sys.stderr)
    print(f"  until {utc(certificate.valid_before)}, in {left}", file=sys.stderr)
    return 0


def receive(bundle: Path, out: Path | None, key: Path | None, ledger: Path | None) -> int:
    found = OperatorKey.find(key)
    own = config_path(REVOKED)
    revoked = (Revoked.from_file(own),) if own and own.exists() else ()
    with _ledger(ledger) as opened:
        now = int(time.time())
        verdict = certify_and_receive.receive(opened, found, bundle, out or bundle, now, recompute, revoked)
    print(verdict.path, *map(one_line, verdict.to_lines()), sep="\n")
    return 0


def keys_new(path: Path | None, token: bool, passphrase: bool) -> int:
    keyring.new(path, token=token, passphrase=passphrase)
    return keys_show(path)


def keys_show(path: Path | None) -> int:
    path = path or default_key_path()
    if not path.exists():
        raise BadInput("there is no key yet", where=str(path), advice="bench keys new makes one")
    key = public_half(path)
    print(f"key          {path}   {key.fingerprint}")
    print(f"public       {key.line('bench')}")
    for name, what in ((ALLOWED_SIGNERS, "trusted"), (REVOKED, "revoked")):
        own = config_path(name)
        print(f"{what:<12} {own if own and own.exists() else 'nobody yet'}")
    print(
        "others trust it with these lines in allowed_signers, or with the public line alone:", file=sys.stderr
    )
    for line in keyring.trust_lines(key, _me()):
        print(f"  {line}", file=sys.stderr)
    return 0


def keys_trust(path: Path, name: str | None) -> int:
    lists, added = keyring.trust(path, name or path.stem)
    print(f"{lists}: {len(added)} lines added" if added else f"{lists}: trusted already")
    return 0


def keys_revoke(targets: list[str], authority: Path | None, file: Path | None) -> int:
    revocations = [keyring.to_revoke(target, authority) for target in targets]
    krl = keyring.revoke(revocations, file)
    for revocation in revocations:
        print(f"{krl}: revoked {revocation.what}")
    return 0


def _me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return "operator"


def _ledger(path: Path | None) -> Ledger:
    return Ledger(ledger_path(path))


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise EnvironmentCannot(f"cannot be written: {error.strerror}", where=str(path)) from None
