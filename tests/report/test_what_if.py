"""What-if as bytes of the report; tests/e2e/test_what_if.py opens it in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.cli.compare import CompareArguments, collect
from bench.report.compare.comparison import Comparison, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import shipped_prices
from bench.report.pages.what_if import what_if
from tests.report.made import H100, NO_MEMORY, bundle, manifest

QUOTE = {"date": "2026-06-01", "source": "made up for this test"}


def prices(folder: Path, currency: str = "USD", **more: Any) -> Path:
    path = folder / "prices.json"
    book = {"schema": "bench/prices/v1", "currency": currency, "shipped": False, **more}
    path.write_text(json.dumps(book))
    return path


def data_of(comparison: Comparison) -> Any:
    (text,) = re.findall(
        r'<script type="application/json" id="what-if-data">(.*?)</script>', what_if(comparison)
    )
    return json.loads(text)


def controls_of(comparison: Comparison) -> dict[str, tuple[float, float]]:
    """Return the names of the controls, with the ends of their sliders."""
    fields = r'name="([^"]+)" type="text".*?data-low="([^"]+)" data-high="([^"]+)"'
    return {name: (float(low), float(high)) for name, low, high in re.findall(fields, what_if(comparison))}


def test_the_section_is_hidden_until_its_script_shows_it(tmp_path: Path) -> None:
    text = what_if(collect(CompareArguments((bundle(tmp_path / "a.tar"),))))
    assert text.startswith('<section id="what-if" hidden="">')


def test_a_page_on_which_nothing_is_ranked_has_no_what_if(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", settings=[((), NO_MEMORY)])
    assert what_if(collect(CompareArguments((path,)))) == ""


def test_the_script_gets_what_python_decides_from(tmp_path: Path) -> None:
    rents = [{"gpu": [H100], "gpus": 8, "price": 24.0, **QUOTE}]
    electricity = {"price": 0.5, **QUOTE}
    found = collect(
        CompareArguments(
            (bundle(tmp_path / "a.tar"), bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", hot=True)),
            prices=prices(tmp_path, rents=rents, electricity=electricity, life_years=4),
            budget=500.0, runs=3, utilisation=0.25,
        )
    )  # fmt: skip
    data, (part,) = data_of(found), found.parts
    assert data["asked"] == {"budget": 500.0, "deadline": None, "runs": 3, "utilisation": 0.25}
    assert (data["life_days"], data["life"], data["sign"]) == (4 * 365, "4 years", "$")
    (model,) = data["models"]
    for machine, entry in zip(model["machines"], part.entries, strict=True):
        assert to_json(entry.machine).items() <= machine.items()
        assert (machine["rent"], machine["price"], machine["rentable"]) == (24.0, None, True)
        assert machine["paid_for"] == {"rent": ["price of a machine with 8 GPUs"], "own": []}
    assert [machine["marked"] for machine in model["machines"]] == [False, True]
    assert [machine["doubts"] for machine in model["machines"]] == [[], ["SLOWED: see below"]]


def test_there_is_a_control_for_each_limit_and_for_the_rent_of_each_kind_of_machine(tmp_path: Path) -> None:
    paths = (
        bundle(tmp_path / "a.tar", of=manifest(models=["tiny-gpt-neox", "tiny-vit"])),
        bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B"),
        bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", gpus=2),
    )
    rents = [{"gpu": [H100], "gpus": 1, "price": 3.0, **QUOTE}]
    found = controls_of(collect(CompareArguments(paths, prices=prices(tmp_path, rents=rents))))
    kinds = ["rent:1x H100 80GB HBM3", "rent:2x H100 80GB HBM3"]
    assert list(found) == ["budget", "deadline", "runs", "utilisation", *kinds]
    assert found[kinds[0]] == pytest.approx((0.3, 30.0))
    assert found[kinds[1]] == (0.1, 1000.0)  # nobody rents two for a price that is known
    assert (found["runs"], found["utilisation"]) == ((1.0, 1000.0), (1.0, 100.0))


@pytest.mark.parametrize(("budget", "deadline", "runs"), [(1e-3, 1e-6, 1), (1e9, 1e5, 5_000)])
def test_every_figure_and_what_was_asked_lie_within_the_sliders(
    tmp_path: Path, budget: float, deadline: float, runs: int
) -> None:
    request = CompareArguments(
        (bundle(tmp_path / "a.tar"),), budget=budget, deadline_days=deadline, runs=runs
    )
    comparison = collect(request)
    found, (entry,) = controls_of(comparison), comparison.parts[0].entries
    spends = [offer.spend for offer in entry.offers]
    assert spends
    assert all(found["budget"][0] < amount < found["budget"][1] for amount in [budget, *spends])
    assert all(found["deadline"][0] < each < found["deadline"][1] for each in (deadline, entry.days.value))
    assert found["runs"][0] <= runs <= found["runs"][1]


def test_controls_name_the_currency_and_many_rents_are_folded(tmp_path: Path) -> None:
    gpus = ("NVIDIA H200", "NVIDIA L40S", "NVIDIA A40", "NVIDIA B200", H100)
    paths = [bundle(tmp_path / f"{i}.tar", run_id=f"r{i}", uuid=f"U{i}", gpu=g) for i, g in enumerate(gpus)]
    book = prices(tmp_path, "EUR")
    few, many = (what_if(collect(CompareArguments(tuple(some), prices=book))) for some in (paths[:4], paths))
    assert "Budget, EUR<" in few
    assert "Rent of 1x H200, EUR an hour<" in few
    assert [text.count("<details>") for text in (few, many)] == [1, 2]
    assert "Rents of 5 kinds of machine" in many


def test_a_cpu_has_no_rent_to_change(tmp_path: Path) -> None:
    (part,) = collect(CompareArguments((bundle(tmp_path / "a.tar"),))).parts
    row = part.entries[0].row
    cpu = replace(row, machine=replace(row.machine, kind="cpu", name="some CPU"))
    comparison = compare_rows([cpu], [], Terms(shipped_prices(), Wish()), 1)
    assert list(controls_of(comparison)) == ["budget", "deadline", "runs", "utilisation"]
    assert not data_of(comparison)["models"][0]["machines"][0]["rentable"]


def test_cards_whose_names_differ_in_blanks_have_elements_of_their_own(tmp_path: Path) -> None:
    """A stranger may name a card so. Two elements of one id would end the page's script at the second one."""
    names = (H100, H100.replace("80GB HBM3", "80GB-HBM3"), 'X" onfocus="alert(1)', "</script><img src=x>")
    paths = tuple(
        bundle(tmp_path / f"{number}.tar", run_id=f"{number:04}", uuid=str(number), gpu=name)
        for number, name in enumerate(names)
    )
    text = what_if(collect(CompareArguments(paths)))
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    assert text.count('name="rent:') == len(names)
    assert {*re.findall(r'(?:for|aria-describedby)="([^"]*)"', text)} <= {*ids}
    assert "<img" not in text and ' onfocus="' not in text
