"""Draw SVG: marks, lines, scales, axes, and a `Plot` of them. Pure.

Colours are CSS classes, which a page defines for light and dark and `PAPER_STYLE` for white paper.
No colour carries a meaning alone: series also differ in the shape of their marks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

from bench.records.text import figures
from bench.report.markup import Markup, el, fragment, number

FONT = "system-ui, 'DejaVu Sans', Arial, sans-serif"
WIDE = 760  # pixels; on a page, a wider plot takes a whole row
MOST_RUNS = 12  # named below a drawing
CHARACTER_WIDTH = 8  # of small text, in pixels, with room to spare
LINE = 13  # pixels of a line below a drawing
SERIES = 8  # classes s0 to s7; the ninth series has the first colour again
SHAPES = ("circle", "square", "diamond", "triangle", "cross", "plus", "down", "ring")

# Okabe and Ito's palette for colour-blind readers, darkened where white paper needs it.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8489a", "#a67c00", "#3b8fc2", "#6b6b6b", "#000000")
PAPER_STYLE = Markup(
    f"text{{font-family:{FONT};font-size:12px;fill:#222}}"
    ".title{font-size:14px;font-weight:600}.small{font-size:10.5px}.muted{fill:#555}"
    ".grid{stroke:#e2e2e2;stroke-width:1}.axis{stroke:#888;stroke-width:1}"
    ".front{stroke:#222;stroke-width:1.5;stroke-dasharray:5 4;fill:none}.ideal{stroke:#999;fill:none}"
    ".limit{stroke:#b00020;stroke-width:1.2;stroke-dasharray:2 3}"
    ".good{fill:#cfe8d8}.bad{fill:#f3d3c6}.none{fill:#eeeeee}"
    + "".join(f".s{i}{{fill:{c};stroke:{c}}}" for i, c in enumerate(_COLOURS))
    + ".line{fill:none;stroke-width:1.5}.mark{fill-opacity:.85;stroke-width:1}.bar{fill-opacity:.8}"
    ".hollow{fill-opacity:0;stroke-width:1.5}"
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing without its style."""

    name: str  # of its file, without the suffix
    title: str
    description: str  # for screen readers
    width: int
    height: int
    body: Markup
    runs: tuple[str, ...]  # ids of the runs whose figures it shows; empty if it shows no run's figures

    @property
    def run_lines(self) -> list[str]:
        """The names of the runs, in lines that fit below the drawing; of many runs, only the first."""
        if not self.runs:
            return []
        more = len(self.runs) - MOST_RUNS
        named = ", ".join(self.runs[:MOST_RUNS]) + (f" and {more} more" if more > 0 else "")
        return wrap(f"run{'s' * (len(self.runs) > 1)} {named}", max(20, self.width // CHARACTER_WIDTH))

    @property
    def whole_height(self) -> int:
        """The pixels of the drawing with the lines below it that name its runs."""
        return self.height + LINE * len(self.run_lines)

    @property
    def whole_body(self) -> Markup:
        """The drawing with the lines below it that name its runs."""
        lines = enumerate(self.run_lines, 1)
        lines_below = (text(8, self.height + LINE * i - 4, words, class_="small muted") for i, words in lines)
        return fragment(self.body, *lines_below)

    @property
    def whole_description(self) -> str:
        """The description with the ids of all runs, for screen readers."""
        return f"{self.description}; runs: {', '.join(self.runs)}" if self.runs else self.description


def text(x: float, y: float, words: str, *, anchor: str = "start", class_: str | None = None) -> Markup:
    """Make a text whose base line is at `y`, in pixels; `anchor` is the part of it that is at `x`."""
    return el("text", words, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Make a straight line between two places in pixels."""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def polyline(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Make a line through places in pixels, rounded to tenths."""
    return el("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)


def mark(
    x: float, y: float, series: int, size: float = 5.0, words: str = "", *, hollow: bool = False
) -> Markup:
    """Draw a point of a series, in its colour and shape, with `words` as its tooltip."""
    # From the ninth series on, a colour comes with another shape.
    shape = SHAPES[(series + series // SERIES) % len(SHAPES)]
    inside = [el("title", words)] if words else []
    class_ = f"s{series % SERIES} mark"
    class_ += " hollow" if hollow or shape in ("ring", "cross", "plus") else ""
    if shape in ("circle", "ring"):
        return el("circle", *inside, cx=x, cy=y, r=size, class_=class_)
    d = {
        "square": f"M{-size} {-size}h{2 * size}v{2 * size}h{-2 * size}z",
        "diamond": f"M0 {-1.3 * size}L{1.3 * size} 0L0 {1.3 * size}L{-1.3 * size} 0z",
        "triangle": f"M0 {-1.2 * size}L{1.2 * size} {size}H{-1.2 * size}z",
        "down": f"M0 {1.2 * size}L{1.2 * size} {-size}H{-1.2 * size}z",
        "cross": f"M{-size} {-size}L{size} {size}M{size} {-size}L{-size} {size}",
        "plus": f"M0 {-1.2 * size}V{1.2 * size}M{-1.2 * size} 0H{1.2 * size}",
    }[shape]
    return el("path", *inside, d=d, transform=f"translate({number(x)} {number(y)})", class_=class_)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float  # in pixels
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round values inside the scale, roughly `about` of them."""
        rough = ((self.high - self.low) or 1.0) / about
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(f * unit for f in (1, 2, 2.5, 5, 10) if f * unit >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        # Where a step is less than the digits of a float, ticks would coincide.
        return list(dict.fromkeys(i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)))


@dataclass(frozen=True, slots=True)
class Log(Linear):
    """A logarithmic scale from values to pixels."""

    def __call__(self, value: float) -> float:
        span = math.log(self.high / self.low) or 1.0
        return self.start + math.log(value / self.low) / span * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return a logarithmic axis's ticks: 1, 2 and 5 of each decade, or 1 alone if the range is wide."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if self.high / self.low < 2000 else (1,)
        every = [f * 10.0**e for e in range(first, last + 1) for f in factors]
        found = [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]
        return found if len(found) > 1 else Linear.ticks(self, about)


def axes(
    x: Linear,
    y: Linear,
    box: Box,
    x_title: str,
    y_title: str,
    *,
    x_unit: str = "",
    x_text: Callable[[float], str] | None = None,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
    x_words: bool = True,
) -> Markup:
    """Draw grid, ticks and titles; `x_unit` precedes the horizontal axis' ticks, which `x_words` shows.

    `x_text` may format those ticks in another way, if it tells them apart.
    """
    x_ticks, y_ticks = x_ticks or x.ticks(), y_ticks or y.ticks()
    parts, grid = [], []
    own = [x_text(tick) for tick in x_ticks] if x_text else []
    x_texts = own if own and len({*own}) == len(own) else [x_unit + words for words in tick_texts(x_ticks)]
    for tick, words in zip(x_ticks, x_texts, strict=True):
        at = x(tick)
        grid.append(f"M{number(at)} {number(box.top)}V{number(box.bottom)}")
        if x_words:
            parts.append(text(at, box.bottom + 16, words, anchor="middle", class_="small muted"))
    for tick, words in zip(y_ticks, tick_texts(y_ticks), strict=True):
        at = y(tick)
        grid.append(f"M{number(box.left)} {number(at)}H{number(box.right)}")
        parts.append(text(box.left - 6, at + 4, words, anchor="end", class_="small muted"))
    if x_title:
        parts.append(text((box.left + box.right) / 2, box.bottom + 34, x_title, anchor="middle"))
    if y_title:
        parts.append(text(box.left - 40, box.top - 10, y_title))
    return fragment(
        el("path", d="".join(grid), class_="grid"),
        *parts,
        line(box.left, box.bottom, box.right, box.bottom, "axis"),
        line(box.left, box.top, box.left, box.bottom, "axis"),
    )


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Format ticks with the digits that tell them apart, and place each to a tenth of their distance."""
    ordered = sorted(ticks)
    apart = min((b - a for a, b in itertools.pairwise(ordered)), default=abs(ordered[0]) if ordered else 0.0)
    for digits in range(3, 17):
        texts = [figures(tick, digits) for tick in ticks]
        errors = (abs(float(words.replace(",", "")) - tick) for words, tick in zip(texts, ticks, strict=True))
        if len({*texts}) == len(texts) and max(errors, default=0.0) <= apart / 10:
            return texts
    return [repr(tick) for tick in ticks]


@dataclass(frozen=True, slots=True)
class Box:
    """The area between the axes of a plot, in pixels from the upper left corner of the drawing."""

    left: float
    top: float
    right: float
    bottom: float


class PointLabel(NamedTuple):
    """The label of a point, at the place of its mark."""

    x: float
    y: float
    mark_size: float
    words: str


def placed(labels: Sequence[PointLabel], box: Box) -> Markup:
    """Draw labels beside their points.

    A label that would cover another is left out: the mark's tooltip has its text.
    """
    taken = [(x - size, y - size, x + size, y + size) for x, y, size, _ in labels]
    texts = []
    for x, y, size, words in labels:
        width, gap = 6.8 * len(words), size + 4
        sides = (("start", x + gap, y + 4), ("end", x - gap, y + 4), ("middle", x, y - gap))
        for anchor, at_x, at_y in sides:
            left = at_x - {"start": 0.0, "end": width, "middle": width / 2}[anchor]
            area = (left, at_y - 10, left + width, at_y + 2)
            if area[0] < box.left or area[2] > box.right + 16 or any(_overlap(area, t) for t in taken):
                continue
            taken.append(area)
            texts.append(text(at_x, at_y, words, anchor=anchor, class_="small"))
            break
    return fragment(*texts)


Area = tuple[float, float, float, float]


def _overlap(a: Area, b: Area) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inline(plot: Plot) -> Markup:
    """Draw the plot as an element of a page, which has the style."""
    area, widest = f"0 0 {plot.width} {plot.whole_height}", f"max-width:{plot.width}px"
    inside = el("title", plot.title), el("desc", plot.whole_description), plot.whole_body
    return el("svg", *inside, viewBox=area, role="img", class_="plot", style=widest)


def figure(plot: Plot, *, whole_row: bool = False) -> Markup:
    """Draw the plot with its title above it."""
    wide = "wide" if whole_row or plot.width > WIDE else None
    return el("figure", el("figcaption", plot.title), inline(plot), class_=wide)


def standalone(plot: Plot) -> str:
    """Draw the plot as a whole SVG file, on white."""
    size = {"width": plot.width, "height": plot.whole_height}
    area = f"0 0 {plot.width} {plot.whole_height}"
    paper = el("style", PAPER_STYLE), el("rect", **size, fill="#ffffff")
    inside = el("title", plot.title), el("desc", plot.whole_description), *paper, plot.whole_body
    return f"{el('svg', *inside, xmlns='http://www.w3.org/2000/svg', viewBox=area, **size)}\n"
