"""The learning rate at each step, and schedules as manifests state them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.strict_json import from_json, to_json
from bench.training.models import Model, Recipe
from bench.training.models.own_models import resolve_inline
from bench.training.schedules import DECAY_SHARE, WarmupStableDecay

RECIPE = {"batch_size": 8, "steps": 1000, "precision": "fp32", "sequence_length": 16}
NEOX = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


def read(schedule: Any) -> Any:
    return resolve_inline(
        {"name": "mine", "architecture": NEOX, "recipe": RECIPE | {"schedule": schedule}}, ""
    )


def test_wsd_rises_stays_and_falls() -> None:
    schedule = WarmupStableDecay("wsd", warmup_steps=10, decay="linear", decay_steps=20)
    factors = [schedule.factor(step, 100) for step in range(101)]
    assert factors[:10] == [pytest.approx((step + 1) / 10) for step in range(10)]
    assert set(factors[10:81]) == {1.0}
    assert factors[90] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.05)
    assert factors[100] == 0.0


def test_one_minus_sqrt_falls_fast_at_first_down_to_the_final_ratio() -> None:
    schedule = WarmupStableDecay("wsd", 0, final_ratio=0.1, decay_share=0.5)
    assert schedule.factor(50, 100) == 1.0
    assert schedule.factor(62, 100) == pytest.approx(0.1 + 0.9 * (1 - (12 / 50) ** 0.5))
    assert schedule.factor(100, 100) == pytest.approx(0.1)
    assert schedule.factor(500, 100) == pytest.approx(0.1)


def test_a_share_and_a_number_of_steps_mean_the_same() -> None:
    by_share = WarmupStableDecay("wsd", 5, decay_share=0.25)
    by_steps = WarmupStableDecay("wsd", 5, decay_steps=50)
    assert [by_share.factor(s, 200) for s in range(200)] == [by_steps.factor(s, 200) for s in range(200)]
    assert WarmupStableDecay("wsd", 5).decaying_steps(1000) == round(DECAY_SHARE * 1000)


def test_a_manifest_names_it() -> None:
    model = read("wsd")
    assert isinstance(model, Model), model
    assert model.recipe.schedule == WarmupStableDecay("wsd", warmup_steps=10, final_ratio=0.1)
    model = read({"name": "wsd", "decay_share": 0.1, "decay": "linear", "warmup_steps": 50})
    assert model.recipe.schedule == WarmupStableDecay("wsd", 50, 0.1, "linear", 0.1)
    assert from_json(Recipe, to_json(model.recipe)) == model.recipe


@pytest.mark.parametrize(
    ("schedule", "path", "words"),
    [
        ("wds", "name", 'nearest: "wsd"'),
        ({"name": "wsd", "decay": "cosine"}, "decay", '"cosine" does not fit'),
        ({"name": "cosine", "decay_share": 0.1}, "decay_share", "is a field of wsd, not of cosine"),
        ({"name": "wsd", "decay_share": 0.1, "decay_steps": 9}, "decay_share", "same as decay_steps"),
        ({"name": "wsd", "decay_share": 1.5}, "decay_share", "more than allowed"),
        ({"name": "wsd", "decay_share": "10%"}, "decay_share", "is not a number"),
        ({"name": "wsd", "decay_steps": 0}, "decay_steps", "less than allowed"),
        ({"name": "wsd", "decay_steps": 2000}, "decay_steps", "means 2000 steps of decay"),
        ({"name": "wsd", "warmup_steps": 900, "decay_share": 0.2}, "decay_share", "there are 100"),
        ({"name": "wsd", "warmup_steps": 2000}, "warmup_steps", "2000 is more"),
        ({"name": {}}, "name", "does not fit"),
    ],
)
def test_schedules_that_cannot_be_are_named(schedule: Any, path: str, words: str) -> None:
    found = read(schedule)
    assert isinstance(found, list), found
    (mistake,) = found
    assert mistake.path == f"/recipe/schedule/{path}"
    assert words in f"{mistake.found}; {mistake.allowed}"
