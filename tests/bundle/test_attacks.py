"""Attacks by an untrusted node, courier or stranger: one test per named attack. None is accepted.

Each attack starts from a bundle that is accepted at level operator: certified, countersigned, trusted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bench import __version__
from bench.base.errors import VerificationFailed
from bench.base.stamps import sha256, utc
from bench.base.strict_json import canonical_json, from_json, pretty_json, to_json
from bench.bundle.handshake import (
    BUNDLE_NAMESPACE,
    NAMESPACE_OPTION,
    NONCE_OPTION,
    RECEIPT_NAMESPACE,
    LedgerEntry,
    Receipt,
    key_id,
    principal,
    read,
    receipt_fault,
)
from bench.bundle.pack import pack, signatures, write_bundle
from bench.bundle.plausibility import (
    doubts,
    require_consistent,
    require_measured,
    require_positive,
    require_same_node,
)
from bench.bundle.stated_manifest import StatedManifest, check_software
from bench.bundle.statement import (
    FIRST,
    PREDICATE_SCHEMA,
    build_statement,
    identity_of,
    parse_statement,
)
from bench.bundle.tar_format import (
    CERTIFICATE,
    ENVELOPE,
    RECEIPT,
    RECEIPT_SIGNATURE,
    SIGNATURE,
    SIGNING,
    STATEMENT,
    header,
)
from bench.bundle.verdict import Note, Verdict
from bench.bundle.verify import Recompute, TrustRules, verify_bundle
from bench.node_check.recompute_any import recompute, trained_run
from bench.planning.manifest import resolve_models
from bench.records.estimate import Interval
from bench.records.fastest import fastest_with_confidence
from bench.records.genuine_gpus import PRODUCT_ALONE, PRODUCT_TOGETHER
from bench.records.run_results import Results, samples_bytes
from bench.records.trial import Ceiling, Environment, Image, Measured, Measurement, StepSample, Trial
from bench.report.text.run_table import results_table
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.dsse import seal
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import ED25519, Certificate, PublicKey, Signer, wire_string
from bench.signing.sshsig import _armor, _signed_data, sign
from bench.training.models import Model
from tests.authority import (
    CHALLENGED,
    NONCE,
    OPERATOR,
    RECEIVED,
    RUN_ID,
    RUN_KEY,
    STRANGER,
    UNTIL,
    Token,
    certificate,
    certificate_blob,
    certified,
    contents,
    countersign,
    receipt_for,
    received,
    trusting,
)
from tests.builders import measurement, reduce_trials
from tests.builders import trial as made_up_trial
from tests.bundles import BLOCK, FILES, MadeUpContents, member, nothing, packed, predicate
from tests.needs import needs

LATER = UNTIL + 365 * 86400  # the time of the verification
TRUST = trusting(OPERATOR)
LOG = "logs/0123456789abcdef.txt"
REAL = Path(__file__).parents[2] / "results" / "proof-h200" / "pythia-160m.tar"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return received(tmp_path / "b.tar")


def verdict(path: Path, recompute: Recompute[Any] = nothing, **rules: Any) -> Verdict[Any]:
    return verify_bundle(path, recompute, TrustRules(**({"trust": TRUST, "now": LATER} | rules)))


def refused(path: Path, why: str, recompute: Recompute[Any] = nothing, **rules: Any) -> None:
    """Assert that a bundle is refused with one line that names its file, and nothing is written to disk."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(VerificationFailed, match=why) as caught:
        verdict(path, recompute, **rules)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in f"{caught.value.where}: {caught.value.message}"
    assert sorted(path.parent.rglob("*")) == before


def real_results() -> Results:
    return from_json(Results, json.loads(contents(REAL)["results.json"]))


def change(path: Path, **members: bytes | None) -> None:
    """Replace, add or remove members; a dot in a name is written as __."""
    named = {name.replace("__", "."): data for name, data in members.items()}
    write_bundle(path, {n: d for n, d in (contents(path) | named).items() if d is not None})


def test_without_an_attack_the_bundle_is_accepted(path: Path) -> None:
    found = verdict(path)
    assert (found.level, found.trusted) == ("operator", True)
    assert (found.challenged_at, found.received_at) == ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z")


# --- the files ------------------------------------------------------------------------------------------


def test_swapped_file(path: Path) -> None:
    change(path, results__json=b'{"trials":["0000000000000000"]}')
    refused(path, r"results\.json: its sha256 is not the signed one")


def test_two_files_exchanged(path: Path) -> None:
    old = contents(path)
    change(path, results__json=old["manifest.json"], manifest__json=old["results.json"])
    refused(path, r"manifest\.json: its sha256")


def test_added_file(path: Path) -> None:
    change(path, env__json=b"{}")
    refused(path, r"env\.json: is not in the statement: it was added")


def test_removed_file(path: Path) -> None:
    write_bundle(path, {n: d for n, d in contents(path).items() if not n.startswith("logs/")})
    refused(path, r"logs/0123456789abcdef\.txt: is in the statement, but missing in the bundle")


def test_renamed_file(path: Path) -> None:
    old = contents(path)
    old["logs/fedcba9876543210.txt"] = old.pop("logs/0123456789abcdef.txt")
    write_bundle(path, old)
    refused(path, r"logs/fedcba9876543210\.txt: is not in the statement")


def test_signed_file_that_the_format_does_not_allow(path: Path) -> None:
    """A file that this version does not know is refused even if the key's owner signed it."""
    resign(path, files={**FILES, "run.sh": b"#!/bin/sh\n"})
    refused(path, r"run\.sh is not a file of a bundle")


# --- the container --------------------------------------------------------------------------------------


def insert(path: Path, raw: bytes, before: str | None = None) -> None:
    """Insert raw bytes into the tar before a member, or after the last one."""
    data = path.read_bytes()
    end = len(data) - 2 * BLOCK
    at = end if before is None else data.index(before.encode() + b"\0")
    path.write_bytes(data[:at] + raw + data[at:])


def foreign(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", **more: Any
) -> bytes:
    """Make a member as another program writes it."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), link
    for field, value in more.items():
        setattr(info, field, value)
    padding = bytes(-len(data) % BLOCK)
    return info.tobuf(tarfile.GNU_FORMAT) + data + padding


def test_duplicate_member(path: Path, tmp_path: Path) -> None:
    again = member("manifest.json", b"{}", tmp_path)
    (tmp_path / "one-member").unlink()
    insert(path, again, before="receipt.json")
    refused(path, r"manifest\.json stands twice")


def test_duplicate_member_at_the_end(path: Path) -> None:
    insert(path, header("manifest.json", 0))
    refused(path, r"manifest\.json stands after statement\.json\.sig")


def test_member_as_another_program_writes_it(path: Path) -> None:
    insert(path, foreign("telemetry.jsonl", mode=0o644))
    refused(path, r"the header of telemetry\.jsonl is not as bench writes it")


@pytest.mark.parametrize("name", ["Results.json", "RESULTS.JSON", "results.j\u017fon"])
def test_case_colliding_names(path: Path, name: str) -> None:
    insert(path, foreign(name, data=b"{}"), before="run-cert.pub")
    refused(path, "is not of the allowed form")


@pytest.mark.parametrize("name", ["re\u0301sults.json", "r\u00e9sults.json", "results\uff0ejson"])
def test_nfc_colliding_names(path: Path, name: str) -> None:
    insert(path, foreign(name, data=b"{}"), before="run-cert.pub")
    refused(path, "is not of the allowed form")


@pytest.mark.parametrize("name", ["/etc/passwd", "//results.json", "C:\\results.json"])
def test_absolute_path(path: Path, name: str) -> None:
    insert(path, foreign(name, data=b"x"), before="manifest.json")
    refused(path, "is not of the allowed form")


@pytest.mark.parametrize(
    "name", ["../results.json", "logs/../../x.txt", "logs/..", "./results.json", "logs//x.txt"]
)
def test_parent_path(path: Path, name: str) -> None:
    insert(path, foreign(name, data=b"x"), before="manifest.json")
    refused(path, "is not of the allowed form")


@pytest.mark.parametrize(
    ("kind", "what"), [(tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link")]
)
def test_link(path: Path, kind: bytes, what: str) -> None:
    insert(path, foreign("env.json", kind, link="/etc/passwd"), before=LOG)
    refused(path, what)


@pytest.mark.parametrize(
    ("kind", "what"),
    [(tarfile.CHRTYPE, "a device"), (tarfile.BLKTYPE, "a device"), (tarfile.FIFOTYPE, "a named pipe"),
     (tarfile.DIRTYPE, "a directory")],
)  # fmt: skip
def test_device(path: Path, kind: bytes, what: str) -> None:
    insert(path, foreign("env.json", kind), before=LOG)
    refused(path, what)


def test_sparse_bomb(path: Path, tmp_path: Path) -> None:
    """The file is a terabyte of holes in a few bytes, as GNU tar writes it."""
    insert(path, foreign("env.json", tarfile.GNUTYPE_SPARSE), before=LOG)
    refused(path, "a sparse file")
    holes = tmp_path / "holes"
    with holes.open("wb") as file:
        file.truncate(2**40)
    subprocess.run(["tar", "-C", tmp_path, "-Scf", path, "holes"], check=True)
    holes.unlink()
    refused(path, "a sparse file")


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh9", b"PK\3\4"])
def test_compression_bomb(path: Path, magic: bytes) -> None:
    """Verification never decompresses anything, so a compressed bundle is refused as it is."""
    path.write_bytes(gzip.compress(bytes(2**24)) if magic == b"\x1f\x8b" else magic + bytes(4096))
    refused(path, "is compressed by")


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (67_108_864, r"telemetry\.jsonl: the file ends too early: it is truncated"),
        (67_108_865, r"telemetry\.jsonl has 67108865 bytes; it has at most 67108864"),
        (8**11 - 1, r"telemetry\.jsonl has 8589934591 bytes; it has at most 67108864"),
    ],
)
def test_oversized_member_without_content(path: Path, size: int, why: str) -> None:
    insert(path, header("telemetry.jsonl", size))
    refused(path, why)


def test_more_lines_than_a_run_writes(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    signed_anew(path, contents(REAL) | {"telemetry.jsonl": b"12\n" * 100_001})
    refused(path, r"telemetry\.jsonl: has more than 100,000 lines", recompute)


@pytest.mark.parametrize("tail", [b"\0", b"x", bytes(BLOCK), bytes(10240)])
def test_trailing_data(path: Path, tail: bytes) -> None:
    path.write_bytes(path.read_bytes() + tail)
    refused(path, "something follows the end")


def test_second_bundle_behind_the_first(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)
    refused(path, "something follows the end")


def test_data_in_the_padding(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"manifest.json\0") + BLOCK + len(FILES["manifest.json"]) + 1] = 1
    path.write_bytes(data)
    refused(path, "padding that is not zero")


# --- the statement: what the owner of a certified key may try -------------------------------------------


def resign(
    path: Path,
    statement: bytes | None = None,
    files: Mapping[str, bytes] = FILES,
    key: Signer = RUN_KEY,
    cert: Certificate | None = None,
    **changes: Any,
) -> None:
    """Write any statement, correctly signed by the node and honestly countersigned."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    facts = predicate(files, **{"run_id": RUN_ID, "level": "operator", "nonce": NONCE} | changes)
    cert = cert or certificate()
    data = statement or build_statement(digests, facts)
    write_bundle(path, {**files, **signatures(data, key, cert)})
    countersign(path, receipt_for(path, cert))


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(contents(path)[STATEMENT])
    edit(document)
    return canonical_json(document)


