"""`bench predict --html`: one file with a picture and a table for each model."""

from __future__ import annotations

import json
import os
import re
import threading
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.library.predict import predict
from bench.report.plots.predictions import not_drawn, prediction_plots
from tests.report.made import bundle

RESULTS = Path(__file__).parents[2] / "results"
PROOF = RESULTS / "proof-h200/pythia-1b.tar"
PROOF_RUN = "44ed4bd7c3c9"
OTHER_SWITCHES = RESULTS / "switches-h200/half-expandable-segments.tar"
EVIL = "</script><script>alert(1)</script><img src=x>"


def page(folder: Path, *options: str, models: tuple[Any, ...] = ("pythia-1b", "pythia-6.9b")) -> str:
    manifest = folder / "m.json"
    manifest.write_text(json.dumps({"schema": "bench/manifest/v1", "models": models}))
    path = folder / "page.html"
    assert main(["predict", str(manifest), "--html", str(path), *options]) == 0
    return path.read_text()


def test_each_model_has_a_picture_and_a_table_of_its_machines(tmp_path: Path) -> None:
    text = page(tmp_path, "--gpu", "8xh100,h200,l4")
    sections = re.findall(r'<section id="model-\d">.*?</section>', text, re.DOTALL)
    assert len(sections) == 2
    for section in sections:
        assert section.index("<figure") < section.index("<table")
    (of_1b, of_7b) = (re.findall(r'data-head="machine">([^<]*)', section) for section in sections)
    assert of_1b == ["8x H100 80GB HBM3", "1x H200", "1x L4"]  # by days
    assert of_7b == ["8x H100 80GB HBM3", "1x H200"]
    assert "not predicted: 1x L4: needs" in sections[1]


def test_where_nothing_fits_the_page_names_the_cost_that_the_table_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--own"]):
        given = ["predict", "pythia-1b", "--gpu", "8xh100", "--budget-usd", "10", *options]
        assert main([*given, "--html", str(tmp_path / "page.html")]) == 1
        told = " ".join(capsys.readouterr().out.split())
        (on_page,) = re.findall(
            r"<p>(no machine that was asked for [^<]*)", (tmp_path / "page.html").read_text()
        )
        assert " ".join(unescape(on_page).split()) in told


def test_predicted_marks_are_hollow_and_measured_ones_filled(tmp_path: Path) -> None:
    alone = page(tmp_path, "--gpu", "8xh100,h200")
    both = page(tmp_path, "--gpu", "8xh100,h200", "--measured", str(PROOF))
    assert "rent: measured" not in alone
    (measured,) = re.findall(r'class="([^"]*mark[^"]*)"[^>]*><title>1x H200, rent: measured', both)
    predicted = re.findall(r'class="([^"]*mark[^"]*)"[^>]*><title>[^<]*: predicted', both)
    assert "hollow" not in measured
    assert predicted and all("hollow" in each for each in predicted)


def test_measured_machines_that_no_plot_has_are_told_with_the_reason(tmp_path: Path) -> None:
    """A machine without a price has no place in a plot of days against costs."""
    unpriced = bundle(tmp_path / "a.tar", gpu="some GPU")
    found = collect(CompareArguments((unpriced,)))
    (model,) = {part.model for part in found.parts}
    (line,) = not_drawn([model], found)
    assert line.startswith(f"{model}: 1x some GPU of {unpriced} is not drawn: no purchase price for some GPU")
    assert not list(not_drawn(["another"], found))


def test_measured_groups_that_no_plot_has_are_told(tmp_path: Path) -> None:
    old = bundle(tmp_path / "a.tar", run_id="aaaa", packages={"torch": "2.9.0"})
    new = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B")
    found = collect(CompareArguments((old, new)))
    model = found.parts[0].model
    assert list(not_drawn([model], found)) == [
        f"{model}: not drawn: 1 group of its bundles, measured under other conditions"
    ]


