"""Every figure of README and docs/accuracy.md about a proof follows from a committed bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from bench.base.sizes import bytes_text
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.records.run_results import TrialResult
from bench.records.text import error_text, figures, interval_text, share_text
from bench.report.read_bundles import check_all

ROOT = Path(__file__).parents[1]
README, ACCURACY = (ROOT / "README.md").read_text(), (ROOT / "docs/accuracy.md").read_text()
Row = Mapping[str, str]


def tables(text: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield each table with the text of its section before it."""
    for section in re.split(r"^#+ ", text, flags=re.M):
        found = re.split(r"((?:^\|.*\n)+)", section, flags=re.M)
        for before, table in zip(found[::2], found[1::2], strict=False):
            headers, _, *rows = (
                [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
            )
            yield before, [dict(zip(headers, row, strict=True)) for row in rows]


@cache
def proven(folder: str) -> tuple[TrialResult, ...]:
    """Return the trials of a folder of results/ that were held against real training."""
    found: list[TrialResult] = []
    for _, verdict in check_all(sorted((ROOT / folder).glob("*.tar")), None):
        assert isinstance(verdict, Verdict)
        if isinstance(verdict.contents, RunContents):
            found += [trial for trial in verdict.contents.results.trials if trial.proof]
    return tuple(found)


def rounds_to(printed: str, value: float) -> bool:
    """Say whether a value, rounded to the digits of a printed number, is that number."""
    digits = printed.strip("+-%").partition(".")[2]
    return abs(float(printed.strip("%")) - value) <= 0.5001 * 10 ** -len(digits)


def gives(trial: TrialResult, row: Row) -> bool:
    """Say whether a row of docs/accuracy.md shows the figures of a trial."""
    estimate, proof = trial.estimate, trial.proof
    assert estimate is not None
    assert proof is not None
    value, half_width = row["predicted s/step"].split(" ±")
    error = 100 * (estimate.step_seconds.value / proof.step_seconds - 1)
    return (
        row["model"].split(",")[0] == trial.model
        and row["real steps"] == str(proof.steps)
        and rounds_to(value, estimate.step_seconds.value)
        and rounds_to(half_width, estimate.step_seconds.half_width)
        and rounds_to(row["really s/step"], proof.step_seconds)
        and rounds_to(row["error"], error)
        and rounds_to(row["measured GiB"], estimate.peak_bytes / 2**30)
    )


OF_PROOFS = [
    (before, row)
    for before, rows in tables(ACCURACY)
    if "really s/step" in rows[0] and "measured GiB" in rows[0]
    for row in rows
]


def test_there_are_tables_of_proofs() -> None:
    assert len(OF_PROOFS) >= 40


@pytest.mark.parametrize(
    ("before", "row"), OF_PROOFS, ids=lambda one: one["model"] if isinstance(one, dict) else ""
)
def test_a_row_of_proofs_is_what_a_bundle_of_its_section_gives(before: str, row: Row) -> None:
    (folder, *_) = re.findall(r"results/[\w-]+", before + row.get("bundle", "")) or ["results/proof-h200"]
    assert any(gives(trial, row) for trial in proven(folder)), (folder, row)


def test_the_table_of_the_readme_is_what_its_bundles_give() -> None:
    (rows,) = [rows for _, rows in tables(README) if "days predicted" in rows[0]]
    assert len(rows) == 9
    for row in rows:
        (trial,) = (trial for trial in proven("results/nine-4xh200") if trial.model == row["model"])
        estimate = trial.estimate
        assert estimate is not None
        unit = row["per second"].split()[1]
        assert row == {
            "model": row["model"],
            "days predicted": interval_text(estimate.days),
            "per second": f"{figures(estimate.units_per_second)} {unit}",
            "of limit": share_text(estimate.utilisation),
            "memory": bytes_text(estimate.peak_bytes),
            "error against real training": error_text(trial),
        }