def test_duplicate_json_keys(path: Path) -> None:
    old = contents(path)[STATEMENT]
    resign(path, old.replace(b'"complete":true', b'"complete":false,"complete":true'))
    refused(path, "'complete' stands twice")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"NaN", "malformed: /.*: NaN is no JSON number"),
        (b"Infinity", "malformed: /.*: Infinity is no JSON number"),
        (b"-Infinity", "malformed: /.*: -Infinity is no JSON number"),
        (b"1e999", "the number 1e999 does not fit a double"),
    ],
)
def test_nan(path: Path, value: bytes, why: str) -> None:
    resign(path, contents(path)[STATEMENT].replace(b'"570.124"', value))
    refused(path, why)


@pytest.mark.parametrize("value", [b"9007199254740993", b"-9007199254740993", b"1" * 10_000])
def test_huge_integers(path: Path, value: bytes) -> None:
    resign(path, contents(path)[STATEMENT].replace(b'"570.124"', value))
    refused(path, r"past 2\*\*53")


def test_deep_nesting(path: Path) -> None:
    resign(path, contents(path)[STATEMENT].replace(b'"570.124"', b"[" * 50_000 + b"]" * 50_000))
    refused(path, "nested too deeply")


@pytest.mark.parametrize("schema", ["bench/run/v3", "bench/run/v1", "", None, 2])
def test_unknown_schema_version(path: Path, schema: object) -> None:
    resign(path, edited(path, lambda document: document["predicate"].update(schema=schema)))
    refused(path, "this version of bench knows only")


def test_unknown_statement_type(path: Path) -> None:
    resign(path, edited(path, lambda document: document.update(_type="https://in-toto.io/Statement/v2")))
    refused(path, "_type .* knows only")


@pytest.mark.parametrize("level", ["reproduced", "gpu-attested"])
def test_level_that_nothing_proves(path: Path, level: str) -> None:
    resign(path, edited(path, lambda document: document["predicate"].update(level=level)))
    refused(path, "is none of 'self', 'operator'")


def test_level_self_with_a_certificate(path: Path) -> None:
    certified(path, level="self", nonce=None)
    refused(path, "says level self, but has a certificate", trust=None)


def test_a_bundle_of_the_first_version_has_no_envelope_and_is_valid() -> None:
    assert ENVELOPE not in contents(REAL)
    assert verdict(REAL, recompute, trust=None).level == "self"


def test_a_certified_bundle_says_which_certificate_and_until_when(path: Path) -> None:
    certificate = Certificate.from_line(contents(path)[CERTIFICATE].decode())
    found = verdict(path)
    assert found.certificate_sha256 == hashlib.sha256(certificate.blob).hexdigest()
    assert found.certified_until == utc(certificate.valid_before)


def test_an_envelope_in_a_bundle_of_the_first_version(path: Path) -> None:
    packed(path, schema=FIRST)
    refused(path, "does not belong into a bundle of this version", trust=None)


def test_level_operator_without_an_operator(path: Path) -> None:
    data = contents(path)[STATEMENT]
    write_bundle(path, {**FILES, **signatures(data, RUN_KEY)})
    refused(path, "says level operator, but has no certificate", trust=None)


def test_statement_under_the_old_signature(path: Path) -> None:
    change(path, **{"statement__json": contents(path)[STATEMENT].replace(b"7f3a2c", b"7f3a2d")})
    refused(path, "the signature does not fit")


@pytest.mark.parametrize("name", [STATEMENT, SIGNATURE, ENVELOPE])
def test_statement_or_a_signature_taken_away(path: Path, name: str) -> None:
    write_bundle(path, {n: d for n, d in contents(path).items() if n != name})
    refused(path, f"{name}: is missing in the bundle")


def test_statement_and_envelope_that_differ(path: Path) -> None:
    """Statement and envelope are signed by the same key, but their bytes differ."""
    other = contents(path)[STATEMENT].replace(b"570.124", b"570.125")
    change(path, **{"statement__dsse__json": seal(other, RUN_KEY)})
    refused(path, r"holds another statement than statement\.json")


def test_envelope_by_another_key(path: Path) -> None:
    change(path, **{"statement__dsse__json": seal(contents(path)[STATEMENT], STRANGER)})
    refused(path, "the envelope is not signed by")


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (b'{"payload"', b'{ "payload"'),
        (b'"signatures":[', b'"signatures":[{"keyid":"","sig":""},'),
        (b'"keyid":"SHA256:', b'"keyid":"SHA255:'),
        (b"}]}", b'}],"extra":1}'),
    ],
)
def test_envelope_in_another_form(path: Path, found: bytes, written: bytes) -> None:
    data = contents(path)[ENVELOPE]
    assert found in data
    change(path, **{"statement__dsse__json": data.replace(found, written)})
    refused(path, "the envelope")


def test_edited_summaries_with_intact_samples(tmp_path: Path) -> None:
    """A node cannot sign figures that do not follow from its own samples."""
    path = tmp_path / "b.tar"

    def faster(results: dict[str, Any]) -> None:
        results["trials"][0]["estimate"]["days"]["value"] /= 2

    real(path, lambda results: None)
    assert verdict(path, recompute).level == "operator"
    real(path, faster)
    refused(path, "trial .*: value does not follow from the samples", recompute)


@pytest.mark.parametrize(
    "figure",
    [
        "days/value",
        "days/half_width",
        "step_seconds/value",
        "step_seconds/half_width",
        "pass_seconds",
        "update_seconds",
        "overhead_seconds",
        "units_per_second",
        "flops_per_second",
        "ceiling_flops_per_second",
    ],
)
def test_a_figure_follows_from_the_samples_to_a_part_in_a_billion(tmp_path: Path, figure: str) -> None:
    """Mathematics libraries round differently, large figures and small ones alike."""
    path = tmp_path / "b.tar"
    *outer, name = figure.split("/")

    def scaled(by: float) -> Callable[[dict[str, Any]], None]:
        def edit(results: dict[str, Any]) -> None:
            place = results["trials"][0]["estimate"]
            for part in outer:
                place = place[part]
            place[name] *= by

        return edit

    real(path, scaled(1 - 0.5e-9))
    assert verdict(path, recompute).level == "operator"
    real(path, scaled(1 - 2e-9))
    refused(path, f"trial 37847c3eb4b925eb: {name} does not follow from the samples", recompute)


def test_a_winner_that_the_trials_do_not_show(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"

    def crowned(results: dict[str, Any]) -> None:
        model = results["models"][0]["name"]
        results["winners"] = [{"model": model, "trial": "0" * 16, "undecided": 0, "confidence": 1.0}]

    real(path, crowned)
    refused(path, "the fastest of .* is not the one that its trials show", recompute)


def test_a_winner_before_fewer_than_no_undecided_settings(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    trials = real_results().trials

    def crowned(undecided: int) -> Callable[[dict[str, Any]], None]:
        winner = to_json(fastest_with_confidence("pythia-160m", trials, undecided))
        return lambda results: results.update(winners=[winner])

    real(path, crowned(undecided=0))
    assert verdict(path, recompute).level == "operator"
    real(path, crowned(undecided=-1))
    refused(path, "the fastest of pythia-160m is not the one that its trials show", recompute)


def test_two_winners_for_one_model(tmp_path: Path) -> None:
    """Two winners of one model contradict each other about undecided settings, so readers would differ."""
    path = tmp_path / "b.tar"
    results = real_results()
    first = fastest_with_confidence("pythia-160m", results.trials, 7)
    for more in (replace(first, undecided=0), fastest_with_confidence("another", results.trials, 0)):
        winners = [to_json(first), to_json(more)]
        real(path, lambda results, winners=winners: results.update(winners=winners))
        refused(path, "a model has a fastest trial twice, or a model without results", recompute)


def test_a_stopped_run_that_claims_to_be_complete(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    real(path, lambda results: results["run"].update(stopped="out of budget"))
    refused(path, "is marked complete and stopped, or neither", recompute)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"seconds": 0.0}, {"seconds": -1.0}, {"peak_bytes": -1}])
def test_a_proof_that_no_training_gives(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """`bench compare --settings` would divide by zero steps."""
    path = tmp_path / "b.tar"

    def unproven(results: dict[str, Any]) -> None:
        (proven,) = (trial for trial in results["trials"] if trial["proof"])
        proven["proof"] |= wrong

    real(path, unproven)
    refused(path, "the proof of trial 37847c3eb4b925eb has no steps, no time or negative memory", recompute)


def test_a_proof_that_failed(tmp_path: Path) -> None:
    """The reason is the run's own statement; a trial is either proven or has a reason."""
    path = tmp_path / "b.tar"
    failed = {"unproven": {"kind": "crashed", "reason": "killed"}}
    real(path, lambda results: results["trials"][0].update(failed, proof=None))
    (trial,) = trained_run(verdict(path, recompute)).results.trials
    assert (trial.proof, to_json(trial.unproven)) == (None, failed["unproven"])
    real(path, lambda results: results["trials"][0].update(failed))
    refused(path, "trial 37847c3eb4b925eb: unproven does not follow from the samples", recompute)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda results: results.update(manifest_digest=f"sha256:{'0' * 64}"),
            "the results are of another manifest",
        ),
        (lambda results: results["run"].update(id="another"), "of another run than the statement"),
        (
            lambda results: results["run"].update(complete=False, stopped="out of budget"),
            "of another run than the statement",
        ),
        (lambda results: results["run"].update(started_at=1.8e9), "of another run than the statement"),
        (lambda results: results["run"].update(ended_at=1.8e9), "of another run than the statement"),
        (lambda results: results["trials"].append(results["trials"][0]), "holds a trial twice"),
        (lambda results: results["trials"][0].update(gpus=0), "is on no GPU, or has no micro-batch"),
        (lambda results: results["trials"][0].update(gpus=-1, micro_batch=-32), "is on no GPU"),
        (lambda results: results["trials"][0].update(micro_batch=0), "or has no micro-batch"),
        (lambda results: results["trials"][0].update(micro_batch=-32), "or has no micro-batch"),
        (
            lambda results: results["trials"].append(results["trials"][0] | {"model": "another"}),
            "is of no model in the results",
        ),
        (lambda results: results["trials"][0].update(id="0" * 16), "is not what its parts say"),
    ],
)
def test_results_that_are_not_of_this_run_or_its_trials(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], why: str
) -> None:
    path = tmp_path / "b.tar"
    real(path, edit)
    refused(path, why, recompute)


def test_a_trial_without_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    real(path, lambda results: None, samples=b"")
    refused(path, "trial 37847c3eb4b925eb has no samples", recompute)


@pytest.mark.parametrize(
    "other",
    [
        {
            "gpus": [
                {
                    "index": 0,
                    "name": "NVIDIA H200",
                    "uuid": "GPU-0",
                    "memory_bytes": 9,
                    "compute_capability": "9.0",
                }
            ]
        },
        {"driver": "1"},
        {"cpu": "another"},
        {"image": {"variant": "cuda13", "lock": "a", "debian": "b", "config": "sha256:" + "0" * 64}},
    ],
)
def test_results_that_name_another_machine_than_the_statement(tmp_path: Path, other: dict[str, Any]) -> None:
    """Tools that read only the statement would name another machine than bench does."""
    path = tmp_path / "b.tar"
    real(path, lambda results: results["node"].update(other))
    refused(path, "the results are of another machine than the statement", recompute)


