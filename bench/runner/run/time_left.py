"""Estimate the remaining time of a run from its plan and from its trials so far. Pure."""

from __future__ import annotations

MINUTE, HOUR = 60, 3600


def seconds_left(
    spent: float, decided: int, undecided: int, proofs: float, until_deadline: float | None
) -> float | None:
    """Return the seconds left; None if neither trials nor a deadline allow an estimate.

    An undecided model or setting is assumed to take as long as one of the `decided` ones, which took `spent`
    seconds together. `proofs`: the least seconds of the proofs to come. No run lasts beyond its deadline.
    """
    measuring = spent / decided * undecided if decided else None if undecided else 0.0
    expected = None if measuring is None else measuring + proofs
    bounds = [bound for bound in (expected or None, until_deadline) if bound is not None]
    return min(bounds, default=None)


def about_text(seconds: float) -> str:
    """Round as far as such an estimate is good for: minutes, then five minutes, half hours, hours."""
    if seconds < MINUTE:
        return "under a minute left"
    if seconds < 10 * MINUTE:
        return f"about {seconds / MINUTE:.0f} min left"
    if seconds < HOUR:
        return f"about {5 * round(seconds / (5 * MINUTE))} min left"
    if seconds < 5 * HOUR:
        return f"about {round(2 * seconds / HOUR) / 2:g} h left"
    return f"about {seconds / HOUR:.0f} h left"
