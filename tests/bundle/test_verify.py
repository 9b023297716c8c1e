"""`bench verify` accepts a good bundle and refuses every kind of damage.

test_attacks.py has a test for each attack.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.errors import BadInput, BenchError, VerificationFailed
from bench.base.strict_json import canonical_json
from bench.bundle import verify
from bench.bundle.handshake import BUNDLE_NAMESPACE, Receipt
from bench.bundle.pack import write_bundle
from bench.bundle.stated_manifest import read_stated
from bench.bundle.statement import Predicate
from bench.bundle.tar_format import ENVELOPE, SIGNATURE, STATEMENT
from bench.bundle.verdict import TO_TRUST, Note
from bench.bundle.verify import Files, TrustRules, verify_bundle
from bench.records.trial import Gpu, NodeFacts
from bench.signing.ssh_keys import PublicKey
from bench.signing.sshsig import sign
from tests.authority import OPERATOR, UNTIL, certified, contents, received, trusting
from tests.bundles import FILES, KEY, MadeUpContents, check, nothing, packed
from tests.fuzz import Targets
from tests.large import large_bundle, peak_bytes

OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
PUBLIC = PublicKey.of(KEY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return packed(tmp_path / "b.tar")


def refused(path: Path, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why) as caught:
        verify_bundle(path, nothing)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


# --- the verdict ----------------------------------------------------------------------------------------


def test_a_valid_bundle_without_trust(path: Path) -> None:
    verdict = verify_bundle(path, lambda files: MadeUpContents(samples=1234))
    assert verdict.to_lines() == [
        "valid      7 files, 1,234 samples; every summary recomputed and equal",
        f"signed     run 7f3a2c by {PUBLIC.fingerprint}",
        "doubt      not trusted: no list of trusted keys is given or kept",
        f"           {TO_TRUST}",
        "level      self: integrity is proven; origin, freshness and the node's honesty are not",
    ]
    document = verdict.to_json()
    assert isinstance(document.pop("statement_sha256"), str)
    assert isinstance(document.pop("manifest_sha256"), str)
    assert document == {
        "path": str(path),
        "files": 7,
        "size_bytes": path.stat().st_size,
        "run_id": "7f3a2c",
        "fingerprint": PUBLIC.fingerprint,
        "certified_by": None,
        "certificate_sha256": None,
        "certified_until": None,
        "trusted": False,
        "trusted_by": None,
        "doubt": "not trusted: no list of trusted keys is given or kept",
        "level": "self",
        "level_claimed": "self",
        "nonce": None,
        "challenged_at": None,
        "received_at": None,
        "seen_seconds": None,
        "complete": True,
        "started_at": "2027-01-15T08:00:00Z",
        "ended_at": "2027-01-15T08:55:12Z",
        "recomputed": {"samples": 1234},
    }


def test_a_valid_bundle_by_a_trusted_key(path: Path) -> None:
    verdict = verify_bundle(path, nothing, TrustRules(trusting(KEY)))
    assert verdict.trusted
    assert verdict.to_lines()[1:] == [
        f"signed     run 7f3a2c by {PUBLIC.fingerprint}, trusted by trusted",
        "level      self: integrity and origin are proven; freshness and the node's honesty are not",
    ]


def test_a_received_bundle_by_a_trusted_operator(path: Path) -> None:
    verdict = verify_bundle(received(path), nothing, TrustRules(trusting(OPERATOR)))
    by = PublicKey.of(OPERATOR).fingerprint
    assert verdict.to_lines()[1:] == [
        "signed     run 7f3a2c by a key made for it",
        f"certified  by {by}, trusted by trusted",
        "received   and countersigned by the same key on 2027-01-15T09:00:00Z, 60 min after its challenge",
        "level      operator: integrity, origin and freshness are proven; the node's honesty is not",
    ]


def test_the_level_is_what_is_proven_not_what_is_claimed(path: Path) -> None:
    """A receipt by an unknown signer proves nothing; a certificate without a receipt proves no freshness."""
    unknown = verify_bundle(received(path), nothing)
    assert (unknown.level, unknown.level_claimed, unknown.trusted) == ("self", "operator", False)
    unreceived = verify_bundle(certified(path), nothing, TrustRules(trusting(OPERATOR), now=UNTIL - 60))
    assert (unreceived.level, unreceived.level_claimed, unreceived.trusted) == ("self", "operator", True)
    assert unreceived.to_lines()[-1].startswith("level      self: integrity and origin are proven; freshness")


def test_a_bundle_outside_the_users_own_list_is_still_verified(path: Path) -> None:
    """--trust requires a listed key; the user's own list only adds information."""
    verdict = verify_bundle(path, nothing, TrustRules(trusting(OPERATOR), demanded=False))
    assert not verdict.trusted
    assert verdict.doubt == "not trusted: the key that signed it is not listed (trusted keys: trusted)"
    assert verdict.to_lines()[1:3] == [
        f"signed     run 7f3a2c by {PUBLIC.fingerprint}",  # once
        f"doubt      {verdict.doubt}",
    ]


