"""The floor in a bundle: shown as a share of the step, recomputed, and refused if no run can have it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.base.strict_json import to_json
from bench.bundle.pack import pack
from bench.bundle.statement import parse_statement
from bench.bundle.tar_format import SIGNING, STATEMENT, open_bundle
from bench.bundle.verify import verify_bundle
from bench.cli.compare import CompareArguments, collect
from bench.node_check.recompute_any import recompute
from bench.records.floor import MAX_SHARE_OF_STEP, Floor
from bench.report.compare.comparison import Comparison
from bench.report.pages.html import page
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from bench.report.text.run_table import results_table
from tests.report.made import CRASH, KEY, bundle, manifest

# A pass of the bundles below takes half a second, of which this floor is 80%.
FLOOR = Floor(passes=9, products_seconds=0.3, convolutions_seconds=0, attention_seconds=0.1, scans_seconds=0)
TWO = manifest(methods=["naive", ["kernels"], ["tf32"]])
SETTINGS = [((), 0.6), (("kernels",), 0.5), (("tf32",), CRASH)]


def with_floor(path: Path, **changes: Any) -> Path:
    """Write the bundle of a run in which the second of three settings is the fastest and has the floor."""
    return bundle(path, of=TWO, settings=SETTINGS, floors={("kernels",): FLOOR}, **changes)


def shown(path: Path) -> str:
    return results_table(verify_bundle(path, recompute).contents.results)


def compared(*paths: Path) -> Comparison:
    return collect(CompareArguments(paths))


def test_the_floor_comes_back_from_the_bundle_with_its_share_recomputed(tmp_path: Path) -> None:
    results = verify_bundle(with_floor(tmp_path / "a.tar"), recompute).contents.results
    naive, kernels, crashed = results.trials
    assert kernels.floor == FLOOR
    assert kernels.share_of_floor == pytest.approx(0.8, rel=0.01)
    assert (naive.share_of_floor, crashed.share_of_floor) == (None, None)
    assert "share_of_floor" not in json.dumps(to_json(results))


def test_the_table_of_a_run_shows_the_share_beside_that_of_the_limit(tmp_path: Path) -> None:
    lines = shown(with_floor(tmp_path / "a.tar")).splitlines()
    head, naive, kernels = lines[1], lines[3], lines[4]
    assert "of limit    of floor" in head
    place = slice(head.index("of floor"), head.index("of floor") + len("of floor"))
    assert (naive[place].strip(), kernels[place].strip()) == ("-", "80%")
    floor = "400 ms a pass (products 300 ms, attention 100 ms) at micro-batch 16"
    assert f"floor  tiny-gpt-neox: {floor}; at most the rest of the step can be won" in lines


def test_a_table_without_a_floor_has_no_column_for_it(tmp_path: Path) -> None:
    """Bundles older than the floor have none."""
    path = bundle(tmp_path / "a.tar")
    old(path)
    assert "floor" not in shown(path)
    assert "floor" not in table(compared(path))


def test_the_reason_for_a_missing_floor_is_shown(tmp_path: Path) -> None:
    text = shown(bundle(tmp_path / "a.tar", floors={(): "out of gpu memory: tried to allocate"}))
    assert "no floor  tiny-gpt-neox: out of gpu memory: tried to allocate" in text.splitlines()
    assert "of floor" not in text


def test_every_format_of_a_comparison_has_the_share(tmp_path: Path) -> None:
    b = bundle(tmp_path / "b.tar", of=TWO, settings=SETTINGS, uuid="B", run_id="bbbb")
    a = with_floor(tmp_path / "a.tar")
    both = compared(a, b)
    for text in (table(both), markdown(both)):
        assert text.index("of limit") < text.index("of floor") < text.index("memory")
        assert "80%" in text
        assert "of floor: the time of the model's own products" in text
    shares = [row["share_of_floor"] for row in csv.DictReader(io.StringIO(csv_text(both)))]
    assert sorted(share and f"{float(share):.3f}" for share in shares) == ["", "0.800"]
    entries = json.loads(json_text(both))["parts"][0]["entries"]
    assert [entry["row"]["best"]["share_of_floor"] for entry in entries].count(None) == 1
    html = unescape(page(both))
    assert 'data-head="of floor">80%</td>' in html
    assert "of floor: the time of the model's own products" in html


def test_on_eighty_columns_the_settings_of_a_bundle_have_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = with_floor(tmp_path / "a.tar")
    settings, machines = shown(path), table(compared(path))
    assert max(map(len, [*settings.splitlines(), *machines.splitlines()])) <= 80
    head, row = settings.splitlines()[1], settings.splitlines()[4]
    assert row[head.index("of floor") :].split()[0] == "80%"


# --- refused --------------------------------------------------------------------------------------------


def forged(path: Path, edit: Callable[[dict[str, Any]], None], swap: tuple[str, str] = ("", "")) -> None:
    """Edit the results of a bundle, exchange a text of their JSON, and sign them again, as a node can."""
    with open_bundle(path) as opened:
        files: dict[str, Any] = {name: opened.read(name) for name in opened.members if name not in SIGNING}
        facts = parse_statement(opened.read(STATEMENT)).predicate
    results = json.loads(files["results.json"])
    edit(results)
    files["results.json"] = json.dumps(results).replace(*swap).encode()
    pack(path, files, facts, KEY)


def old(path: Path) -> None:
    """Remove the fields of a floor, which older bundles lack."""

    def remove(results: dict[str, Any]) -> None:
        for trial in results["trials"]:
            del trial["floor"], trial["no_floor"]

    forged(path, remove)


def refused(path: Path, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why):
        verify_bundle(path, recompute)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"products_seconds": -0.1}, "its floor has a time that no computation takes"),
        ({"products_seconds": 0.0, "attention_seconds": 0.0}, "its floor has no passes or no time"),
        ({"passes": 0}, "its floor has no passes or no time"),
        ({"products_seconds": 0.8}, "its floor takes 180% of the time of its step"),
        ({"share": 0.99}, "is malformed"),
        ({"passes": 1.5}, "is malformed"),
    ],
)
def test_a_floor_that_no_run_can_have(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    forged(path, lambda results: results["trials"][1]["floor"].update(change))
    refused(path, why)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_floor_that_is_not_a_number(number: str, tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    swap = '"products_seconds": 0.3', f'"products_seconds": {number}'
    forged(path, lambda _: None, swap)
    refused(path, "results.json")


def test_a_floor_of_a_trial_without_a_figure(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    forged(path, lambda results: results["trials"][2].update(floor=to_json(FLOOR)))
    refused(path, "it has a floor, but no figure to compare the floor with")


def test_a_floor_of_a_model_that_is_not_in_the_manifest(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    forged(path, lambda results: results["trials"].append(results["trials"][1] | {"model": "pythia-1b"}))
    refused(path, "is of no model in the results")


def test_a_floor_that_took_longer_than_the_run_is_reported(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    forged(path, lambda results: results["trials"][1]["floor"].update(passes=1_000_000))
    (note,) = verify_bundle(path, recompute).contents.notes
    assert "its samples take 400,0" in str(note)


def test_a_floor_and_a_reason_for_its_absence(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.tar")
    forged(path, lambda results: results["trials"][1].update(no_floor="it crashed"))
    refused(path, "no_floor does not follow from the samples")


def test_a_share_that_noise_explains_is_accepted_and_shown(tmp_path: Path) -> None:
    """Another process measured the step, perhaps on a hotter card."""
    most = replace(FLOOR, products_seconds=0.5 * MAX_SHARE_OF_STEP - 0.11)
    path = bundle(tmp_path / "a.tar", floors={(): most})
    assert "148%" in shown(path)