def test_a_statement_that_names_no_machine(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    old = contents(REAL)
    run = parse_statement(old[STATEMENT]).predicate
    files = {n: d for n, d in old.items() if n not in SIGNING}
    pack(path, files, replace(run, node={}, schema=PREDICATE_SCHEMA), RUN_KEY)
    refused(path, "the results are of another machine than the statement", recompute, demanded=False)


def test_samples_that_took_longer_than_the_operator_observed(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    real(path, lambda results: None, seconds=10)
    refused(path, "its samples take .* s, but the operator saw 10 s from challenge to receipt", recompute)


@pytest.mark.parametrize("years", [-50, 50])
def test_a_run_that_says_it_ran_at_another_time_than_the_operator_saw(tmp_path: Path, years: int) -> None:
    """Of two runs of a machine the newest counts: a run of the year 2096 would be the newest forever."""
    path = tmp_path / "b.tar"
    old = contents(REAL)
    results = json.loads(old["results.json"])
    shift = years * 365 * 86400.0
    started, ended = (results["run"][name] + shift for name in ("started_at", "ended_at"))
    samples = re.sub(
        rb'"(started|ended)_at":([\d.]+)',
        lambda m: b'"%s_at":%a' % (m[1], float(m[2]) + shift),
        old["samples.jsonl"],
    )
    telemetry = re.sub(
        rb'"at":([\d.]+)', lambda m: b'"at":%a' % (float(m[1]) + shift), old["telemetry.jsonl"]
    )
    results["run"] |= {"started_at": started, "ended_at": ended}
    files = {"results.json": pretty_json(results), "samples.jsonl": samples, "telemetry.jsonl": telemetry}
    signed_anew(
        path,
        old | files,
        {"started_at": utc(started), "ended_at": utc(ended)},
    )
    (note,) = verdict(path, recompute).contents.notes
    assert "by its own clock it ran at other times than from" in str(note)


def test_what_no_sample_shows_is_said_to_be_the_runs_own_statement(tmp_path: Path) -> None:
    """A proof may be invented; saying so does not set honest bundles apart."""
    path = tmp_path / "b.tar"
    real(path, lambda results: None)
    found = verdict(path, recompute)
    assert found.contents.notes == ()
    assert "as stated  1 proof: not recomputed, since the bundle has no samples of them" in found.to_lines()


FORGED = "1\nlevel      operator: integrity, origin and freshness are proven"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("/node/switches/CUDA_X", FORGED),
        ("/node/gpus/0/name", FORGED),
        ("/node/image", {"variant": FORGED, "lock": "a", "debian": "b"}),
        ("/trials/0/label", "naive\r\n"),
        ("/node/packages/torch", "2\u2028"),
    ],
)
def test_a_text_that_imitates_lines_of_a_report(tmp_path: Path, place: str, value: object) -> None:
    path = tmp_path / "b.tar"

    def forge(results: dict[str, Any]) -> None:
        *parents, last = place.split("/")[1:]
        inside: Any = results
        for name in parents:
            inside = inside[int(name)] if isinstance(inside, list) else inside.setdefault(name, {})
        inside[last] = value

    real(path, forge)
    refused(path, rf"results\.json: {place}\S* is a text of several lines", recompute)


def test_a_name_that_imitates_lines_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    real(path, lambda results: results["node"]["packages"].update({FORGED: "1"}))
    refused(path, "is a text of several lines", recompute)


def test_a_manifest_that_imitates_lines_of_a_report(tmp_path: Path) -> None:
    """Reports show the methods and names of a manifest."""
    path = tmp_path / "b.tar"
    retold(path, asks={"methods": ["naive", FORGED]})
    refused(path, r"manifest\.json: /methods/1 is a text of several lines", recompute)


def test_a_manifest_that_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    signed_anew(path, contents(REAL) | {"manifest.json": b"[]"})
    refused(path, r"manifest\.json: is no manifest: expected an object", recompute)


def test_a_failure_reason_may_have_several_lines_and_is_shown_as_one(tmp_path: Path) -> None:
    """An error message of torch may have any number of lines."""
    path = tmp_path / "b.tar"

    def fail(results: dict[str, Any]) -> None:
        (trial,) = results["trials"]
        trial |= {"outcome": "crashed", "failure": {"kind": "crashed", "reason": FORGED}}
        trial |= {"estimate": None, "proof": None}
        results["winners"] = []

    real(path, fail, samples=b"")
    found = trained_run(verdict(path, recompute)).results
    assert "level" in results_table(found)
    assert not any(line.startswith("level") for line in results_table(found).splitlines())


def real(
    path: Path, edit: Callable[[dict[str, Any]], None], samples: bytes | None = None, **receipt: Any
) -> None:
    """Write a measured bundle with edited results, signed again by a certified node and countersigned."""
    old = contents(REAL)
    results = json.loads(old["results.json"])
    edit(results)
    files = {"results.json": pretty_json(results)}
    files |= {} if samples is None else {"samples.jsonl": samples}
    signed_anew(path, old | files, **receipt)


def signed_anew(
    path: Path,
    old: Mapping[str, bytes],
    times: Mapping[str, str] | None = None,
    seconds: int = 3600,
    **receipt: Any,
) -> None:
    """Sign files again as a certified node does; the operator saw the run for this number of `seconds`.

    `times` are other ones for the statement than those of the run.
    """
    run = parse_statement(old[STATEMENT]).predicate
    files = {n: d for n, d in old.items() if n not in SIGNING}
    challenged = int(datetime.fromisoformat(run.started_at).timestamp()) - 60
    stated = {"run_id": run.run_id, "started_at": run.started_at, "ended_at": run.ended_at} | (times or {})
    cert = certificate(
        principals=(principal(run.run_id),), key_id=key_id(run.run_id), valid=(challenged, challenged + 7200)
    )
    facts = predicate(files, **stated, node=run.node, complete=run.complete, level="operator", nonce=NONCE)
    pack(path, files, facts, RUN_KEY, cert)
    of_run = {"run_id": run.run_id, "challenged_at": challenged, "received_at": challenged + seconds}
    countersign(path, receipt_for(path, cert, **(of_run | receipt)))


# --- held to the manifest -------------------------------------------------------------------------------

Same = Callable[[Any], Any]


def retold(
    path: Path,
    *,
    model: Same = lambda m: m,
    measurement: Same = lambda m: m,
    asks: Any = None,
    **changes: Any,
) -> None:
    """Write a consistent measured bundle made from other models, figures or manifest values."""
    old = contents(REAL)
    manifest = canonical_json(json.loads(old["manifest.json"]) | (asks or {}))
    results = from_json(Results, json.loads(old["results.json"]))
    samples = {
        line["trial"]: line["measurement"] for line in map(json.loads, old["samples.jsonl"].splitlines())
    }
    results = replace(
        results,
        models=tuple(map(model, results.models)),
        manifest_digest=f"sha256:{sha256(manifest)}",
        **changes,
    )
    ends = []
    for entry in results.trials:
        (own,) = (m for m in results.models if m.name == entry.model)
        trial = Trial(
            own, entry.setting, entry.micro_batch, entry.gpus,
            results.seed, results.timing, results.memory_cap_bytes,
        )  # fmt: skip
        end = entry.failure or Measured(measurement(from_json(Measurement, samples[entry.id])))
        ends.append((trial, entry.label, end))
    proofs = {trial.id: e.proof for (trial, _, _), e in zip(ends, results.trials, strict=True) if e.proof}
    results = replace(results, trials=reduce_trials(ends, results.ceilings, proofs))
    telemetry = old["telemetry.jsonl"]
    for (trial, _, _), entry in zip(ends, real_results().trials, strict=True):
        telemetry = telemetry.replace(entry.id.encode(), trial.id.encode())
    files = {
        "manifest.json": manifest,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(ends),
        "telemetry.jsonl": telemetry,
    }
    signed_anew(path, old | files)


def test_results_of_another_version_are_refused_as_such(tmp_path: Path) -> None:
    """Whatever else may be in them, it is not read."""
    path, old = tmp_path / "b.tar", contents(REAL)
    signed_anew(path, old | {"results.json": canonical_json({"schema": "bench/results/v9"})})
    refused(path, "its results are bench/results/v9, this bench knows bench/results/v", recompute)
    for other in ([], {"schema": 9}):
        signed_anew(path, old | {"results.json": canonical_json(other)})
        with pytest.raises(VerificationFailed) as caught:
            verdict(path, recompute)
        assert "this bench knows" not in str(caught.value)


@pytest.mark.parametrize("name", ["nobody", 3, None, []])
def test_samples_of_a_trial_that_is_not_in_the_results(tmp_path: Path, name: object) -> None:
    path, old = tmp_path / "b.tar", contents(REAL)
    line = json.loads(old["samples.jsonl"].splitlines()[0]) | {"trial": name}
    signed_anew(path, old | {"samples.jsonl": old["samples.jsonl"] + canonical_json(line) + b"\n"})
    refused(path, "is of a trial that is not in the results", recompute)


