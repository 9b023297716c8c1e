"""What `bench verify` says, and what it refuses: one named attack after the other, then all bytes at once."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.bundle import SIGNATURE, STATEMENT, open_bundle, write_bundle
from bench.codec import to_json
from bench.errors import BadInput, VerificationFailed
from bench.signing import NAMESPACE, PublicKey, build_statement, sign
from bench.verify import MAX_SIGNATURE_BYTES, Read, TrustPolicy, verify_bundle
from tests.fuzz_bundle import FILES, KEY, check, mutate, nothing, packed, predicate
from tests.needs import needs

OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
PUBLIC = PublicKey.of(KEY)
SCRIPT = Path(__file__).with_name("verify_with_ssh_keygen.sh")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return packed(tmp_path / "b.tar")


def contents(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as bundle:
        return {name: bundle.read(name, 10**6) for name in bundle.members}


def refused(path: Path, why: str, trust: TrustPolicy | None = None) -> None:
    with pytest.raises(VerificationFailed, match=why) as caught:
        verify_bundle(path, trust, nothing)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def trusting(text: str) -> TrustPolicy:
    return TrustPolicy.from_text(text, "trusted")


# --- the verdict ----------------------------------------------------------------------------------------


def test_a_valid_bundle_without_trust(path: Path) -> None:
    verdict = verify_bundle(path, None, lambda read: {"samples": 1234})
    assert verdict.to_lines() == [
        "valid      6 files, 1,234 samples; every summary recomputed and equal",
        f"signed     run 7f3a2c by {PUBLIC.fingerprint}, which --trust has not vouched for",
        "level      self: integrity is proven; origin, freshness and the node's honesty are not",
    ]
    assert to_json(verdict) == {
        "path": str(path),
        "files": 6,
        "size_bytes": path.stat().st_size,
        "run_id": "7f3a2c",
        "fingerprint": PUBLIC.fingerprint,
        "trusted": False,
        "trusted_by": None,
        "level": "self",
        "complete": True,
        "started_at": "2026-12-03T10:00:00Z",
        "ended_at": "2026-12-03T10:55:12Z",
        "recomputed": {"samples": 1234},
    }


def test_a_valid_bundle_by_a_trusted_key(path: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(PUBLIC.line("me"))
    verdict = verify_bundle(path, TrustPolicy.from_file(tmp_path / "key.pub"), nothing)
    assert verdict.trusted
    assert verdict.to_lines()[1:] == [
        f"signed     run 7f3a2c by {PUBLIC.fingerprint}, trusted by {tmp_path}/key.pub",
        "level      self: integrity and origin are proven; freshness and the node's honesty are not",
    ]


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    verdict = check(packed(tmp_path / "b.tar", complete=False))
    assert not verdict.complete
    assert verdict.to_lines()[-1] == "incomplete the run ended before its plan did"


def test_summaries_are_recomputed_from_what_was_signed(path: Path) -> None:
    seen: dict[str, bytes] = {}

    def recompute(read: Read) -> Mapping[str, object]:
        seen.update({name: read(name) for name in FILES})
        raise VerificationFailed("its median is 3, not 2", where="results.json")

    with pytest.raises(VerificationFailed) as caught:
        verify_bundle(path, None, recompute)
    assert str(caught.value) == f"{path}: results.json: its median is 3, not 2"
    assert seen == FILES


def test_a_summary_is_only_asked_for_when_all_else_holds(path: Path) -> None:
    def recompute(read: Read) -> Mapping[str, object]:
        raise AssertionError("must not be reached")

    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0.25", b"0.24", 1))
    with pytest.raises(VerificationFailed, match="sha256"):
        verify_bundle(path, None, recompute)


def test_only_signed_files_are_read(path: Path) -> None:
    for name in ("env.json", STATEMENT):
        with pytest.raises(VerificationFailed, match=name):
            verify_bundle(path, None, lambda read, name=name: {"x": read(name)})  # type: ignore[misc]


def test_a_file_changed_while_it_is_verified_is_noticed(path: Path) -> None:
    packed(path, {**FILES, "samples.jsonl": b"0.25\n" * 10_000})

    def recompute(read: Read) -> Mapping[str, object]:
        path.write_bytes(path.read_bytes().replace(b"0.25", b"0.24", 1))
        return {"samples": read("samples.jsonl")}

    with pytest.raises(VerificationFailed, match=r"samples\.jsonl: changed while it was verified"):
        verify_bundle(path, None, recompute)


# --- attacks: the files ---------------------------------------------------------------------------------


def test_a_swapped_file(path: Path) -> None:
    write_bundle(path, contents(path) | {"results.json": b'{"trials":["0000000000000000"]}'})
    refused(path, r"results\.json: its sha256 is not the signed one")


def test_two_files_exchanged(path: Path) -> None:
    old = contents(path)
    write_bundle(path, old | {"results.json": old["manifest.json"], "manifest.json": old["results.json"]})
    refused(path, r"manifest\.json: its sha256")


def test_an_added_file(path: Path) -> None:
    write_bundle(path, contents(path) | {"env.json": b"{}"})
    refused(path, r"env\.json: is not in the statement: it was added")


def test_a_removed_file(path: Path) -> None:
    old = contents(path)
    del old["logs/0123456789abcdef.txt"]
    write_bundle(path, old)
    refused(path, r"logs/0123456789abcdef\.txt: the statement lists it, the bundle lacks it")


def test_a_renamed_file(path: Path) -> None:
    old = contents(path)
    old["logs/fedcba9876543210.txt"] = old.pop("logs/0123456789abcdef.txt")
    write_bundle(path, old)
    refused(path, r"logs/fedcba9876543210\.txt: is not in the statement")


@pytest.mark.parametrize("name", [STATEMENT, SIGNATURE])
def test_a_missing_statement_or_signature(path: Path, name: str) -> None:
    old = contents(path)
    del old[name]
    write_bundle(path, old)
    refused(path, f"{name}: is missing in the bundle")


def test_a_file_that_was_signed_but_has_no_place_in_a_bundle(path: Path) -> None:
    """Even the key's owner cannot give meaning to a file that this version does not know."""
    files = {**FILES, "advice.json": b"{}"}
    statement = build_statement(digests(files), predicate())
    write_bundle(path, {**files, STATEMENT: statement, SIGNATURE: sign(statement, KEY)})
    refused(path, r"advice\.json is no file of a bundle")


