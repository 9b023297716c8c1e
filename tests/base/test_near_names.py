"""A mistyped name is answered with the one that was meant, or with all that are allowed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import MOST_LISTED, BadInput, Mistake, edits_between, near, nearest
from bench.base.gpu_catalogue import gpu_models, near_gpus

COMMANDS = ("run", "plan", "check", "compare", "certify", "completion", "predict", "prices", "keys", "new")
WORDS = st.text("abc-1", max_size=8)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("comapre", "compare"), ("nwe", "new"), ("Pln", "plan"), ("chekc", "check"), ("comp", "compare")],
)
def test_what_was_meant(typed: str, meant: str) -> None:
    assert near(typed, COMMANDS)[0] == meant


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("fp8", ["fp32", "fp16", "bf16", "tf32"]),
        ("my_model", ["sam3_vit_model", "esm", "vit", "bert"]),
        ("x", ["new", "show"]),
        ("x", ["y"]),
        ("", ["a", "abc"]),
        ("quantum", COMMANDS),
    ],
)
def test_nothing_far_is_called_near(typed: str, known: list[str]) -> None:
    assert near(typed, known) == []
    assert nearest(typed, known) == f"allowed: {', '.join(sorted(known))}"


@pytest.mark.parametrize("typed", ["x" * 10**7, "compare" + "e" * 10**7])
def test_a_text_that_is_no_name_is_near_to_nothing_and_takes_no_time(typed: str) -> None:
    """A stranger's bundle may name a model of any length; letters compared in pairs would take hours."""
    assert near(typed, [*COMMANDS, "y" * 10**7]) == []


def test_a_name_may_be_as_long_as_its_mistakes_allow() -> None:
    name = "a" * 99 + "b"
    assert near(name, [name[:-1]]) == [name[:-1]]
    assert near(name + "c", [name]) == []
    known = ["compareabc", "com", "compar", "compareab", "cmpr", "abcompare", "y" * 10**7]
    assert near("compare", known) == ["compareab", "compareabc", "compar", "abcompare"]
    assert near("compar", ["compar" + "e" * 10**7]) == ["compar" + "e" * 10**7]


@given(WORDS, WORDS)
def test_edits_are_a_distance(one: str, other: str) -> None:
    assert edits_between(one, other) == edits_between(other, one)
    assert (edits_between(one, other) == 0) == (one == other)
    assert abs(len(one) - len(other)) <= edits_between(one, other) <= max(len(one), len(other))


def test_a_long_list_is_cut_for_people_and_whole_in_json() -> None:
    names = [f"name-{i:02}" for i in range(40)]
    hint = nearest("quantum", names, "docs/names.md describes them")
    for error in (
        BadInput("no such name", advice=hint),
        BadInput.of([Mistake("/names/0", "quantum", hint)], "m.json"),
    ):
        text, document = str(error), json.dumps(error.to_json())
        assert all(name in document for name in names)
        assert text.count("name-") == MOST_LISTED
        assert f"{names[MOST_LISTED - 1]}, ... (40 in all); docs/names.md describes them" in text


def test_the_order_of_a_short_list_stays() -> None:
    assert (
        str(BadInput("x", advice="allowed: a whole number, or auto"))
        == "x\n  allowed: a whole number, or auto"
    )


def test_a_card_is_answered_with_near_ones_or_with_all_that_are_known() -> None:
    assert near_gpus("H-1000").startswith("nearest: NVIDIA H100")
    assert near_gpus("tpu-v5").startswith("allowed: ")
    assert near_gpus("tpu-v5").count(", ") == len(gpu_models()) - 1
