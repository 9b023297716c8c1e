"""Facts that a row takes from its bundle and on which other rules rest, and the order of several models."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from bench.bundle.verify import verify_bundle
from bench.report.compare.compared_rows import ComparedRun, Row, gather, rows_of
from bench.report.compare.comparison import Terms, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.prices import PriceBook
from tests.report.made import bundle


def row(path: Path, **verdict: str) -> Row:
    """Return the only row of a bundle, whose verdict has these differences."""
    found = verify_bundle(path, lambda files: gather(files, with_telemetry=False))
    assert isinstance(found.contents, ComparedRun)
    (made,) = rows_of(path, replace(found, **verdict), found.contents)  # type: ignore[arg-type]
    return made


def test_a_machine_is_identified_by_its_gpus_and_their_number(tmp_path: Path) -> None:
    found = row(bundle(tmp_path / "a.tar", uuid="GPU-x", gpus=2)).machine
    digest = sha256(b"GPU-x-0 GPU-x-1").hexdigest()[:12]
    assert (found.identity, found.devices) == (f"{digest}-2", 2)


def test_a_row_has_the_operators_receipt_and_the_reason_of_a_missing_gradient_check(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", settings=[((), 0.5)], checks={(): "it crashed"})
    received = row(path, received_at="2026-11-27T00:00:00Z", level="operator")
    assert (received.received_at, received.level) == ("2026-11-27T00:00:00Z", "operator")
    assert row(path).received_at is None
    (attempt,) = received.attempts
    assert attempt.no_gradient_check == "it crashed"


def test_a_row_names_the_samples_that_it_was_computed_from(tmp_path: Path) -> None:
    """Rows of two bundles with the same samples are copies of one measurement."""
    path = bundle(tmp_path / "a.tar")
    with tarfile.open(path) as archive:
        samples = archive.extractfile("samples.jsonl")
        assert samples is not None
        assert row(path).samples_sha256 == sha256(samples.read()).hexdigest()


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ([("b", 5.0), ("b", 100.0), ("a", 10.0)], ["b", "a"]),  # the smallest row of a model counts
        ([("b", 10.0), ("a", 10.0)], ["a", "b"]),
        ([("b", None), ("a", 10.0), ("c", 20.0)], ["a", "c", "b"]),
    ],
)
def test_models_are_ordered_by_the_size_of_their_training(
    sizes: Sequence[tuple[str, float | None]], order: list[str], tmp_path: Path
) -> None:
    made = row(bundle(tmp_path / "a.tar"))
    rows = [
        replace(made, model=model, training_flops=flops, run_id=f"run-{number}", path=f"{number}.tar")
        for number, (model, flops) in enumerate(sizes)
    ]
    random.Random(5).shuffle(rows)
    terms = Terms(PriceBook("USD"), Wish())
    assert [part.model for part in compare_rows(rows, (), terms, len(rows)).parts] == order
