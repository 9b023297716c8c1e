"""Sizes are told in the unit that fits them."""

from __future__ import annotations

import pytest

from bench.base.sizes import bytes_text, size_text
from bench.node_check.judging.finding import memory


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1024 KiB"),
        (2**20, "1 MiB"),
        (384 * 2**20, "384 MiB"),
        (2**30, "1.0 GiB"),
        (96.8 * 2**30, "96.8 GiB"),
        (10 * 2**40, "10,240.0 GiB"),
    ],
)
def test_memory_is_told_in_powers_of_1024(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (21_340_000, "21.3 MB"), (5.8e9, "5.80 GB")],
)
def test_transfers_are_told_in_powers_of_1000(count: float, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (512, "512 B"), (2**10, "1 KiB"), (2**20, "1 MiB"), (1.5 * 2**30, "1.5 GiB"),
     (112.34 * 2**30, "112 GiB"), (1023 * 2**30, "1020 GiB")],
)  # fmt: skip
def test_findings_of_a_node_check_tell_memory_with_three_digits(count: float, text: str) -> None:
    """A tiny check fills one MiB, which is no 0.000977 GiB."""
    assert memory(count) == text
