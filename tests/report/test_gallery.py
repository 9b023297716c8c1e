"""Tables and pictures in the documents follow from the committed bundles; `make gallery` draws them again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.report.paper.figures import figures_of_the_paper
from bench.report.plots import all_plots
from bench.report.plots.svg import standalone
from bench.report.text.comparison_table import table

ROOT = Path(__file__).parents[2]
BUNDLES = ROOT / "results/every-setting-h200"


def test_the_documented_table_is_what_bench_compare_prints() -> None:
    assert table(collect(CompareArguments((BUNDLES,)))) in (ROOT / "docs/compare.md").read_text()


def test_the_pictures_are_drawn_from_the_bundles(tmp_path: Path) -> None:
    plots = [*all_plots(collect(CompareArguments((BUNDLES,)))), *figures_of_the_paper()]
    drawn = {f"{plot.name}.svg": standalone(plot) for plot in plots}
    asked = re.search(r"^PREDICTED := (.*?)\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert asked
    command = asked[1].replace("\\\n", " ")
    words = re.sub(r"(?<!\S)(?=benchmarks/|results/)", f"{ROOT}/", command).split()
    assert main(["predict", *words, "--plots", str(tmp_path)]) == 0
    drawn |= {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs/pictures").glob("*.svg")}
    assert len(kept) >= 5
    assert [name for name, text in kept.items() if drawn.get(name) != text] == []
    assert "(pictures/pythia-160m-settings-1.svg)" in (ROOT / "docs/compare.md").read_text()
    assert "(pictures/pythia-1b-predicted.svg)" in (ROOT / "docs/prediction.md").read_text()
    assert "(pictures/figure-7.svg)" in (ROOT / "docs/reference.md").read_text()
    assert "(docs/pictures/report.png)" in (ROOT / "README.md").read_text()


def test_the_page_of_all_settings_is_what_the_bundles_give() -> None:
    bundles = re.search(r"^MEASURED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert bundles
    command = [sys.executable, "benchmarks/settings.py", *bundles[1].split()]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed == (ROOT / "docs/settings.md").read_text()
    assert "| free-lunch + checkpointing + zero-1 + offload " in printed