def test_a_certificate_that_expired_without_a_receipt_is_a_doubt_where_no_trust_was_demanded(
    path: Path,
) -> None:
    rules = TrustRules(trusting(OPERATOR), demanded=False, now=UNTIL)
    verdict = verify_bundle(certified(path), nothing, rules)
    assert not verdict.trusted
    assert verdict.doubt == "no receipt, and the run's certificate had expired: at 2027-01-15T10:00:00Z"


def test_the_times_of_a_verdict_are_the_operators(path: Path) -> None:
    found = verify_bundle(received(path), nothing, TrustRules(trusting(OPERATOR)))
    assert found.challenged_at == "2027-01-15T08:00:00Z"
    assert found.received_at == "2027-01-15T09:00:00Z"
    assert found.seen_seconds == 3600
    alone = verify_bundle(certified(path), nothing, TrustRules(trusting(OPERATOR), now=UNTIL - 60))
    assert (alone.challenged_at, alone.received_at, alone.seen_seconds) == (None, None, None)


@pytest.mark.parametrize(("asked", "train"), [(None, 2), (1, 1), (2, 2), (3, 2), (8, 2), (0, 2), (-1, 2)])
def test_all_gpus_of_a_node_train_unless_the_manifest_asks_for_fewer(asked: int | None, train: int) -> None:
    gpus = tuple(Gpu(i, "a card", f"GPU-{i}", 2**34, "9.0") for i in range(2))
    node = NodeFacts("a CPU", 8, 2**36, "Debian", "6.1", "3.12", gpus)
    stated = read_stated(canonical_json({"models": ["pythia-1b"], "gpus": asked}))
    assert stated.gpus_of(node) == train


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    verdict = check(packed(tmp_path / "b.tar", complete=False))
    assert not verdict.complete
    assert verdict.to_lines()[-1] == "incomplete the run ended before its plan did"


# --- the files ------------------------------------------------------------------------------------------


def test_values_on_trust_are_reported_with_every_verdict(path: Path) -> None:
    """The operator who receives the bundle sees them too, because the receipt vouches for it."""
    noted = verify_bundle(path, lambda files: MadeUpContents(notes=(Note("tiny", "counted as it ran"),)))
    assert noted.to_lines()[-1] == "on trust   tiny: counted as it ran"


def test_summaries_are_recomputed_from_what_was_signed(path: Path) -> None:
    seen: dict[str, bytes] = {}

    def recompute(files: Files) -> MadeUpContents:
        seen.update({name: files.read(name) for name in FILES})
        raise VerificationFailed("its median is 3, not 2", where="results.json")

    with pytest.raises(VerificationFailed) as caught:
        verify_bundle(path, recompute)
    assert str(caught.value) == f"{path}: results.json: its median is 3, not 2"
    assert seen == FILES


def test_summaries_are_recomputed_only_after_all_other_checks(path: Path) -> None:
    def recompute(files: Files) -> MadeUpContents:
        raise AssertionError("must not be reached")

    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.24", 1))
    with pytest.raises(VerificationFailed, match="sha256"):
        verify_bundle(path, recompute)


def test_only_signed_files_are_read(path: Path) -> None:
    for name in ("env.json", STATEMENT, ENVELOPE):
        for read in (lambda files, name=name: {"x": files.read(name)},
                     lambda files, name=name: {"x": list(files.lines(name))}):  # fmt: skip
            with pytest.raises(VerificationFailed, match=name):
                verify_bundle(path, read)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"a\n\nb", [b"a", b"", b"b"]), (b"\n", [b""]),
     (b"x" * 300_000 + b"\n" + b"y" * 300_000, [b"x" * 300_000, b"y" * 300_000])],
)  # fmt: skip
def test_lines_are_read_as_written(path: Path, data: bytes, lines: list[bytes]) -> None:
    packed(path, {**FILES, "samples.jsonl": data})
    found: list[bytes] = []
    verify_bundle(path, lambda files: {"x": found.extend(files.lines("samples.jsonl"))})
    assert found == lines


