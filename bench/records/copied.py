"""Find runs whose measured values were copied from another run. Pure.

Two machines never measure equal values: no two runs in results/ share one value in eight digits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet

# Noise that a forger adds without changing a summary leaves most values equal in this many digits.
DIGITS = 8
LEAST_SHARED = 3  # among thousands of runs, two share a value or two by chance

Values = AbstractSet[Hashable]


def rounded(value: float) -> float:
    """Round a measured value to the digits by which copies are recognised."""
    return float(f"{value:.{DIGITS}g}")


def are_copies(ours: Sequence[Values], theirs: Sequence[Values]) -> bool:
    """Whether one run is a copy: more than half of one measurement's values are also in the other run."""
    return _share(ours, theirs) or _share(theirs, ours)


def _share(measurements: Sequence[Values], others: Sequence[Values]) -> bool:
    every = set().union(*others)
    shared = ((len(values & every), len(values)) for values in measurements)
    return any(count >= LEAST_SHARED and 2 * count > size for count, size in shared)


def originals(runs: Sequence[tuple[Hashable, Sequence[Values]]]) -> list[int]:
    """Return for each run the position of the first run that it is a copy of; its own if there is none.

    A run is an identity and its measurements. Runs of one identity, such as a run and its continuation, share
    their values by right.
    """
    found: list[int] = []
    holders: dict[Hashable, list[int]] = {}  # by value: the original runs that have it
    for position, (identity, run) in enumerate(runs):
        every = set().union(*run)
        suspects = sorted({holder for value in every for holder in holders.get(value, ())})
        strangers = (one for one in suspects if runs[one][0] != identity)
        original = next((one for one in strangers if are_copies(run, runs[one][1])), position)
        found.append(original)
        for value in every if original == position else ():
            holders.setdefault(value, []).append(position)
    return found


def values_of(seconds: Iterable[float]) -> frozenset[float]:
    """Return measured seconds in the form in which runs are compared."""
    return frozenset(map(rounded, seconds))