def test_a_signed_bundle_without_samples(path: Path) -> None:
    files = {name: data for name, data in FILES.items() if name != "samples.jsonl"}
    statement = build_statement(digests(files), predicate())
    write_bundle(path, {**files, STATEMENT: statement, SIGNATURE: sign(statement, KEY)})
    refused(path, r"samples\.jsonl is missing")


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_a_statement_that_lists_itself(path: Path) -> None:
    statement = build_statement({**digests(FILES), STATEMENT: "0" * 64}, predicate())
    write_bundle(path, {**FILES, STATEMENT: statement, SIGNATURE: sign(statement, KEY)})
    refused(path, r"statement\.json: the statement lists it")


# --- attacks: the statement and the signature -----------------------------------------------------------


def resigned(path: Path, statement: bytes, key: Ed25519PrivateKey = KEY, namespace: str = NAMESPACE) -> None:
    """What a key's owner may try: any statement, correctly signed."""
    signature = sign(statement, key, namespace)
    write_bundle(path, contents(path) | {STATEMENT: statement, SIGNATURE: signature})


def test_another_statement_under_the_old_signature(path: Path) -> None:
    old = contents(path)
    write_bundle(path, old | {STATEMENT: old[STATEMENT].replace(b"7f3a2c", b"7f3a2d")})
    refused(path, "the signature does not fit")


def test_a_signature_for_another_namespace(path: Path) -> None:
    resigned(path, contents(path)[STATEMENT], namespace="git")
    refused(path, "the signature was made for the namespace git")


@pytest.mark.parametrize(
    ("found", "written", "why"),
    [
        (b"bench/run/v1", b"bench/run/v9", "schema is 'bench/run/v9'; .* knows only"),
        (b"Statement/v1", b"Statement/v9", "_type .* knows only"),
        (b'"level":"self"', b'"level":"operator"', "is none of 'self'"),
        (b'"complete":true', b'"complete":true,"complete":false', "'complete' stands twice"),
        (b'"complete":true', b'"complete":NaN', "NaN"),
        (b'"driver":"570.124"', b'"driver":9007199254740993', r"past 2\*\*53"),
        (b'"driver":"570.124"', b'"driver":' + b"[" * 99 + b"]" * 99, "nested too deeply"),
        (b'{"_type"', b'{ "_type"', "canonical form"),
    ],
)
def test_a_correctly_signed_statement_that_is_no_statement(
    path: Path, found: bytes, written: bytes, why: str
) -> None:
    resigned(path, contents(path)[STATEMENT].replace(found, written, 1))
    refused(path, why)


