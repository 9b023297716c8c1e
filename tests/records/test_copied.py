"""Copies are recognised by their values, of which honest runs share none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bench.bundle.tar_format import open_bundle
from bench.records.copied import are_copies, originals, values_of

ROOT = Path(__file__).parents[2]
TEN = frozenset(range(10))


@pytest.mark.parametrize(
    ("ours", "theirs", "copies"),
    [
        ([TEN], [TEN], True),
        ([TEN], [frozenset(range(4, 14))], True),  # six of ten
        ([TEN], [frozenset(range(5, 15))], False),  # a half
        ([TEN], [frozenset(range(1000))], True),  # hidden among others
        ([frozenset(range(1000))], [TEN], True),
        (
            [TEN, frozenset(range(10, 1000))],
            [frozenset(range(2000, 3000)), TEN],
            True,
        ),  # one measurement of many
        ([TEN], [frozenset(range(4)), frozenset(range(4, 6))], True),  # spread over several
        ([frozenset({1, 2})], [frozenset({1, 2, 3})], False),  # by chance
        ([], [TEN], False),
        ([frozenset()], [frozenset()], False),
    ],
)
def test_more_than_half_of_a_measurement_is_a_copy(
    ours: list[frozenset[int]], theirs: list[frozenset[int]], copies: bool
) -> None:
    assert are_copies(ours, theirs) == are_copies(theirs, ours) == copies


def test_the_first_of_equal_runs_is_the_original() -> None:
    other = frozenset(range(20, 30))
    assert originals([("a", [TEN]), ("b", [other]), ("c", [TEN]), ("d", [other, TEN])]) == [0, 1, 0, 0]
    assert originals([("a", [TEN]), ("a", [TEN, other]), ("b", [other])]) == [0, 1, 1]


def test_noise_in_the_last_digits_hides_nothing() -> None:
    times = [0.123456789 * (1 + i / 50) for i in range(40)]
    for noise in (1e-12, 1e-10, 1e-9):
        noisy = [time * (1 + noise * (-1) ** i) for i, time in enumerate(times)]
        assert are_copies([values_of(times)], [values_of(noisy)])
    assert not are_copies([values_of(times)], [values_of(time * (1 + 1e-6) for time in times)])


def test_no_two_runs_that_were_measured_share_a_time() -> None:
    runs: dict[str, set[float]] = {}
    for path in sorted(ROOT.glob("results/*/*.tar")):
        with open_bundle(path) as opened:
            lines = [json.loads(line) for line in opened.read("samples.jsonl").splitlines()]
            run = json.loads(opened.read("results.json"))["run"]["id"]
        for line in lines:
            steps = line.get("measurement", {}).get("steps", ())
            runs.setdefault(run, set()).update(values_of(step["seconds"] for step in steps))
    assert sum(map(bool, runs.values())) > 50
    assert [pair for pair in itertools.combinations(runs, 2) if runs[pair[0]] & runs[pair[1]]] == []