@pytest.mark.parametrize(
    ("most", "more", "why"),
    [
        (b"x" * 2**23, b"x", "has a line of more than 8388608 bytes"),
        (b"\n" * 100_000, b"\n", "has more than 100,000 lines"),
    ],
    ids=["one line", "many lines"],
)
def test_the_lines_of_a_file_are_bounded(path: Path, most: bytes, more: bytes, why: str) -> None:
    """Each line costs a reader a hundred times its bytes."""
    packed(path, {**FILES, "samples.jsonl": most})
    verify_bundle(path, lambda files: {"x": list(files.lines("samples.jsonl"))})
    packed(path, {**FILES, "samples.jsonl": most + more})
    with pytest.raises(VerificationFailed, match=rf"samples\.jsonl: {why}"):
        verify_bundle(path, lambda files: {"x": list(files.lines("samples.jsonl"))})


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_changed_while_it_is_verified_is_noticed(path: Path, whole: bool) -> None:
    packed(path, {**FILES, "samples.jsonl": b"0.25\n" * 10_000})

    def recompute(files: Files) -> MadeUpContents:
        path.write_bytes(path.read_bytes().replace(b"0.25", b"0.24", 1))
        return {"x": files.read("samples.jsonl") if whole else list(files.lines("samples.jsonl"))}

    with pytest.raises(VerificationFailed, match=r"samples\.jsonl: changed while it was verified"):
        verify_bundle(path, recompute)


@pytest.mark.parametrize("reasons", [0x04, 0x20])
def test_telemetry_is_searched_while_its_digest_is_checked(path: Path, reasons: int) -> None:
    """The largest file is read once, unless a GPU was held back."""
    telemetry = b'{"throttle_reasons":0}\n' * 20_000 + b'{"throttle_reasons": %d}' % reasons
    packed(path, {**FILES, "telemetry.jsonl": telemetry})
    found: list[bool] = []
    verify_bundle(path, lambda files: {"x": found.append(files.held_back)})
    assert found == [reasons == 0x20]
    path.write_bytes(path.read_bytes().replace(b"reasons", b"seasons", 1))
    with pytest.raises(VerificationFailed, match=r"telemetry\.jsonl: its sha256 is not the signed one"):
        verify_bundle(path, lambda files: {"x": found.append(files.held_back)})
    assert len(found) == 1


def test_the_highest_load_in_all_of_telemetry_counts(path: Path) -> None:
    blocks = [b'{"load":%.1f, "padding":"%060d"}\n' % (load, 0) * 30_000 for load in (1.5, 7.5, 0.5)]
    packed(path, {**FILES, "telemetry.jsonl": b"".join(blocks).removesuffix(b"\n")})
    found: list[float] = []
    verify_bundle(path, lambda files: {"x": found.append(files.top_load)})
    assert found == [7.5]


@pytest.mark.parametrize(("received", "notes"), [(0, 0), (3600, 0), (3601, 1)])
def test_a_run_may_end_an_hour_after_its_receipt_and_in_the_last_second_of_all(
    received: int, notes: int
) -> None:
    """Clocks differ; after the year 9999 no time can be written."""
    last = 253_402_300_799  # 9999-12-31T23:59:59Z
    receipt = SimpleNamespace(challenged_at=last - 7200, received_at=last - received)
    run = SimpleNamespace(started_at="9999-12-31T22:59:59Z", ended_at="9999-12-31T23:59:59Z")
    found = verify._of_other_times(cast(Receipt, receipt), cast(Predicate, run))
    assert len(list(found)) == notes


def test_a_bundle_signed_twice_by_different_keys_is_refused(path: Path) -> None:
    statement = contents(path)[STATEMENT]
    write_bundle(path, contents(path) | {SIGNATURE: sign(statement, OTHER, BUNDLE_NAMESPACE)})
    refused(path, "the envelope is not signed by")


def test_a_huge_statement_or_signature_is_not_read(path: Path) -> None:
    """Writer and reader refuse it by the size in its header."""
    for name in (STATEMENT, SIGNATURE, ENVELOPE):
        with pytest.raises(BadInput, match=f"{name} has .* it has at most"):
            write_bundle(path, contents(path) | {name: bytes(7 * 2**20)})


# --- every byte -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [packed, pytest.param(received, marks=pytest.mark.slow)])
def test_one_byte_changed_anywhere_is_refused(path: Path, make: Callable[[Path], Path]) -> None:
    make(path)
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
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    return Targets(tmp_path_factory.mktemp("targets"))


