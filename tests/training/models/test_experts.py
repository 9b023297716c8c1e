"""Mixtures of experts, and every other product of a pass, multiply in the recipe's precision."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, Precision, family_of
from bench.training.models.cuda_autocast import half_of
from bench.training.models.experts import grouped_in_fp16
from bench.training.models.generic import configured, kinds
from bench.training.setting import NAIVE, Setting
from tests.targets import H200
from tests.training.models.keeping import loss_of, made_up_batch
from tests.training.models.test_attention import CAUSAL, DECODER, EXPERTS, FULL, IMAGES, WIDE, model_of
from tests.training.test_equivalence import curve

MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": DECODER | {"num_local_experts": 4},
    "olmoe": DECODER | EXPERTS,
    "qwen3_moe": WIDE | EXPERTS | {"moe_intermediate_size": 32},
    "qwen2_moe": DECODER | EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    # Values as wide as keys: the CPU has no fused attention for other widths.
    "deepseek_v3": CAUSAL["deepseek_v3"] | {"v_head_dim": 32},
}
aten: Any = torch.ops.aten
grouped_in_fp16()  # registers operators
# The arguments that are multiplied, of each operation that multiplies matrices.
PRODUCTS = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1), aten._grouped_mm.default: (0, 1),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    torch.ops.bench.grouped_product.default: (0, 1),
    torch.ops.bench.grouped_matrices_gradient.default: (0, 1),
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


@pytest.mark.parametrize("turned", [False, True], ids=["as they are", "transposed"])
@pytest.mark.parametrize("counts", [(3, 0, 5, 1), (0, 0, 9, 0), (0, 4, 0, 3)], ids=str)
def test_a_grouped_product_is_a_product_of_each_group(counts: tuple[int, ...], turned: bool) -> None:
    """Widths and numbers of rows are odd, and experts without rows get gradients of zero."""
    torch.manual_seed(0)
    ends = torch.tensor(counts).cumsum(0).int()
    found, expected = list[torch.Tensor](), list[torch.Tensor]()
    for product, results in ((grouped_in_fp16(), found), (loop_over_groups, expected)):
        torch.manual_seed(1)
        rows = torch.randn(sum(counts), 5, dtype=torch.float64, requires_grad=True)
        matrices = torch.randn(4, *((7, 5) if turned else (5, 7)), dtype=torch.float64, requires_grad=True)
        out = product(rows, matrices.transpose(-2, -1) if turned else matrices, ends)
        results += [out, *torch.autograd.grad(out.sin().sum(), (rows, matrices))]
    torch.testing.assert_close(found, expected)
    assert found[2].is_contiguous(), "a sum of gradients reads it at once"


def loop_over_groups(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    groups = zip(pairwise((0, *ends.tolist())), matrices, strict=True)
    return torch.cat([rows[start:end] @ matrix for (start, end), matrix in groups])


def test_the_compiler_and_autograd_know_the_grouped_product() -> None:
    rows, matrices = torch.randn(6, 5, requires_grad=True), torch.randn(3, 5, 7, requires_grad=True)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    torch.library.opcheck(grouped_in_fp16(), (rows, matrices, ends))
    frozen = grouped_in_fp16()(rows, matrices.detach(), ends)
    assert torch.autograd.grad(frozen.sum(), rows)[0].shape == rows.shape


@pytest.mark.parametrize("setting", [NAIVE, ("half-weights",)], ids=["autocast", "half-weights"])
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_in_fp16_train_as_in_fp32(name: str, setting: Setting, tmp_path: Path) -> None:
    """Three steps with the scaler of losses, whose gradients are added to fp32 sums."""
    model = model_of(name, "causal-lm", MIXTURES[name])
    expected = curve(model, NAIVE, tmp_path)
    found = curve(in_precision(model, "fp16"), setting, tmp_path, micro_batch=4)
    torch.testing.assert_close(found[:3], expected[:3], rtol=2e-3, atol=0)  # losses
    torch.testing.assert_close(found[3:], expected[3:], rtol=2e-2, atol=0)  # gradient norms


@pytest.mark.parametrize(
    ("precision", "recorded"), [("bf16", True), ("fp8", True), ("fp16", False), ("fp32", False)]
)
def test_passes_in_which_experts_wait_for_the_device_are_not_recorded(
    precision: Precision, recorded: bool
) -> None:
    model = in_precision(model_of("qwen3_moe", "causal-lm", MIXTURES["qwen3_moe"]), precision)
    reason = known_methods()["cuda-graphs"].refuse(model, H200)
    assert (reason is None) == recorded == ("cuda-graphs" in free_lunch(model, H200))
    if not recorded:
        assert reason == f"the experts of qwen3_moe wait for the device at every product in {precision}"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "model",
    [
        *(model_of(name, "causal-lm", given) for name, given in (CAUSAL | MIXTURES).items()),
        *(model_of(name, "masked-lm", given) for name, given in FULL.items()),
        *(model_of(name, "image-classification", given) for name, given in IMAGES.items()),
    ],
    ids=lambda model: model.family,
)
def test_every_product_of_a_pass_multiplies_in_the_recipes_precision(
    model: Model, precision: Precision
) -> None:
    """Without dropout, for which the CPU has no fused attention."""
    model, half = in_precision(model, precision), half_of(precision)
    kernels = family_of(model).missing_kernels("cpu") is None
    module = family_of(model).build(model, kernels=kernels).eval()
    with Products() as products:
        with torch.autocast("cpu", dtype=half):
            loss = loss_of(module, made_up_batch(model, 2))
        loss.backward()
    names = {name for name, _ in products.precisions}
    assert names and any("grouped" in name for name in names) == (model.family in MIXTURES)
    assert {one for one in products.precisions if one[1] is not half} == set()
