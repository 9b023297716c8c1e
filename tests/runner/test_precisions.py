"""Every product of a pass multiplies in the precision that its recipe says; exceptions have a reason."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.base.errors import BadInput
from bench.records.products import SMALL_SHARE, InputPrecision, ProductKind, Products, in_other_precisions
from bench.records.trial import Timing
from bench.runner.trial import counted_products as counting
from bench.runner.trial.counted_products import counted_products, products_or_reason
from bench.runner.trial.device import Device
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import arithmetic
from bench.training.models import Flops, Model, Precision, counts_of, families, known_models
from bench.training.setting import NAIVE, Setting
from tests.builders import trial
from tests.training.models.test_adapters import llama as adapted
from tests.training.models.test_attention import MASKED, UNMASKED
from tests.training.models.test_generic import model_of as generic
from tests.training.objectives.test_documents import model_of as packed

TINY = {model.family: model for name, model in known_models().items() if name.startswith("tiny-")}
LIKE_OTHERS = {  # architectures that multiply as another one of the list does
    "camembert", "deit", "dinov2_with_registers", "electra", "granite", "olmo2", "qwen2", "smollm3",
    "stablelm", "starcoder2", "xlm-roberta",
}  # fmt: skip
OTHERS = [model for model in [*MASKED, *UNMASKED, generic("resnet")] if model.family not in LIKE_OTHERS]
KINDS_OF_LAYERS: dict[str, dict[str, Any]] = {  # one layer of each kind, of architectures that have two
    "gemma3_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere2": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "modernbert": {"num_hidden_layers": 2},  # the first has full attention
    "deepseek_v3": {"num_hidden_layers": 2},  # the first has no experts
}
NUMBER_OF_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")


def short(model: Model) -> Model:
    """Return the model with one layer of each kind."""
    one = {name: 1 for name in NUMBER_OF_LAYERS if name in model.architecture}
    layers = KINDS_OF_LAYERS.get(model.family, one)
    return replace(model, architecture={**model.architecture, **layers})


MODELS = {model.family: short(model) for model in [*OTHERS, *TINY.values()]}
MIXTURES = ("mixtral", "olmoe", "deepseek_v3")
KERNELS, HALVED = ("kernels",), ("kernels", "half-weights")
EACH: tuple[tuple[Precision, Setting], ...] = (
    ("fp32", KERNELS), ("bf16", KERNELS), ("bf16", HALVED), ("fp16", KERNELS), ("fp16", HALVED),
    ("fp8", KERNELS),
)  # fmt: skip
Found = set[tuple[ProductKind, InputPrecision]]

NO_FP8 = ("falcon", "gpt2", "resnet")  # no linear layer of their blocks has sizes that are multiples of 16
ROUTER: Found = {("products", "fp32")}


def exceptions(family: str, setting: Setting) -> Found:
    """Return what multiplies in another precision than the recipe's, where that is known.

    DeepSeek's authors compute the router in fp32, which autocast lowers.
    """
    return ROUTER if family == "deepseek_v3" and "half-weights" in setting else set()


def in_precision(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


def setting_of(family: str, setting: Setting) -> Setting:
    """Return the setting without kernels if they are not there for this family, or are not installed here."""
    missing = family == "resnet" or (family in families() and families()[family].missing_kernels("cpu"))
    return tuple(name for name in setting if name != "kernels" or not missing)


def products_of(model: Model, setting: Setting) -> tuple[Products, ...]:
    """Count a recorded pass; operations of attention and scans are made up, and their precision is not."""
    return counted_products(recorded(model, setting, 1), Flops(1, attention=10**9, scan=10**9), setting)


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len(MODELS) >= 20


@pytest.mark.parametrize(("precision", "setting"), EACH, ids=["-".join((p, *s)) for p, s in EACH])
@pytest.mark.parametrize("family", MODELS)
def test_every_product_multiplies_in_the_precision_of_the_recipe(
    family: str, precision: Precision, setting: Setting
) -> None:
    model, setting = in_precision(MODELS[family], precision), setting_of(family, setting)
    if precision == "fp8" and family in NO_FP8:
        with pytest.raises(BadInput, match="no linear layer of its blocks has sizes"):
            recorded(model, setting, 1)
        return
    products = products_of(model, setting)
    if family in MIXTURES:
        assert "grouped products" in {part.kind for part in products}
    expected = {"fp8", "bf16"} if precision == "fp8" else {precision}
    other = {(p.kind, p.precision) for p in products if p.kind != "scans" and p.precision not in expected}
    assert other == exceptions(family, setting)
    forward, backward = (
        {p.precision for p in products if getattr(p, way)} for way in ("forward", "backward")
    )
    assert expected <= forward | backward
    assert expected & backward, "the backward pass has products of its own"


def test_the_router_of_a_mixture_is_too_small_a_part_to_tell() -> None:
    model = in_precision(MODELS["deepseek_v3"], "bf16")
    products = products_of(model, HALVED)
    (router,) = [part for part in products if part.precision == "fp32"]
    assert router.operations < SMALL_SHARE * sum(part.operations for part in products)
    assert in_other_precisions(products, model, HALVED) == {}


# --- the figures of a trial -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "setting"),
    [("gpt_neox", NAIVE), ("roberta", ("kernels", "masked-head")), ("mixtral", KERNELS), ("convnext", NAIVE),
     ("mamba", NAIVE), ("swin", NAIVE), ("resnet", NAIVE), ("mistral", KERNELS)],
)  # fmt: skip
def test_forward_products_are_the_operations_that_the_model_is_counted_to_have(
    family: str, setting: Setting
) -> None:
    model = in_precision(MODELS[family], "bf16")
    flops = arithmetic(setting, model, counts_of(model))
    products = products_or_reason(trial(model=model, setting=setting, micro_batch=2), flops)
    assert not isinstance(products, str), products
    parts = [part for part in products if part.kind != "scans"]
    assert sum(part.forward for part in parts) == flops.total - flops.scan
    assert sum(part.backward for part in parts) <= 2 * (flops.total - flops.scan)


@pytest.mark.parametrize("model", [adapted(), packed("llama")], ids=["adapters", "documents"])
def test_frozen_weights_and_packed_documents_are_counted_too(model: Model) -> None:
    flops = arithmetic(KERNELS, model, counts_of(model))
    products = products_or_reason(trial(model=model, setting=KERNELS), flops)
    assert not isinstance(products, str), products
    assert sum(part.forward for part in products) == flops.total
    assert sum(part.backward for part in products) <= flops.of_backward


@pytest.mark.parametrize(
    ("setting", "attention"),
    [((), "fp32"), (("tf32",), "tf32"), (("tf32", "kernels"), "fp32"),
     (("tf32", "kernels", "flex-attention"), "tf32")],
    ids=["naive", "tf32", "kernels", "flex-attention"],
)  # fmt: skip
def test_tf32_multiplies_whatever_takes_it(setting: Setting, attention: str) -> None:
    """PyTorch's fused attention computes fp32 without it."""
    products = products_of(TINY["vit"], setting)
    usual = "tf32" if "tf32" in setting else "fp32"
    found = {part.kind: part.precision for part in products}
    assert found == {"products": usual, "convolutions": usual, "attention": attention}


