"""`bench keys`: make and show the user's key; keep the lists of trusted and of revoked keys."""

from __future__ import annotations

import getpass
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path
from bench.operator import keyring
from bench.records.text import count_text
from bench.signing.key_file import default_key_path, public_half


@dataclass(frozen=True, slots=True)
class NewKeyArguments:
    """The options of `bench keys new`; `file` None: bench's own key."""

    file: Path | None
    token: bool
    no_passphrase: bool


@dataclass(frozen=True, slots=True)
class ShowKeyArguments:
    """The options of `bench keys show`; `file` None: bench's own key."""

    file: Path | None


@dataclass(frozen=True, slots=True)
class TrustArguments:
    """The options of `bench keys trust`; `name` None: the owner is called like the file."""

    file: Path
    name: str | None


@dataclass(frozen=True, slots=True)
class RevokeArguments:
    """The options of `bench keys revoke`: .pub files, bundles, fingerprints, or run ids with `authority`."""

    targets: tuple[str, ...]
    authority: Path | None
    file: Path | None


def new(request: NewKeyArguments) -> int:
    """Make a key, in a file or on a hardware token, and show it."""
    with_passphrase = not request.no_passphrase and not request.token
    keyring.new(request.file, token=request.token, passphrase=with_passphrase)
    return show(ShowKeyArguments(request.file))


def show(request: ShowKeyArguments) -> int:
    """Show a key, and the lines with which others can trust it."""
    path = request.file or default_key_path()
    if not path.exists():
        raise BadInput("no such key", where=str(path), advice="bench keys new makes one")
    key = public_half(path)
    print(f"key          {path}   {key.fingerprint}")
    print(f"public       {key.line('bench')}")
    for name, label in ((ALLOWED_SIGNERS, "trusted"), (REVOKED, "revoked")):
        own = config_path(name)
        print(f"{label:<12} {own if own and own.exists() else 'none yet'}")
    print(
        "others trust it with these lines in allowed_signers, or with the public line alone:", file=sys.stderr
    )
    for line in keyring.trust_lines(key, _user_at_host()):
        print(f"  {line}", file=sys.stderr)
    return 0


def trust(request: TrustArguments) -> int:
    """Add a public key to the list of trusted signers."""
    path, added = keyring.trust(request.file, request.name or request.file.stem)
    print(f"{path}: {count_text(len(added), 'line')} added" if added else f"{path}: trusted already")
    return 0


def revoke(request: RevokeArguments) -> int:
    """Add runs, keys or certificates to the list of revocations."""
    revocations = [keyring.to_revoke(target, request.authority) for target in request.targets]
    krl = keyring.revoke(revocations, request.file)
    for revocation in revocations:
        print(f"{krl}: revoked {revocation.what}")
    return 0


def _user_at_host() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return "operator"
