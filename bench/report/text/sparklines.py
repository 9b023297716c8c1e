"""Bars and sparklines of characters: blocks, or signs of ASCII for a terminal that lacks blocks. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters to draw with."""

    levels: str  # of a sparkline, the lowest first
    full: str  # of a bar
    parts: str  # the last character of a bar, by its share of a whole one


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "█", "▏▎▍▌▋▊▉█")
SIGNS = Glyphs("_.-:=+*#", "#", "#")


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Draw a share of `width` characters; any share above zero is seen."""
    if not math.isfinite(share) or share <= 0:
        return ""
    length = min(share, 1.0) * width
    whole = int(length)
    rest = length - whole
    steps = len(glyphs.parts)
    part = round(rest * steps)
    if part == 0:
        return glyphs.full * whole or glyphs.parts[0]
    return glyphs.full * whole + glyphs.parts[part - 1]


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Draw values in at most `width` characters, from the lowest to the highest; equal ones in the middle.

    Where there are more values than characters, each character is the mean of its values.
    """
    means = list(_means(values, max(1, width)))
    low, high = min(means), max(means)
    most = len(glyphs.levels) - 1
    if high == low:
        return glyphs.levels[most // 2] * len(means)
    return "".join(glyphs.levels[round((value - low) / (high - low) * most)] for value in means)


def _means(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
