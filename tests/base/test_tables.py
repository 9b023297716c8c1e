"""Tables whose columns a person chose are shown with all of them, at any width."""

from __future__ import annotations

import pytest

from bench.base.terminal import Column, Table, fitted_tables

NAMES = ("machine", "days", "batch", "memory", "level", "note")
COLUMNS = [Column(name, name, fixed=name in ("machine", "note")) for name in NAMES]
ROWS = [["1x H200", "26.8 +-1.2", "256 x 16", "123.2 GiB", "self", "searched only two methods"]]


@pytest.mark.parametrize("room", [30, 40, 50])
def test_chosen_columns_that_do_not_fit_are_shown_one_part_below_the_other(room: int) -> None:
    (text,) = fitted_tables([Table(COLUMNS, ROWS)], [], NAMES, room=room).texts
    parts = text.split("\n\n")
    heads = [part.splitlines()[0].split() for part in parts]
    assert len(parts) > 1
    assert max(map(len, text.splitlines())) <= room
    assert all(head[0] == "machine" for head in heads)  # each part says which rows it has
    assert [name for head in heads for name in head[1:]] == ["days", "batch", "memory", "level", "note"]


def test_chosen_columns_that_fit_are_one_table() -> None:
    (text,) = fitted_tables([Table(COLUMNS, ROWS)], [], NAMES, room=100).texts
    assert "\n\n" not in text


def test_all_tables_of_one_kind_are_divided_at_the_same_columns() -> None:
    short = [["1x H200", "1", "1", "1", "self", ""]]
    texts = fitted_tables([Table(COLUMNS, ROWS), Table(COLUMNS, short)], [], NAMES, room=40).texts
    first, second = ([part.split()[:2] for part in text.split("\n\n")] for text in texts)
    assert first == second


def test_columns_that_nobody_chose_are_left_out_and_never_divided() -> None:
    found = fitted_tables([Table(COLUMNS, ROWS)], ["level", "memory", "batch"], room=60)
    assert "\n\n" not in found.texts[0]
    assert found.left_out == ["level", "memory"]
