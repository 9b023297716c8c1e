"""One table of test vectors for Python's rules and for those of the report's script, from a seed.

Inputs are random, with what rules go wrong at: ties, missing prices, runs without an end, limits at the very
end of an interval or at the very price, overlapping intervals, machines with marks. Answers are `appraise`'s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.base.strict_json import to_json
from bench.records.estimate import Interval
from bench.report.compare.appraisal import Appraisal, PricedMachine, appraise
from bench.report.compare.decision import Option, Wish

SEED = 36
LABELS = ("1x H100", "2x H100", "1x H200", "8x B200", "", "\uff21", "\U0001f5a5")
# Days with half-widths; the difference of the first two is exactly the half-width of their difference.
TIES = ((10.0, 3.0), (15.0, 4.0), (10.0, 0.0), (10.0, 0.5), (10.5, 0.5), (20.0, 0.25), (10.0, math.inf))
ENDLESS = ((math.inf, 0.0), (math.inf, 1.0), (math.inf, math.inf))
# The faster of two costs more by exactly the half-width of the difference: 105 and 100, known to 4 and 3.
AS_CHEAP = (
    PricedMachine("slow", Interval(16.0, 2.0), False, 76.0, 24.0, None),
    PricedMachine("fast", Interval(8.0, 1.0), False, 73.0, 32.0, None),
)
AMOUNTS = (1.0, 2.0, 2.5, 100.0, 240.0, 2400.0, 40_000.0)


@dataclass(frozen=True, slots=True)
class AppraisalInput:
    machines: tuple[PricedMachine, ...]
    wish: Wish
    life_days: float
    utilisation: float

    def appraised(self) -> Appraisal:
        return appraise(self.machines, self.wish, self.life_days, self.utilisation)


def inputs(count: int, seed: int) -> Iterator[AppraisalInput]:
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(("tied", "tied", "alike in cost", "random"))
        machines = tuple(_machine(draw, kind) for _ in range(draw.choice((0, 1, 2, 3, 4, 5, 6, 12))))
        if draw.random() < 0.03:
            machines = tuple(draw.sample(AS_CHEAP, 2))
        runs = draw.choice((1, 1, 2, 3, 10, draw.randrange(1, 100_000)))
        wish = Wish(_budget(draw, machines, runs), _deadline(draw, machines), runs)
        utilisation = draw.choice((1.0, 1.0, 0.5, 0.01, 1 - draw.random()))
        yield AppraisalInput(machines, wish, draw.choice((1825.0, 1825.0, 20.0, 365 * 1.1)), utilisation)


def _machine(draw: random.Random, kind: str) -> PricedMachine:
    if draw.random() < 0.02:
        days = Interval(*draw.choice(ENDLESS))
    elif kind == "tied":
        days = Interval(*draw.choice(TIES))
    else:
        value = math.exp(draw.gauss(2.0, 1.0))
        days = Interval(value, value * draw.choice((0.0, 0.05, 0.05, 0.3, 1.5)) * draw.random())
    usual = 2_000 / days.value / 24 if kind == "alike in cost" else 3.0
    return PricedMachine(
        label=draw.choice(LABELS),
        days=days,
        marked=draw.random() < 0.25,
        price=_amount(draw, kind, 5_000.0),
        electricity=draw.choice((0.0, 0.0, 100.0, math.exp(draw.gauss(3.0, 2.0)))),
        rent=_amount(draw, kind, usual),
    )


def _amount(draw: random.Random, kind: str, usual: float) -> float | None:
    if draw.random() < 0.25:
        return None
    if kind == "tied":
        return draw.choice(AMOUNTS)
    return usual * math.exp(draw.gauss(0.0, 0.02 if kind == "alike in cost" else 1.0))


def _options(machines: tuple[PricedMachine, ...]) -> list[Option]:
    return [option for machine in machines for option in machine.options]


def _budget(draw: random.Random, machines: tuple[PricedMachine, ...], runs: int) -> float | None:
    options = _options(machines)
    if not options or draw.random() < 0.3:
        return draw.choice((None, 1_000.0))
    return _near(draw, draw.choice(options).spend(runs))


def _deadline(draw: random.Random, machines: tuple[PricedMachine, ...]) -> float | None:
    if not machines or draw.random() < 0.3:
        return draw.choice((None, 14.0))
    days = draw.choice(machines).days
    end = days.value + draw.choice((-1, 0, 1)) * days.half_width
    return _near(draw, end) if 0 < end < math.inf else 14.0


def _near(draw: random.Random, limit: float) -> float:
    """Return the limit itself, the next number below or above it, or one that is further away."""
    further = limit * math.exp(draw.gauss(0.2, 0.7))
    return draw.choice((limit, math.nextafter(limit, 0.0), math.nextafter(limit, math.inf), further))


def asked(one: AppraisalInput) -> dict[str, Any]:
    """Return an input as the script takes it."""
    wish = {"budget": one.wish.budget, "deadline": one.wish.deadline_days, "runs": one.wish.runs}
    return {
        "machines": to_json(one.machines),
        "wish": wish,
        "life_days": one.life_days,
        "utilisation": one.utilisation,
    }


def answered(found: Appraisal) -> dict[str, Any]:
    """Return Python's answer as the script gives it."""
    return {
        "order": list(found.order),
        "machines": [
            {"rank": one.place.rank, "in_time": one.in_time, "offers": to_json(one.offers)}
            for one in found.machines
        ],
        "nothing_in_budget": found.nothing_in_budget,
        "nothing_in_time": found.nothing_in_time,
    }
