"""Output in words that people know: MFU, tokens for a dollar, dollars for a billion, dates and weeks."""

from __future__ import annotations

import argparse
import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import gpu_named
from bench.bundle.verify import verify_bundle
from bench.cli.arguments import deadline
from bench.cli.compare import CompareArguments, collect
from bench.node_check.recompute_any import recompute
from bench.records.mfu import mfu_of
from bench.records.text import short_count
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import json_text, table
from bench.report.text.run_table import results_table
from tests.report.made import bundle

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "results/proof-h200/pythia-160m.tar"
TWO_GPUS = ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar"


@pytest.mark.parametrize("path", [PROOF, TWO_GPUS])
def test_mfu_is_the_models_own_arithmetic_of_the_vendors_peak(path: Path) -> None:
    results = verify_bundle(path, recompute).contents.results
    card = gpu_named("NVIDIA H200")
    assert card is not None
    (model,) = results.models
    shares = {}
    for trial in results.trials:
        if trial.estimate is None:
            assert mfu_of(trial, results.node, model.recipe.precision) is None
            continue
        peak = card.bf16_tflops * 1e12 * trial.gpus
        shares[trial.id] = mfu_of(trial, results.node, model.recipe.precision)
        assert shares[trial.id] == pytest.approx(trial.estimate.flops_per_second / peak)
        assert shares[trial.id] < (trial.estimate.utilisation or 1)  # no product reaches the vendor's peak
    best = max(shares.values())
    text = results_table(results)
    head = next(line for line in text.splitlines() if "of limit" in line)
    row = next(line for line in text.splitlines() if line.startswith("*"))
    assert row[: head.index("MFU") + 3].split()[-1] == f"{100 * best:.0f}%"


def test_a_cpu_and_an_unknown_card_have_no_mfu(tmp_path: Path) -> None:
    results = verify_bundle(bundle(tmp_path / "a.tar"), recompute).contents.results
    (trial,) = results.trials
    assert mfu_of(trial, results.node, "fp32") is not None
    for gpus in ((), tuple(replace(gpu, name="NVIDIA X1") for gpu in results.node.gpus)):
        node = replace(results.node, gpus=gpus)
        assert mfu_of(trial, node, "fp32") is None
        assert "MFU" not in results_table(replace(results, node=node))


def test_an_offer_says_what_money_trains() -> None:
    comparison = collect(CompareArguments((PROOF,)))
    (entry,) = comparison.parts[0].entries
    (offer,) = entry.offers
    recipe = verify_bundle(PROOF, recompute).contents.results.models[0].recipe
    tokens = recipe.batch_size * recipe.steps * recipe.sequence_length
    assert offer.units_per_currency == pytest.approx(tokens / offer.run_cost, rel=0.02)
    assert offer.units_per_currency is not None
    dollars = 1e9 / offer.units_per_currency
    text = table(comparison)
    assert f"  {short_count(offer.units_per_currency)} tokens/$  " in text
    assert f"  ${dollars:.2f}" in text
    (row,) = csv.DictReader(io.StringIO(csv_text(comparison)))
    assert float(row["rent_units_per_currency"]) == offer.units_per_currency
    assert float(row["mfu"]) == entry.row.best.mfu
    document = json.loads(json_text(comparison))["parts"][0]["entries"][0]
    assert document["row"]["best"]["mfu"] == entry.row.best.mfu
    assert document["offers"][0]["units_per_currency"] == offer.units_per_currency


@pytest.mark.parametrize(
    ("number", "text"),
    [(4.5e8, "450M"), (2.78e9, "2.78B"), (1.2e13, "12T"), (12_345.6, "12,346"), (7.25, "7.25")],
)
def test_large_numbers_are_short(number: float, text: str) -> None:
    assert short_count(number) == text


def test_a_deadline_is_days_hours_weeks_or_a_date() -> None:
    assert [deadline(text) for text in ("14", "14d", "36h", "2w")] == [14, 14, 1.5, 14]
    today = datetime.now(UTC).date()
    assert 9 < deadline((today + timedelta(days=9)).isoformat()) <= 10
    assert 0 < deadline(today.isoformat()) <= 1
    for wrong, said in (
        ((today - timedelta(days=1)).isoformat(), "is over"),
        ("2027-02-30", "is not a date"),
        ("soon", "is not a number: write 14d, 36h, 2w, or a date such as 2027-01-31"),
        ("5y", "write 14d"),
        ("-2w", "is not more than 0"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=said):
            deadline(wrong)
