"""Energy of the node and CO2, by factors that the user gives."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.report.compare.energy_factors import NO_FACTORS, EnergyFactors
from bench.report.pages.html import page
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import table
from tests.report.made import bundle

MANIFEST = str(Path(__file__).parents[2] / "manifests/quickstart.json")


def test_factors_multiply_and_what_is_not_given_is_not_stated() -> None:
    both = EnergyFactors(1.5, 400)
    assert (both.node_kwh(10), both.co2_kg(10)) == (15.0, 6.0)
    assert EnergyFactors(None, 400).co2_kg(10) == 4.0
    assert (NO_FACTORS.node_kwh(10), NO_FACTORS.co2_kg(10), NO_FACTORS.texts) == (None, None, ())
    assert (both.node_kwh(None), both.co2_kg(None)) == (None, None)


def test_a_comparison_states_them_in_every_format(tmp_path: Path) -> None:
    bundle(tmp_path / "a.tar", watts=400.0)
    plain = collect(CompareArguments((tmp_path,)))
    assert all(word not in form(plain) for word in ("node kWh", "kg CO2") for form in (table, page))
    found = collect(CompareArguments((tmp_path,), node_overhead=1.5, gco2_per_kwh=400))
    (entry,) = found.parts[0].entries
    assert entry.kwh is not None
    assert (entry.node_kwh, entry.co2_kg) == (1.5 * entry.kwh, pytest.approx(0.6 * entry.kwh))
    (row,) = csv.DictReader(io.StringIO(csv_text(found)))
    assert (float(row["node_kwh"]), float(row["co2_kg"])) == (entry.node_kwh, entry.co2_kg)
    for form in (table, page):
        text = form(found)
        assert "node kWh" in text and "kg CO2" in text
        assert "400 g for each kWh (--gco2-per-kwh), of the node" in text


def test_the_co2_of_gpus_alone_says_so(tmp_path: Path) -> None:
    bundle(tmp_path / "a.tar", watts=400.0)
    found = collect(CompareArguments((tmp_path,), gco2_per_kwh=400))
    assert "of the GPUs alone, without CPUs, memory, fans and cooling" in " ".join(table(found).split())


def test_a_machine_whose_power_was_not_measured_has_none(tmp_path: Path) -> None:
    bundle(tmp_path / "a.tar", watts=None)
    (entry,) = collect(CompareArguments((tmp_path,), node_overhead=2, gco2_per_kwh=400)).parts[0].entries
    assert (entry.kwh, entry.node_kwh, entry.co2_kg) == (None, None, None)


def test_predictions_state_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", MANIFEST, "--gpu", "h200", "--node-overhead", "1.5", "--gco2-per-kwh", "400"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["energy"] == {"node_overhead": 1.5, "grams_co2_per_kwh": 400}
    for one in document["predicted"]:
        assert one["node_kwh"] == 1.5 * one["predicted"]["kwh"]
        assert one["co2_kg"] == pytest.approx(0.4 * one["node_kwh"])
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "page.html").read_text()):
        assert "node kWh" in text and "kg CO2" in text
    assert main(words[:4]) == 0
    assert "CO2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", [["--node-overhead", "0.9"], ["--gco2-per-kwh", "-1"], ["--gco2-per-kwh", "nan"]]
)
@pytest.mark.parametrize("words", [["compare", "a.tar"], ["predict", MANIFEST]])
def test_factors_that_nothing_has_are_refused(words: list[str], option: list[str]) -> None:
    assert main([*words, *option]) == 2
