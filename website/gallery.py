"""The gallery: reports of bundles in this repository, which `bench compare --html` writes for the site."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from website.sources import ROOT


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the gallery: its name, its subject, and the command that writes it."""

    name: str
    title: str
    shows: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"bench compare {' '.join(self.words)} --html {self.name}.html"


REPORTS = (
    Report(
        "five-days", "Which machine trains Pythia-160M in five days?",
        "Two measured machines and an estimated one, with rents. The answer comes first, then every setting"
        " that was tried, and the course of each run.",
        ("results/every-setting-h200", "--deadline", "5d", "--estimate", "8xh100"),
    ),
    Report(
        "nine-models", "Seven models on one NVIDIA H200",
        "Days and costs of language models and image models, and the share of the machine's limit that each"
        " reaches.",
        ("results/nine-h200",),
    ),
    Report(
        "node-checks", "Which of these nodes is healthy?",
        "Node checks of good nodes and of nodes with a fault that was brought about on purpose.",
        ("results/node-check-h200", "results/node-check-2xh100"),
    ),
)  # fmt: skip


def gallery_pages(folder: Path) -> dict[str, str]:
    """Write the reports into the folder `gallery` below `folder`; return the page that lists them."""
    gallery = folder / "gallery"
    gallery.mkdir()
    for report in REPORTS:
        write(report, gallery / f"{report.name}.html")
    return {"gallery.md": _index()}


def write(report: Report, path: Path) -> None:
    """Run the report's command, without the keys, trust lists and prices of the user who builds the site."""
    command = [sys.executable, "-m", "bench", "compare", *report.words, "--html", str(path)]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"HOME": home, "XDG_CONFIG_HOME": home, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    if not path.exists():
        raise EnvironmentCannot(f"exit code {ended.returncode}: {ended.stderr.strip()}", where=report.command)


def _index() -> str:
    lines = ["# Gallery", "", "Each report is one HTML file that needs no network. The bundles are in the"
             " repository, so each command gives the same report on your machine.", ""]  # fmt: skip
    for report in REPORTS:
        lines += [f"## {report.title}", "", report.shows, ""]
        lines += [f"[Open the report](gallery/{report.name}.html)", "", "```sh", report.command, "```", ""]
    lines += ["Pictures of such plots are in [all plots](pictures/index.md).", ""]
    return "\n".join(lines)
