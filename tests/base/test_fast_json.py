"""The fast paths of strict JSON: what just takes them, what just does not, and what they give."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from bench.base.fast_json import MAX_DEPTH, NOT_PLAIN, count_keys, decode_rows, plain_json


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"a": 1}',
        '{"a":\n1}',
        '{"a":\t1,\r\n"b": 2}',
        '["a" , 1]',
        '["a: b"]',
        '["a :", "b"]',
        "[999999999999999]",
        '{"a":-999999999999999}',
        "[0.999999999999999]",
        "[1e99]",
        "[1E+99, 1.5e-99, 1e-100]",
        '["e000", "1234567890123456x"]',
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
    ],
)
def test_a_text_that_is_just_plain_is_read_fast(text: str) -> None:
    assert plain_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        '"a"',
        " {}",
        '["\\\\"]',
        '{"a" :1}',
        '{"a"  :1}',
        '{"a"\n:1}',
        '{"a"\t:1}',
        '{"a"\r:1}',
        '{"b":\n1,"a" :1}',
        "[1000000000000000]",
        '{"a":1000000000000000}',
        "[1, 1000000000000000]",
        "[1,\n1000000000000000]",
        "[-1000000000000000]",
        "[1e100]",
        "[1E100]",
        "[1e+100]",
        "[1.5e100]",
        "[1, 1e100]",
        '{"a":1e100}',
        "[NaN]",
        "[Infinity]",
        "[1,]",
        '{"a":1,"a":1}',
        '["\\":"]',
        '[":"]\n"',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    ],
)
def test_a_text_that_is_just_not_plain_is_left_to_the_slow_path(text: str) -> None:
    assert plain_json(text.encode()) is NOT_PLAIN


@pytest.mark.parametrize("space", [" ", "  ", "\n", "\t", "\r", "\n ", " \t"])
def test_a_key_that_occurs_twice_is_not_hidden_by_space_before_its_colon(space: str) -> None:
    assert plain_json(f'{{"a"{space}:1,"a":2}}'.encode()) is NOT_PLAIN


def test_two_blanks_behind_a_string_may_hide_a_colon_unless_there_are_lines() -> None:
    assert plain_json(b'["a"  ,1]') is NOT_PLAIN
    assert plain_json(b'["a"  ,\n1]') == ["a", 1]


def test_a_string_that_begins_like_the_end_of_a_key_is_left_to_the_slow_path() -> None:
    """`":` stands in the text once more than there are keys."""
    assert plain_json(b'{"a":":x"}') is NOT_PLAIN


def test_keys_are_counted_in_objects_at_every_depth() -> None:
    assert count_keys({"a": 1, "b": [{"c": {"d": 2}}, 3], "e": {}}) == (5, {dict, int, list})
    assert count_keys([[{"a": []}], {"b": "x", "c": None}, 1.5]) == (3, {list, dict, str, type(None), float})
    assert count_keys([{"a": 1}, {"a": True}]) == (2, {list, dict, int, bool})
    assert count_keys("text") == (0, {str})


def test_what_is_nested_too_deeply_is_not_counted() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    assert count_keys(deep)[0] == MAX_DEPTH == 64
    assert count_keys([deep])[0] is None


# --- rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    count: int
    seconds: float
    name: str
    good: bool


@dataclass(frozen=True)
class WithoutSlots:
    count: int


@dataclass(frozen=True, slots=True)
class Checked:
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", self.count + 1)


@dataclass(frozen=True, slots=True)
class Single:
    count: int


@dataclass(frozen=True, slots=True)
class WithObject:
    count: int
    more: dict  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class Nested:
    count: int
    step: Step | None


def decoded(cls: type, rows: list[Any]) -> tuple[Any, ...] | None:
    return decode_rows(cls, get_type_hints(cls), rows)


ROW = {"count": 1, "seconds": 0.5, "name": "a", "good": True}


def test_rows_of_plain_values_are_decoded_whatever_the_order_of_their_keys() -> None:
    other = {"good": False, "name": "b", "seconds": 1.5, "count": 2}
    found = decoded(Step, [ROW, other])
    assert found == (Step(1, 0.5, "a", True), Step(2, 1.5, "b", False))
    assert all(type(one) is Step and dataclasses.asdict(one) for one in found)


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "count": True},
        {**ROW, "count": 1.0},
        {**ROW, "seconds": 1},
        {**ROW, "name": None},
        {**ROW, "good": 1},
        {**ROW, "more": 1},
        {name: value for name, value in ROW.items() if name != "name"},
        {**{name: value for name, value in ROW.items() if name != "name"}, "other": "a"},
        None,
        [],
        "abcd",
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_one_row_that_does_not_fit_leaves_all_to_the_slow_path(row: Any, place: int) -> None:
    rows: list[Any] = [ROW]
    rows.insert(place, row)
    assert decoded(Step, rows) is None


def test_a_class_whose_instances_are_more_than_their_slots_is_called() -> None:
    assert decoded(WithoutSlots, [{"count": 1}]) == (WithoutSlots(1),)
    found = decoded(Checked, [{"count": 1}])
    assert found is not None and found[0].count == 2


def test_rows_of_one_value_are_decoded() -> None:
    assert decoded(Single, [{"count": 1}, {"count": 2}]) == (Single(1), Single(2))


def test_rows_with_other_than_plain_values_are_left_to_the_slow_path() -> None:
    assert decoded(Nested, [{"count": 1, "step": None}]) is None
    assert decoded(WithObject, [{"count": 1, "more": {}}]) is None