def test_a_huge_statement_or_signature_is_not_read(path: Path) -> None:
    old = contents(path)
    write_bundle(path, old | {SIGNATURE: bytes(MAX_SIGNATURE_BYTES + 1)})
    refused(path, f"at most {MAX_SIGNATURE_BYTES} of it are read")
    write_bundle(path, old | {STATEMENT: bytes(5 * 2**20)})
    refused(path, "of it are read")


def test_an_attackers_own_signature_is_valid_but_never_trusted(path: Path) -> None:
    """Without --trust integrity alone is claimed; with it, another key is refused before anything is read."""
    resigned(path, contents(path)[STATEMENT], OTHER)
    assert check(path).fingerprint == PublicKey.of(OTHER).fingerprint
    refused(
        path, "not trusted by trusted: signed by SHA256:.*, which is not among them", trusting(PUBLIC.line())
    )


# --- whom to trust --------------------------------------------------------------------------------------

ELSE = PublicKey.of(OTHER).line("somebody else")
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== rsa"
BLOB = PUBLIC.line()


@pytest.mark.parametrize(
    ("text", "by"),
    [
        (BLOB, "trusted"),
        (f"{BLOB} with a \"comment that's odd", "trusted"),
        (f"\n# comment\r\n  {ELSE}\n{RSA}\n{BLOB}\r\n", "trusted"),
        (f"me@example.org {BLOB}", "trusted as me@example.org"),
        (f"me@a,me@b\t{BLOB} comment", "trusted as me@a,me@b"),
        (f'"me and you" {BLOB}', "trusted as me and you"),
        (f'*\tnamespaces="git,{NAMESPACE}" {BLOB}', "trusted as *"),
        (f'me namespaces="bench-*" {BLOB}', "trusted as me"),
        (f'me NAMESPACES="bench-bundle@v?" {BLOB}', "trusted as me"),
        (f'me valid-after="20200101",valid-before="29990101Z" {BLOB}', "trusted as me"),
        (f'me valid-before="20200101" {BLOB}\nyou {BLOB}', "trusted as you"),
        (f"you no-touch-required {RSA}\nme {BLOB}", "trusted as me"),
    ],
)
def test_a_key_that_the_file_lists_is_trusted(path: Path, text: str, by: str) -> None:
    assert verify_bundle(path, trusting(text), nothing).trusted_by == by


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ELSE, "which is not among them"),
        (f'me namespaces="git" {BLOB}', "is allowed for the namespaces git only"),
        (f'me namespaces="*,!bench-*" {BLOB}', "is allowed for the namespaces"),
        (f'me namespaces="" {BLOB}', "is allowed for the namespaces"),
        (f'me namespaces="bench.bundle@v1" {BLOB}', "is allowed for the namespaces"),
        (f'me valid-after="29990101" {BLOB}', "is not valid yet"),
        (f'me valid-before="20200101120000Z" {BLOB}', "is no longer valid"),
        (f"me cert-authority {BLOB}\n{ELSE}", "which is not among them"),
    ],
)
def test_a_key_that_the_file_restricts_is_not_trusted(path: Path, text: str, why: str) -> None:
    refused(path, why, trusting(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lists no Ed25519 key"),
        (f"# {BLOB}", "lists no Ed25519 key"),
        (RSA, "lists no Ed25519 key"),
        ("hello", "line 1: is neither a public key nor"),
        (f"{ELSE}\nme and you {BLOB} x", "line 2: is neither"),
        (f'me "unclosed {BLOB}', "line 1: is neither"),
        ("ssh-ed25519 AAAA", "line 1: ends too early"),
        ("ssh-ed25519 ????", "line 1: is no base64"),
        (f"me no-touch-required {BLOB}", "does not understand: 'no-touch-required'"),
        (f"me namespaces=git {BLOB}", "does not understand: 'namespaces=git'"),
        (f'me namespaces="a",namespaces="b" {BLOB}', "does not understand"),
        (f'me valid-before="tomorrow" {BLOB}', "has a time that is not"),
        (f'me valid-before="20201301" {BLOB}', "has a time that is not"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "is a private key"),
    ],
)
def test_a_file_that_lists_no_key_is_bad_input(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        trusting(text)


def test_a_trust_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    for name, why in {
        "absent": "No such file",
        ".": "Is a directory",
        "binary": "text",
        "large": "more",
    }.items():
        with pytest.raises(BadInput, match=why):
            TrustPolicy.from_file(tmp_path / name)


# --- every byte -----------------------------------------------------------------------------------------


def test_one_byte_changed_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(whole):
            file.seek(at)
            file.write(bytes([byte ^ 1 << at % 8]))
            with pytest.raises(VerificationFailed):
                check(path)
            file.seek(at)
            file.write(bytes([byte]))
    check(path)


def test_a_bundle_cut_anywhere_is_refused(path: Path) -> None:
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(VerificationFailed):
            check(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "b.tar"


@pytest.fixture(scope="module")
def whole(scratch: Path) -> bytes:
    return packed(scratch).read_bytes()


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
def test_random_damage_is_never_accepted(scratch: Path, whole: bytes, seed: int) -> None:
    scratch.write_bytes(mutate(whole, random.Random(seed)))
    with pytest.raises(VerificationFailed):
        check(scratch)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=3000))
