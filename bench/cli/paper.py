"""`bench paper`: the paper's claims, the utilisation that they imply, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.report.paper.figures import show


@dataclass(frozen=True, slots=True)
class PaperArguments:
    """The options of `bench paper`; `figures` None: no figure is drawn."""

    figures: Path | None
    png: bool
    as_json: bool


def paper(request: PaperArguments) -> int:
    """Print the claims, and write the figures if a folder is given; return 0."""
    return show(request.figures, png=request.png, as_json=request.as_json)
