"""Verification without bench: docs/verify.py, with ssh-keygen and openssl; cosign in end-to-end tests."""

from __future__ import annotations

import ast
import base64
import contextlib
import gzip
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.base.errors import VerificationFailed
from bench.base.strict_json import canonical_json
from bench.bundle.handshake import (
    BUNDLE_NAMESPACE,
    NAMESPACE_OPTION,
    NONCE_OPTION,
    RECEIPT_NAMESPACE,
    REQUEST_NAMESPACE,
)
from bench.bundle.pack import signatures, write_bundle
from bench.bundle.tar_format import CERTIFICATE, ENVELOPE, RECEIPT, RECEIPT_SIGNATURE, STATEMENT
from bench.bundle.verify import TrustRules, verify_bundle
from bench.operator.keyring import trust_lines
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.dsse import seal
from bench.signing.ssh_keys import PublicKey
from bench.signing.sshsig import sign
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
from tests.bundle.forged_chain import RIGHT, Forger, allowed_signers
from tests.bundles import BLOCK, KEY, nothing, packed
from tests.needs import needs

SCRIPT = Path(__file__).parents[2] / "docs" / "verify.py"
INSTALL_COSIGN = Path(__file__).with_name("install_cosign.sh")
pytestmark = [needs("ssh-keygen"), needs("openssl")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return received(tmp_path / "b.tar")


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    """Write the allowed_signers lines that an operator publishes."""
    path = tmp_path / "allowed_signers"
    path.write_text("\n".join(trust_lines(PublicKey.of(OPERATOR), "lab@example.org")) + "\n")
    return path


def script(
    *arguments: str | Path, cosign: Path | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    tools = f"{cosign.parent}:" if cosign else ""
    environment = os.environ | {"PATH": tools + os.environ["PATH"], "HOME": tempfile.gettempdir()}
    command = [sys.executable, "-I", SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


@cache
def module() -> Any:
    """Import the script, for the many cases that need no new Python."""
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def called(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Call the script's main function. An exception, which would be a traceback of a process, is raised."""
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = module().main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), errors.getvalue())


def refused(why: str, *arguments: str | Path) -> None:
    done = called(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr


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


def test_a_bundle_of_an_unknown_signer(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar")
    key = PublicKey.of(KEY)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'me@example.org namespaces="bench-bundle@v1" {key.line()}\n')
    alone, trusted = script(path), script(path, signers)
    assert (alone.returncode, trusted.returncode) == (0, 0), alone.stderr + trusted.stderr
    assert f'Good "bench-bundle@v1" signature with ED25519 key {key.fingerprint}' in alone.stdout
    assert 'Good "bench-bundle@v1" signature for me@example.org' in trusted.stdout


def test_without_a_bundle_the_script_prints_its_usage() -> None:
    done = script()
    assert (done.returncode, done.stderr) == (2, "usage: verify.py BUNDLE [ALLOWED_SIGNERS [KRL]]\n")


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
    refused("the envelope is not signed by the key of the statement alone", path)
    envelope = json.loads(old[ENVELOPE])
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    write_bundle(path, old | {ENVELOPE: canonical_json(envelope)})
    refused("Signature Verification Failure", path)


def test_receipts_that_do_not_fit(path: Path) -> None:
    receipt = receipt_for(path)
    countersign(path, receipt, RUN_KEY)
    refused("the receipt is signed by", path)
    countersign(path, receipt_for(path, statement_sha256="0" * 64))
    refused("the receipt is for another statement", path)
    countersign(path, receipt_for(path, nonce="0" * 64))
    refused("the receipt is for another challenge", path)
    countersign(path, receipt_for(path, certificate_sha256="0" * 64))
    refused("the receipt is for another certificate", path)
    countersign(path, receipt_for(path, run_id="another"))
    refused("the receipt is for another run", path)
    countersign(path, receipt_for(path, challenged_at=UNTIL))
    refused("the receipt contradicts itself", path)
    countersign(path, receipt_for(path, received_at=UNTIL))
    refused("the certificate was not valid yet, or had expired", path)
    other = receipt.replace(b"1800003600", b"1800003601")
    change(path, **{"receipt__json": other, "receipt__json__sig": sign(receipt, OPERATOR, RECEIPT_NAMESPACE)})
    refused("Signature verification failed", path)
    assert {RECEIPT, RECEIPT_SIGNATURE} <= contents(path).keys()


EMPTY = "logs/0123456789abcdef.txt"


def header_of(name: str, kind: bytes, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info.tobuf(tarfile.USTAR_FORMAT)


def in_place_of_an_empty_file(path: Path, header: bytes) -> None:
    """A link in place of an empty file has the same signed bytes, namely none."""
    data = path.read_bytes()
    at = data.index(EMPTY.encode().ljust(100, b"\0"))
    path.write_bytes(data[:at] + header + data[at + BLOCK :])


def test_containers_that_bench_refuses(path: Path) -> None:
    """The unpacked files could otherwise differ from the verified ones."""
    good = path.read_bytes()
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        path.write_bytes(good)
        in_place_of_an_empty_file(path, header_of(EMPTY, kind, "/etc/passwd"))
        refused("is no plain tar of regular files", path)
    for tail in (bytes(BLOCK), good):
        path.write_bytes(good + tail)
        refused("holds something after the files", path)
    path.write_bytes(gzip.compress(good))
    refused("is no plain tar", path)
    refused("is no regular file", path.parent)
    refused("is no regular file", path.parent / "nothing.tar")


OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"x" * 32)


def test_a_certificate_exchanged_in_its_file(path: Path, signers: Path) -> None:
    """The envelope is signed by the exchanged certificate's key, so its PEM would be the wrong key."""
    old = contents(path)
    forged = f"{certificate(OTHER_KEY, STRANGER).line()}\n".encode()
    write_bundle(path, old | {CERTIFICATE: forged, ENVELOPE: seal(old[STATEMENT], OTHER_KEY)})
    refused("run-cert.pub is not the certificate of the signature", path, signers)


@pytest.mark.parametrize("name", [CERTIFICATE, ENVELOPE, RECEIPT, RECEIPT_SIGNATURE])
def test_removed_files(path: Path, signers: Path, name: str) -> None:
    write_bundle(path, {n: data for n, data in contents(path).items() if n != name})
    assert script(path, signers).returncode != 0
    assert script(path).returncode != 0


@pytest.mark.parametrize(
    "other",
    [
        {"options": {NAMESPACE_OPTION: BUNDLE_NAMESPACE, NONCE_OPTION: "0" * 64}},
        {"options": {NAMESPACE_OPTION: REQUEST_NAMESPACE, NONCE_OPTION: NONCE}},
        {"options": {NONCE_OPTION: NONCE}},
        {"principals": (f"bench-run:{RUN_ID}", "lab@example.org")},
        {"key_id": "another"},
    ],
)
def test_a_certificate_for_something_else(path: Path, signers: Path, other: dict[str, Any]) -> None:
    certified(path, certificate(**other))
    refused("the certificate is not for this run and this challenge alone", path, signers)


def test_a_level_that_nobody_certified(path: Path) -> None:
    packed(path, level="operator", nonce=NONCE)
    refused("the statement says level operator, and has no certificate", path)


def test_what_is_revoked(path: Path, signers: Path, tmp_path: Path) -> None:
    assert script(path, signers).returncode == 0
    authority, krl = tmp_path / "authority.pub", tmp_path / "krl"
    authority.write_text(f"{PublicKey.of(OPERATOR).line()}\n")
    for listed, is_this in (
        ("id: bench run another", False),
        (f"id: bench run {RUN_ID}", True),
        (f"key: {authority.read_text()}", True),
    ):
        (tmp_path / "revoked").write_text(f"{listed}\n")
        command = ["ssh-keygen", "-q", "-k", "-f", krl, "-s", authority, tmp_path / "revoked"]
        subprocess.run(command, check=True)
        done = script(path, signers, krl)
        assert ("Could not verify signature" in done.stderr) == is_this
        assert (done.returncode != 0) == is_this


# --- the script and bench agree -------------------------------------------------------------------------

FORGED = dict(Forger(int(time.time())).cases())


def bench_accepts(path: Path) -> bool:
    """Whether bench takes a bundle, apart from mistakes that only its samples and results can show."""
    try:
        verify_bundle(path, nothing, TrustRules(TrustPolicy.from_text(allowed_signers(), "allowed_signers")))
    except VerificationFailed:
        return False
    return True


@pytest.mark.parametrize("name", FORGED)
def test_the_script_refuses_whatever_bench_refuses(name: str, tmp_path: Path) -> None:
    path, signers = tmp_path / "b.tar", tmp_path / "allowed_signers"
    path.write_bytes(FORGED[name])
    signers.write_text(allowed_signers())
    done = called(path, signers)
    assert bench_accepts(path) == (name in RIGHT)
    assert done.returncode == (0 if name in RIGHT else 1), done.stderr
    assert ("files are as signed" in done.stdout) == (name in RIGHT)


def test_a_key_whose_signatures_fit_every_statement_is_refused(tmp_path: Path) -> None:
    """ssh-keygen and openssl accept signatures of a key of low order."""
    path = tmp_path / "b.tar"
    path.write_bytes(Forger(0).by_a_weak_key())
    with pytest.raises(VerificationFailed, match="low order"):
        verify_bundle(path, nothing)
    refused("a weak one", path)


@pytest.mark.parametrize("name", ["host:x.tar", "-x.tar", "--help", "a b.tar", "$(id).tar"])
def test_a_bundle_s_name_is_only_a_name(name: str, path: Path, signers: Path) -> None:
    """tar reads host:x.tar from another machine, and -x.tar as an option."""
    path.rename(path.parent / name)
    assert script(name, signers, folder=path.parent).returncode == 0


def test_the_script_needs_nothing_but_python_and_two_programs() -> None:
    source = SCRIPT.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            assert {str(name).partition(".")[0] for name in names} <= sys.stdlib_module_names
        assert not isinstance(node, ast.Assert)  # python -O leaves them out
    programs = set(re.findall(r'"(\S+) [^"]*-(?:Y|verify|-key)\b', source))
    assert programs == {"ssh-keygen", "openssl", "cosign"}


# --- cosign ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cosign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return cosign: the installed one, or Debian 13's package, unpacked. Without both, the test fails."""
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
    """This shows that cosign's "Verified OK" is meaningful."""
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
