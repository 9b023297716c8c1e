"""Strict JSON: values are read back as written, and a value that does not fit is named."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.base.fast_json import NOT_PLAIN, plain_json
from bench.base.strict_json import (
    INTERNAL,
    DecodeError,
    canonical_json,
    from_json,
    harmless_json,
    later,
    pretty_json,
    strict_loads,
    tagged_infinity,
    to_json,
    union_from_json,
    whole_texts,
)
from bench.records.trial import (
    Crashed,
    Measured,
    Outcome,
    OutOfMemory,
    StepSample,
    TimedOut,
    Trial,
    Unsupported,
)
from tests.builders import measurement, trial

OUTCOMES = [
    OutOfMemory("gpu", "no more"),
    Unsupported("why"),
    TimedOut(1.5, "build"),
    Crashed("reason"),
    Measured(measurement([StepSample(1, 0.5)], losses=(1.0, 2.5))),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: o.kind)
def test_every_outcome_survives_encoding_and_decoding(outcome: Outcome) -> None:
    assert union_from_json(Outcome, strict_loads(canonical_json(to_json(outcome)))) == outcome


def test_a_mistake_in_an_outcome_is_one_of_the_kind_that_it_names() -> None:
    """The message is about the stated kind, and not about the first kind that an outcome may have."""
    with pytest.raises(DecodeError, match="missing field 'phase'"):
        union_from_json(Outcome, {"kind": "timed-out", "limit_seconds": 1.5})


def test_a_trial_survives_encoding_and_decoding_and_keeps_its_id() -> None:
    again = from_json(Trial, strict_loads(canonical_json(to_json(trial()))))
    assert again == trial()
    assert again.id == trial().id


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "stands twice"),
        ("[NaN]", "NaN"),
        ("[Infinity]", "Infinity"),
        ("[1e999]", "does not fit"),
        ("[9007199254740993]", "2\\*\\*53"),
        ("[" + "9" * 5000 + "]", "2\\*\\*53"),
        ("[" + "9" * 400 + ".5]", "does not fit"),
        ('{"a":{"b":1,"b":1}}', "stands twice"),
        ('{"a" :1,"a":2}', "stands twice"),
        ('{"a" :1,"a":":x"}', "stands twice"),
        ('{"a"\n:1,"a":":x"}', "stands twice"),
        ('{"a":":x","a"\t:2}', "stands twice"),
        ('{"a":1,"\\u0061":2}', "stands twice"),
        ('{"":1,"":2}', "stands twice"),
        ('[{":":1,":":2}]', "stands twice"),
        ("[1.5e+999]", "does not fit"),
        ('{"a":1E0999}', "does not fit"),
        ('{"a":-1e0309}', "does not fit"),
        ('{"a": -9007199254740993}', "2\\*\\*53"),
        ("[1,]", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('["\\ud800"]', "half of a surrogate pair"),
        ('{"\\uDFFF":1}', "half of a surrogate pair"),
        ('{"a":[{"b":"x\\ude00\\ud83d"}]}', "half of a surrogate pair"),
    ],
)
def test_json_that_readers_would_read_differently_is_refused(text: str, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        strict_loads(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"b":1,"a":1,"c":1,"a":2}', "the key 'a' stands twice in one object"),
        (f'{{"{"k" * 90}":1,"{"k" * 90}":1}}', f"the key {'k' * 80!r} stands twice in one object"),
        (
            '{"a":[1,{"b":9007199254740993}],"c":1e999}',
            "/a/1/b: the integer 9007199254740993 is past 2**53, so other programs would round it",
        ),
        ('{"a":[1,2.5],"c":-1e999}', "/c: the number -1e999 does not fit a double"),
        ("1e999", "/: the number 1e999 does not fit a double"),
        ("[1.e]", "not JSON: Expecting ',' delimiter, line 1 column 3"),
    ],
)
def test_the_first_mistake_of_a_text_is_named_with_its_place(text: str, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        strict_loads(text)
    assert str(caught.value) == why


@pytest.mark.parametrize("text", ['["\\ud83d\\ude00"]', '["\U0001f600"]', '["\\\\ud800"]'])
def test_whole_characters_are_read_however_they_are_written(text: str) -> None:
    assert strict_loads(text) == strict_loads(text.encode()) == json.loads(text)


@pytest.mark.parametrize("text", ['{"a":"\\ud83d"}', '["\\uDFFF"]'])
def test_half_of_a_surrogate_pair_is_refused_in_bytes_too(text: str) -> None:
    with pytest.raises(DecodeError, match="half of a surrogate pair"):
        strict_loads(text.encode())
    with pytest.raises(DecodeError):
        strict_loads(json.loads(text.replace("{", "[").replace('"a":', "").replace("}", "]"))[0])


def test_bytes_of_a_path_that_is_not_utf8_are_kept_where_asked_for() -> None:
    path = os.fsdecode(b"/caf\xe9")
    assert strict_loads(canonical_json({"out": path}), undecoded=True) == {"out": path}


def test_a_message_about_such_a_path_is_read_as_a_whole_text() -> None:
    assert whole_texts(canonical_json(["caf\udce9 \U0001f600 \\ud800"])) == ["caf? \U0001f600 \\ud800"]


def test_other_encodings_are_refused() -> None:
    for encoding in ("utf-16", "latin-1"):
        with pytest.raises(DecodeError):
            strict_loads('{"name": "ä"}'.encode(encoding))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"seconds": "1"}, "/seconds"),
        ({"seconds": True}, "/seconds"),
        ({"accumulation": 1.0}, "/accumulation"),
        ({"more": 1}, "more"),
        ({"accumulation": None}, "/accumulation"),
    ],
)
def test_a_field_of_another_type_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(DecodeError, match=where):
        from_json(StepSample, {"accumulation": 1, "seconds": 1.0} | change)


def test_a_tuple_of_a_fixed_length_is_read_with_that_length_alone() -> None:
    assert from_json(tuple[int, str], [1, "a"]) == (1, "a")
    for value, found in (([1], 1), ([1, "a", 2], 3)):
        with pytest.raises(DecodeError, match=f"expected 2 items, found {found}"):
            from_json(tuple[int, str], value)
    with pytest.raises(DecodeError, match="/1: expected str, found 2"):
        from_json(tuple[int, str], [1, 2])


def test_a_list_of_values_of_one_type_is_read_as_each_by_itself() -> None:
    assert repr(from_json(tuple[float, ...], [1, 2])) == "(1.0, 2.0)"
    for value, where in ((["a", "b"], "/0: expected float, found 'a'"), ([1.0, "a"], "/1: expected float")):
        with pytest.raises(DecodeError, match=where):
            from_json(tuple[float, ...], value)


@pytest.mark.parametrize("value", ["ab", {"a": 1}, {}, "", 1, None])
@pytest.mark.parametrize("kind", [tuple[str, ...], tuple[str, str], tuple[StepSample, ...]])
def test_a_list_is_read_from_a_list_alone(kind: Any, value: object) -> None:
    with pytest.raises(DecodeError, match=r"^/: expected a list$"):
        from_json(kind, value)


@pytest.mark.parametrize("value", ["ab", [1], [], 1, None])
@pytest.mark.parametrize("kind", [dict[str, int], StepSample])
def test_an_object_is_read_from_an_object_alone(kind: Any, value: object) -> None:
    with pytest.raises(DecodeError, match=r"^/: expected an object$"):
        from_json(kind, value)


def test_a_union_of_objects_and_plain_types_is_read_by_the_kind_of_the_object() -> None:
    for union in (Crashed | None, None | Crashed, int | Crashed | TimedOut, list[int] | Crashed):
        assert union_from_json(union, {"kind": "crashed", "reason": "why"}) == Crashed("why")
    with pytest.raises(DecodeError, match=r"^/: unknown field 'more'$"):
        union_from_json(int | Crashed, {"kind": "crashed", "reason": "why", "more": 1})


def test_an_infinite_number_may_be_kept_as_an_object_where_asked_for_and_no_number_never() -> None:
    assert tagged_infinity("Infinity") == {"__float__": "Infinity"}
    assert tagged_infinity("-Infinity") == {"__float__": "-Infinity"}
    with pytest.raises(DecodeError, match=r"^/rope/1: NaN is no JSON number$"):
        strict_loads('{"rope": [Infinity, NaN]}', tagged_infinity)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9007199254740993"])
def test_a_refused_number_is_told_with_its_place_and_what_is_allowed(number: str) -> None:
    with pytest.raises(DecodeError, match=r"^/a/1/b: ") as caught:
        strict_loads('{"a": [0, {"b": ' + number + "}]}")
    assert caught.value.advice == "allowed: finite numbers, and integers up to 2**53"


@pytest.mark.parametrize("shape", [("[", "]"), ('{"a":', "}")])
def test_values_are_nested_at_most_64_deep(shape: tuple[str, str]) -> None:
    for inside in ("1", '"\\u0061"'):
        allowed, deeper = (f"{shape[0] * depth}{inside}{shape[1] * depth}" for depth in (64, 65))
        assert strict_loads(allowed) == json.loads(allowed)
        with pytest.raises(DecodeError, match="nested too deeply"):
            strict_loads(deeper)


@pytest.mark.parametrize("value", [1, 1.5, "a", True, None])
def test_a_union_takes_the_types_that_it_names_and_no_other(value: object) -> None:
    every = (float, int, str, bool, type(None))
    own = next(kind for kind in every if type(value) is kind)
    for first, second in itertools.permutations(every, 2):
        union = Union[first, second]  # type: ignore[valid-type]  # noqa: UP007
        if own in (first, second):
            assert repr(union_from_json(union, value)) == repr(value)
        elif type(value) is int and float in (first, second):
            assert repr(union_from_json(union, value)) == "1.0"
        else:
            with pytest.raises(DecodeError, match=rf"^/: expected \w+, found {value!r}$"):
                union_from_json(union, value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": "plain ä 😀"}', '{"a": "plain ä 😀"}'),
        ("[1,\r\n\t2]", "[1,\n\n\t2]"),
        ('["\x1b[31m"]', '["\\u001b[31m"]'),
        ('["\x9b\u202e"]', '["\\u009b\\u202e"]'),
        ('["\U000e0001"]', '["\\udb40\\udc01"]'),
    ],
)
def test_what_a_terminal_would_obey_is_escaped_and_means_the_same(text: str, shown: str) -> None:
    harmless = harmless_json(text.encode()).decode()
    assert harmless == shown
    assert json.loads(harmless) == json.loads(text, strict=False)


@pytest.mark.parametrize("value", [True, 1.0, 2])
def test_a_value_that_only_equals_an_allowed_one_is_refused(value: object) -> None:
    """In Python, True == 1 == 1.0."""
    assert union_from_json(Literal[1], 1) == 1
    with pytest.raises(DecodeError, match=f"{value!r} is none of 1"):
        union_from_json(Literal[1], value)


@pytest.mark.parametrize("write", [canonical_json, pretty_json])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_no_reader_accepts_is_not_written(write: Any, value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write({"seconds": [value]})


@dataclass(frozen=True)
class Defaults:
    """Fields with every kind of default."""

    needed: int
    plain: int = 5
    made: tuple[int, ...] = field(default_factory=lambda: (7,))


def test_documents_for_people_have_a_line_for_each_field_and_those_for_digests_have_one_line() -> None:
    document = {"b": [1, {}], "a": "ü"}
    assert pretty_json(document) == b'{\n "a": "\\u00fc",\n "b": [\n  1,\n  {}\n ]\n}\n'
    assert canonical_json(document) == b'{"a":"\\u00fc","b":[1,{}]}'


@dataclass(frozen=True)
class Kept:
    """A field that was added later, one for bench alone, and values of every kind."""

    named: Mapping[str, tuple[float, ...]]
    nothing: None = None
    later_text: str | None = later(None)
    later_pair: tuple[int, ...] = later((1, 2))
    inside: int = field(default=3, metadata=INTERNAL)
    odd: Any = field(default=None, metadata={"other": True})


def test_a_document_lacks_later_fields_with_their_defaults_and_internal_ones() -> None:
    plain = {"named": {"1": [2.0, 3.0]}, "nothing": None, "odd": None}
    assert to_json(Kept({"1": (2.0, 3.0)}, inside=9)) == plain
    assert to_json(Kept({"1": (2.0, 3.0)}, later_text="a", later_pair=(1,), odd=[{}])) == {
        **plain, "later_text": "a", "later_pair": [1], "odd": [{}]
    }  # fmt: skip
    assert from_json(Kept, plain) == Kept({"1": (2.0, 3.0)})
    assert to_json([(1, None), {2: "b"}]) == [[1, None], {"2": "b"}]


def test_a_value_of_a_mapping_is_named_by_its_key() -> None:
    with pytest.raises(DecodeError, match=r"^/named/1/1: expected float, found 'x'$"):
        from_json(Kept, {"named": {"1": [2.0, "x"]}})
    with pytest.raises(DecodeError, match=r"^/named: expected an object$"):
        from_json(Kept, {"named": [1]})
    assert from_json(Kept, {"named": {}}).odd is None


@pytest.mark.parametrize("value", [[1], {"a": 1}, "a", None])
def test_a_kind_that_no_document_of_bench_has_is_refused(value: object) -> None:
    with pytest.raises(DecodeError, match=r"^/: expected list, found "):
        from_json(list[int], value)


def test_a_type_is_named_where_a_value_has_another() -> None:
    for kind, value, why in (
        (int, "a", "expected int, found 'a'"),
        (int, 1.0, "expected int, found 1.0"),
        (int, True, "expected int, found True"),
        (float, "1", "expected float, found '1'"),
        (float, True, "expected float, found True"),
        (str, None, "expected str, found None"),
        (type(None), 1, "expected NoneType, found 1"),
        (bool, 0, "expected bool, found 0"),
    ):
        with pytest.raises(DecodeError) as caught:
            from_json(kind, value)
        assert str(caught.value) == f"/: {why}"
    assert repr(from_json(float, 3)) == "3.0"
    assert from_json(type(None), None) is None


def test_a_field_with_a_default_may_be_missing() -> None:
    assert from_json(Defaults, {"needed": 1}) == Defaults(1, 5, (7,))
    assert from_json(tuple[Defaults, ...], [{"needed": 1}, {"needed": 2, "plain": 3, "made": [4]}]) == (
        Defaults(1), Defaults(2, 3, (4,))
    )  # fmt: skip
    with pytest.raises(DecodeError, match=r"^/: missing field 'needed'$"):
        from_json(Defaults, {"plain": 3, "made": []})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(DecodeError, match="missing field 'seconds'"):
        from_json(StepSample, {"accumulation": 1})


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_canonical_json_is_one_spelling(value: Any) -> None:
    data = canonical_json(value)
    assert canonical_json(strict_loads(data)) == data
    assert strict_loads(data) == json.loads(data)


def as_read_key_by_key(text: str) -> Any:
    """Read JSON as strict_loads defines it, without the fast path."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def bounded(digits: str) -> int:
        if len(digits) > 20 or abs(int(digits)) > 2**53:
            raise ValueError("large")
        return int(digits)

    def finite(digits: str) -> float:
        if math.isinf(float(digits)):
            raise ValueError("infinite")
        return float(digits)

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(
        text, object_pairs_hook=unique, parse_int=bounded, parse_float=finite, parse_constant=refuse
    )