def test_a_trial_says_what_its_passes_multiplied(tmp_path: Path) -> None:
    brief = Timing(target_percent=50, measure_seconds=0.01, warmup_seconds=0.01, loss_steps=1)
    one = trial(model=TINY["gpt_neox"], micro_batch=8, timing=brief, seed=3)
    measurement = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _: None).run()
    assert measurement.no_products is None
    assert {(part.kind, part.precision) for part in measurement.products} == {
        ("products", "fp32"),
        ("attention", "fp32"),
    }
    assert sum(part.operations for part in measurement.products) == measurement.flops.training


def test_code_that_fails_without_contents_leaves_the_precisions_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(self: nn.Module, *_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("this code reads\nwhat it computed")

    monkeypatch.setattr("transformers.GPTNeoXForCausalLM.forward", read)
    found = products_or_reason(trial(model=TINY["gpt_neox"]), Flops(1))
    assert found == "a pass without contents fails: RuntimeError: this code reads\\nwhat it computed"


def test_a_pass_that_takes_too_long_leaves_the_precisions_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_SECONDS", -time.process_time())
    found = products_or_reason(trial(model=TINY["gpt_neox"]), Flops(1))
    assert found == "a pass without contents fails: TimeoutError: it takes too long"


def test_products_that_do_not_add_up_are_left_out(tmp_path: Path) -> None:
    found = products_or_reason(trial(model=TINY["gpt_neox"]), Flops(10**12))
    assert isinstance(found, str)
    assert "and the model is counted to have 1,000,000,000,000" in found
