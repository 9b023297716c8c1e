"""Frozen dataclasses that are made quickly behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

import pytest

from bench.base.frozen import dataclass as quick_dataclass


def plain(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Machine:
        """A machine."""

        name: str
        gpus: int = 1
        notes: Mapping[str, int] = field(default_factory=dict)
        secret: str = field(default="s", repr=False)
        seen: int = field(default=0, compare=False, metadata={"later": True})

        @property
        def many(self) -> bool:
            return self.gpus > 1

    return Machine


def by_keyword(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Span:
        ended: float = field(default=2.0, kw_only=True)
        started: float

    return Span


def with_own_methods(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Key:
        blob: bytes

        def __post_init__(self) -> None:
            if not self.blob:
                raise ValueError("no bytes")

        def __repr__(self) -> str:
            return "a key"

    return Key


def with_dictionary(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True)
    class Trial:
        id: str

    return Trial


def empty(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    return Nothing


def heir(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Heir(plain(dataclass)):  # type: ignore[misc]
        more: int = 3

    return Heir


CASES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (plain, ("a",), {}),
    (plain, ("a", 2, {"b": 1}, "t", 5), {}),
    (plain, (), {"name": "a", "seen": 1}),
    (plain, (), {}),
    (plain, ("a",), {"unknown": 1}),
    (by_keyword, (1.0,), {"ended": 3.0}),
    (by_keyword, (1.0, 3.0), {}),
    (with_own_methods, (b"x",), {}),
    (with_own_methods, (b"",), {}),
    (with_dictionary, ("a",), {}),
    (empty, (), {}),
    (heir, ("a",), {"more": 4}),
]


def told(call: Callable[[], object]) -> object:
    """Return the result of a call, or its exception in words."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def facts(kind: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, object]:
    """Return whatever a user of the class can see, of a value that is made of these arguments."""
    found: dict[str, object] = {
        "signature": str(inspect.signature(kind)),
        "hints": get_type_hints(kind.__init__),
        "match": kind.__match_args__,
        "slots": kind.__dict__.get("__slots__"),
        "is": is_dataclass(kind),
        "fields": [(f.name, f.type, f.default, dict(f.metadata), f.kw_only) for f in fields(kind)],
        "made": told(lambda: repr(kind(*arguments, **named))),
    }
    if not str(found["made"]).endswith(("no bytes",)) and "Error: " not in str(found["made"]):
        value, twin = kind(*arguments, **named), kind(*arguments, **named)
        found |= {
            "values": asdict(value),
            "equal": (value == twin, value != twin, value == (1,), value.__eq__(1)),
            "hash": told(lambda: hash(value) == hash(twin)),
            "replaced": told(lambda: repr(replace(value, **{fields(kind)[0].name: b"new"}))),
            "copied": (copy.copy(value) == value, copy.deepcopy(value) == value),
            "set": [told(lambda name=name: setattr(value, name, 1)) for name in kind.__match_args__],
            "deleted": [told(lambda name=name: delattr(value, name)) for name in kind.__match_args__],
        }
    return found


@pytest.mark.parametrize(("make", "arguments", "named"), CASES)
def test_users_see_no_difference(
    make: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    quick, slow = make(quick_dataclass), make(dataclasses.dataclass)
    assert facts(quick, arguments, named) == facts(slow, arguments, named)


def test_fields_that_are_not_compared_make_no_difference() -> None:
    machine = plain(quick_dataclass)
    assert machine("a", seen=1) == machine("a", seen=2)
    assert machine("a", gpus=1) != machine("a", gpus=2)


def test_a_class_without_slots_keeps_what_a_cached_property_computed() -> None:
    value = with_dictionary(quick_dataclass)("a")
    value.__dict__["computed"] = 1
    assert copy.copy(value).__dict__ == {"id": "a", "computed": 1}


def test_a_name_that_is_no_field_cannot_be_set() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        plain(quick_dataclass)("a").other = 1


def test_equal_fields_of_another_class_are_not_equal() -> None:
    assert plain(quick_dataclass)("a") != plain(quick_dataclass)("a")


def test_a_subclass_may_have_attributes_but_cannot_change_the_fields() -> None:
    class Named(with_dictionary(quick_dataclass)):  # type: ignore[misc]
        pass

    value = Named("a")
    value.more = 1
    del value.more
    for change in (lambda: setattr(value, "id", "b"), lambda: delattr(value, "id")):
        with pytest.raises(FrozenInstanceError):
            change()


@quick_dataclass(frozen=True, slots=True)
class Pickled:
    first: int
    second: tuple[int, ...] = ()


def test_values_are_pickled() -> None:
    value = Pickled(1, (2, 3))
    assert pickle.loads(pickle.dumps(value)) == value


def test_one_that_is_not_frozen_can_be_changed() -> None:
    @quick_dataclass(slots=True)
    class Counter:
        count: int = 0

    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    assert not hasattr(counter, "__dict__")