def shorter(model: Model) -> Model:
    """Divide the steps of the recipe by ten."""
    return replace(model, recipe=replace(model.recipe, steps=model.recipe.steps // 10))


def cheaper(measured: Measurement) -> Measurement:
    """Divide the operations by four, so that the figures look further below the limit."""
    return replace(measured, flops=replace(measured.flops, matmul=measured.flops.matmul // 4))


def exchanged(measured: Measurement) -> Measurement:
    """Count some operations of products as those of attention: the total stays the same."""
    flops = measured.flops
    return replace(measured, flops=replace(flops, matmul=flops.matmul - 1, attention=flops.attention + 1))


def test_a_recipe_that_the_manifest_does_not_state(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    retold(path)
    assert verdict(path, recompute).contents.notes == ()
    retold(path, model=shorter)
    refused(
        path, "pythia-160m: its model/recipe/steps is not what this bench makes of the manifest", recompute
    )


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (cheaper, "a sample costs 126533763072 operations of matmul with .*; this bench counts 506135052288"),
        (
            exchanged,
            "a sample costs 506135052287 operations of matmul with .*; this bench counts 506135052288",
        ),
    ],
)
def test_operations_that_differ_from_the_models_formula(tmp_path: Path, lie: Same, told: str) -> None:
    path = tmp_path / "b.tar"
    retold(path, measurement=lie)
    refused(path, f"pythia-160m: {told}", recompute)


def test_operations_of_another_kind_are_named_with_the_whole_setting(tmp_path: Path) -> None:
    def more_attention(measured: Measurement) -> Measurement:
        return replace(measured, flops=replace(measured.flops, attention=measured.flops.attention + 1))

    path = tmp_path / "b.tar"
    retold(path, measurement=more_attention)
    (setting,) = {trial.setting for trial in real_results().trials}
    assert len(setting) > 1
    refused(
        path, rf"operations of attention with {re.escape(' + '.join(setting))}; this bench counts", recompute
    )


def test_samples_of_a_trial_come_once(tmp_path: Path) -> None:
    """With two measurements of a trial, the signer could choose which one counts."""
    line = contents(REAL)["samples.jsonl"].splitlines(keepends=True)[0]
    path = tmp_path / "b.tar"
    real(path, lambda results: None, contents(REAL)["samples.jsonl"] + line)
    refused(path, "holds the trial .* for the second time", recompute)


@pytest.mark.parametrize(
    "change",
    [{"floor": None, "no_floor": "a reason"}, {"gradient_check": None, "no_gradient_check": "a reason"}],
)
def test_a_reason_in_place_of_a_floor_or_of_a_gradient_check_is_no_forgery(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    def edit(results: dict[str, Any]) -> None:
        results["trials"][0] |= change

    path = tmp_path / "b.tar"
    real(path, edit)
    assert verdict(path, recompute).contents.results.trials[0].no_floor == change.get("no_floor")


@pytest.mark.parametrize(
    "less",
    [
        {"log_seconds": -50.0},
        {"save_seconds": -1e6},
        {"eval_seconds_per_sample": -1.0},
        {"peak_bytes": -1},
        {"parameters": -1},
        {"samples_per_loss": -1},
        {"phase_seconds": {"measure": -1.0}},
    ],
)
def test_a_negative_duration(tmp_path: Path, less: dict[str, Any]) -> None:
    """A log entry of -50 seconds makes the days negative, and a row with negative days would rank first."""
    path = tmp_path / "b.tar"
    retold(path, measurement=lambda m: replace(m, **less))
    name = "measure" if "phase_seconds" in less else next(iter(less))
    refused(path, f"numbers that no run can give: {name} of trial [0-9a-f]+ is negative", recompute)


@pytest.mark.parametrize("kind", ["steps", "warmup"])
@pytest.mark.parametrize(
    "step", [StepSample(1, 0.0), StepSample(1, -1e3), StepSample(0, 1.0), StepSample(-5, 1.0)]
)
def test_a_step_that_takes_no_time_or_no_pass(tmp_path: Path, kind: str, step: StepSample) -> None:
    """A negative warm-up would hide measured time from the operator's clock."""
    path = tmp_path / "b.tar"
    retold(path, measurement=lambda m: replace(m, **{kind: (*getattr(m, kind), step)}))
    refused(path, "a step of trial [0-9a-f]+ takes no time", recompute)


def longer_than_the_recipes(low: float, high: float, save: float | None) -> Same:
    """Return a lie: steps of one and two passes more than the recipe's, and any time to save."""

    def lie(measured: Measurement) -> Measurement:
        passes = 1024 // measured.samples_per_loss + 1024
        steps = ((passes, low), (passes + 1, high)) * 5
        times = tuple(StepSample(n, s * (1 + i / 1e4)) for i, (n, s) in enumerate(steps))
        return replace(measured, steps=times, warmup=(), save_seconds=save)

    return lie


@pytest.mark.parametrize("save", [None, 1e7], ids=["negative days", "positive days"])
def test_steps_of_more_passes_than_the_recipe_has(tmp_path: Path, save: float | None) -> None:
    """The line through two such steps is negative at the recipe's: with a long save, the days are any."""
    path = tmp_path / "b.tar"
    retold(path, measurement=longer_than_the_recipes(0.01, 0.03, save))
    refused(path, r"was timed over [\d,]+ passes, a step of its recipe has \d+", recompute)


@pytest.mark.parametrize("scan", [-1, -583_482_212_352, -(2**52)])
def test_negative_operations(tmp_path: Path, scan: int) -> None:
    """A trial with negative operations has a rate of at most zero, which is below any limit."""
    path = tmp_path / "b.tar"
    retold(path, measurement=lambda m: replace(m, flops=replace(m.flops, scan=scan)))
    refused(path, "has no operations, or fewer than none of one kind", recompute)


@pytest.mark.parametrize("wrong", [{"work": -1}, {"work": 0}, {"samples": ()}, {"samples": (1.0, 0.0)}])
def test_a_limit_without_time_or_work(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A negative limit would allow any figure."""
    path = tmp_path / "b.tar"

    def lie(results: dict[str, Any]) -> None:
        results["ceilings"][0] |= wrong

    real(path, lie)
    refused(path, "has no time or no work", recompute)


SILENT = "pythia-160m: a GPU reported neither clock nor power while it was timed: its speed is taken on trust"


def faster(measured: Measurement) -> Measurement:
    """Make all steps a hundred times as fast."""
    return replace(measured, steps=tuple(replace(s, seconds=s.seconds / 100) for s in measured.steps))


def longer(measured: Measurement) -> Measurement:
    """Claim more warm-up time than the operator observed."""
    return replace(measured, warmup=(StepSample(1, 1000.0), *measured.warmup))


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (longer, "its samples take 1,191 s, and by its own clock it took 2.. s"),
        (lambda m: replace(m, started_at=1.0, ended_at=2.0), "it measured at other times than it ran"),
        (lambda m: replace(m, started_at=m.ended_at, ended_at=m.started_at), "at other times than it ran"),
    ],
)
def test_samples_that_the_runs_own_clock_contradicts(tmp_path: Path, lie: Same, told: str) -> None:
    """Samples that the run's clock contradicts are reported, not refused: clocks may be set meanwhile."""
    path = tmp_path / "b.tar"
    retold(path, measurement=lie)
    note, *others = verdict(path, recompute).contents.notes
    assert re.search(told, str(note))
    assert [str(other) for other in others] == [SILENT] * (lie is not longer)


@pytest.mark.parametrize(
    ("started_at", "ended_at", "spent", "doubted"),
    [
        (940.0, 2060.0, 1060.0, False),
        (939.0, 2060.0, 1060.0, True),
        (940.0, 2061.0, 1060.0, True),
        (940.0, 2060.0, 1061.0, True),
    ],
)
def test_a_runs_own_clock_may_drift_by_a_minute(
    started_at: float, ended_at: float, spent: float, doubted: bool
) -> None:
    results = real_results()
    results = replace(results, run=replace(results.run, started_at=1000.0, ended_at=2000.0))
    one = measurement([], started_at=started_at, ended_at=ended_at)
    notes = list(doubts(results, results.node.gpus, [one], spent))
    assert ["by its own clock" in note.text for note in notes] == [True] * doubted


@pytest.mark.parametrize("at", [1e17, -1e17, 1e300, 253_402_300_800.0])
def test_a_run_at_a_time_that_no_calendar_has(tmp_path: Path, at: float) -> None:
    """Programs of the C library cannot format a time outside of the calendar."""
    path = tmp_path / "b.tar"
    real(path, lambda results: results["run"].update(started_at=at, ended_at=at))
    refused(path, "numbers that no run can give: a time outside of the years 1970 to 9999", recompute)


@pytest.mark.parametrize("label", ["naive", "checkpointing", "free-lunch + checkpointing", "free-lunch ", ""])
def test_a_label_that_is_not_the_setting(tmp_path: Path, label: str) -> None:
    """People read only the label, so it must match the setting."""
    path = tmp_path / "b.tar"
    real(path, lambda results: results["trials"][0].update(label=label))
    refused(path, "is labelled .*, its setting is tf32 ", recompute)


def labelled(setting: tuple[str, ...], label: str) -> Results:
    results = real_results()
    return replace(results, trials=(replace(results.trials[0], setting=setting, label=label),))


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        ((), "naive"),
        (("checkpointing",), "checkpointing"),
        (("tf32", "checkpointing"), "free-lunch + checkpointing"),
        (("tf32", "checkpointing", "zero-3"), "free-lunch + checkpointing + zero-3"),
        (("a-later-method",), "free-lunch"),
        (("tf32", "compile-blocks"), "free-lunch"),  # some versions compile blocks in a free lunch
    ],
)
def test_a_label_names_its_setting(setting: tuple[str, ...], label: str) -> None:
    require_consistent(labelled(setting, label))


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        (("checkpointing",), "naive"),
        (("checkpointing",), "free-lunch"),
        (("tf32", "checkpointing"), "free-lunch"),
        (("tf32", "checkpointing"), "checkpointing"),
        (("tf32", "checkpointing", "zero-3"), "free-lunch + checkpointing"),
    ],
)
def test_a_label_that_hides_a_method_that_costs_something(setting: tuple[str, ...], label: str) -> None:
    """The label "free-lunch" stands only for methods that cost nothing."""
    told = re.escape(f"is labelled '{label}', its setting is {' + '.join(setting)}")
    with pytest.raises(VerificationFailed, match=f"{told}$"):
        require_consistent(labelled(setting, label))


def test_a_label_of_a_method_that_was_not_used() -> None:
    with pytest.raises(VerificationFailed, match=r"is labelled 'checkpointing', its setting is naive$"):
        require_consistent(labelled((), "checkpointing"))


def test_a_limit_above_the_vendors_peak(tmp_path: Path) -> None:
    """Under a limit above the vendor's peak, any figure would be plausible."""
    path = tmp_path / "b.tar"
    ceilings = real_results().ceilings
    higher = tuple(replace(c, samples=tuple(s / 100 for s in c.samples)) for c in ceilings)
    retold(path, measurement=faster, ceilings=higher)
    refused(path, "its limit matmul-fp16 is 76,.*; the vendor's peak of an NVIDIA H200 is 989", recompute)


def much_faster(path: Path, *names: str, times: float = 20, **more: Any) -> None:
    """Write a bundle whose steps and limits are faster by this factor, of GPUs with these names."""
    results = real_results()
    (gpu,) = results.node.gpus
    gpus = tuple(replace(gpu, index=i, name=name) for i, name in enumerate(names))
    higher = tuple(replace(c, samples=tuple(s / times for s in c.samples)) for c in results.ceilings)
    retold(path, measurement=faster, ceilings=higher, node=replace(results.node, gpus=gpus), **more)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H200 ", " NVIDIA H200", "NVIDIA  H200", "NVIDIA \u041d200", "NVIDIA H20\u200b0", "NVIDIA\tH200"],
)
def test_a_name_that_looks_like_a_known_gpus(tmp_path: Path, name: str) -> None:
    """The catalogue does not know the imitated name, but people read it as that of a known card."""
    path = tmp_path / "b.tar"
    much_faster(path, name)
    refused(path, "the name of GPU 0 is .*; drivers write names in ASCII, without spare blanks", recompute)


