"""Contracts of every method, including new ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import bench
from bench.base.errors import BadInput
from bench.export import KINDS
from bench.training.methods import Method, known_methods, method_named
from bench.training.models import Model, counts_of, known_models
from bench.training.setting import GROUPS
from tests.targets import CPU, H200
from tests.training.models.test_attention import DECODER, model_of

every_method = pytest.mark.parametrize("method", known_methods().values(), ids=lambda method: method.name)
PAPER = [model for model in known_models().values() if not model.name.startswith("tiny-")]


@every_method
def test_a_method_says_what_it_is(method: Method) -> None:
    assert method.name == method.name.lower().replace("_", "-").replace(" ", "-")
    assert method.summary


def test_an_unknown_method_is_bad_input_and_a_failed_look_up() -> None:
    """Readers of bundles catch LookupError where they can go on; a user sees the name elsewhere."""
    with pytest.raises(LookupError) as caught:
        method_named("warp\x1b-drive")
    assert isinstance(caught.value, BadInput)
    assert "\x1b" not in str(caught.value) and "warp" in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))  # as from a process that verifies a bundle
    assert (type(copied), str(copied)) == (type(caught.value), str(caught.value))


def test_methods_are_looked_up_in_one_place() -> None:
    """`known_methods()[name]` raises KeyError, which bench reports as its own defect."""
    sources = Path(bench.__file__).parent.rglob("*.py")
    direct = [path.name for path in sources if "known_methods()[" in path.read_text()]
    assert direct == ["trainer.py"]  # an exported script; its trial has been through `bench export`


def test_the_table_of_groups_names_known_methods_alone() -> None:
    assert GROUPS.keys() <= known_methods().keys()


@every_method
def test_a_method_requires_and_excludes_known_methods_or_groups(method: Method) -> None:
    assert {*method.requires, *method.excludes} <= {*known_methods(), *GROUPS.values()}
    assert all([*method.requires.values(), *method.excludes.values(), *method.not_exported_to.values()])


@every_method
def test_a_method_names_frameworks_that_exist(method: Method) -> None:
    assert {*method.configured_by, *method.not_exported_to} <= {*KINDS}


@every_method
def test_a_method_s_effects_on_time_are_factors(method: Method) -> None:
    assert method.prior_time > 0
    assert method.least_time_with > 0
    assert 0 < method.least_time_without <= 1


@every_method
def test_a_method_is_refused_with_a_reason_or_taken(method: Method) -> None:
    for model in known_models().values():
        for target in (CPU, H200):
            assert method.refuse(model, target) != ""


@every_method
@pytest.mark.parametrize("model", PAPER, ids=lambda model: model.name)
def test_a_method_leaves_out_less_arithmetic_than_there_is(method: Method, model: Model) -> None:
    counts = counts_of(model)
    if method.refuse(model, H200) is None:
        assert 0 <= method.left_out(model, counts).total < counts.flops.total


@every_method
def test_every_method_can_be_used_by_some_model_somewhere(method: Method) -> None:
    """Each method works for some model on a machine with its requirements; missing packages are named."""
    brought = model_of("llama", "causal-lm", DECODER | {"vocab_size": 128_256})
    models = (*known_models().values(), brought)
    reasons = {method.refuse(model, target) for model in models for target in (CPU, H200)}
    assert None in reasons or all("not installed" in str(reason) for reason in reasons)
