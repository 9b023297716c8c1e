"""Every node meets every other one once, in as few rounds as possible."""

from __future__ import annotations

import pytest

from bench.node_check.judging.round_robin import matches, rounds


@pytest.mark.parametrize("count", range(2, 34))
def test_an_even_number_meets_in_one_round_less_an_odd_number_in_as_many(count: int) -> None:
    made = rounds(range(count))
    assert len(made) == (count - 1 if count % 2 == 0 else count)
    pairs = [pair for each in made for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for each in made:
        assert len({node for pair in each for node in pair}) == 2 * (count // 2)


@pytest.mark.parametrize("nodes", [[], [3]])
def test_alone_there_is_nobody_to_meet(nodes: list[int]) -> None:
    assert rounds(nodes) == ()


def test_pairs_that_meet_again_share_rounds_where_they_can() -> None:
    assert matches([(0, 1), (2, 3), (0, 2)]) == (((0, 1), (2, 3)), ((0, 2),))
    assert matches([]) == ()


def test_nodes_keep_their_numbers() -> None:
    assert rounds([7, 2]) == (((2, 7),),)