@pytest.mark.parametrize(
    "names",
    [("NVIDIA H200",), ("NVIDIA H200", "Display adapter")],
    ids=["alone", "beside an unknown one"],
)
def test_a_known_gpu_is_bounded_whatever_is_beside_it(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "b.tar"
    much_faster(path, *names, asks={"gpus": 1})
    refused(path, "its limit matmul-fp16 is 15,2.. TFLOP/s; the vendor's peak of an NVIDIA H200", recompute)


def test_a_gpu_that_did_not_train_needs_no_known_peak(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    results = real_results()
    display = replace(results.node.gpus[0], index=1, name="Display adapter")
    retold(path, node=replace(results.node, gpus=(*results.node.gpus, display)), asks={"gpus": 1})
    assert verdict(path, recompute).contents.notes == ()


def test_a_gpu_that_nobody_knows_is_bounded_generously_and_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    much_faster(path, "NVIDIA H200 NVL", times=5)
    (note,) = verdict(path, recompute).contents.notes
    assert str(note) == 'no vendor\'s peak is known of "NVIDIA H200 NVL": its speed is taken on trust'
    much_faster(path, "NVIDIA H200 NVL", times=100)
    refused(path, "its limit .* is 76,.*; that of the fastest GPU that bench knows is", recompute)


def test_a_cpu_is_bounded_by_its_cores(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    much_faster(path)
    refused(path, r"its limit matmul-fp16 is 15,2.. TFLOP/s; the most that \d+ cores can do is", recompute)


def test_more_memory_than_the_card_has(tmp_path: Path) -> None:
    """Reports would show that a model of any size fits."""
    path = tmp_path / "b.tar"
    retold(path, measurement=lambda m: replace(m, peak_bytes=10 * 2**40))
    refused(path, "used 10,240.0 GiB of memory; its device has 140", recompute)

    def proven(results: dict[str, Any]) -> None:
        (trial,) = (trial for trial in results["trials"] if trial["proof"])
        trial["proof"]["peak_bytes"] = 10 * 2**40

    real(path, proven)
    refused(path, "used 10,240.0 GiB of memory; its device has 140", recompute)
    real(path, lambda results: results["node"]["gpus"][0].update(memory_bytes=10 * 2**40))
    refused(path, "GPU 0 has 10,240.0 GiB; an NVIDIA H200 has 140.4 GiB", recompute)


@pytest.mark.parametrize(
    ("proof", "told"),
    [
        ({"steps": 2}, "is 2 steps in 184 s; the manifest asks for 3 steps and 3 minutes"),
        ({"seconds": 179.9}, "is 41 steps in 180 s; the manifest asks for 3 steps and 3 minutes"),
        (
            {"steps": 41_000},
            "the rate of the proof of trial .* is 399,953 TFLOP/s; the most that its devices",
        ),
        (
            {"steps": 160},
            "the rate of the proof of trial .* is 1,5[0-9]{2} TFLOP/s; the most that its devices",
        ),
    ],
)
def test_a_proof_that_no_run_can_have(tmp_path: Path, proof: dict[str, float], told: str) -> None:
    """An error of 0.0% would stand beside a figure that nobody has trained with."""
    path = tmp_path / "b.tar"

    def proven(results: dict[str, Any]) -> None:
        (trial,) = (trial for trial in results["trials"] if trial["proof"])
        trial["proof"] |= proof

    real(path, proven)
    refused(path, told, recompute)


def test_a_proof_that_the_manifest_does_not_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    old = contents(REAL)
    manifest = json.loads(old["manifest.json"])
    del manifest["prove"]
    data = json.dumps(manifest).encode()
    results = json.loads(old["results.json"]) | {"manifest_digest": f"sha256:{sha256(data)}"}
    signed_anew(path, old | {"manifest.json": data, "results.json": pretty_json(results)})
    refused(path, "has a proof, and the manifest asks for none", recompute)


def test_a_proof_of_a_trial_without_a_figure(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"

    def failed(results: dict[str, Any]) -> None:
        (trial,) = (trial for trial in results["trials"] if trial["proof"])
        trial["estimate"] = None

    line = json.loads(contents(REAL)["samples.jsonl"])
    del line["measurement"]["steps"][1:]  # too few for a figure
    real(path, failed, samples=canonical_json(line) + b"\n")
    refused(path, "the proof of trial .* proves no figure", recompute)


@pytest.mark.parametrize("proving", [True, {}, {"steps": "x", "minutes": None}])
def test_how_other_versions_ask_for_proofs_is_theirs_to_judge(tmp_path: Path, proving: Any) -> None:
    path = tmp_path / "b.tar"
    old = contents(REAL)
    data = json.dumps(json.loads(old["manifest.json"]) | {"prove": proving}).encode()
    results = json.loads(old["results.json"]) | {"manifest_digest": f"sha256:{sha256(data)}"}
    signed_anew(path, old | {"manifest.json": data, "results.json": pretty_json(results)})
    assert verdict(path, recompute).contents.not_recomputed == "1 proof"


def reporting(path: Path, **figures: Callable[[float], float]) -> None:
    """Write the bundle with other figures in each reading of its GPU, made from its time in seconds."""
    old = contents(REAL)
    lines = [json.loads(line) for line in old["telemetry.jsonl"].splitlines()]
    for line in lines:
        for name, figure in figures.items():
            line["gpus"][0][name] = figure(line["at"])
    telemetry = b"".join(canonical_json(line) + b"\n" for line in lines)
    signed_anew(path, old | {"telemetry.jsonl": telemetry})


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"sm_mhz": lambda at: 210}, "GPU 0 computed 396 TFLOP/s at 210 MHz, which it cannot"),
        (
            {"power_watts": lambda at: 20.0, "energy_joules": lambda at: 20.0 * at},
            "GPU 0 computed 396 TFLOP/s with 20 W, which it cannot",
        ),
        ({"energy_joules": lambda at: 2000.0 * at}, "GPU 0 drew 2,000 W; the limit of an NVIDIA H200 is 700"),
    ],
    ids=["idle clock", "idle power", "more energy than the board draws"],
)
def test_telemetry_that_contradicts_the_figures(tmp_path: Path, figures: Any, told: str) -> None:
    """Invented samples need telemetry that fits, and the energy of a run decides its price."""
    path = tmp_path / "b.tar"
    reporting(path)
    assert verdict(path, recompute).contents.notes == ()
    reporting(path, **figures)
    refused(path, told, recompute)


def unread(reading: dict[str, Any]) -> dict[str, Any]:
    """Leave out the readings that bound a rate."""
    return {
        name: value
        for name, value in reading.items()
        if name not in ("sm_mhz", "power_watts", "energy_joules")
    }


@pytest.mark.parametrize(
    "lines",
    [
        None,
        [],
        lambda line: {**line, "trial": "another"},
        lambda line: {**line, "gpus": []},
        lambda line: {**line, "gpus": [unread(gpu) for gpu in line["gpus"]]},
        lambda line: {**line, "gpus": [{**unread(gpu), "sm_mhz": 0} for gpu in line["gpus"]]},
    ],
    ids=["no file", "an empty file", "of another trial", "of no GPU", "without its fields", "of no clock"],
)
def test_figures_that_no_telemetry_bounds_are_on_trust(tmp_path: Path, lines: Any) -> None:
    """Invented samples go with missing readings, which could contradict them."""
    path = tmp_path / "b.tar"
    files = dict(contents(REAL))
    old = [json.loads(line) for line in files.pop("telemetry.jsonl").splitlines()]
    if lines is not None:
        kept = [lines(line) for line in old] if callable(lines) else lines
        files["telemetry.jsonl"] = b"".join(canonical_json(line) + b"\n" for line in kept)
    signed_anew(path, files)
    assert [str(note) for note in verdict(path, recompute).contents.notes] == [SILENT]


@pytest.mark.parametrize(("away", "found"), [(1.4, True), (1.6, False)])
def test_a_short_trial_may_lie_between_two_readings(tmp_path: Path, away: float, found: bool) -> None:
    path = tmp_path / "b.tar"
    old = contents(REAL)
    (timed,) = (json.loads(line)["measurement"] for line in old["samples.jsonl"].splitlines())
    first, *_ = (json.loads(line) for line in old["telemetry.jsonl"].splitlines())
    for at in (timed["started_at"] - away, timed["ended_at"] + away):
        trial = real_results().trials[0].id
        lines = canonical_json({**first, "at": at, "trial": trial}) + b"\n"
        busy = lines.replace(b'"sm_mhz":%d' % first["gpus"][0]["sm_mhz"], b'"sm_mhz":1980')
        signed_anew(path, old | {"telemetry.jsonl": busy})
        assert verdict(path, recompute).contents.notes == () if found else SILENT


def test_a_run_on_gpus_that_the_kernel_does_not_have_is_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    (gpu,) = real_results().node.gpus
    own = {"bus": "0000:1b:00.0", "uuid": gpu.uuid, "name": gpu.name}

    def listed(*gpus: dict[str, Any], unseen: str | None = None) -> tuple[str, ...]:
        def edit(results: dict[str, Any]) -> None:
            results["node"]["kernel_gpus"] = {"gpus": list(gpus), "unseen": unseen}
            results["node"]["gpus"][0]["bus"] = "0000:1b:00.0"

        real(path, edit)
        return tuple(map(str, verdict(path, recompute).contents.notes))

    assert listed(own) == ()
    assert listed({**own, "name": "NVIDIA L4"}) == (
        f"GPU 0 at 0000:1b:00.0 is {gpu.name}; the kernel's driver says NVIDIA L4: "
        "its GPUs are taken on trust",
    )
    (nowhere, fewer) = listed()
    assert "the kernel has no NVIDIA GPU" in nowhere
    assert "NVML names 1 GPUs, the kernel has 0" in fewer
    assert listed(unseen="hidden") == ("hidden: that its GPUs are cards of their own is taken on trust",)


def test_a_run_on_two_names_of_one_card_is_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    results = real_results()
    (gpu,) = results.node.gpus
    two = (gpu, replace(gpu, index=1))
    for seconds, doubted in ((0.01, False), (0.02, True)):
        more = (
            Ceiling(name, device, "FLOP/s", 10**12, (0.01 if name == PRODUCT_ALONE else seconds,))
            for name in (PRODUCT_ALONE, PRODUCT_TOGETHER)
            for device in (0, 1)
        )
        retold(
            path, node=replace(results.node, gpus=two), asks={"gpus": 1}, ceilings=(*results.ceilings, *more)
        )
        notes = [str(note) for note in verdict(path, recompute).contents.notes]
        told = "GPUs 0, 1 of 2: while all work, as little as 50% of the rate that each has alone"
        assert [told in note for note in notes] == [True] * doubted


def test_a_run_without_a_measured_limit_is_reported(tmp_path: Path) -> None:
    """A run without measured limits can be honest; it is never ranked with one that has limits."""
    path = tmp_path / "b.tar"
    retold(path, measurement=faster, ceilings=())
    refused(
        path, "the rate of trial .* is 39,604 TFLOP.s; the most that its devices can do is 1,484", recompute
    )
    retold(path, ceilings=())
    (note,) = verdict(path, recompute).contents.notes
    assert str(note).startswith("pythia-160m: no limit of its machine was measured")


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ({"model": shorter}, "its model/recipe/steps is not what this bench makes of the manifest"),
        ({"measurement": cheaper}, "a sample costs"),
    ],
)
def test_what_only_another_version_knows_is_reported_as_on_trust(tmp_path: Path, lie: Any, told: str) -> None:
    """A claim that another version made the results is neither refused nor ignored."""
    path = tmp_path / "b.tar"
    retold(path, bench_version="0.0.9", **lie)
    (note,) = verdict(path, recompute).contents.notes
    assert note.model == "pythia-160m"
    assert note.text.startswith(told)
    assert note.text.endswith("it is by bench '0.0.9': taken on trust")


def test_a_timing_that_the_manifest_does_not_state(tmp_path: Path) -> None:
    """Shorter trials are rougher, and cost less of the node's time."""
    path = tmp_path / "b.tar"
    retold(path, asks={"timing": {}})
    refused(path, "its timing is not what this bench makes of the manifest", recompute)
    retold(path, asks={"timing": {}}, bench_version="0.0.9")
    (note,) = verdict(path, recompute).contents.notes
    assert note.model is None
    assert note.text.startswith("its timing is not what this bench makes of the manifest")


def test_operations_of_a_method_that_this_version_lacks_are_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    (trial,) = real_results().trials
    later = replace(trial, setting=(*trial.setting, "a-later-method"), label="free-lunch + a-later-method")
    retold(path, trials=(later,))
    (note,) = verdict(path, recompute).contents.notes
    assert note.model == "pythia-160m"
    assert re.fullmatch(".*a-later-method.*: its operations are taken on trust", note.text)


