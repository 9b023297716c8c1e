"""The key that signs a run's bundle: the user's own, or one made for this run and certified by an operator.

The run's key is never written to disk. It lives in this one process, which only root may debug, and ends
with it: a run resumed after a crash makes a new key and requests a new certificate.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.base.errors import BadInput, VerificationFailed
from bench.base.files import open_regular, write_whole
from bench.base.kinds_of_file import CHALLENGE, kind_of, require_kind
from bench.bundle.handshake import Challenge, certificate_fault, make_request, read
from bench.bundle.tar_format import CERTIFICATE
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey, Signer

REQUEST = "request.json"
PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 0.2
_MAX_BYTES = 64 * 2**10  # of a challenge or a certificate
_PR_SET_DUMPABLE = 4
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seal:
    """The key that signs a bundle, with certificate and the challenge's nonce if an operator certified it."""

    key: Signer
    certificate: Certificate | None = None
    nonce: str | None = None


class Sealer(Protocol):
    """Provides the seal of one run: `begin` when it starts, `seal` when it has been measured."""

    @property
    def run_id(self) -> str | None:
        """The id of the only run that this sealer is for; None if it is for any run."""

    @property
    def nonce(self) -> str | None:
        """The nonce of the challenge that the run answers; None without an operator."""

    def begin(self, folder: Path, say: Say) -> None:
        """Do what must be done in the run's folder before it is measured."""

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        """Return the seal; `patient`: wait for an operator's certificate that has not come yet."""


@dataclass(frozen=True, slots=True)
class OwnKey:
    """Signs with the user's own key, without an operator."""

    key: Signer
    run_id: str | None = None
    nonce: str | None = None

    def begin(self, folder: Path, say: Say) -> None:
        """Do nothing: the user's key exists already."""

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        """Return the key that was read before the run began."""
        return Seal(self.key)


@dataclass(frozen=True, slots=True)
class OwnKeyReadLast:
    """Signs with the user's own key, read when the run has been measured.

    What reads and uses a key takes 8 MB, which a node check without load does not need beside its workers.
    """

    read: Callable[[], Signer]
    run_id: str | None = None
    nonce: str | None = None

    def begin(self, folder: Path, say: Say) -> None:
        """Do nothing: the user's key exists already."""

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        """Read the key only now, after everything was measured."""
        return Seal(self.read())


class CertifiedKey:
    """Signs with a key made for this run, which an operator certifies.

    FOLDER/request.json is for the operator, who answers with FOLDER/run-cert.pub.
    """

    def __init__(
        self, challenge: Challenge, manifest_digest: str, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        if manifest_digest != f"sha256:{challenge.manifest_sha256}":
            raise BadInput(
                "the challenge is for another manifest", advice="bench challenge makes one for this"
            )
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        _forbid_debugging()
        self.run_id: str | None = challenge.run_id
        self.nonce: str | None = challenge.nonce
        self._challenge = challenge
        self._patience_seconds = patience_seconds
        self._key = Ed25519PrivateKey.generate()

    def begin(self, folder: Path, say: Say) -> None:
        """Write the request at the start of the run, so that the operator can certify while it measures."""
        with suppress(FileNotFoundError):
            (folder / CERTIFICATE).unlink()  # an earlier attempt's, whose key is gone
        write_whole(folder / REQUEST, make_request(self._challenge, self._key))
        say(f"request {folder / REQUEST}, key {PublicKey.of(self._key).fingerprint}")
        say(f"  bench certify answers it with {CERTIFICATE}, to be put in the same place")

    def seal(self, folder: Path, say: Say, *, patient: bool) -> Seal:
        """Return the key and its certificate, waiting for the certificate if `patient`.

        Without a certificate, no authority vouches for the key that signs the bundle.
        """
        certificate = self._find(folder, say)
        deadline = time.monotonic() + (self._patience_seconds if patient else 0)
        if certificate is None and patient:
            say(f"measured; waiting up to {self._patience_seconds:.0f} s for {folder / CERTIFICATE}")
        while certificate is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            certificate = self._find(folder, say)
        return Seal(self._key, certificate, self._challenge.nonce if certificate else None)

    def _find(self, folder: Path, say: Say) -> Certificate | None:
        """Return the certificate if it is complete and for this key and run; put a wrong one aside."""
        path = folder / CERTIFICATE
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        if not text.endswith("\n"):
            return None  # the file is still being copied
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
    """Return the challenge in a file. BadInput if the file holds no challenge."""
    with open_regular(path, advice="bench challenge MANIFEST makes one") as file:
        data = file.read(_MAX_BYTES)
    require_kind(CHALLENGE, kind_of(data), str(path))
    try:
        return read(Challenge, data)
    except VerificationFailed as error:
        raise BadInput(error.message, where=str(path), advice="bench challenge MANIFEST makes one") from None


def _forbid_debugging() -> None:
    """Forbid core dumps and debuggers other than root's: the key is in this process's memory."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