def test_nothing_random_is_a_bundle(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    with pytest.raises(VerificationFailed):
        check(scratch)


# --- what is no bundle at all ---------------------------------------------------------------------------


def test_a_path_that_is_no_file_is_bad_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path, why in {
        tmp_path / "absent": "No such file",
        tmp_path / "file/b.tar": "Not a directory",
        tmp_path / ("x" * 300): "too long",
        tmp_path / "nul\0": "null",
        tmp_path: "is no regular file",
        tmp_path / "pipe": "is no regular file",
        Path("/dev/zero"): "is no regular file",
    }.items():
        with pytest.raises(BadInput, match=why) as caught:
            check(path)
        assert caught.value.where == str(path)


def test_a_file_that_is_no_bundle_fails_verification(path: Path) -> None:
    whole = path.read_bytes()
    for data, why in {
        b"": "ends too early",
        whole[:-1]: "truncated|follows the end",
        whole[: len(whole) // 2]: "truncated",
        gzip.compress(whole): "is compressed by gzip; .* decompress it first",
        random.Random(0).randbytes(5000): "is no bundle",
        whole * 2: "follows the end",
    }.items():
        path.write_bytes(data)
        refused(path, why)


def test_a_tar_by_another_program_fails_verification(path: Path, tmp_path: Path) -> None:
    """The right files with the right signature, packed by tar: refused for the form alone."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", folder], check=True)
    subprocess.run(["tar", "-cf", path, "-C", folder, *sorted(contents(path))], check=True)
    refused(path, "is not as bench writes it")


def test_a_symbolic_link_to_a_bundle_is_a_bundle(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert check(tmp_path / "link").run_id == "7f3a2c"


# --- without bench, and its cost ------------------------------------------------------------------------


@needs("ssh-keygen")
def test_a_stranger_verifies_with_ssh_keygen_and_tar(path: Path, tmp_path: Path) -> None:
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'me@example.org namespaces="{NAMESPACE}" {PUBLIC.line()}\n')

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", SCRIPT, path, *arguments], capture_output=True, text=True, check=False)

    alone, trusted = script(), script(str(signers), "me@example.org")
    assert (alone.returncode, trusted.returncode) == (0, 0), alone.stderr + trusted.stderr
    assert f'Good "{NAMESPACE}" signature with ED25519 key {PUBLIC.fingerprint}' in alone.stdout
    assert f'Good "{NAMESPACE}" signature for me@example.org' in trusted.stdout
    assert "4 files are as signed" in trusted.stdout
    assert script(str(signers), "you@example.org").returncode != 0

    old = contents(path)
    write_bundle(path, old | {"results.json": b"{}"})
    assert "results.json is not the file that was signed" in script().stderr
    write_bundle(path, {name: data for name, data in old.items() if name != "results.json"})
    assert "a signed file is missing" in script().stderr
    write_bundle(path, old | {STATEMENT: old[STATEMENT].replace(b"7f3a2c", b"7f3a2d")})
    assert script().returncode != 0


def test_verification_imports_little() -> None:
    """`bench verify` starts in a fraction of a second only as long as this holds."""
    code = "import sys, bench.verify; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {
        "torch",
        "numpy",
        "jsonschema",
        "rich",
        "tarfile",
        "tempfile",
        "subprocess",
        "asyncio",
        "bench.keys",
    }
    assert not heavy & set(loaded)
    assert "cryptography.hazmat.primitives.serialization.ssh" not in loaded
