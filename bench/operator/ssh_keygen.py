"""Certify and sign with the operator's key, in a file, an agent or a hardware token, through ssh-keygen.

ssh-keygen asks for passphrases and touches. bench never reads the private key, and verifies every
certificate and signature that ssh-keygen returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.stamps import utc
from bench.bundle.handshake import BUNDLE_NAMESPACE, NAMESPACE_OPTION, NONCE_OPTION, key_id, principal
from bench.signing.key_file import default_key_path, public_half
from bench.signing.ssh_keys import Certificate, PublicKey
from bench.signing.sshsig import verify

_asking = threading.Lock()  # so that threads ask for one passphrase or touch of a token at a time


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """The operator's SSH key, with which ssh-keygen certifies runs and signs receipts."""

    path: Path  # the key's file, as an argument of ssh-keygen
    public: PublicKey
    in_agent: bool  # whether the private half is in an agent, and `path` is the public half

    @classmethod
    def find(cls, path: Path | None) -> OperatorKey:
        """Return the key of a private or .pub file; the latter's private half is beside it or in an agent."""
        path = path or default_key_path()
        if not path.exists():
            advice = (
                "bench keys new makes one; --key FILE names another (FILE.pub if it is in an agent or token)"
            )
            raise BadInput("there is no key to certify with", where=str(path), advice=advice)
        public = public_half(path)
        private = path.with_suffix("") if path.suffix == ".pub" else path
        in_agent = not private.exists()
        return cls(path if in_agent else private, public, in_agent)

    def certify(
        self, key: PublicKey, run_id: str, nonce: str, serial: int, valid: tuple[int, int]
    ) -> Certificate:
        """Certify a key for one run, challenge, namespace and time span; sshd refuses such a certificate."""
        with _asking, tempfile.TemporaryDirectory(prefix="bench-certify-") as folder:
            self._say_touch(f"certify run {run_id}")
            file = Path(folder) / "run.pub"
            file.write_bytes(f"{key.line()}\n".encode())
            command = ["-q", "-s", str(self.path), *(["-U"] if self.in_agent else [])]
            command += ["-I", key_id(run_id), "-n", principal(run_id), "-z", str(serial), "-O", "clear"]
            command += ["-O", f"critical:{NAMESPACE_OPTION}={BUNDLE_NAMESPACE}"]
            command += ["-O", f"critical:{NONCE_OPTION}={nonce}"]
            times = ("".join(filter(str.isdigit, utc(at))) for at in valid)
            command += ["-V", ":".join(times), str(file)]
            run_ssh_keygen(command, where=str(self.path))
            line = file.with_name("run-cert.pub").read_text(encoding="utf-8")
        certificate = Certificate.from_line(line)
        if certificate.authority != self.public or certificate.key != key:
            raise EnvironmentCannot("ssh-keygen signed with another key", where=str(self.path))
        return certificate

    def sign(self, message: bytes, namespace: str) -> bytes:
        """Return an armored SSH signature of a receipt; EnvironmentCannot if another key made it."""
        command = ["-q", "-Y", "sign", "-n", namespace, "-f", str(self.path)]
        with _asking:
            self._say_touch("sign the receipt")
            armored = run_ssh_keygen(command, where=str(self.path), stdin=message)
        if verify(message, armored, namespace).key != self.public:
            raise EnvironmentCannot("ssh-keygen signed with another key", where=str(self.path))
        return armored

    def _say_touch(self, why: str) -> None:
        if self.public.application is not None:
            print(f"touch the token to {why}", file=sys.stderr)


def not_installed() -> EnvironmentCannot:
    """Return the error for a machine without ssh-keygen."""
    return EnvironmentCannot("ssh-keygen is not installed", advice="install OpenSSH's client programs")


def run_ssh_keygen(arguments: Sequence[str], *, where: str, stdin: bytes | None = None) -> bytes:
    """Run ssh-keygen and return its output; if it fails, EnvironmentCannot has its last line of errors."""
    try:
        command, environment = ["ssh-keygen", *arguments], os.environ | {"TZ": "UTC"}  # -V has times in UTC
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, env=environment)
    except FileNotFoundError:
        raise not_installed() from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else "no reason given"
        raise EnvironmentCannot(f"ssh-keygen refused: {reason}", where=where)
    return done.stdout
