"""The setting that is chosen among predicted ones."""

from __future__ import annotations

import pytest

from bench.planning.prediction.choice import AS_FAST, chosen

Option = tuple[str, float, float]  # name, seconds, bytes sent


def choice(*options: Option) -> str:
    return chosen(options, seconds=lambda option: option[1], sent_bytes=lambda option: option[2])[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([("alone", 3.0, 0.0)], "alone"),
        ([("fast", 1.0, 9.0), ("slow", 2.0, 0.0)], "fast"),
        ([("sharded", 1.0, 9.0), ("whole", 1.005, 1.0)], "whole"),
        ([("sharded", 1.0, 9.0), ("whole", AS_FAST, 1.0)], "whole"),
        ([("sharded", 1.0, 9.0), ("whole", 1.02, 1.0)], "sharded"),
        ([("slower", 1.005, 0.0), ("faster", 1.0, 0.0)], "faster"),  # neither sends anything
    ],
)
def test_of_settings_as_fast_the_one_that_sends_least_is_chosen(options: list[Option], expected: str) -> None:
    assert choice(*options) == expected
    assert choice(*reversed(options)) == expected


def test_a_choice_costs_no_more_than_the_tolerance() -> None:
    options = [(str(n), 1.0 + 0.004 * n, float(10 - n)) for n in range(10)]
    assert float(choice(*options)) * 0.004 + 1.0 <= AS_FAST