def test_operations_that_only_a_built_model_shows_are_on_trust(tmp_path: Path) -> None:
    """The operations of a model with adapters follow from no formula."""
    path = tmp_path / "b.tar"
    lora = {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": "all-linear"}
    entry = {"name": "pythia-160m", "micro_batch": 32, "recipe": {"lora": lora}}
    (adapted,) = resolve_models([entry])[0]
    retold(
        path,
        model=lambda model: adapted,
        measurement=lambda m: replace(m, flops=replace(m.flops, backward=m.flops.total)),
        asks={"models": [entry]},
    )
    (note,) = verdict(path, recompute).contents.notes
    assert note == Note("pythia-160m", "its operations were counted during the run: taken on trust")


IMAGE, OTHER_IMAGE = (f"sha256:{digit * 64}" for digit in "01")


@pytest.mark.parametrize(
    ("asked", "ran_in", "why"),
    [
        (IMAGE, None, f"ran in no known image, the manifest asks for {IMAGE}"),
        (IMAGE, Image("cuda13", "a", "b"), f"ran in no known image, the manifest asks for {IMAGE}"),
        (
            IMAGE,
            Image("cuda13", "a", "b", OTHER_IMAGE),
            f"ran in {OTHER_IMAGE}, the manifest asks for {IMAGE}",
        ),
    ],
)
def test_a_run_in_another_image_than_the_manifest_names(
    tmp_path: Path, asked: str, ran_in: Image | None, why: str
) -> None:
    path = tmp_path / "b.tar"
    node = real_results().node
    retold(path, asks={"image": asked}, node=replace(node, image=ran_in))
    refused(path, why, recompute)


def test_a_run_in_the_image_that_the_manifest_names_or_in_any_if_it_names_none() -> None:
    image = Image("cuda13", "a", "b", IMAGE)
    inside, outside = (replace(real_results().node, image=ran_in) for ran_in in (image, None))
    check_software({"image": IMAGE}, inside)
    for manifest in ({}, {"image": None}):
        check_software(manifest, inside)
        check_software(manifest, outside)


ENVIRONMENT = Environment("cpu", f"sha256:{'1' * 64}", "3.11.2", "2" * 64, "3" * 64)


@pytest.mark.parametrize(
    ("asked", "ran_in", "why"),
    [
        (OTHER_IMAGE, None, f"ran in no known environment, the manifest asks for {OTHER_IMAGE}"),
        (OTHER_IMAGE, ENVIRONMENT, f"ran in {ENVIRONMENT.digest}, the manifest asks for {OTHER_IMAGE}"),
        (
            ENVIRONMENT.digest,
            replace(ENVIRONMENT, files="4" * 64),
            f"ran in {replace(ENVIRONMENT, files='4' * 64).digest}, the manifest asks for",
        ),
    ],
)
def test_a_run_in_another_environment_than_the_manifest_names(
    tmp_path: Path, asked: str, ran_in: Environment | None, why: str
) -> None:
    path = tmp_path / "b.tar"
    node = real_results().node
    retold(path, asks={"environment": asked}, node=replace(node, environment=ran_in))
    refused(path, why, recompute)


def test_a_run_in_the_environment_that_its_manifest_names() -> None:
    node = real_results().node
    check_software({"environment": ENVIRONMENT.digest}, replace(node, environment=ENVIRONMENT))
    check_software({}, replace(node, environment=ENVIRONMENT))


def test_a_run_cannot_be_in_an_image_and_in_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    node = replace(real_results().node, environment=ENVIRONMENT, image=Image("cpu", "a", "b", IMAGE))
    retold(path, node=node)
    refused(path, "states both an image and an environment", recompute)


def test_the_statement_names_the_gpus_of_all_machines_if_it_is_given_them() -> None:
    node = real_results().node
    assert identity_of(node)["gpus"] == [gpu.uuid for gpu in node.gpus]
    assert identity_of(node, ("A", "B"))["gpus"] == ["A", "B"]


def test_the_statement_binds_the_environment_and_bundles_without_one_stay_as_they_were() -> None:
    node = real_results().node
    assert "environment" not in identity_of(node)
    inside = replace(node, environment=ENVIRONMENT)
    assert identity_of(inside)["environment"] == ENVIRONMENT.digest
    require_same_node(inside, identity_of(inside))
    for signed, found in ((identity_of(node), inside), (identity_of(inside), node)):
        with pytest.raises(VerificationFailed, match="another machine"):
            require_same_node(found, signed)


def on_two_gpus(path: Path, **more: Any) -> None:
    """Write the bundle of a trial on one GPU, from a node that has two."""
    node = real_results().node
    (gpu,) = node.gpus
    retold(path, node=replace(node, gpus=(gpu, replace(gpu, index=1))), **more)


def test_a_trial_on_fewer_gpus_than_the_node_has(tmp_path: Path) -> None:
    """A manifest that names no number of GPUs asks for all: a model may divide badly over them."""
    path = tmp_path / "b.tar"
    on_two_gpus(path, asks={"gpus": 1})
    assert verdict(path, recompute).level == "operator"
    on_two_gpus(path, asks={"gpus": None})
    refused(path, "is on 1 GPUs, the manifest asks for 2", recompute)


@pytest.mark.parametrize(
    ("asked", "trained"), [(None, 3), (1, 1), (2, 2), (3, 3), (4, 3), (8, 3), (0, 3), (-1, 3)]
)
def test_of_a_node_no_more_gpus_train_than_it_has(asked: int | None, trained: int) -> None:
    node = real_results().node
    three = replace(node, gpus=node.gpus * 3)
    assert StatedManifest(b"", {}, (), {}, gpus=asked).gpus_of(three) == trained


@pytest.mark.parametrize("version", [__version__, "0.0.9"])
@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"seed": 7}, "states another seed than the results have"),
        ({"timing": {"measure_seconds": 600}}, "states another timing/measure_seconds"),
        ({"memory_cap_gib": 16}, "states another memory cap"),
        ({"gpus": 8}, "is on 1 GPUs, the manifest asks for 8"),
        ({"gpus": -1}, "the manifest asks for -1 GPUs, the node has 1"),
        (
            {"models": [{"name": "pythia-160m", "micro_batch": 3}]},
            "has the micro-batch .*, the manifest says 3",
        ),
        ({"models": [{"name": "pythia-160m", "data": "/x"}]}, "read made-up data, the manifest says /x"),
        ({"models": ["pythia-1b"]}, "the results are of pythia-160m, the manifest names pythia-1b"),
        ({"models": [{"name": "pythia-160m", "recipe": {"steps": 9}}]}, "another pythia-160m/recipe/steps"),
        ({"models": [{"name": "pythia-160m", "recipe": {"optimizer": "adamw"}}]}, "recipe/optimizer/name"),
        (
            {
                "models": [
                    {"name": "pythia-160m", "architecture": {"model_type": "gpt_neox", "hidden_size": 9}}
                ]
            },
            "another pythia-160m/architecture/hidden_size",
        ),
    ],
)
def test_results_that_the_manifest_contradicts(tmp_path: Path, version: str, asks: Any, why: str) -> None:
    """The results are refused whichever version made them, because the manifest contradicts them."""
    path = tmp_path / "b.tar"
    retold(path, asks=asks, bench_version=version)
    refused(path, why, recompute)


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        ("naive", "naive"),
        (["naive", "free-lunch"], "naive"),
        ([["checkpointing"], "free-lunch"], "checkpointing"),
    ],
)
def test_a_complete_run_that_left_out_requested_settings(
    tmp_path: Path, methods: object, missing: str
) -> None:
    """A node might leave out slow settings, or those that ran out of memory."""
    path = tmp_path / "b.tar"
    for asks in ({"methods": methods}, {"models": [{"name": "pythia-160m", "methods": methods}]}):
        retold(path, asks=asks)
        refused(path, f"complete, but {missing} of pythia-160m was neither tried nor", recompute)


def test_a_complete_run_in_which_nothing_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    real(path, lambda results: results.update(trials=[], winners=[]), samples=b"")
    refused(path, "is marked complete, but nothing of pythia-160m was tried", recompute)


def test_a_batch_that_is_not_the_recipes(tmp_path: Path) -> None:
    """Above half of the batch, a micro-batch leaves one pass per step and skips some samples."""
    path = tmp_path / "b.tar"
    results = real_results()
    larger = (replace(entry, micro_batch=entry.micro_batch * 3) for entry in results.trials)
    retold(path, trials=tuple(larger))
    refused(path, "does not train the recipe's batch", recompute)


NODE = Path(__file__).parents[2] / "results" / "node-check-h200" / "1gpu-run1.tar"


def test_a_node_check_that_claims_to_have_no_gpu(tmp_path: Path) -> None:
    """Without GPUs, no missing GPU would be noticed."""
    path = tmp_path / "b.tar"
    old = contents(NODE)
    manifest = canonical_json(json.loads(old["manifest.json"]) | {"gpus": 8, "expect": {}})
    results = json.loads(old["results.json"]) | {"manifest_digest": f"sha256:{sha256(manifest)}"}
    results |= {"device": "cpu", "expect": results["expect"] | {"gpus": None}}
    signed_anew(path, old | {"manifest.json": manifest, "results.json": pretty_json(results)})
    refused(path, "the results are of a CPU check, but list GPUs", recompute)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"gpus": 8, "expect": {}}, "other expectations than those of its manifest"),
        ({"expect": {"gpus": 1, "driver": "999."}}, "other expectations than those of its manifest"),
        ({"expect": {"gpus": 1, "persistence": True}}, "other expectations than those of its manifest"),
        ({"require": ["all-reduce"]}, "require other checks than their manifest"),
    ],
)
def test_a_node_check_by_other_standards_than_its_manifests(tmp_path: Path, asks: Any, why: str) -> None:
    path = tmp_path / "b.tar"
    old = contents(NODE)
    manifest = canonical_json(json.loads(old["manifest.json"]) | asks)
    results = json.loads(old["results.json"]) | {"manifest_digest": f"sha256:{sha256(manifest)}"}
    signed_anew(path, old | {"manifest.json": manifest, "results.json": pretty_json(results)})
    refused(path, why, recompute)


# --- who signed -----------------------------------------------------------------------------------------


def test_wrong_namespace_of_the_signature(path: Path) -> None:
    data = contents(path)[STATEMENT]
    change(path, **{"statement__json__sig": sign(data, RUN_KEY, "git", certificate())})
    refused(path, "the signature was made for the namespace git")


def test_wrong_namespace_of_the_certificate(path: Path) -> None:
    options = {NAMESPACE_OPTION: RECEIPT_NAMESPACE, NONCE_OPTION: NONCE}
    resign(path, cert=certificate(options=options))
    refused(path, "is not for the namespace bench-bundle@v1")


def test_wrong_namespace_of_the_authority(path: Path) -> None:
    line = f'* cert-authority,namespaces="git" {PublicKey.of(OPERATOR).line()}'
    refused(path, "for the namespaces git only", trust=TrustPolicy.from_text(line, "trusted"))


def test_wrong_principal_of_the_certificate(path: Path) -> None:
    resign(path, cert=certificate(principals=(principal("another"),)))
    refused(path, "is for bench-run:another, not bench-run:7f3a2c")


