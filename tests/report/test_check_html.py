"""The page of a node check: what its plots call the lines of GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.report.pages.check_html import index_ranges, write_check_html
from tests.node_check.checks.node import evidence
from tests.node_check.made import results


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((0, 1, 2, 3, 5, 7), "0-3,5,7"), ((0, 2, 3), "0,2-3")],
)
def test_indices_are_told_as_ranges(numbers: Sequence[int], text: str) -> None:
    assert index_ranges(numbers) == text


def test_lines_that_end_at_one_place_share_a_label(tmp_path: Path) -> None:
    """Eight numbers on top of each other could not be read."""
    found = evidence(tmp_path, load={"5": {"Temperature.GPU": 30}})
    write_check_html(tmp_path / "check.html", results(found), found)
    page = (tmp_path / "check.html").read_text()
    power, clock, temperature = page.split("The course of the run")[1].split("<figure>")[1:4]
    ends = [re.findall(r'class="small">([0-9,-]+)</text>', plot) for plot in (power, clock, temperature)]
    assert [set(of_plot) & {"0-7", "0-4,6-7", "5"} for of_plot in ends] == [
        {"0-7"},
        {"0-7"},
        {"0-4,6-7", "5"},
    ]
