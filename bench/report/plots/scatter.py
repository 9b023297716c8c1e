"""Scatter plots of days against money or memory, for comparisons and for the paper's figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from bench.report.compare.decision import frontier, without_marks
from bench.report.markup import Markup, fragment
from bench.report.plots.svg import (
    SERIES,
    Box,
    Linear,
    Log,
    Plot,
    PointLabel,
    axes,
    line,
    mark,
    placed,
    polyline,
    text,
)

BOX = Box(64, 36, 470, 300)  # area of a plot with a legend beside it
LONGEST_NAME = 24  # letters of a series in a legend


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a scatter plot, in the units of its axes, with its bar, its label and its tooltip."""

    x: float
    y: float
    series: str  # chooses colour and shape of the mark
    label: str
    words: str  # the tooltip
    size: float = 5.0
    half_width: float = 0.0  # of y
    ends: tuple[float, float] | None = None  # of the bar through y, if they are not a half-width from it
    hollow: bool = False  # predicted, and not measured
    # A line goes through the points of each group that no other of it beats; None: the point has no group.
    group: str | None = ""
    marked: bool = False  # a figure with marks, which is on the line only if its group has no other

    @property
    def bar(self) -> tuple[float, float]:
        """The ends of the error bar, on the y axis."""
        return self.ends or (self.y - self.half_width, self.y + self.half_width)


def scatter(
    points: Sequence[Point],
    box: Box,
    x_title: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
    x_unit: str = "",
    x_text: Callable[[float], str] | None = None,
    labelled: bool = True,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    series: Sequence[str] | None = None,
    zero: bool = False,
) -> Markup:
    """Draw days with their intervals, and a dashed line through the points of a group that no other beats.

    `series` fixes the order of colours; `zero` begins both axes at 0. Points outside of the ranges are only
    counted. `limits` are the user's limits of x and y, which are drawn as lines if they are inside of the
    axes.
    """
    names = list(series or dict.fromkeys(point.series for point in points))
    low_x, high_x = x_range or around((p.x for p in points), log=log_x, zero=zero)
    tips = [tip for p in points for tip in p.bar if tip > 0]
    low_y, high_y = y_range or around(tips, log=log_y, zero=zero)
    x = (Log if log_x else Linear)(low_x, high_x, box.left, box.right)
    y = (Log if log_y else Linear)(low_y, high_y, box.bottom, box.top)
    inside = [p for p in points if low_x <= p.x <= high_x and low_y <= p.y <= high_y]
    parts = [axes(x, y, box, x_title, "days", x_unit=x_unit, x_text=x_text)]
    parts += _limits(limits, x, y, box)
    for group in dict.fromkeys(p.group for p in inside if p.group is not None):
        sound = without_marks((p.marked, p) for p in inside if p.group == group)
        best = frontier(sound, lambda p: p.x, lambda p: p.y)
        parts.append(polyline(((x(p.x), y(p.y)) for p in best), "front"))
    parts += [part for p in inside for part in _mark(p, names.index(p.series), x, y)]
    if labelled:
        labels = [PointLabel(x(p.x), y(p.y), 1.2 * p.size, p.label) for p in inside if p.label]
        parts.append(placed(labels, box))
    if hidden := len(points) - len(inside):
        words = f"{hidden} beyond the axes"
        parts.append(text(box.right, box.top - 10, words, anchor="end", class_="small muted"))
    return fragment(*parts)


def _limits(limits: tuple[float | None, float | None], x: Linear, y: Linear, box: Box) -> Iterator[Markup]:
    """Draw those limits of x and of y that are inside of the axes."""
    x_limit, y_limit = limits
    if x_limit is not None and x.low < x_limit < x.high:
        yield line(x(x_limit), box.top, x(x_limit), box.bottom, "limit")
    if y_limit is not None and y.low < y_limit < y.high:
        yield line(box.left, y(y_limit), box.right, y(y_limit), "limit")


def _mark(p: Point, series: int, x: Linear, y: Linear) -> Iterator[Markup]:
    """Draw a point, and its bar if it has one."""
    if p.bar != (p.y, p.y):
        low, high = y(max(p.bar[0], y.low)), y(p.bar[1])
        yield line(x(p.x), low, x(p.x), high, f"s{series % SERIES} line")
    yield mark(x(p.x), y(p.y), series, p.size, p.words, hollow=p.hollow)


def days_plot(
    name: str,
    title: str,
    x_title: str,
    points: Sequence[Point],
    descriptions: Sequence[str],
    runs: Iterable[str],
    *,
    size: tuple[int, int] = (700, 360),
    x_unit: str = "",
    labelled: bool = True,
) -> Plot:
    """Plot days against money or memory, on a log scale if days differ much, with a legend of the series."""
    spread = max(p.y for p in points) / min(p.y for p in points)
    drawing = scatter(points, BOX, x_title, log_y=spread > 8, x_unit=x_unit, labelled=labelled)
    names = list(dict.fromkeys(p.series for p in points))
    ranked = sum(p.group is not None for p in points)
    hollow = {p.series for p in points if p.hollow}
    beside = key(names, 496, 48, "nothing beats these" if ranked > 1 else None, hollow=hollow)
    return Plot(
        name,
        title,
        "; ".join(descriptions[:12]),
        *size,
        fragment(drawing, beside),
        tuple(dict.fromkeys(runs)),
    )


def around(values: Iterable[float], *, log: bool = False, zero: bool = False) -> tuple[float, float]:
    """Return (low, high) of an axis that shows all values with a margin; `zero` makes it begin at 0."""
    every = list(values)
    low, high = min(every), max(every)
    if log:
        return low / 1.35, high * 1.35
    margin = 0.08 * ((high - low) or abs(high) or 1.0)
    return (0.0 if zero else low - margin), high + margin


def key(
    names: Sequence[str], x: float, y: float, dashed: str | None, hollow: Set[str] = frozenset()
) -> Markup:
    """Draw a legend of the series; `dashed` names the dashed line, if there is one."""
    parts = []
    for i, name in enumerate(names):
        parts += [
            mark(x, y + 18 * i, i, hollow=name in hollow),
            text(x + 12, y + 4 + 18 * i, name[:LONGEST_NAME]),
        ]
    if dashed:
        at = y + 18 * len(names)
        parts += [line(x - 6, at, x + 6, at, "front"), text(x + 12, at + 4, dashed)]
    return fragment(*parts)