@pytest.mark.parametrize("principals", [(), ("root",), (principal(RUN_ID), "root")])
def test_certificate_for_more_than_the_run(path: Path, principals: tuple[str, ...]) -> None:
    resign(path, cert=certificate(principals=principals))
    refused(path, "the run's certificate is for")


@pytest.mark.parametrize("names", [(), (principal(RUN_ID), principal("another"))])
def test_certificate_for_no_name_or_two_by_an_authority_for_some_names(
    path: Path, names: tuple[str, ...]
) -> None:
    resign(path, cert=certificate(principals=names))
    listed = TrustPolicy.from_text(f"bench-run:* cert-authority {PublicKey.of(OPERATOR).line()}", "trusted")
    refused(path, r"is allowed for the principals bench-run:\* only", trust=listed)


def test_wrong_principal_of_the_authority(path: Path) -> None:
    line = f"bench-run:lab-* cert-authority {PublicKey.of(OPERATOR).line()}"
    refused(path, "for the principals bench-run:lab-. only", trust=TrustPolicy.from_text(line, "trusted"))


def test_certificate_of_another_challenge(path: Path) -> None:
    options = {NAMESPACE_OPTION: BUNDLE_NAMESPACE, NONCE_OPTION: "00" * 32}
    resign(path, cert=certificate(options=options))
    refused(path, "is for another challenge")


def test_certificate_for_another_key(path: Path) -> None:
    resign(path, key=STRANGER)
    refused(path, "the signature does not fit")


def test_certificate_by_an_authority_that_nobody_trusts(path: Path) -> None:
    resign(path, cert=certificate(authority=STRANGER))
    countersign(path, receipt_for(path, certificate(authority=STRANGER)), STRANGER)
    refused(path, "certified by the key SHA256:.*, which is not listed")


def test_certificate_exchanged_in_its_file(path: Path) -> None:
    other = certificate(serial=8)
    change(path, **{"run-cert__pub": f"{other.line()}\n".encode()})
    refused(path, r"run-cert\.pub: is not the certificate of the signature")


def test_certificate_removed(path: Path) -> None:
    write_bundle(path, {n: d for n, d in contents(path).items() if n != CERTIFICATE})
    refused(path, r"run-cert\.pub: is not the certificate of the signature")


def test_stranger_who_signs_for_themselves(path: Path) -> None:
    """A stranger's bundle is valid at level self; it is refused if an operator must vouch for it."""
    pack(path, FILES, predicate(), STRANGER)
    assert verdict(path, trust=None).level == "self"
    refused(path, "not trusted: signed by the key SHA256:.*, which is not listed")


def test_expired(path: Path) -> None:
    """Without a receipt, nothing shows when a bundle was signed; a leaked key may have signed it later."""
    certified(path)
    assert verdict(path, now=UNTIL - 1).trusted
    refused(path, "no receipt, and the run's certificate had expired: at 2027-01-15T10:00:00Z", now=UNTIL)


def test_expired_for_a_reader_who_demands_no_trust(path: Path) -> None:
    certified(path)
    found = verdict(path, now=UNTIL, demanded=False)
    assert not found.trusted
    assert found.doubt == "no receipt, and the run's certificate had expired: at 2027-01-15T10:00:00Z"


def test_without_another_time_the_readers_clock_decides(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certified(path)
    monkeypatch.setattr("bench.bundle.verify.time.time", lambda: UNTIL - 1.0)
    assert verdict(path, now=None).trusted
    monkeypatch.setattr("bench.bundle.verify.time.time", lambda: float(UNTIL))
    refused(path, "no receipt, and the run's certificate had expired", now=None)


def test_not_valid_yet(path: Path) -> None:
    certified(path)
    assert verdict(path, now=CHALLENGED).trusted
    refused(path, "no receipt, and the run's certificate was not valid yet", now=CHALLENGED - 1)


@pytest.mark.parametrize("at", [UNTIL, UNTIL + 86400])
def test_received_after_it_expired(path: Path, at: int) -> None:
    certified(path)
    countersign(path, receipt_for(path, received_at=at))
    refused(path, "was received at a time when the run's certificate had expired")


def test_expired_authority(path: Path) -> None:
    for option, why in (
        ('valid-before="20260101Z"', "is no longer valid"),
        ('valid-after="20290101Z"', "not valid yet"),
    ):
        line = f"* cert-authority,{option} {PublicKey.of(OPERATOR).line()}"
        refused(path, why, trust=TrustPolicy.from_text(line, "trusted"))


def krl(folder: Path, *lines: str, authority: Signer | None = None) -> Revoked:
    """Make a revocation list with ssh-keygen -k."""
    (folder / "krl-specification").write_text("\n".join(lines) + "\n")
    command = ["ssh-keygen", "-q", "-k", "-f", str(folder / "krl")]
    if authority:
        (folder / "krl-authority.pub").write_text(PublicKey.of(authority).line() + "\n")
        command += ["-s", str(folder / "krl-authority.pub")]
    subprocess.run([*command, folder / "krl-specification"], check=True, stdin=subprocess.DEVNULL)
    return Revoked.from_file(folder / "krl")


@needs("ssh-keygen")
def test_revoked_by_key(path: Path, tmp_path: Path) -> None:
    listed = krl(tmp_path, f"key: {PublicKey.of(RUN_KEY).line()}")
    refused(path, "the key SHA256:.* is revoked", revoked=(listed,))
    refused(path, "the key SHA256:.* is revoked", revoked=(listed,), trust=None)
    refused(path, "\n  do not rely on its figures, .*: measure again with another key", revoked=(listed,))


@needs("ssh-keygen")
@pytest.mark.parametrize("kind", ["sha256", "sha1", "hash"])
def test_revoked_by_fingerprint(path: Path, tmp_path: Path, kind: str) -> None:
    key = PublicKey.of(RUN_KEY)
    listed = krl(tmp_path, f"{kind}: {key.fingerprint if kind == 'hash' else key.line()}")
    refused(path, "the key SHA256:.* is revoked", revoked=(listed,))


@needs("ssh-keygen")
def test_revoked_by_id(path: Path, tmp_path: Path) -> None:
    listed = krl(tmp_path, f"id: {key_id(RUN_ID)}", authority=OPERATOR)
    refused(path, 'the certificate "bench run 7f3a2c" is revoked by its id', revoked=(listed,))


@needs("ssh-keygen")
@pytest.mark.parametrize("serials", ["7", "5-9", "1-100000"])
def test_revoked_by_serial_number(path: Path, tmp_path: Path, serials: str) -> None:
    listed = krl(tmp_path, f"serial: {serials}", authority=OPERATOR)
    refused(path, "the certificate 7 is revoked by its serial number", revoked=(listed,))


@needs("ssh-keygen")
def test_revoked_by_authority(path: Path, tmp_path: Path) -> None:
    listed = krl(tmp_path, f"key: {PublicKey.of(OPERATOR).line()}")
    refused(path, "the authority SHA256:.* is revoked", revoked=(listed,))


@needs("ssh-keygen")
def test_what_another_authority_revoked_is_not_revoked(path: Path, tmp_path: Path) -> None:
    listed = krl(tmp_path, f"id: {key_id(RUN_ID)}", "serial: 7", authority=STRANGER)
    assert verdict(path, revoked=(listed,)).level == "operator"


def algorithms() -> dict[str, Any]:
    return {
        "ssh-rsa": rsa.generate_private_key(65537, 2048),
        "ecdsa-sha2-nistp256": ec.generate_private_key(ec.SECP256R1()),
    }


@needs("ssh-keygen")
@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp256"])
def test_signature_of_another_algorithm(path: Path, tmp_path: Path, kind: str) -> None:
    """ssh-keygen makes and accepts signatures of RSA and ECDSA keys, but a bundle may not have one."""
    key, statement = tmp_path / "other", tmp_path / "statement"
    key.touch(mode=0o600)
    pem = algorithms()[kind].private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    key.write_bytes(pem)
    statement.write_bytes(contents(path)[STATEMENT])
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", BUNDLE_NAMESPACE, "-f", key, statement]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    change(path, **{"statement__json__sig": (tmp_path / "statement.sig").read_bytes()})
    refused(path, f"the signature is of type {kind}, not ssh-ed25519")


# --- the receipt ----------------------------------------------------------------------------------------


def test_receipt_of_another_run(path: Path, tmp_path: Path) -> None:
    """The receipt is a real one of the same operator, for another run."""
    other = tmp_path / "other.tar"
    cert = certificate(principals=(principal("other"),), key_id=key_id("other"))
    certified(other, cert, run_id="other")
    receipt = receipt_for(other, cert, run_id="other")
    countersign(path, receipt)
    refused(path, "the receipt is of run other")


def test_receipt_of_another_bundle_of_the_same_run(path: Path, tmp_path: Path) -> None:
    other = certified(tmp_path / "other.tar", complete=False)
    countersign(path, receipt_for(other))
    refused(path, "the receipt is for another statement")


def test_receipt_for_another_certificate_of_the_same_key(path: Path) -> None:
    countersign(path, receipt_for(path, certificate(serial=8)))
    refused(path, "the receipt is for another certificate")


def test_receipt_of_another_challenge(path: Path) -> None:
    countersign(path, receipt_for(path, nonce="00" * 32))
    refused(path, "the receipt is of run 7f3a2c, or of another challenge")


def test_run_certificate_that_signs_receipts(path: Path) -> None:
    """The operator certified the node's key for bundles only, so the node cannot sign a receipt."""
    for cert in (certificate(), None):
        countersign(path, receipt_for(path), RUN_KEY, cert=cert)
        refused(path, r"receipt\.json: is not signed by the authority that certified the run's key")
        refused(path, r"receipt\.json: is not signed by the authority", trust=trusting(OPERATOR, RUN_KEY))


def test_receipt_signed_under_a_certificate_of_the_authoritys_own_key(path: Path) -> None:
    countersign(path, receipt_for(path), OPERATOR, cert=certificate(OPERATOR))
    refused(path, r"receipt\.json: is not signed by the authority that certified the run's key")


def test_receipt_by_a_stranger(path: Path) -> None:
    countersign(path, receipt_for(path), STRANGER)
    refused(path, r"receipt\.json: is not signed by the authority")


def test_receipt_signed_for_another_namespace(path: Path) -> None:
    countersign(path, receipt_for(path), namespace=BUNDLE_NAMESPACE)
    refused(path, "the receipt's signature was made for the namespace bench-bundle@v1")


def test_receipt_by_an_authority_that_may_not_give_any(path: Path) -> None:
    line = f"* cert-authority {PublicKey.of(OPERATOR).line()}"
    refused(path, "may only certify keys", trust=TrustPolicy.from_text(line, "trusted"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            'namespaces="bench-bundle@v1"',
            "is allowed for the namespaces bench-bundle@v1 only, not bench-receipt@v1",
        ),
        ('valid-before="20270115085959Z"', "is no longer valid"),
        ('valid-after="20270115090001Z"', "is not valid yet"),
    ],
)
def test_receipt_by_an_authority_that_may_not_give_it_then(path: Path, options: str, why: str) -> None:
    """An authority may certify keys forever, and give receipts of some kind or at some time only."""
    key = PublicKey.of(OPERATOR).line()
    listed = f"* {{}} {key}\n* cert-authority {key}"
    right = 'namespaces="bench-receipt@v1",valid-after="20270115090000Z",valid-before="20270115090000Z"'
    assert verdict(path, trust=TrustPolicy.from_text(listed.format(right), "trusted")).level == "operator"
    refused(path, why, trust=TrustPolicy.from_text(listed.format(options), "trusted"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"challenged_at": RECEIVED + 1},
        {"challenged_at": -1},
        {"challenged_at": -(2**53)},
        {"ledger": LedgerEntry(3, "x")},
        {"ledger": LedgerEntry(3, "A" * 64)},
    ],
)
def test_receipt_that_contradicts_itself(path: Path, wrong: dict[str, Any]) -> None:
    countersign(path, receipt_for(path, **wrong))
    refused(path, "the receipt contradicts itself")


