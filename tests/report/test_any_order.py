"""The same bundles give the same comparison, in any order, grouping and folder."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison, compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import load_prices
from bench.report.pages.html import page
from bench.report.plots import all_plots
from bench.report.plots.svg import standalone
from bench.report.text.comparison_csv import csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from tests.report.made import NO_MEMORY, START, STRANGER, bundle, manifest, near_copy

ROOT = Path(__file__).parents[2]
HOUR, EVERY = ROOT / "results/hour-h200/decided.tar", ROOT / "results/every-setting-h200/pythia-160m-1gpu.tar"
PERMUTATIONS = 100  # a rule that depends on the order of two rows shows in half of them
TWO_MODELS = ["tiny-gpt-neox", "tiny-vit"]
SETTINGS: list[Any] = [((), 0.6), (("kernels",), 0.5), (("zero-1",), 0.45)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write bundles of one and two models: machines that ran twice, copies, other conditions."""
    made = tmp_path_factory.mktemp("made")
    both = manifest(models=TWO_MODELS)
    first = bundle(made / "a.tar", run_id="aaaa", uuid="A", of=both)
    bundle(made / "b.tar", run_id="bbbb", uuid="A", pass_seconds=0.45, of=manifest(methods="exhaustive"))
    bundle(made / "c.tar", run_id="cccc", uuid="C", of=manifest(micro_batch=16), settings=SETTINGS)
    bundle(made / "d.tar", run_id="dddd", uuid="D", packages={"torch": "2.9.0"}, pass_seconds=0.3)
    bundle(made / "e.tar", run_id="eeee", uuid="E", of=manifest(memory_cap_gib=24), started=START + 5)
    bundle(made / "f.tar", run_id="aaaa", uuid="F", pass_seconds=0.52, key=STRANGER)  # the id of another run
    bundle(made / "g.tar", run_id="gggg", uuid="C", gpus=2, settings=[((), NO_MEMORY)])
    bundle(made / "h.tar", run_id="hhhh", uuid="H", hot=True, complete=False, of=both)
    near_copy(first, made / "i.tar", 1e-12)
    shutil.copy(first, made / "j.tar")
    return made


def asked(**changes: Any) -> CompareArguments:
    wish: dict[str, Any] = {"budget": 60_000.0, "deadline_days": 0.06, "runs": 2, "estimate": ("8xh100",)}
    return CompareArguments(**{"bundles": (), **wish, **changes})


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    """Collect the rows that every bundle adds to a comparison."""
    seen: list[Row] = []
    real = compare_rows

    def keep(given: Any, *rest: Any) -> Comparison:
        seen.extend(given)
        return real(seen, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.library.compare.compare_rows", keep)
        collect(asked(bundles=(folder,)))
    assert len(seen) == 14
    return seen


def test_no_order_of_the_bundles_changes_a_byte_of_the_answer(rows: list[Row]) -> None:
    wish, draw = Wish(60_000.0, 0.06, 2), random.Random(36)
    answers = set()
    for number in range(PERMUTATIONS):
        draw.shuffle(rows)
        terms = Terms(load_prices(None), wish, rank_all=number % 2 == 1)
        found = compare_rows(rows, (), terms, 10)
        answers.add((terms.rank_all, json_text(found), table(found)))
    assert len(answers) == 2  # one with --rank-all, one without
    for _, _, text in answers:
        assert "<- fastest in budget" in text
        assert "cheapest by the deadline" in text


def test_every_output_is_the_same_in_any_order(rows: list[Row]) -> None:
    terms, draw = Terms(load_prices(None), Wish(60_000.0, 0.06, 2)), random.Random(37)
    outputs = set()
    for _ in range(20):
        draw.shuffle(rows)
        found = compare_rows(rows, (), terms, 10)
        drawn = "".join(map(standalone, all_plots(found)))
        outputs.add((page(found), markdown(found), csv_text(found), drawn))
    assert len(outputs) == 1


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_no_grouping_of_the_files_changes_a_byte_of_the_output(
    folder: Path, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    files = [str(path) for path in sorted(folder.glob("*.tar"))]
    name = str(folder)
    groupings = (
        [name],
        files,
        files[::-1],
        [f"{name}/*.tar"],
        [f"{name}/[f-j].tar", *files[:5]],
        [name, *files],
    )
    outputs = set()
    for paths in groupings:
        settings = ["--settings"] if form in ("table", "markdown") else []
        assert main(["compare", *paths, "--deadline", "0.06", "--format", form, *settings]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


@pytest.mark.parametrize("form", ["table", "json"])
def test_no_folder_of_the_bundles_changes_the_answer(
    folder: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs name each bundle with its path, and nothing else in them depends on the path."""
    for number, path in enumerate(sorted(folder.glob("*.tar"))):
        (tmp_path / str(-number % 4)).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / str(-number % 4))
    outputs = set()
    for root in (folder, tmp_path):
        assert (
            main(["compare", str(root), "--deadline", "0.06", "--budget-usd", "60000", "--format", form]) == 0
        )
        out = capsys.readouterr().out
        for path in root.rglob("*.tar"):
            out = out.replace(str(path), path.name)
        outputs.add(out)
    assert len(outputs) == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_the_fastest_known_figure_answers_whichever_search_found_it(
    reverse: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search over all settings, and one at a single micro-batch: only the first meets the deadline."""
    quote = {"gpu": ["NVIDIA H200"], "price": 3.5, "date": "2026-06-01", "source": "a quote"}
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", "rents": [quote]}))
    paths = [str(path) for path in (EVERY, HOUR)[:: -1 if reverse else 1]]
    assert main(["compare", *paths, "--prices", str(prices), "--deadline", "7.5d", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    (part,) = (part for part in parts if part["model"] == "pythia-160m")
    first, second = part["entries"]
    assert [entry["row"]["best"]["days"]["value"] for entry in (first, second)] == [
        pytest.approx(7.145, abs=0.001),
        pytest.approx(7.74, abs=0.01),
    ]
    (rent,) = first["offers"]
    assert (rent["marks"], round(rent["run_cost"])) == (["cheapest by the deadline"], 600)
    assert not part["nothing_in_time"]


def test_models_are_listed_by_family_and_then_by_size(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", of=manifest(models=["tiny-vit", "tiny-gpt-neox"]))
    found = collect(CompareArguments((path,)))
    assert [part.model for part in found.parts] == ["tiny-gpt-neox", "tiny-vit"]
    hour = collect(CompareArguments((HOUR,)))
    assert [p.model for p in hour.parts if p.model.startswith("pythia")] == [
        "pythia-160m", "pythia-410m", "pythia-1b", "pythia-2.8b", "pythia-6.9b",
    ]  # fmt: skip


def test_each_group_of_a_model_has_a_name_of_its_own(folder: Path) -> None:
    found = collect(asked(bundles=(folder,)))
    names = [part.name for part in found.parts]
    assert len(set(names)) == len(names) > len({part.model for part in found.parts})
    plots = [plot.name for plot in all_plots(found)]
    assert len(set(plots)) == len(plots)
    assert all(page(found).count(f'id="{name}"') == 1 for name in names)
