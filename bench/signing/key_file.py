"""Load the user's signing key from disk, or make it on first use. Existing files are never overwritten.

Reads and writes files, and asks for passphrases on the terminal.
"""

from __future__ import annotations

import os
import stat
import sys
from binascii import a2b_base64
from contextlib import suppress
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import open_regular
from bench.base.operating_system import BINARY, user_and_group
from bench.base.paths import KEY, config_path
from bench.signing.ssh_keys import FormatError, PublicKey, WireReader

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_BEGIN = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_PEM_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_END = b"-----END OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
_LARGEST = 64 * 2**10
_MAKE_ONE = "make one with: ssh-keygen -t ed25519 -f FILE"
_GIVE_ONE = "give --key FILE, an Ed25519 SSH key"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class UserKey:
    """A private key that can sign, and the file that holds it."""

    private: Ed25519PrivateKey
    public: PublicKey
    path: Path
    made: bool  # True if the key was made just now, so that the user is told


def default_key_path() -> Path:
    """Return the path of the user's signing key; EnvironmentCannot without a home directory."""
    path = config_path(KEY)
    if path is None:
        raise EnvironmentCannot("there is no home directory for a signing key", advice=_GIVE_ONE)
    return path


def load_or_make_key(path: Path | None = None) -> UserKey:
    """Load the SSH key at `path`; without a path, load the user's key for bench, or make it."""
    if path is not None:
        return load_key(path)
    path = default_key_path()
    try:
        made = not path.exists() and _make(path)
        key = load_key(path, made=made)
    except OSError as error:
        message = f"the signing key cannot be stored: {error.strerror}"
        raise EnvironmentCannot(message, where=str(path), advice=_GIVE_ONE) from None
    with suppress(OSError):  # bench itself does not need the .pub file, and the next run tries again
        _publish(path.with_name(path.name + ".pub"), f"{key.public.line('bench')}\n".encode(), 0o644)
    return key


def _make(path: Path) -> bool:
    """Make the key file; return False if another process made it first, whose key is then used."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    form, unlocked = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    data = Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, unlocked)
    return _publish(path, data, 0o600)


def _publish(path: Path, data: bytes, mode: int) -> bool:
    """Create a file atomically by a hard link, which never replaces a file; return False if it exists."""
    if path.exists():
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def opens_without_asking(path: Path | None = None) -> bool:
    """Whether the key at `path`, by default the user's for bench, exists and has no passphrase.

    BadInput if the file holds no such key. The key itself is not decoded.
    """
    path = path or default_key_path()
    if not path.exists():
        return False
    encrypted, public = _look_inside(path, _read(path))
    return not encrypted and public.application is None


def load_key(path: Path, *, made: bool = False) -> UserKey:
    """Load an Ed25519 private key in OpenSSH's format, asking for its passphrase on the terminal."""
    data = _read(path)
    encrypted, inside = _look_inside(path, data)
    if inside.application is not None:
        message = "is the key of a token, which can certify (bench certify) but cannot sign a run"
        raise BadInput(message, where=str(path), advice=_MAKE_ONE)
    private = _unlock(path, data) if encrypted else _decode(path, data, None)
    return UserKey(private, PublicKey.of(private), path, made)


def _read(path: Path, advice: str = _MAKE_ONE) -> bytes:
    with open_regular(path, advice=advice) as file:
        status = os.fstat(file.fileno())
        data = file.read(_LARGEST + 1)
    # As ssh does, check the mode only of files that belong to this user.
    owner = user_and_group()
    loose = status.st_mode & 0o077 and owner is not None and status.st_uid == owner[0]
    if loose and data.startswith(b"-----BEGIN") and not data.startswith(_PEM_PUBLIC):
        message = f"its mode {stat.S_IMODE(status.st_mode):04o} lets others read this private key"
        raise BadInput(message, where=str(path), advice=f"chmod 600 {path}")
    return data


def public_half(path: Path, advice: str = _MAKE_ONE) -> PublicKey:
    """Read the public key from a private key, without its passphrase, or from a .pub file."""
    data = _read(path, advice)
    if data.startswith(_PEM_PUBLIC):
        message = "is a public key in PEM, not OpenSSH's form"
        raise BadInput(message, where=str(path), advice="give the .pub file that ssh-keygen made")
    if data.startswith(b"-----BEGIN"):
        return _look_inside(path, data)[1]
    try:
        return PublicKey.from_line(data.decode("ascii", "replace"))
    except FormatError as error:
        raise BadInput(str(error), where=str(path), advice=advice) from None


def _look_inside(path: Path, data: bytes) -> tuple[bool, PublicKey]:
    """Return whether a passphrase protects the key, and its public half, which is not encrypted."""
    where = str(path)
    if data.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        likely = path.with_suffix("") if path.suffix == ".pub" else "the file without .pub"
        raise BadInput("is a public key", where=where, advice=f"give the private key, {likely}")
    if not data.startswith(_BEGIN) or len(data) > _LARGEST:
        raise BadInput("is not an OpenSSH private key", where=where, advice=_MAKE_ONE)
    try:
        body = data.strip().removeprefix(_BEGIN).removesuffix(_END)
        wire = WireReader(a2b_base64(b"".join(body.split()), strict_mode=True))
        if wire.take(len(_MAGIC)) != _MAGIC:
            raise FormatError("is not an OpenSSH private key of version 1")
        cipher, _, _ = wire.string(), wire.string(), wire.string()
        if wire.number() != 1:
            raise FormatError("does not hold exactly one key")
        public = PublicKey.from_blob(wire.string())
    except FormatError as error:
        raise BadInput(str(error), where=where, advice=f"bench signs with Ed25519; {_MAKE_ONE}") from None
    except ValueError:
        raise BadInput("is a damaged OpenSSH private key", where=where, advice=_MAKE_ONE) from None
    return cipher != b"none", public


def _unlock(path: Path, data: bytes) -> Ed25519PrivateKey:
    if not (sys.stdin and sys.stdin.isatty()):
        message = "a passphrase protects this key, and there is no terminal to ask for it"
        advice = "use a terminal, or a key without a passphrase: ssh-keygen -t ed25519 -N '' -f FILE"
        raise BadInput(message, where=str(path), advice=advice)
    for _ in range(_ATTEMPTS):
        try:
            return _decode(path, data, getpass(f"Passphrase for {path}: ").encode())
        except BadInput as error:
            print(error.message, file=sys.stderr)
        except EOFError:
            break
    raise BadInput("this key was not unlocked", where=str(path), advice=_GIVE_ONE)


def _decode(path: Path, data: bytes, passphrase: bytes | None) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_ssh_private_key(data, passphrase)
    except UnsupportedAlgorithm as error:
        message = f"this key cannot be opened: {error}"
        if "bcrypt" in str(error):  # cryptography needs bcrypt for passphrases, but does not install it
            raise EnvironmentCannot(message, where=str(path), advice="pip install bcrypt") from None
        raise BadInput(message, where=str(path), advice=_MAKE_ONE) from None
    except (ValueError, TypeError):
        message = "is a damaged private key" if passphrase is None else "the passphrase is wrong"
        raise BadInput(message, where=str(path), advice=_MAKE_ONE) from None
    assert isinstance(key, Ed25519PrivateKey), (
        "its public half, which _look_inside has read, is one of Ed25519"
    )
    return key
