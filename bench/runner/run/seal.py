"""With what a run signs its bundle: the user's own key, or one made here and certified by an operator.

The run's own key is never written anywhere. It lives in this one process, which nobody but root may look
into while it does, and is gone with it: a run that goes on after a crash makes a new one, and asks again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput, VerificationFailed
from bench.base.files import open_regular, write_whole
from bench.bundle.handshake import Challenge, certificate_fault, make_request, read
from bench.bundle.tar_format import CERTIFICATE
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey, Signer

REQUEST = "request.json"
PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 0.2
_LARGEST = 64 * 2**10
_PR_SET_DUMPABLE = 4
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seal:
    """What signs a bundle, and what the statement says of it."""

    key: Signer
    certificate: Certificate | None = None
    nonce: str | None = None


class Sealer(Protocol):
    """How a run comes by its seal."""

    @property
    def run_id(self) -> str | None: ...  # of the run that it is for; None: any

    @property
    def nonce(self) -> str | None: ...  # of the challenge that it answers

    def begin(self, folder: Path, say: Say) -> None: ...

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal: ...


@dataclass(frozen=True, slots=True)
class OwnKey:
    """Nobody was asked: the bundle is signed with the key of whoever runs this."""

    key: Signer
    run_id: str | None = None
    nonce: str | None = None

    def begin(self, folder: Path, say: Say) -> None:
        """Nothing to prepare."""

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        return Seal(self.key)


class CertifiedKey:
    """A key of this run alone. FOLDER/request.json goes to the operator, FOLDER/run-cert.pub comes back."""

    def __init__(
        self, challenge: Challenge, manifest_digest: str, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        if manifest_digest != f"sha256:{challenge.manifest_sha256}":
            raise BadInput(
                "the challenge is for another manifest", advice="bench challenge makes one for this"
            )
        _keep_to_ourselves()
        self.run_id: str | None = challenge.run_id
        self.nonce: str | None = challenge.nonce
        self._challenge = challenge
        self._patience_seconds = patience_seconds
        self._key = Ed25519PrivateKey.generate()

    def begin(self, folder: Path, say: Say) -> None:
        """At the start, so that the operator can certify while this measures."""
        with suppress(FileNotFoundError):
            (folder / CERTIFICATE).unlink()  # of a key that is gone
        write_whole(folder / REQUEST, make_request(self._challenge, self._key))
        say(f"request {folder / REQUEST}, key {PublicKey.of(self._key).fingerprint}")
        say(f"  bench certify answers it with {CERTIFICATE}, to be put in the same place")

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        """Waits for the certificate, unless the user is waiting too. Without one the bundle is nobody's."""
        certificate = self._find(folder, say)
        deadline = time.monotonic() + (self._patience_seconds if patient else 0)
        if certificate is None and patient:
            say(f"measured; waiting up to {self._patience_seconds:.0f} s for {folder / CERTIFICATE}")
        while certificate is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            certificate = self._find(folder, say)
        return Seal(self._key, certificate, self._challenge.nonce if certificate else None)

    def _find(self, folder: Path, say: Say) -> Certificate | None:
        """The certificate, if it has come whole and is for this key and run."""
        path = folder / CERTIFICATE
        try:
            with path.open("rb") as file:
                text = file.read(_LARGEST).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        if not text.endswith("\n"):
            return None  # still being copied
        try:
            certificate = Certificate.from_line(text)
            if certificate.key != PublicKey.of(self._key):
                raise FormatError("is for another key: of an earlier attempt at this run?")
            if fault := certificate_fault(certificate, self._challenge.run_id, self._challenge.nonce):
                raise FormatError(fault)
        except FormatError as error:
            path.rename(path.with_suffix(".refused"))
            say(f"{path} {error}; put aside as {path.with_suffix('.refused').name}")
            return None
        return certificate


def read_challenge(path: Path) -> Challenge:
    with open_regular(path, advice="bench challenge MANIFEST makes one") as file:
        data = file.read(_LARGEST)
    try:
        return read(Challenge, data)
    except VerificationFailed as error:
        raise BadInput(error.message, where=str(path), advice="bench challenge MANIFEST makes one") from None


def _keep_to_ourselves() -> None:
    """No core dump of this process, and no debugger but root's: the key is in its memory."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
