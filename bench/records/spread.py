"""How much figures of the same training differ between days of one machine, and between machines of a kind.

The interval of a measurement covers its own samples. A later run, or one on another machine,
needs a wider one. `benchmarks/spreads.py` fits both spreads, and bench/data/spreads.json has them. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.records.estimate import Interval


@dataclass(frozen=True, slots=True)
class MeasuredSpreads:
    """Differences of the time of a step between two runs: one standard deviation, as a share of the time."""

    another_day: float  # two runs on one machine
    another_machine: float  # runs on two machines of one kind
    day_pairs: int  # runs of one machine, and estimates with their proofs, behind `another_day`
    machine_pairs: int
    source: str
    dated: str  # day of the newest bundle


@cache
def shipped_spreads() -> MeasuredSpreads:
    """Return the spreads that bench ships."""
    return from_json(MeasuredSpreads, read_data("spreads.json"))


def on_another_day(figure: Interval) -> Interval:
    """Widen a figure's interval to one for a later run on the machine that was measured."""
    return figure.widened(shipped_spreads().another_day)


def on_another_machine(figure: Interval) -> Interval:
    """Widen a figure's interval to one for a run on another machine of the kind that was measured."""
    return figure.widened(shipped_spreads().another_machine)
