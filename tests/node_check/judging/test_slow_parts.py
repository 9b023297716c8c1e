"""The slow part of a fabric is named from the rates of all pairs, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import pytest

from bench.node_check.judging.round_robin import Pair
from bench.node_check.judging.slow_parts import Diagnosis, SlowPart, diagnose, over_lanes

RATE = 48e9
Leaves = Mapping[str, range]
Named = set[tuple[str, tuple[int, ...]]]


def fabric(
    count: int, share: Callable[[int, int], float], noise: float = 0.0, seed: int = 0
) -> dict[Pair, float]:
    random = Random(seed)
    return {
        (a, b): RATE * share(a, b) * max(0.01, random.gauss(1, noise))
        for a in range(count)
        for b in range(a + 1, count)
    }


def named(diagnosis: Diagnosis) -> Named:
    return {(part.kind, part.nodes) for part in diagnosis.parts}


def with_any(*nodes: int, share: float = 0.5) -> Callable[[int, int], float]:
    return lambda a, b: share if {a, b} & {*nodes} else 1.0


TWO_LEAVES: Leaves = {"a": range(4), "b": range(4, 8)}
FOUR_LEAVES: Leaves = {name: range(4 * i, 4 * i + 4) for i, name in enumerate("abcd")}


def crossing(*leaf: range, share: float = 0.5) -> Callable[[int, int], float]:
    return lambda a, b: share if any((a in one) != (b in one) for one in leaf) else 1.0


@pytest.mark.parametrize(
    ("count", "share", "leaves", "expected"),
    [
        (8, with_any(), None, set()),
        (8, with_any(5), None, {("node", (5,))}),
        (8, with_any(2, 5), None, {("node", (2,)), ("node", (5,))}),
        (9, with_any(0), None, {("node", (0,))}),
        (8, lambda a, b: 0.5 if (a, b) == (2, 5) else 1.0, None, {("pair", (2, 5))}),
        (8, lambda a, b: 0.5 if a == 2 and b > 5 else 1.0, None, {("pair", (2, 6)), ("pair", (2, 7))}),
        (3, with_any(1), None, {("node", (1,))}),
        (3, lambda a, b: 0.5 if (a, b) == (0, 2) else 1.0, None, {("pair", (0, 2))}),
        (8, with_any(3, share=0.0), None, {("node", (3,))}),
        (2, with_any(), None, set()),
        (8, with_any(4, 5, 6, 7), TWO_LEAVES, {("leaf", (4, 5, 6, 7))}),
        (8, crossing(range(4)), TWO_LEAVES, {("uplinks", tuple(range(8)))}),
        (8, with_any(4, 5), TWO_LEAVES, {("node", (4,)), ("node", (5,))}),
        (16, with_any(8, 9, 10, 11), FOUR_LEAVES, {("leaf", (8, 9, 10, 11))}),
        (16, crossing(range(8, 12)), FOUR_LEAVES, {("uplinks", (8, 9, 10, 11))}),
        (
            16,
            crossing(range(4), range(8, 12)),
            FOUR_LEAVES,
            {("uplinks", (0, 1, 2, 3)), ("uplinks", (8, 9, 10, 11))},
        ),
        (
            16,
            lambda a, b: 0.5 if a < 4 and b >= 12 else 1.0,
            FOUR_LEAVES,
            {("uplinks", (0, 1, 2, 3, 12, 13, 14, 15))},
        ),
        (16, with_any(9), FOUR_LEAVES, {("node", (9,))}),
    ],
)  # fmt: skip
def test_the_part_that_explains_the_slow_pairs_is_named(
    count: int, share: Callable[[int, int], float], leaves: Leaves | None, expected: Named
) -> None:
    assert named(diagnose(fabric(count, share), leaves)) == expected
    assert named(diagnose(fabric(count, share, noise=0.03, seed=1), leaves)) == expected


@dataclass(frozen=True)
class Case:
    """A simulated fabric of random size with one fault, or none."""

    rates: dict[Pair, float]
    leaves: Leaves | None
    expected: Named


def case(seed: int) -> Case:
    random = Random(seed)
    count, noise, share = random.randint(3, 20), random.choice([0.0, 0.02, 0.05]), random.uniform(0.1, 0.5)
    kind = random.choice(["nothing", "node", "pair", "leaf", "uplinks"])
    leaves, slow, expected = None, with_any(), set()
    if kind == "node":
        node = random.randrange(count)
        slow, expected = with_any(node, share=share), {("node", (node,))}
    elif kind == "pair":
        count = max(count, 6)  # of fewer nodes, a tenth of the noise estimates hides a single pair
        pair = random.choice([*fabric(count, slow)])
        slow, expected = lambda a, b: share if (a, b) == pair else 1.0, {("pair", pair)}
    elif kind in ("leaf", "uplinks"):
        width, height = random.randint(2, 4), random.randint(3, 5)
        count = width * height
        leaves = {str(i): range(width * i, width * i + width) for i in range(height)}
        under = leaves[str(random.randrange(height))]
        slow = with_any(*under, share=share) if kind == "leaf" else crossing(under, share=share)
        expected = {(kind, tuple(under))}
    return Case(fabric(count, slow, noise, seed), leaves, expected)


def test_of_thousands_of_fabrics_the_fault_is_named_and_no_other_part() -> None:
    found = [(one.expected, named(diagnose(one.rates, one.leaves))) for one in map(case, range(3000))]
    assert [names for expected, names in found if not names <= expected] == []
    # The noise of few pairs is sometimes estimated too high, and then hides a pair that is slow by half.
    assert sum(names != expected for expected, names in found) <= 3


def test_the_numbers_of_nodes_decide_nothing() -> None:
    rates = fabric(9, with_any(4, share=0.6), noise=0.05, seed=3)
    turned = {(8 - b, 8 - a): rate for (a, b), rate in rates.items()}
    assert named(diagnose(rates)) == named(diagnose(turned)) == {("node", (4,))}


def test_a_noisy_fabric_raises_the_limits_instead_of_naming() -> None:
    noisy = diagnose(fabric(8, with_any(), noise=0.15, seed=5))
    assert noisy.parts == ()
    assert noisy.limit(1) < 0.5
    calm = diagnose(fabric(8, with_any()))
    assert (calm.limit(7), calm.limit(1)) == (0.88, 0.75)


def test_many_slow_pairs_without_a_part_in_common_name_no_path() -> None:
    scattered = ((0, 1), (0, 2), (1, 3), (3, 5), (5, 6))
    found = diagnose(fabric(8, lambda a, b: 0.5 if 4 in (a, b) else 0.68 if (a, b) in scattered else 1.0))
    assert named(found) == {("node", (4,))}
    assert found.scattered == scattered


def test_without_any_traffic_nothing_is_usual() -> None:
    assert diagnose(fabric(4, with_any(0, 1, 2, 3, share=0.0))) == Diagnosis(0.0, 0.0, ())
    assert diagnose({}) == Diagnosis(0.0, 0.0, ())


def test_a_node_that_is_slow_on_each_lane_is_named_once_and_a_cable_by_its_lane() -> None:
    node, cable = diagnose(fabric(8, with_any(5))), diagnose(fabric(8, with_any(5, 6, share=0.25)))
    assert over_lanes({0: node, 1: cable}) == (
        SlowPart("node", (5,), 0.25),
        SlowPart("node", (6,), 0.25, lanes=(1,)),
    )
