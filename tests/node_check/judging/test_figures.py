"""Figures of a reading, which strangers may sign: each has a rate that others can be compared with."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.strict_json import DecodeError
from bench.node_check.judging.evidence import Reading, figures_of


def figures(**changes: Any) -> list[float]:
    figure = {"name": "memory", "gpu": 0, "unit": "B/s", "work": 8.0, "samples": [2.0, 2.0]} | changes
    return [found.rate for found in figures_of(Reading("memory", {"figures": [figure]}))]


def test_a_rate_is_the_work_of_all_samples_by_their_time() -> None:
    assert figures() == [4.0]
    assert figures(samples=[1.0, 3.0, 4.0]) == [3.0]
    assert figures(work=1.0, samples=[1.0]) == [1.0]
    assert figures(name="matmul-bf16", unit="FLOP/s") == [4.0]
    assert figures_of(Reading("memory", {}, reason="no GPU answers")) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"samples": []}, "memory took no time"),
        ({"samples": [1.0, 0.0]}, "memory took no time"),
        ({"samples": [1.0, -1.0]}, "memory took no time"),
        ({"work": 0.0}, "memory took no time"),
        ({"work": -8.0}, "memory took no time"),
        ({"work": 1.0, "samples": [1.01]}, "memory is slower than one B in a second"),
        ({"work": 5e-324, "samples": [1e10]}, "memory is slower than one B in a second"),  # zero, as a float
        ({"unit": "FLOP/s"}, "memory is not measured in FLOP/s"),
        ({"name": "matmul-bf16"}, "matmul-bf16 is not measured in B/s"),
    ],
)
def test_a_figure_without_a_rate_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(DecodeError, match=f"^memory: {why}$"):
        figures(**changes)
