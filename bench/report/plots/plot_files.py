"""Write plots as files: always SVG, on request also PNG of the same drawing. Does I/O; PNG needs resvg-py."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from bench.base.distribution import pip_install
from bench.base.errors import EnvironmentCannot
from bench.base.paths import using
from bench.report.plots.svg import Plot, standalone

SCALE = 2  # PNG pixels for each pixel of the drawing


def write_plots(folder: Path, plots: Iterable[Plot], *, png: bool) -> list[Path]:
    """Write every plot into `folder`; return the paths of all files written."""
    written = []
    with using(folder, "plots cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            drawing = standalone(plot)
            written.append(folder / f"{_file_name(plot.name)}.svg")
            written[-1].write_text(drawing, encoding="utf-8", newline="\n")
            if png:
                written.append(written[-1].with_suffix(".png"))
                written[-1].write_bytes(as_png(drawing))
    return written


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name).strip(".") or "plot"


def as_png(drawing: str) -> bytes:
    """Draw an SVG file as PNG, SCALE times as large; EnvironmentCannot without resvg-py or any font."""
    resvg = _resvg()
    if not _can_write(resvg):
        advice = "apt install fonts-dejavu-core, for example"
        raise EnvironmentCannot("there is no font to draw with", advice=advice)
    return bytes(resvg.svg_to_bytes(svg_string=drawing, zoom=SCALE))


def _resvg() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise EnvironmentCannot("PNG needs resvg-py", advice=pip_install("png")) from None
    return resvg_py


@cache
def _can_write(resvg: Any) -> bool:
    """Whether resvg finds a font: without one it leaves out texts and reports no error."""
    box = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">{}</svg>'
    letters = '<text y="15" font-family="DejaVu Sans, Arial, sans-serif">bench</text>'
    drawn, empty = (bytes(resvg.svg_to_bytes(svg_string=box.format(inside))) for inside in (letters, ""))
    return drawn != empty
