"""The recipes that half-weights accepts; test_equivalence.py compares its losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.plan import guided_settings, make_plan
from bench.planning.prediction.candidates import candidates_of
from bench.training.methods import known_methods, refusal
from bench.training.models import Counted, Flops, Model, Parts, Precision, known_models
from bench.training.models.footprint import Failing
from bench.training.setting import Setting
from tests.planning.test_plan import LLAMA, manifest
from tests.targets import FOUR_H200, H200
from tests.training.models.test_attention import DECODER, model_of

METHOD = known_methods()["half-weights"]


def in_half(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


@pytest.mark.parametrize("name", ["vit-l", "convnext-xl"])
def test_recipes_in_fp32_are_refused_and_the_same_architectures_in_half_precision_are_not(name: str) -> None:
    model = known_models()[name]
    assert METHOD.refuse(model, H200) == f"{name} trains in fp32"
    for precision in ("bf16", "fp16"):
        assert METHOD.refuse(in_half(model, precision), H200) is None
        assert any("half-weights" in setting for setting in guided_settings(in_half(model, precision), H200))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_family_may_say_that_its_weights_stay_in_fp32(precision: Precision) -> None:
    mamba = in_half(known_models()["mamba-2.8b"], precision)
    assert "Mamba's authors" in str(METHOD.refuse(mamba, H200))
    assert METHOD.refuse(known_models()["pythia-1b"], H200) is None
    assert METHOD.refuse(known_models()["roberta-large"], H200) is None
    assert METHOD.refuse(in_half(model_of("llama", "causal-lm", DECODER), precision), H200) is None


REASON = "its code fails where weights are in half precision: RuntimeError: expected float"
FAILING = Counted(Parts(1000, (1000,)), Flops(10**9), failing=(Failing(False, True, REASON),))


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ((), False), (("half-weights",), True), (("zero-1",), True), (("compile", "half-weights"), True),
        # FSDP2 computes under autocast; with kernels nobody saw the code fail.
        (("fsdp-2",), False), (("kernels", "half-weights"), False),
    ],
)  # fmt: skip
def test_a_setting_in_which_the_code_was_found_to_fail_is_refused(setting: Setting, refused: bool) -> None:
    llama = model_of("llama", "causal-lm", DECODER)
    assert refusal(setting, in_half(llama, "bf16"), FOUR_H200, FAILING) == (REASON if refused else None)
    assert refusal(setting, in_half(llama, "bf16"), FOUR_H200) is None


def test_the_plan_skips_it_with_the_reason_and_no_search_or_prediction_tries_it() -> None:
    both = replace(FAILING, failing=(Failing(False, True, REASON), Failing(True, True, REASON)))
    asked = manifest(models=[LLAMA], methods="guided")
    plan = make_plan(asked, H200, {"llama-7b": both})
    assert {skip.reason for skip in plan.skipped} == {REASON}
    assert any("half-weights" in skip.setting for skip in plan.skipped)
    assert not any("half-weights" in cell.setting or "zero" in cell.label for cell in plan.cells)
    assert plan.cells
    assert REASON in candidates_of(asked.models[0], both, H200).reasons