@pytest.mark.parametrize("times", [(RECEIVED, RECEIVED), (0, RECEIVED)])
def test_receipt_at_the_limits_of_its_times(path: Path, times: tuple[int, int]) -> None:
    """A clock of whole seconds may show the same time twice."""
    challenged_at, received_at = times
    receipt = read(Receipt, receipt_for(path, challenged_at=challenged_at, received_at=received_at))
    assert receipt_fault(receipt, RUN_ID, NONCE, contents(path)[STATEMENT], certificate()) is None


def test_samples_may_take_a_minute_longer_than_the_operator_observed(path: Path) -> None:
    """Clocks drift. The operator saw an hour from challenge to receipt."""
    assert verdict(path, lambda files: MadeUpContents(measured_seconds=3660.0)).level == "operator"
    refused(
        path,
        "its samples take 3661 s, but the operator saw 3600 s from challenge to receipt",
        lambda files: MadeUpContents(measured_seconds=3661.0),
    )


@pytest.mark.parametrize(
    ("started_at", "ended_at", "doubted"),
    [
        ("2027-01-15T07:00:00Z", "2027-01-15T10:00:00Z", False),
        ("2027-01-15T06:59:59Z", "2027-01-15T10:00:00Z", True),
        ("2027-01-15T07:00:00Z", "2027-01-15T10:00:01Z", True),
        ("2027-01-15T08:30:00Z", "2027-01-15T08:30:00Z", False),
        ("2027-01-15T08:30:01Z", "2027-01-15T08:30:00Z", True),
    ],
)
def test_a_nodes_clock_may_be_an_hour_wrong(
    path: Path, started_at: str, ended_at: str, doubted: bool
) -> None:
    received(path, started_at=started_at, ended_at=ended_at)
    notes = verdict(path).contents.notes
    assert ["at other times than from 2027-01-15T08:00:00Z to" in note.text for note in notes] == [
        True
    ] * doubted


def test_receipt_with_an_impossible_time(path: Path) -> None:
    countersign(path, receipt_for(path, received_at=2**53))
    refused(path, "was received at a time when the run's certificate had expired", trust=None)


@pytest.mark.parametrize("valid", [(0, 2**64 - 1), (10**17, 10**17 + 1), (0, 253_402_300_800)])
def test_certificate_that_is_valid_forever(path: Path, valid: tuple[int, int]) -> None:
    """A stranger can certify with their own authority; extreme times in it must not crash a reader."""
    blob = certificate_blob(authority=STRANGER, valid=valid)
    signature = _armor(blob, BUNDLE_NAMESPACE, wire_string(ED25519) + wire_string(bytes(64)))
    change(path, **{"statement__json__sig": signature})
    refused(path, "never valid, or valid forever", trust=None)


def test_token_that_signs_a_bundle(path: Path) -> None:
    token = Token()
    signed = token.sign_wire(_signed_data(contents(path)[STATEMENT], BUNDLE_NAMESPACE))
    change(path, **{"statement__json__sig": _armor(token.public.blob, BUNDLE_NAMESPACE, signed)})
    refused(path, "the signature is by a hardware token", trust=None)


def test_receipt_that_was_edited(path: Path) -> None:
    change(path, receipt__json=contents(path)[RECEIPT].replace(b"1800003600", b"1800003599"))
    refused(path, "the receipt's signature does not fit")


@pytest.mark.parametrize("name", [RECEIPT, RECEIPT_SIGNATURE])
def test_receipt_without_its_signature_or_the_reverse(path: Path, name: str) -> None:
    write_bundle(path, {n: d for n, d in contents(path).items() if n != name})
    refused(path, f"{name}: is missing in the bundle")


def test_receipt_on_a_bundle_that_nobody_certified(path: Path) -> None:
    receipt = contents(path)[RECEIPT]
    pack(path, FILES, predicate(), RUN_KEY)
    countersign(path, receipt)
    refused(path, r"receipt\.json: is not signed by the authority", trust=None)


@pytest.mark.parametrize(
    ("found", "written", "why"),
    [
        (b"bench/receipt/v1", b"bench/receipt/v2", "knows only v1"),
        (b'"received_at":1800003600', b'"received_at":18e8', "is not a receipt of bench"),
        (b'"received_at":1800003600', b'"received_at":1800003600,"received_at":1800000001', "twice"),
        (b'{"cert', b'{ "cert', "canonical form"),
        (b'"run_id":"7f3a2c"', b'"run_id":"../../x"', "no run id"),
    ],
)
def test_receipt_in_another_form(path: Path, found: bytes, written: bytes, why: str) -> None:
    data = receipt_for(path)
    assert found in data
    countersign(path, data.replace(found, written))
    refused(path, why)


def test_replayed_bundle_under_a_new_receipt_needs_the_operator(path: Path, tmp_path: Path) -> None:
    """Replay against the operator is refused by the ledger; see tests/operator/test_operator.py."""
    old = contents(path)
    newer = json.loads(old[RECEIPT]) | {"received_at": RECEIVED + 60}
    change(path, receipt__json=canonical_json(newer) + b"\n")
    refused(path, "the receipt's signature does not fit")
    assert sha256(old[STATEMENT]) == newer["statement_sha256"]


def test_a_link_to_a_bundle_is_accepted(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert verdict(tmp_path / "link").level == "operator"


def test_the_attacks_change_only_what_they_say(path: Path) -> None:
    """The attacks rewrite the tar; without a change, the result is identical to the byte."""
    before = path.read_bytes()
    change(path)
    assert path.read_bytes() == before


# --- held to the manifest: weights, settings, and figures at their limits -------------------------------


def test_frozen_weights_that_the_manifest_of_an_own_architecture_does_not_state(tmp_path: Path) -> None:
    """Training adapters alone costs a third less, and only the manifest can say that it was asked for."""
    path = tmp_path / "b.tar"
    (known,) = real_results().models
    recipe = {name: getattr(known.recipe, name) for name in ("objective", "batch_size", "steps", "precision")}
    recipe |= {"sequence_length": known.recipe.sequence_length}
    own = {"name": "mine", "micro_batch": 32, "recipe": recipe}
    own |= {"architecture": {"model_type": known.family, **known.architecture}}
    lora = {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": "all-linear"}
    (adapted,) = resolve_models([own | {"recipe": recipe | {"lora": lora}}])[0]
    retold(
        path,
        model=lambda model: adapted,
        measurement=lambda m: replace(m, flops=replace(m.flops, backward=m.flops.total)),
        asks={"models": [own]},
        trials=tuple(replace(trial, model="mine") for trial in real_results().trials),
        winners=(),
        bench_version="0.0.9",
    )
    refused(path, "the manifest states another mine/recipe/lora than the results have", recompute)


@pytest.mark.parametrize(("work", "accepted"), [(0, False), (1, True)])
def test_a_limit_has_at_least_one_operation(work: int, accepted: bool) -> None:
    limit = Ceiling("matmul-bf16", 0, "FLOP/s", work, (1.0,))
    results = replace(real_results(), ceilings=(limit,))
    if accepted:
        require_consistent(results)
        return
    with pytest.raises(ValueError, match="the ceiling matmul-bf16 has no time or no work"):
        require_consistent(results)


def test_samples_that_are_not_in_canonical_json(tmp_path: Path) -> None:
    """Two spellings of the same times would be two bundles, and a copy would not look like one."""
    path = tmp_path / "b.tar"
    spaced = contents(REAL)["samples.jsonl"].replace(b'":', b'": ', 1)
    real(path, lambda results: None, samples=spaced)
    refused(path, r"samples\.jsonl: line 1: is not written as bench writes it", recompute)


@pytest.mark.parametrize("methods", [3, {"naive": 1}])
def test_methods_in_a_form_that_this_version_does_not_know_ask_for_no_setting(
    tmp_path: Path, methods: object
) -> None:
    path = tmp_path / "b.tar"
    retold(path, asks={"methods": methods})
    assert verdict(path, recompute).level == "operator"


@pytest.mark.parametrize("wrong", [{"days": Interval(0.0, 0.1)}, {"units_per_second": -1.0}])
def test_an_estimate_that_is_not_positive_is_no_estimate(wrong: dict[str, Any]) -> None:
    (trial,) = real_results().trials
    assert trial.estimate is not None
    require_positive(made_up_trial(), None)
    require_positive(made_up_trial(), trial.estimate)
    with pytest.raises(ValueError, match="is not above zero"):
        require_positive(made_up_trial(), replace(trial.estimate, **wrong))


def test_a_manifest_may_name_the_source_of_a_recipe_that_it_changes(tmp_path: Path) -> None:
    """The results say which fields of the recipe are not from the named source."""
    path = tmp_path / "b.tar"
    source = real_results().models[0].recipe.source
    entry = {"name": "pythia-160m", "micro_batch": 32, "recipe": {"steps": 9, "source": source}}
    (changed,) = resolve_models([entry])[0]
    assert changed.recipe.source != source
    retold(path, model=lambda _: changed, asks={"models": [entry]})
    assert verdict(path, recompute).level == "operator"
    other = entry | {"recipe": {"steps": 9, "source": "another"}}
    retold(path, model=lambda _: changed, asks={"models": [other]})
    refused(path, "the manifest states another pythia-160m/recipe/source", recompute)


def test_an_architecture_with_a_field_that_this_bench_does_not_add(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    retold(path, model=lambda m: replace(m, architecture={**m.architecture, "skipped_layers": 6}))
    refused(path, "pythia-160m: its architecture is not what this bench makes of the manifest", recompute)


def test_operations_of_the_unmodified_model_are_named_naive(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    (trial,) = real_results().trials
    naive = replace(trial, setting=(), label="naive", loss_difference=None)
    retold(path, measurement=cheaper, trials=(naive,), asks={"methods": ["naive"]}, bench_version="0.0.9")
    (note,) = verdict(path, recompute).contents.notes
    assert " operations of matmul with naive; this bench counts " in note.text


def test_a_proof_on_a_device_that_reports_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"

    def without_memory(results: dict[str, Any]) -> None:
        (proven,) = (trial for trial in results["trials"] if trial["proof"])
        proven["proof"] |= {"peak_bytes": 0, "steps": 3}

    real(path, without_memory)
    assert verdict(path, recompute).level == "operator"


def test_what_was_not_measured_is_not_negative() -> None:
    """A recipe without checkpoints has no seconds of saving."""
    step = StepSample(1, 0.1)
    require_measured(made_up_trial(), measurement([step], peak_bytes=0, parameters=0, samples_per_loss=0))
    for name in ("log_seconds", "save_seconds", "eval_seconds_per_sample"):
        require_measured(made_up_trial(), measurement([step], **{name: 0.0}))
        with pytest.raises(ValueError, match=f"{name} of trial .* is negative"):
            require_measured(made_up_trial(), measurement([step], **{name: -1e-9}))
