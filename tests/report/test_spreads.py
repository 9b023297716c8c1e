"""The shipped spreads follow from the committed bundles, and hold what they say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.records.estimate import Interval
from bench.records.spread import shipped_spreads
from benchmarks import spreads

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs() -> list[spreads.Run]:
    return list(spreads.runs_of([ROOT / "results"]))


def test_the_shipped_spreads_are_fitted_to_the_committed_bundles(runs: list[spreads.Run]) -> None:
    assert spreads.fitted(runs) == shipped_spreads()


def test_intervals_of_another_machine_hold_nine_of_ten_pairs(runs: list[spreads.Run]) -> None:
    """The intervals hold also for marked figures, and for machines of which the fit has seen no pair."""
    every, sound = (
        spreads.other_machines(r for r in runs if marks or not r.marked) for marks in (True, False)
    )
    assert len(every) > len(sound) > 500
    for pairs in (every, sound):
        assert spreads.share_held(pairs, shipped_spreads().another_machine) >= 0.9
    assert spreads.held_out(sound) >= 0.9


def test_intervals_of_the_same_machine_hold_nine_of_ten_proofs(runs: list[spreads.Run]) -> None:
    proofs = spreads.proofs(runs)
    assert len(proofs) == 102
    assert spreads.share_held(proofs, shipped_spreads().another_day) >= 0.9
    sound = [run for run in runs if not run.marked]
    assert spreads.held_out([*spreads.proofs(sound), *spreads.same_machine(sound)]) >= 0.9


def test_a_pair_needs_no_spread_inside_of_its_own_interval() -> None:
    inside, outside = (spreads.Pair(Interval(10.0, 0.3), found, frozenset()) for found in (10.3, 10.5))
    assert inside.needed < 1e-6
    assert 1.96 * 10 * outside.needed == pytest.approx(0.4, rel=1e-6)  # of 0.5, beside 0.3


def test_the_fit_finds_the_spread_that_was_drawn() -> None:
    draw = random.Random(3)
    drawn = [
        spreads.Pair(Interval(10.0, 0.1), draw.gauss(10.0, (0.3**2 + (0.1 / 1.96) ** 2) ** 0.5), frozenset())
        for _ in range(4000)
    ]
    assert spreads.fit(drawn) == pytest.approx(0.03, rel=0.05)
