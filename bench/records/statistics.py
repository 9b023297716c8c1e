"""Mean, variance and Student's t, for the intervals of estimates. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def quantile95(degrees: float) -> float:
    """The two-sided 95% quantile of Student's t, for any number of degrees of freedom.

    Continuous, so that a rounding error on another machine cannot make it jump.
    """
    if degrees < len(_T95):
        below = max(1, math.floor(degrees))
        share = max(0.0, degrees - below)
        return _T95[below - 1] * (1 - share) + _T95[below] * share
    # Above the table: the expansion in 1/degrees, good to 0.02%.
    return 1.959964 + 2.3723 / degrees + 2.8225 / degrees**2


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    centre = mean(values)
    return math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1)
