"""Every plot can be written as PNG; the package of the font is installed with Chromium."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.cli.compare import CompareArguments, collect
from bench.report.paper.figures import figures_of_the_paper
from bench.report.plots import all_plots, plot_files
from bench.report.plots.plot_files import as_png, write_plots
from bench.report.plots.svg import standalone
from tests.needs import DEBIAN_PACKAGES

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    subprocess.run([DEBIAN_PACKAGES, "chromium"], check=True)


def test_every_plot_is_written_as_svg_and_png(tmp_path: Path) -> None:
    comparison = collect(CompareArguments((ROOT / "results",), rank_all=True, plots=tmp_path))
    plots = [*all_plots(comparison), *figures_of_the_paper()]
    written = write_plots(tmp_path, plots, png=True)
    assert len(written) == 2 * len(plots) > 20
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")


def test_a_png_contains_text() -> None:
    drawing = standalone(next(figures_of_the_paper()))
    assert len(as_png(drawing)) > len(as_png(re.sub(r"<text.*?</text>", "", drawing)))


def test_without_a_font_png_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        @staticmethod
        def svg_to_bytes(**_: object) -> bytes:
            return b"the same whatever is written"

    monkeypatch.setattr(plot_files, "_resvg", lambda: Blind)
    with pytest.raises(EnvironmentCannot, match="no font"):
        as_png("<svg/>")
