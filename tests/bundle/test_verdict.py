"""A verdict tells everything that a recomputation found, as lines and as a document."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.bundle.verdict import Contents, Note, assurance, level_text
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from bench.records.marks import Mark
from bench.records.slowdown import Slowed
from tests.bundles import check, packed

REAL = Path(__file__).parents[2] / "results" / "proof-h200" / "pythia-160m.tar"
SLOWED = {"t1": Slowed(0, ("heat",), 0.5, 900, 1980, 88)}
MARKS = {"t1": (Mark("LOADED", "5.0 of 8 CPUs were at work", 0.6),)}
FOUND = Contents(
    samples=1234,
    measured_seconds=5.5,
    notes=(Note("tiny", "its data were made up"), Note(None, "its clock is wrong")),
    slowed=SLOWED,
    marks=MARKS,
    not_recomputed="energy",
)


def test_lines_tell_all_that_was_found(tmp_path: Path) -> None:
    verdict = dataclasses.replace(check(packed(tmp_path / "b.tar")), complete=False, contents=FOUND)
    lines = verdict.to_lines()
    assert lines[0] == "valid      7 files, 1,234 samples; every summary recomputed and equal"
    assert lines[-6:] == [
        "incomplete the run ended before its plan did",
        "on trust   tiny: its data were made up",
        "on trust   its clock is wrong",
        "as stated  energy: not recomputed, since the bundle has no samples of them",
        "SLOWED     GPU 0 by heat in 1 trial, 50% of the time, at 900 of its 1,980 MHz and 88 °C: "
        "the same GPU in good health is faster, and bench check examines this one",
        "LOADED     1 trial: 5.0 of 8 CPUs were at work: the idle machine may be faster",
    ]


def test_the_document_tells_all_that_was_found() -> None:
    verdict = verify_bundle(REAL, recompute)
    found = dataclasses.replace(
        verdict.contents, notes=FOUND.notes, slowed=SLOWED, marks=MARKS, not_recomputed="energy"
    )
    document = dataclasses.replace(verdict, contents=found).to_json()
    assert "contents" not in document
    assert document["recomputed"] == {
        "samples": 18,
        "measured_seconds": pytest.approx(190.584, abs=1e-3),
        "on_trust": [
            {"model": "tiny", "text": "its data were made up"},
            {"model": None, "text": "its clock is wrong"},
        ],
        "not_recomputed": "energy",
        "slowed": {
            "t1": {
                "gpu": 0,
                "why": ["heat"],
                "share": 0.5,
                "sm_mhz": 900,
                "top_mhz": 1980,
                "celsius": 88,
            }
        },
        "marks": {"t1": [{"kind": "LOADED", "text": "5.0 of 8 CPUs were at work", "degree": 0.6}]},
        "busy_shares": {"37847c3eb4b925eb": 1.0},
    }


def test_the_document_of_a_node_check_has_its_counts() -> None:
    assert FOUND.facts() == {"samples": 1234, "measured_seconds": 5.5}


@pytest.mark.parametrize(
    ("level", "trusted", "text"),
    [
        ("self", False, "self"),
        ("self", True, "self (trusted)"),
        ("operator", True, "operator (trusted)"),
    ],
)
def test_a_level_tells_whether_its_signer_is_trusted(level: str, trusted: bool, text: str) -> None:
    assert level_text(level, trusted=trusted) == text


def test_a_trusted_signer_is_worth_more_than_a_receipt_and_both_are_worth_most() -> None:
    ascending = [("self", False), ("operator", False), ("self", True), ("operator", True)]
    worth = [assurance(level, trusted=trusted) for level, trusted in ascending]
    assert worth == sorted(set(worth))


@pytest.mark.parametrize(
    ("trusted", "level", "said"),
    [
        (True, "self", "self: integrity and origin are proven; freshness and the node's honesty are not"),
        (False, "self", "self: integrity is proven; origin, freshness and the node's honesty are not"),
        (
            True,
            "operator",
            "operator: integrity, origin and freshness are proven; the node's honesty is not",
        ),
    ],
)
def test_a_verdict_says_what_is_proven_and_what_is_not(
    tmp_path: Path, trusted: bool, level: str, said: str
) -> None:
    by = "a key of the user" if trusted else None
    verdict = dataclasses.replace(
        check(packed(tmp_path / "b.tar")), trusted=trusted, trusted_by=by, level=level, doubt=None
    )
    lines = verdict.to_lines()
    assert f"level      {said}" in lines
    (signed,) = [line for line in lines if line.startswith("signed")]
    assert signed.endswith(", trusted by a key of the user") == trusted
    assert ("trusted" in signed) == trusted
