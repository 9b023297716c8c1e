"""Signing a run: the key in memory, the request, and the handling of the certificate."""

from __future__ import annotations

import base64
import ctypes
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput
from bench.bundle.handshake import Challenge, check_request, write
from bench.planning.manifest import Manifest, load_manifest
from bench.runner.run.seal import CertifiedKey, OwnKey, Seal, read_challenge
from bench.signing.ssh_keys import Certificate, PublicKey
from tests.authority import NONCE, OPERATOR, RUN_ID, certificate_blob

MANIFEST = Path(__file__).parents[2] / "manifests" / "quickstart.json"


@pytest.fixture
def manifest() -> Manifest:
    return load_manifest(MANIFEST)


@pytest.fixture
def challenge(manifest: Manifest) -> Challenge:
    return Challenge(RUN_ID, NONCE, manifest.digest.removeprefix("sha256:"), 1_800_000_000)


@pytest.fixture
def words() -> list[str]:
    return []


def begun(challenge: Challenge, manifest: Manifest, folder: Path, words: list[str]) -> CertifiedKey:
    sealer = CertifiedKey(challenge, manifest.digest, patience_seconds=5)
    sealer.begin(folder, words.append)
    return sealer


def answer(folder: Path, **changes: object) -> str:
    """Make the operator's certificate for the request in the folder."""
    _, key = check_request((folder / "request.json").read_bytes())
    blob = certificate_blob(authority=OPERATOR, **({"public": key.raw} | changes))
    return Certificate.from_blob(blob).line() + "\n"


def test_the_request_has_the_public_key_and_no_key_is_stored(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    sealer = begun(challenge, manifest, tmp_path, words)
    request, _ = check_request((tmp_path / "request.json").read_bytes())
    assert (request.run_id, request.nonce) == (RUN_ID, NONCE)
    assert sealer.run_id == RUN_ID
    assert [p.name for p in tmp_path.iterdir()] == ["request.json"]
    seal = sealer.seal(tmp_path, words.append, patient=False)
    assert isinstance(seal.key, Ed25519PrivateKey)
    secret = seal.key.private_bytes_raw()
    for form in (secret, secret.hex().encode(), base64.b64encode(secret)[:-2]):
        assert form not in (tmp_path / "request.json").read_bytes()
    assert PublicKey.from_line(request.key).fingerprint in words[0]
    assert "bench certify" in words[1]


def test_only_root_may_read_the_memory_of_the_process_with_the_key(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    begun(challenge, manifest, tmp_path, words)
    get_dumpable = 3
    assert ctypes.CDLL(None).prctl(get_dumpable, 0, 0, 0, 0) == 0


def test_every_attempt_has_a_key_of_its_own(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    """A run that resumes after a crash requests again, because the old certificate is for a lost key."""
    begun(challenge, manifest, tmp_path, words)
    first = (tmp_path / "request.json").read_bytes()
    (tmp_path / "run-cert.pub").write_text(answer(tmp_path))
    sealer = begun(challenge, manifest, tmp_path, words)
    assert (tmp_path / "request.json").read_bytes() != first
    assert sealer.seal(tmp_path, words.append, patient=False).certificate is None


def test_a_certificate_that_arrived_during_the_run_is_used(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    sealer = begun(challenge, manifest, tmp_path, words)
    (tmp_path / "run-cert.pub").write_text(answer(tmp_path))
    seal = sealer.seal(tmp_path, words.append, patient=False)
    assert seal.certificate is not None
    assert seal.certificate.key == PublicKey.of(seal.key)
    assert seal.nonce == NONCE


def test_the_run_waits_for_a_late_certificate(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    sealer = begun(challenge, manifest, tmp_path, words)
    found: list[Seal] = []
    waiting = threading.Thread(target=lambda: found.append(sealer.seal(tmp_path, words.append, patient=True)))
    waiting.start()
    text = answer(tmp_path)
    (tmp_path / "run-cert.pub").write_text(text[:200])  # scp writes it in pieces
    time.sleep(0.5)
    assert not found
    (tmp_path / "run-cert.pub").write_text(text)
    waiting.join(10)
    assert found[0].certificate is not None
    assert any("waiting up to 5 s" in word for word in words)


def test_an_interrupt_ends_the_wait_for_a_certificate(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str]
) -> None:
    """Without a certificate the bundle is still signed, at level self."""
    seal = begun(challenge, manifest, tmp_path, words).seal(tmp_path, words.append, patient=False)
    assert (seal.certificate, seal.nonce) == (None, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"public": PublicKey.of(OPERATOR).raw}, "is for another key"),
        ({"principals": ("bench-run:other",)}, "is for bench-run:other"),
        ({"options": {}}, "not for the namespace"),
    ],
)
def test_a_certificate_for_something_else_is_renamed_and_reported(
    challenge: Challenge,
    manifest: Manifest,
    tmp_path: Path,
    words: list[str],
    changes: dict[str, object],
    why: str,
) -> None:
    sealer = begun(challenge, manifest, tmp_path, words)
    (tmp_path / "run-cert.pub").write_text(answer(tmp_path, **changes))
    assert sealer.seal(tmp_path, words.append, patient=False).certificate is None
    assert why in words[-1]
    assert (tmp_path / "run-cert.refused").exists()
    (tmp_path / "run-cert.pub").write_text(answer(tmp_path))
    assert sealer.seal(tmp_path, words.append, patient=False).certificate is not None


@pytest.mark.parametrize("text", ["\n", "hello\n", "ssh-ed25519 AAAA\n", "\0" * 100_000 + "\n"])
def test_a_malformed_certificate_is_renamed(
    challenge: Challenge, manifest: Manifest, tmp_path: Path, words: list[str], text: str
) -> None:
    sealer = begun(challenge, manifest, tmp_path, words)
    (tmp_path / "run-cert.pub").write_text(text)
    assert sealer.seal(tmp_path, words.append, patient=False).certificate is None


def test_a_challenge_for_another_manifest_is_refused_before_anything_runs(manifest: Manifest) -> None:
    with pytest.raises(BadInput, match="the challenge is for another manifest"):
        CertifiedKey(Challenge(RUN_ID, NONCE, "0" * 64, 0), manifest.digest)


def test_a_challenge_is_read_from_its_file(challenge: Challenge, tmp_path: Path) -> None:
    path = tmp_path / "challenge.json"
    path.write_bytes(write(challenge))
    assert read_challenge(path) == challenge
    for data, why in {
        b"": "is not a challenge of bench",
        b"{}": "is not a challenge of bench",
        write(challenge).replace(b"challenge/v1", b"challenge/v2"): "knows only v1",
        write(challenge).replace(b'"7f3a2c"', b'"../../etc"'): "no run id",
        write(challenge)[:-1]: "canonical form",
    }.items():
        path.write_bytes(data)
        with pytest.raises(BadInput, match=why) as caught:
            read_challenge(path)
        assert caught.value.where == str(path)
    with pytest.raises(BadInput, match="cannot be opened"):
        read_challenge(tmp_path / "absent")


def test_without_a_challenge_the_users_own_key_signs(tmp_path: Path, words: list[str]) -> None:
    key = Ed25519PrivateKey.generate()
    own = OwnKey(key)
    own.begin(tmp_path, words.append)
    assert own.run_id is None
    assert own.seal(tmp_path, words.append, patient=True) == Seal(key)
    assert list(tmp_path.iterdir()) == []
    assert words == []
