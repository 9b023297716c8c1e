"""Verification by tools that are not ours: tar, ssh-keygen, openssl, sha256sum; cosign end to end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.bundle import ENVELOPE, RECEIPT, RECEIPT_SIGNATURE, STATEMENT
from bench.control.keyring import trust_lines
from bench.dsse import seal
from bench.handshake import RECEIPT_NAMESPACE
from bench.pack import signatures, write_bundle
from bench.ssh import PublicKey
from bench.sshsig import sign
from tests.authority import (
    NONCE,
    OPERATOR,
    RUN_ID,
    RUN_KEY,
    STRANGER,
    UNTIL,
    certificate,
    certified,
    contents,
    countersign,
    receipt_for,
    received,
)
from tests.bundles import KEY, packed
from tests.needs import needs

SCRIPT = Path(__file__).parents[1] / "docs" / "verify.sh"
INSTALL_COSIGN = Path(__file__).with_name("install_cosign.sh")
pytestmark = [needs("ssh-keygen"), needs("openssl")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return received(tmp_path / "b.tar")


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    """The lines that an operator hands out."""
    path = tmp_path / "allowed_signers"
    path.write_text("\n".join(trust_lines(PublicKey.of(OPERATOR), "lab@example.org")) + "\n")
    return path


def script(*arguments: str | Path, cosign: Path | None = None) -> subprocess.CompletedProcess[str]:
    tools = f"{cosign.parent}:" if cosign else ""
    environment = os.environ | {"PATH": tools + os.environ["PATH"], "HOME": tempfile.gettempdir()}
    return subprocess.run(
        ["sh", SCRIPT, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def refused(why: str, *arguments: str | Path) -> None:
    done = script(*arguments)
    assert done.returncode != 0
    assert why in done.stderr + done.stdout


def change(path: Path, **members: bytes | None) -> None:
    named = {name.replace("__", "."): data for name, data in members.items()}
    write_bundle(path, {n: d for n, d in (contents(path) | named).items() if d is not None})


def test_a_received_bundle(path: Path, signers: Path) -> None:
    for arguments in ([path], [path, signers]):
        done = script(*arguments)
        assert done.returncode == 0, done.stderr
        assert "Signature Verified Successfully" in done.stdout  # openssl, of the DSSE signature
        assert "4 files are as signed" in done.stdout
    authority = PublicKey.of(OPERATOR).fingerprint
    assert f'Good "bench-bundle@v1" signature for bench-run:{RUN_ID}' in done.stdout
    assert (
        f'Good "bench-receipt@v1" signature for lab@example.org with ED25519 key {authority}' in done.stdout
    )


def test_a_bundle_of_nobody_in_particular(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar")
    key = PublicKey.of(KEY)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'me@example.org namespaces="bench-bundle@v1" {key.line()}\n')
    alone, trusted = script(path), script(path, signers)
    assert (alone.returncode, trusted.returncode) == (0, 0), alone.stderr + trusted.stderr
    assert f'Good "bench-bundle@v1" signature with ED25519 key {key.fingerprint}' in alone.stdout
    assert 'Good "bench-bundle@v1" signature for me@example.org' in trusted.stdout


def test_without_a_bundle_it_says_how_it_is_called() -> None:
    done = script()
    assert (done.returncode, done.stderr) == (2, "usage: verify.sh BUNDLE [ALLOWED_SIGNERS]\n")


def test_folders_may_have_spaces_in_their_names(
    path: Path, signers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my b\u00fcndles"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    done = script(path.rename(folder / "b.tar"), signers.rename(folder / "signers"))
    assert done.returncode == 0, done.stderr


def test_a_bundle_by_somebody_else(path: Path, signers: Path) -> None:
    signers.write_text("\n".join(trust_lines(PublicKey.of(STRANGER), "lab@example.org")) + "\n")
    refused("Could not verify signature", path, signers)


def test_a_bundle_that_came_too_late(path: Path, signers: Path) -> None:
    certified(path)
    countersign(path, receipt_for(path, received_at=UNTIL + 1))
    refused("expired", path, signers)


def test_changed_files(path: Path) -> None:
    old = contents(path)
    change(path, results__json=b"{}")
    refused("results.json is not the file that was signed", path)
    write_bundle(path, {name: data for name, data in old.items() if name != "results.json"})
    refused("a signed file is missing", path)
    write_bundle(path, old | {STATEMENT: old[STATEMENT].replace(b"7f3a2c", b"7f3a2d")})
    refused("Signature verification failed", path)
    write_bundle(path, old | {ENVELOPE: seal(b"{}", RUN_KEY)})
    refused("the envelope holds another statement", path)
    write_bundle(path, old | {ENVELOPE: seal(old[STATEMENT], STRANGER)})
    refused("Signature Verification Failure", path)


def test_receipts_that_do_not_fit(path: Path) -> None:
    receipt = receipt_for(path)
    countersign(path, receipt, RUN_KEY)
    refused("the receipt is signed by", path)
    countersign(path, receipt_for(path, statement_sha256="0" * 64))
    refused("the receipt is for another statement", path)
    countersign(path, receipt_for(path, nonce="0" * 64))
    refused("the receipt is for another challenge", path)
    other = receipt.replace(b"1800003600", b"1800003601")
    change(path, **{"receipt__json": other, "receipt__json__sig": sign(receipt, OPERATOR, RECEIPT_NAMESPACE)})
    refused("Signature verification failed", path)
    assert {RECEIPT, RECEIPT_SIGNATURE} <= contents(path).keys()


# --- cosign ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cosign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's own, or Debian 13's unpacked. That it cannot be had is a failure, never a skip."""
    if found := shutil.which("cosign"):
        return Path(found)
    folder = tmp_path_factory.mktemp("cosign")
    done = subprocess.run(["sh", INSTALL_COSIGN, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.e2e
def test_cosign_verifies_the_envelope(path: Path, signers: Path, cosign: Path, tmp_path: Path) -> None:
    for bundle in (path, packed(tmp_path / "own.tar")):
        done = script(bundle, cosign=cosign)
        assert done.returncode == 0, done.stderr + done.stdout
        assert "Verified OK" in done.stdout


UNSIGNED = "could not verify envelope|invalid signature|accepted signatures do not match threshold"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("key", UNSIGNED),
        ("file", "no matching subject digest found"),
        ("type", "invalid predicate type"),
        (
            "envelope",
            "could not verify envelope|invalid signature|accepted signatures do not match threshold",
        ),
    ],
)
def test_cosign_refuses_what_is_wrong(path: Path, cosign: Path, tmp_path: Path, wrong: str, why: str) -> None:
    """So that its "Verified OK" means something."""
    members = contents(path)
    key = (STRANGER if wrong == "key" else RUN_KEY).public_key()
    (tmp_path / "key.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "file").write_bytes(b"{}" if wrong == "file" else members["results.json"])
    statement = members[STATEMENT]
    envelope = seal(statement, RUN_KEY)
    if wrong == "envelope":
        other = signatures(statement.replace(NONCE.encode(), b"00" * 32), RUN_KEY, certificate())[ENVELOPE]
        payload = other[: other.index(b'","payloadType"')]
        envelope = payload + envelope[envelope.index(b'","payloadType"') :]
    (tmp_path / "envelope").write_bytes(envelope)
    predicate = "https://slsa.dev/provenance/v1" if wrong == "type" else _predicate_type(statement)
    command = [cosign, "verify-blob-attestation", "--key", tmp_path / "key.pem", "--insecure-ignore-tlog"]
    command += ["--offline", "--signature", tmp_path / "envelope", "--type", predicate, tmp_path / "file"]
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert re.search(why, done.stderr), done.stderr


def _predicate_type(statement: bytes) -> str:
    return str(json.loads(statement)["predicateType"])
