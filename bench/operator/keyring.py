"""Make keys, trust keys and revoke keys (`bench keys`), in file formats that ssh-keygen reads too."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path
from bench.base.stamps import is_run_id, sha256
from bench.bundle.handshake import BUNDLE_NAMESPACE, RECEIPT_NAMESPACE, key_id
from bench.bundle.tar_format import CERTIFICATE, open_bundle
from bench.bundle.verdict import Contents
from bench.bundle.verify import verify_bundle
from bench.operator.ssh_keygen import not_installed, run_ssh_keygen
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.key_file import default_key_path, public_half
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey

_SET_HOME = "set HOME to a folder that you can write to"
THEIRS = "give the .pub file of that key, which its owner can send you"


def new(path: Path | None, *, token: bool, passphrase: bool) -> PublicKey:
    """Make a key with ssh-keygen, which asks for passphrase or touch itself; return its public half."""
    path = path or default_key_path()
    for existing in (path, path.with_name(path.name + ".pub")):
        if existing.exists():
            raise BadInput("exists; nothing is overwritten", where=str(existing), advice="give another FILE")
    if passphrase and not sys.stdin.isatty():
        advice = "run this from a terminal, or give --no-passphrase"
        raise BadInput("there is no terminal to ask for a passphrase on", advice=advice)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = ["ssh-keygen", "-q", "-t", "ed25519-sk" if token else "ed25519", "-C", "bench", "-f", str(path)]
    try:
        done = subprocess.run([*command, *([] if passphrase else ["-N", ""])], check=False)
    except FileNotFoundError:
        raise not_installed() from None
    if done.returncode != 0:
        raise EnvironmentCannot("ssh-keygen made no key", where=str(path))
    return public_half(path)


def trust_lines(key: PublicKey, name: str) -> list[str]:
    """Return the lines of allowed_signers that let a key certify runs, and sign receipts and bundles."""
    return [
        f'bench-run:* cert-authority,namespaces="{BUNDLE_NAMESPACE}" {key.line()}',
        f'{name} namespaces="{RECEIPT_NAMESPACE},{BUNDLE_NAMESPACE}" {key.line()}',
    ]


def trust(path: Path, name: str) -> tuple[Path, list[str]]:
    """Add a key to the user's allowed_signers; return the file and the lines that were added."""
    # ssh-keygen would read a name that begins like a key type as a key without a name.
    if (
        not name.isprintable()
        or not name
        or any(c in name for c in ' "#')
        or name.startswith(("ssh-", "sk-", "ecdsa-"))
    ):
        advice = "one word, such as an address: --as me@example.org"
        raise BadInput(f"{name!r} cannot be the name of a signer", advice=advice)
    lists = _own(ALLOWED_SIGNERS)
    before = lists.read_text(encoding="utf-8") if lists.exists() else ""
    if before:
        TrustPolicy.from_text(before, str(lists))  # refuses a damaged file
    added = [line for line in trust_lines(public_half(path, THEIRS), name) if line not in before.splitlines()]
    if added:
        lists.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        joint = "" if before.endswith("\n") or not before else "\n"
        with lists.open("a", encoding="utf-8") as file:
            file.write(joint + "".join(f"{line}\n" for line in added))
    return lists, added


@dataclass(frozen=True, slots=True)
class Revocation:
    """A key or certificate to revoke, with its line in the specification file of ssh-keygen -k."""

    what: str
    specification: str
    authority: PublicKey | None = None


def to_revoke(target: str, authority: Path | None) -> Revocation:
    """Return the revocation of a target: public key, certificate or bundle file, fingerprint, or run's id."""
    if target.startswith("SHA256:"):
        return Revocation(f"the key {target}", f"hash: {target}")
    if not Path(target).exists() and authority is not None:
        return _of_run(target, public_half(authority, THEIRS), f"run {target}", "bench keys revoke")
    path = Path(target)
    if not path.exists():
        advice = (
            "give a .pub file, a bundle, a fingerprint SHA256:..., or a run's id with --authority FILE.pub"
        )
        raise BadInput("is neither a file nor a fingerprint", where=target, advice=advice)
    if path.suffix == ".pub":
        return _of_public_file(path)
    return _of_bundle(path)


def _of_bundle(path: Path) -> Revocation:
    """Return the revocation of a bundle's run; VerificationFailed unless its signatures and files are intact.

    A courier who exchanges the certificate could otherwise have another run revoked in place of this one.
    Summaries are not recomputed: a run whose figures are wrong is one to revoke.
    """
    certified = verify_bundle(path, lambda _: Contents(samples=0, measured_seconds=0)).certificate_sha256
    with open_bundle(path) as bundle:
        text = bundle.read(CERTIFICATE).decode("latin-1")
    revocation = _of_certificate(text, str(path))
    if sha256(Certificate.from_line(text).blob) != certified:
        raise VerificationFailed("changed while it was verified", where=str(path))
    return revocation


def _of_public_file(path: Path) -> Revocation:
    text = path.read_text("ascii", "replace")
    if text.startswith("ssh-ed25519-cert"):
        return _of_certificate(text, str(path))
    key = public_half(path)
    return Revocation(f"the key {key.fingerprint}", f"key: {key.line()}")


def _of_certificate(text: str, where: str) -> Revocation:
    try:
        certificate = Certificate.from_line(text)
    except FormatError as error:
        raise BadInput(str(error), where=where) from None
    before, prefix, run_id = certificate.key_id.partition(key_id(""))
    if before or not prefix:
        raise BadInput(f"its key id {certificate.key_id!r:.80} is not that of a run", where=where)
    return _of_run(run_id, certificate.authority, f'"{certificate.key_id}"', where)


def _of_run(run_id: str, authority: PublicKey, what: str, where: str) -> Revocation:
    """Return the revocation of a run's certificate. BadInput for a malformed id: ssh-keygen might cut it."""
    if not is_run_id(run_id):
        raise BadInput(f"{run_id!r:.80} is not a run id", where=where)
    return Revocation(what, f"id: {key_id(run_id)}", authority)


def revoke(revocations: Sequence[Revocation], file: Path | None) -> Path:
    """Add revocations to a KRL (default: the user's own), read before and after to detect damage."""
    krl = file or _own(REVOKED)
    krl.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for revocation in revocations:
        if krl.exists():
            Revoked.from_file(krl)
        _add(krl, revocation)
        Revoked.from_file(krl)
    return krl


def _add(krl: Path, revocation: Revocation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        specification, authority = Path(folder) / "specification", Path(folder) / "authority.pub"
        specification.write_bytes(f"{revocation.specification}\n".encode())
        command = ["-q", "-k", *(["-u"] if krl.exists() else []), "-f", str(krl)]
        if revocation.authority is not None:
            authority.write_bytes(f"{revocation.authority.line()}\n".encode())
            command += ["-s", str(authority)]
        run_ssh_keygen([*command, str(specification)], where=str(krl))


def _own(name: str) -> Path:
    path = config_path(name)
    if path is None:
        raise EnvironmentCannot("there is no home directory for bench's lists", advice=_SET_HOME)
    return path