@settings(max_examples=500, deadline=None)
@given(number=st.integers(0, 3), seed=st.integers(0, 2**64 - 1))
def test_random_damage_and_forgery_are_never_accepted(targets: Targets, number: int, seed: int) -> None:
    """A short run of `make fuzz`: only a BenchError may be raised."""
    try:
        accepted = targets.attempt(number, random.Random(seed))
    except BenchError:
        accepted = False
    assert not accepted


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=3000))
def test_nothing_random_is_a_bundle(targets: Targets, data: bytes) -> None:
    targets.path.write_bytes(data)
    with pytest.raises(VerificationFailed):
        check(targets.path)


# --- files that are no bundles ---------------------------------------------------------------------------


def test_a_path_that_is_not_a_file_is_bad_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path, why in {
        tmp_path / "absent": "No such file",
        tmp_path / "file/b.tar": "Not a directory",
        tmp_path / ("x" * 300): "too long",
        tmp_path / "nul\0": "null",
        tmp_path: "is not a regular file",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
    }.items():
        with pytest.raises(BadInput, match=why) as caught:
            check(path)
        assert caught.value.where == str(path)


def test_a_file_that_is_not_a_bundle_fails_verification(path: Path) -> None:
    whole = path.read_bytes()
    for data, why in {
        b"": "ends too early",
        whole[:-1]: "ends too early",
        whole[: len(whole) // 2]: "truncated",
        gzip.compress(whole): "is compressed by gzip; .* decompress it first",
        random.Random(0).randbytes(5000): "is not a bundle",
        whole * 2: "follows the end",
    }.items():
        path.write_bytes(data)
        refused(path, why)


def test_a_tar_by_another_program_fails_verification(path: Path, tmp_path: Path) -> None:
    """The files and the signature are valid; only the form of the archive is refused."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", folder], check=True)
    subprocess.run(["tar", "-cf", path, "-C", folder, *sorted(contents(path))], check=True)
    refused(path, "is not as bench writes it")


def test_a_symbolic_link_to_a_bundle_is_a_bundle(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert check(tmp_path / "link").run_id == "7f3a2c"


# --- its cost ---------------------------------------------------------------------------------------------


def test_verification_imports_little() -> None:
    """Few imports keep the start of `bench verify` below a second."""
    code = "import sys, bench.bundle.verify; print(*sys.modules)"
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
        "bench.signing.key_file",
    }
    assert not heavy & set(loaded)
    assert "cryptography.hazmat.primitives.serialization.ssh" not in loaded


@pytest.mark.slow
def test_memory_does_not_grow_with_the_bundle(tmp_path: Path) -> None:
    """Telemetry is hashed in pieces, and samples are read line by line."""
    small = peak_bytes(large_bundle(tmp_path / "small.tar", 2 * 10**6))
    for name, size, trials in (("telemetry", 40 * 10**6, 20), ("samples", 20 * 10**6, 1000)):
        assert peak_bytes(large_bundle(tmp_path / f"{name}.tar", size, trials)) < small + 8 * 2**20, name
    assert small > 8 * 2**20  # otherwise the process was not measured


class MadeUp:
    """The part of a bundle that has telemetry in several chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.statement = SimpleNamespace(
            predicate=None, subjects={"telemetry.jsonl": hashlib.sha256(b"".join(chunks)).hexdigest()}
        )

    def chunks(self, _name: str) -> Iterator[bytes]:
        return iter(self._chunks)


def files_of(*chunks: bytes) -> Files:
    made_up = MadeUp(*chunks)
    return Files(made_up, made_up.statement, 0.0)  # type: ignore[arg-type]


def test_a_gpu_that_was_held_back_in_any_block_of_telemetry_is_noticed() -> None:
    held, free = (b'{"throttle_reasons":%d}\n' % bits for bits in (0x40, 0))
    for chunks, expected in (((free, free), False), ((held, free), True), ((free, held), True)):
        assert files_of(*chunks).held_back == expected, chunks
    assert files_of(b"").top_load == 0.0


def test_a_file_is_given_in_blocks_of_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer than 10 bytes here, however long the file is."""
    monkeypatch.setattr(verify, "MAX_LINE_BYTES", 10)
    files = files_of(b"1234567\n89", b"01\n", b"234", b"56\n7890123\n" * 3)
    assert list(files.blocks("telemetry.jsonl")) == [
        b"1234567\n",
        b"8901\n",
        b"23456\n7890123\n" + b"56\n7890123\n" * 2,
    ]
