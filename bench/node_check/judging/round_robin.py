"""The rounds of a tournament in which every node meets every other one once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[int, int]  # of nodes, the lower number first


def rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of each round, by the circle method: one node stays, the others move by one place.

    An even number N of nodes meets in N - 1 rounds. An odd number meets in N rounds; in each one node rests.
    """
    circle: list[int | None] = [*sorted(nodes)]
    if len(circle) % 2:
        circle.append(None)  # its partner rests
    made = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True)
        made.append(tuple(pair_of(a, b) for a, b in facing if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return tuple(made) if len(nodes) > 1 else ()


def matches(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Divide pairs into rounds in which every node meets one other at most."""
    made: list[list[Pair]] = []
    for pair in pairs:
        free = next((each for each in made if not {*pair} & {node for one in each for node in one}), None)
        if free is None:
            made.append(free := [])
        free.append(pair)
    return tuple(map(tuple, made))


def pair_of(a: int, b: int) -> Pair:
    """Return two nodes as a pair, the lower number first."""
    return (a, b) if a < b else (b, a)