PIECES = st.sampled_from(
    ['"a"', '"b"', '":"', '":x"', '"\\\\"', '"\\""', '""', "1", "-0", "0.5", "1e5", "1e308", "1e999",
     "1E+0400", "9007199254740992", "9007199254740993", "9" * 400, "9" * 400 + ".0", "NaN", "-Infinity",
     "true", "null",
     "{", "}", "[", "]", ":", ":", ",", ",", " ", "  ", "\n", "\t", "\r", '"a":', '"a" :', '{"a":1,"a":2}']
)  # fmt: skip


@settings(max_examples=2000, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
@example('{"a" :1,"a":":x"}')
def test_the_fast_path_accepts_and_reads_the_same_as_the_slow_path(text: str) -> None:
    for whole in (text, f"{{{text}}}", f"[{text}]"):
        try:
            expected = as_read_key_by_key(whole)
        except ValueError:
            with pytest.raises(DecodeError):
                strict_loads(whole)
        else:
            assert repr(strict_loads(whole)) == repr(expected)


@given(
    JSON_VALUES,
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]),
)
def test_every_json_encoding_of_a_value_is_read(
    value: Any, indent: int | str | None, ascii_only: bool, separators: tuple[str, str]
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators)
    assert strict_loads(text) == value


def test_a_plain_text_takes_the_fast_path() -> None:
    assert plain_json(b'{"a":[1,2.5,-1e30],"b":{"c":null,"d":"x: y"}}') == {
        "a": [1, 2.5, -1e30],
        "b": {"c": None, "d": "x: y"},
    }


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a" :1,"a":":x"}',
        b'{"a":1,"\\u0061":2}',
        b"[NaN]",
        b"[9007199254740993]",
        b"[1e0309]",
        b"[1,]",
        b"[" * 65 + b"]" * 65,
    ],
)
def test_the_fast_path_leaves_doubtful_input_to_the_slow_path(text: bytes) -> None:
    assert plain_json(text) is NOT_PLAIN


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["accumulation", "seconds", "more"]),
        st.integers(0, 3) | st.floats(0, 3) | st.booleans(),
    ),
    max_size=4,
)


@given(ROWS)
def test_many_rows_are_decoded_as_each_by_itself(rows: list[dict[str, Any]]) -> None:
    try:
        expected = tuple(from_json(StepSample, row) for row in rows)
    except DecodeError:
        with pytest.raises(DecodeError):
            from_json(tuple[StepSample, ...], rows)
    else:
        assert repr(from_json(tuple[StepSample, ...], rows)) == repr(expected)


@given(JSON_VALUES)
def test_anything_decodes_or_is_refused_with_a_reason(value: Any) -> None:
    try:
        union_from_json(Outcome, value)
    except DecodeError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "shown"), [("1" * 20, "1" * 20), ("1" * 21, "1" * 20 + "…"), ("9" * 300, "9" * 20 + "…")]
)
def test_a_number_that_is_refused_is_shown_up_to_20_digits(text: str, shown: str) -> None:
    with pytest.raises(ValueError, match=f"the integer {shown} is past"):
        strict_loads(f"[{text}]".encode())
