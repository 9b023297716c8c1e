"""`bench paper`: the paper's claims, the utilisation that they imply, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.report.paper.figures import show


@dataclass(frozen=True, slots=True)
class PaperArguments:
    figures: Path | None
    png: bool
    as_json: bool


def paper(request: PaperArguments) -> int:
    return show(request.figures, png=request.png, as_json=request.as_json)
