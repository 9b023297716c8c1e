"""Mixtures of experts, and every other product of a pass, multiply in the recipe's precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.training.models import Model, Precision, family_of
from bench.training.models.generic import configured, kinds
from tests.training.models.keeping import loss_of, made_up_batch
from tests.training.models.test_attention import CAUSAL, DECODER, EXPERTS, FULL, IMAGES, WIDE, model_of

MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": DECODER | {"num_local_experts": 4},
    "olmoe": DECODER | EXPERTS,
    "qwen3_moe": WIDE | EXPERTS | {"moe_intermediate_size": 32},
    "qwen2_moe": DECODER | EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    # Values as wide as keys: the CPU has no fused attention for other widths.
    "deepseek_v3": CAUSAL["deepseek_v3"] | {"v_head_dim": 32},
}
aten: Any = torch.ops.aten
# The arguments that are multiplied, of each operation that multiplies matrices.
PRODUCTS = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1), aten._grouped_mm.default: (0, 1),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
}  # fmt: skip


def in_precision(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


class Products(TorchDispatchMode):
    """Records the precision of every matrix product, but of outer products, which add nothing up."""

    def __init__(self) -> None:
        super().__init__()
        self.precisions: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if places := PRODUCTS.get(func):
            multiplied = [args[place] for place in places]
            if multiplied[0].shape[-1] > 1 or func is aten.convolution.default:
                self.precisions |= {(func.name(), tensor.dtype) for tensor in multiplied}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MIXTURES)
def test_grouped_experts_compute_what_a_loop_over_experts_computes(name: str) -> None:
    """Losses and all gradients are compared in fp32, where only the order of sums differs."""
    model = in_precision(model_of(name, "causal-lm", MIXTURES[name]), "bf16")
    batch, found = made_up_batch(model, 2), []
    for implementation in ("eager", "bench_grouped"):
        torch.manual_seed(0)
        family_of(model).build(model, kernels=False)  # registers the grouped experts
        configuration = configured(model)
        configuration._experts_implementation = implementation
        torch.manual_seed(0)
        module = kinds()["causal-lm"].from_config(configuration, attn_implementation="eager").float()
        loss = loss_of(module, batch)
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in module.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        *(model_of(name, "causal-lm", given) for name, given in (CAUSAL | MIXTURES).items()),
        *(model_of(name, "masked-lm", given) for name, given in FULL.items()),
        *(model_of(name, "image-classification", given) for name, given in IMAGES.items()),
    ],
    ids=lambda model: model.family,
)
def test_every_product_of_a_pass_multiplies_in_the_recipes_precision(model: Model) -> None:
    """Without dropout, for which the CPU has no fused attention."""
    model = in_precision(model, "bf16")
    kernels = family_of(model).missing_kernels("cpu") is None
    module = family_of(model).build(model, kernels=kernels).eval()
    with Products() as products:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(module, made_up_batch(model, 2))
        loss.backward()
    assert products.precisions
    assert {one for one in products.precisions if one[1] is not torch.bfloat16} == set()
