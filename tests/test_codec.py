"""JSON, strictly: what goes out comes back the same, what does not fit is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.codec import DecodeError, canonical_json, from_json, strict_loads, to_json, union_from_json
from bench.result import Crashed, Measured, Outcome, OutOfMemory, StepSample, TimedOut, Trial, Unsupported
from tests.builders import measurement, trial

OUTCOMES = [
    OutOfMemory("gpu", "no more"),
    Unsupported("why"),
    TimedOut(1.5, "build"),
    Crashed("reason"),
    Measured(measurement([StepSample(1, 0.5)], losses=(1.0, 2.5))),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: o.kind)
def test_every_outcome_survives_the_trip(outcome: Outcome) -> None:
    assert union_from_json(Outcome, strict_loads(canonical_json(to_json(outcome)))) == outcome


def test_a_trial_survives_the_trip_and_keeps_its_id() -> None:
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
        ("[1,]", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_readers_would_read_differently_is_refused(text: str, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        strict_loads(text)


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


@given(JSON_VALUES)
def test_anything_decodes_or_is_refused_with_a_reason(value: Any) -> None:
    try:
        union_from_json(Outcome, value)
    except DecodeError as error:
        assert str(error)