def test_a_manifest_is_read_once_also_with_measured_bundles(tmp_path: Path) -> None:
    """A pipe has nothing for a second reader."""
    pipe = tmp_path / "m.json"
    os.mkfifo(pipe)
    document = json.dumps({"schema": "bench/manifest/v1", "models": ["pythia-1b"]})

    def write() -> None:
        pipe.write_text(document)
        pipe.unlink()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    html = tmp_path / "page.html"
    given = ["predict", str(pipe), "--gpu", "h200", "--measured", str(PROOF), "--html", str(html)]
    assert main(given) == 0
    assert "1x H200, rent: measured" in html.read_text()
    writer.join()


def test_bundles_of_another_recipe_are_not_shown_beside_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter = {"name": "pythia-1b", "recipe": {"steps": 1_000}}
    text = page(tmp_path, "--gpu", "8xh100,h200", "--measured", str(PROOF), models=(shorter,))
    assert "rent: measured" not in text
    assert PROOF_RUN not in text
    assert "pythia-1b: its bundles measured another recipe, and are not shown" in capsys.readouterr().err


def test_the_picture_names_only_the_runs_that_it_shows(tmp_path: Path) -> None:
    found = predict("pythia-1b", gpu="h200")
    both = collect(CompareArguments((PROOF, OTHER_SWITCHES)))
    first, second = (part for part in both.parts if part.model == "pythia-1b")  # other switches
    assert second.entries
    (plot,) = prediction_plots(found.predicted, found.currency, both)
    assert plot.runs == tuple(entry.row.run_id for entry in first.entries)


def test_rents_and_own_machines_have_a_frontier_each(tmp_path: Path) -> None:
    text = page(tmp_path, "--gpu", "a100-sxm4-80gb,8xa100-sxm4-80gb,h100,8xh100", models=("pythia-160m",))
    lines = [
        points for points in re.findall(r'<polyline points="([^"]*)" class="front"', text) if " " in points
    ]
    assert len(lines) == 2
    assert ">rented<" in text and ">owned<" in text


def test_every_cost_has_its_quote_with_source_and_day(tmp_path: Path) -> None:
    text = page(tmp_path, "--gpu", "8xh100", models=("pythia-1b",))
    prices = text.partition('id="prices"')[2].partition("</section>")[0]
    assert "gpu-price-index" in prices and "2026-10-10" in prices
    assert "thinkmate" in prices and "2024-09-21" in prices


def test_the_page_fetches_nothing_and_shows_texts_as_texts(tmp_path: Path) -> None:
    card = {
        "name": EVIL, "compute_capability": "10.0", "memory_gib": 288, "bf16_tflops": 4000,
        "tf32_tflops": 2000, "fp32_tflops": 120, "memory_gb_per_second": 13000, "source": EVIL,
    }  # fmt: skip
    spec = tmp_path / "card.json"
    spec.write_text(json.dumps(card))
    text = page(tmp_path, "--gpu", "all", "--gpu-spec", str(spec))
    assert "alert(1)" in text
    assert "<img" not in text and text.count("<script") == 1
    assert "default-src 'none'" in unescape(text)
    assert not re.search(r"(src|href)=[\"'](?!#)|url\(|@import", text)


def test_on_a_phone_each_figure_has_its_label(tmp_path: Path) -> None:
    text = page(tmp_path, "--gpu", "8xh100,h200")
    for body in re.findall(r'<table class="ranked stacked">.*?<tbody>(.*?)</tbody>', text, re.DOTALL):
        for row in body.split("</tr>")[:-1]:
            assert row.count("<td") == row.count("data-head=")


def test_bundles_need_a_place_to_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text('{"schema": "bench/manifest/v1", "models": ["pythia-1b"]}')
    assert main(["predict", str(manifest), "--measured", str(PROOF)]) == 2
    assert "--plots" in capsys.readouterr().err
