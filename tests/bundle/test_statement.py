"""The statement of a bundle is a valid in-toto statement, in one form only."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.base.stamps import utc
from bench.base.strict_json import canonical_json
from bench.bundle.statement import build_statement, parse_statement
from tests.bundles import predicate

SUBJECTS = {"samples.jsonl": "b" * 64, "manifest.json": predicate().manifest_sha256}
STATEMENT = build_statement(SUBJECTS, predicate())


def altered(**changes: Any) -> bytes:
    """Return the canonical statement with changed fields; predicate fields are named predicate__NAME."""
    document = json.loads(STATEMENT)
    for name, value in changes.items():
        inner = name.removeprefix("predicate__")
        (document["predicate"] if inner != name else document)[inner] = value
    return canonical_json(document)


def test_a_statement_is_in_toto_and_sorted() -> None:
    document = json.loads(STATEMENT)
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["subject"] == [
        {"name": "manifest.json", "digest": {"sha256": predicate().manifest_sha256}},
        {"name": "samples.jsonl", "digest": {"sha256": "b" * 64}},
    ]
    assert document["predicateType"].startswith("urn:uuid:")
    assert document["predicate"]["level"] == "self"
    assert build_statement(dict(reversed(SUBJECTS.items())), predicate()) == STATEMENT


def test_a_statement_is_read_as_written() -> None:
    statement = parse_statement(STATEMENT)
    assert statement.subjects == SUBJECTS
    assert statement.predicate == predicate()


ODD_SUBJECTS: list[Any] = [
    None,
    1,
    "a",
    ["a"],
    [{"name": "a"}],
    [{"name": "a", "digest": {}}],
    [[]],
    {"a": 1},
]
DEEP = "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (altered(_type="https://in-toto.io/Statement/v2"), "_type is .*v2.* knows only https://in-toto"),
        (altered(predicateType="https://slsa.dev/provenance/v1"), "predicateType is .*slsa"),
        (altered(predicate__schema="bench/run/v9"), "schema is 'bench/run/v9'; .* knows only bench/run/v2"),
        (altered(predicate=[]), "schema is None"),
        (b"[]", "_type is None"),
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf" + STATEMENT, "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (altered(predicate__node=json.loads(DEEP)), "nested too deeply"),
        (STATEMENT.replace(b"{", b'{"_type":"x",', 1), "'_type' stands twice"),
        (STATEMENT.replace(b'"complete":true', b'"complete":NaN'), "NaN"),
        (STATEMENT.replace(b'"complete":true', b'"complete":' + b"9" * 5000), r"past 2\*\*53"),
        (STATEMENT.replace(b'"complete":true', b'"complete":1e999'), "does not fit a double"),
        (STATEMENT.replace(b'"complete":true', b'"complete":1'), "expected bool"),
        (STATEMENT.replace(b'"complete":true', b'"complete": true'), "canonical form"),
        (STATEMENT.replace(b"bench/run/v2", rb"bench\/run\/v2"), "canonical form"),
        (STATEMENT + b"\n", "canonical form"),
        (STATEMENT + STATEMENT, "not JSON"),
        (altered(subject=json.loads(STATEMENT)["subject"][::-1]), "canonical form"),
        (altered(subject=json.loads(STATEMENT)["subject"] * 2), "canonical form"),
        (altered(subject={}), "manifest_sha256"),
        (altered(subject=[]), "manifest_sha256"),
        *[
            (altered(subject=odd), "/subject: expected a list of names with their sha256")
            for odd in ODD_SUBJECTS
        ],
        (altered(subject=[{"name": 1, "digest": {"sha256": "a" * 64}}]), "/subject: expected"),
        (altered(subject=[{"name": [], "digest": {"sha256": "a" * 64}}]), "/subject: expected"),
        (altered(subject=[{"name": "a", "digest": {"sha256": 1}}]), "/subject: expected"),
        (altered(subject=[s | {"uri": "x"} for s in json.loads(STATEMENT)["subject"]]), "canonical form"),
        (altered(subject=[{"name": "a", "digest": {"sha256": "A" * 64}}]), "bad name or sha256"),
        (altered(subject=[{"name": "a" * 101, "digest": {"sha256": "a" * 64}}]), "bad name or sha256"),
        (altered(subject=[{"name": "\n", "digest": {"sha256": "a" * 64}}]), "bad name or sha256"),
        (altered(more=1), "canonical form"),
        (altered(predicate__more=1), "unknown field 'more'"),
        (altered(predicate__schema="bench/run/v1"), "predicateType is .*v2'; .* knows only .*v1"),
        (altered(predicate__level="operator"), "the nonce of a challenge belong together"),
        (altered(predicate__nonce="5e" * 32), "the nonce of a challenge belong together"),
        (
            altered(predicate__level="operator", predicate__nonce="5E" * 32),
            "its nonce does not have the form",
        ),
        *[
            (altered(predicate__level=level), f"'{level}' is none of 'self', 'operator'")
            for level in ("reproduced", "gpu-attested", "root")
        ],
        (altered(predicate__run_id="../x"), "not a run id"),
        (altered(predicate__run_id="\x1b[2J"), "not a run id"),
        (altered(predicate__run_id="a" * 65), "not a run id"),
        (altered(predicate__started_at="2026-12-03 10:00:00"), "not a time in UTC"),
        (altered(predicate__manifest_sha256="b" * 64), "not the digest of manifest.json"),
        (altered(predicate__node=[]), "/node: expected an object"),
    ],
)
def test_another_statement_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why) as caught:
        parse_statement(data)
    assert "\n" not in str(caught.value)


def test_the_longest_names_are_read() -> None:
    named = build_statement(SUBJECTS | {"a" * 100: "b" * 64}, predicate(run_id="r" * 64))
    assert parse_statement(named).predicate.run_id == "r" * 64


def test_a_statement_of_the_first_version_is_read_in_its_own_form() -> None:
    """Signed bundles outlive versions of bench; version 1 had neither a nonce nor an envelope."""
    document = json.loads(STATEMENT)
    document["predicate"]["schema"] = "bench/run/v1"
    document["predicateType"] = document["predicateType"].replace("v2", "v1")
    with pytest.raises(VerificationFailed, match="canonical form"):
        parse_statement(canonical_json(document))
    del document["predicate"]["nonce"]
    assert parse_statement(canonical_json(document)).predicate.nonce is None
    document["predicate"] |= {"level": "operator", "nonce": "5e" * 32}
    with pytest.raises(VerificationFailed, match="its nonce does not have the form of one"):
        parse_statement(canonical_json(document))


def test_a_field_left_out_is_not_filled_in() -> None:
    document = json.loads(STATEMENT)
    del document["predicate"]["level"]
    with pytest.raises(VerificationFailed, match="canonical form"):
        parse_statement(canonical_json(document))


def test_an_invalid_statement_cannot_be_built() -> None:
    good = predicate()
    for wrong in (
        dataclasses.replace(good, run_id=""),
        dataclasses.replace(good, manifest_sha256="b" * 64),
        dataclasses.replace(good, ended_at="now"),
    ):
        with pytest.raises(ValueError):
            build_statement(SUBJECTS, wrong)


def test_times_are_utc_to_the_second() -> None:
    assert utc(0.9) == "1970-01-01T00:00:00Z"
    assert utc(1_800_000_000) == "2027-01-15T08:00:00Z"
