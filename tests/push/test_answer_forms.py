"""The forms that a node's words may have: each just inside and just outside of its limit."""

from __future__ import annotations

import pytest

from bench.base.errors import EnvironmentCannot
from bench.push.answers import (
    absolute_path,
    decimal,
    is_number,
    json_fields,
    json_object,
    json_texts,
    number,
    short,
    understood,
    version,
)


@pytest.mark.parametrize(("word", "value"), [("0", 0), ("007", 7), ("9" * 15, 10**15 - 1)])
def test_a_number_has_1_to_15_digits(word: str, value: int) -> None:
    assert is_number(word) and number(word) == value


@pytest.mark.parametrize("word", ["", "9" * 16, "-1", "+1", " 1", "1\n", "1.0", "1e3", "²", "٣", "1_000"])
def test_anything_else_is_no_number(word: str) -> None:
    assert not is_number(word)
    with pytest.raises(ValueError, match="not a number"):
        number(word)


@pytest.mark.parametrize(
    ("word", "value"), [("7", 7.0), ("0.25", 0.25), ("9" * 15 + "." + "5" * 15, 1e15), ("0." + "0" * 15, 0.0)]
)
def test_a_decimal_number_has_up_to_15_digits_on_each_side_of_its_point(word: str, value: float) -> None:
    assert decimal(word) == pytest.approx(value)


@pytest.mark.parametrize(
    "word", ["", ".5", "5.", "9" * 16, "0." + "5" * 16, "-1.0", "1,5", "1x5", "1e9", "nan", "inf", "1.0\n"]
)
def test_anything_else_is_no_decimal_number(word: str) -> None:
    with pytest.raises(ValueError, match="not a decimal number"):
        decimal(word)


@pytest.mark.parametrize("word", ["1", "27.5.1-rc1", "5.0~a+b_C", "9" * 64])
def test_a_version_has_up_to_64_letters_digits_and_signs(word: str) -> None:
    assert version(word) == word


@pytest.mark.parametrize("word", ["", "9" * 65, "1 2", "1;2", "1/2", "1:2", "1\n", "é"])
def test_anything_else_is_no_version(word: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        version(word)


def test_a_path_begins_with_a_slash_and_is_as_long_as_linux_allows() -> None:
    longest = "/" + "a" * 4095
    assert [absolute_path(path) for path in ("/", "/a b", longest)] == ["/", "/a b", longest]
    for path in ("", "a/b", "~/x", f"{longest}a"):
        with pytest.raises(ValueError, match="not an absolute path"):
            absolute_path(path)


def test_a_text_for_the_operator_is_cut_to_200_characters_or_as_many_as_are_asked_for() -> None:
    assert short("a" * 200) == "a" * 200
    assert len(short("a" * 201)) == 200
    assert (short("abcdef", 6), len(short("abcdefg", 6))) == ("abcdef", 6)


def test_fields_that_were_asked_for_are_returned_without_nulls() -> None:
    value = {"a": 1, "b": None, "c": "text", "d": False}
    assert json_fields(value, {"a": int, "b": int, "c": str, "e": str}) == {"a": 1, "c": "text"}
    assert json_fields({}, {"a": int}) == {}


@pytest.mark.parametrize("field", [True, 1.0, "1", [1], {"a": 1}])
def test_a_field_is_exactly_of_its_type(field: object) -> None:
    with pytest.raises(ValueError, match="the field a is not of its type"):
        json_fields({"b": 1, "a": field}, {"b": int, "a": int})


@pytest.mark.parametrize("value", [None, [], "a", 7, [["a", 1]]])
def test_fields_are_those_of_an_object(value: object) -> None:
    with pytest.raises(ValueError, match="not an object"):
        json_fields(value, {"a": int})


def test_lines_of_warnings_may_precede_an_object_and_nothing_may_follow_it() -> None:
    assert json_object('WARN: no cgroup\n{"a": 1}\n', {"a": int}) == {"a": 1}
    for text in ('{"a": 1} more', "no object", "[1]", '{"a": 1, "a": 2}'):
        with pytest.raises(ValueError):
            json_object(text, {"a": int})


def test_a_list_of_texts_has_nothing_but_texts() -> None:
    assert json_texts('["a", "b"]') == ("a", "b")
    assert json_texts("[]") == json_texts("null") == ()
    for text in ('["a", 1]', '[1, "a"]', '"ab"', '{"a": "b"}', "7", "false", "0"):
        with pytest.raises(ValueError, match="not a list of texts"):
            json_texts(text)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), IndexError("x")])
def test_an_answer_that_cannot_be_parsed_is_an_error_of_its_node(error: Exception) -> None:
    with pytest.raises(EnvironmentCannot) as caught, understood("what it says", where="n", advice="ask it"):
        raise error
    told = caught.value
    assert (told.message, told.where, told.advice) == ("what it says", "n", "ask it")
    assert told.__suppress_context__  # the node's own words would be shown otherwise


def test_an_error_of_another_kind_is_not_hidden() -> None:
    with pytest.raises(TypeError), understood("what it says"):
        raise TypeError
