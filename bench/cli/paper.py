"""`bench paper`: the paper's claims, the utilisation that they imply, and its figures."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.base.strict_json import to_json
from bench.base.terminal import print_json
from bench.report.paper.figures import figures_of_the_paper, paper_document, paper_text


@dataclass(frozen=True, slots=True)
class PaperArguments:
    """The options of `bench paper`; `figures` None: no figure is drawn."""

    figures: Path | None
    png: bool
    as_json: bool


def paper(request: PaperArguments) -> int:
    """Print the claims, and write the figures if a folder is given; return 0."""
    if request.as_json:
        print_json(to_json(paper_document()))
    else:
        print(paper_text())
    if request.figures is not None:
        from bench.report.plots.plot_files import write_plots

        written = write_plots(request.figures, figures_of_the_paper(), png=request.png)
        print(f"figures  {', '.join(path.name for path in written)} in {request.figures}", file=sys.stderr)
    return 0
