"""Mixers of Mamba 2 run mamba-ssm's kernel on GPUs, and memory is counted with that kernel and without."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.base.errors import EnvironmentCannot
from bench.planning.memory_prediction import predict_bytes
from bench.runner.trial.recorded_computations import recorded
from bench.training.lifetimes import from_text
from bench.training.methods import Target, known_methods
from bench.training.models import Lora, Model, family_of
from bench.training.models.counted_operations import counted, counted_work
from bench.training.models.mamba2 import Mamba2Mixers, working_bytes
from bench.training.models.shipped_counts import shipped_counts
from bench.training.models.zoo import zoo_model
from bench.training.vendor import transformers_inside
from tests.training.models.keeping import (
    counted_for,
    halved,
    kept_bytes_a_sample,
    loss_of,
    made_up_batch,
)
from tests.training.models.plain_mixer import MambaSplitConv1dScanCombinedFn, applied
from tests.training.models.small_mixers import MIXERS_IN, SMALL, small

HYBRIDS = sorted(SMALL.keys() - {"mamba2"})
WIDTH, INNER, CONVOLVED, HEADS = 32, 64, 64 + 2 * 8, 8
FAMILY = Mamba2Mixers("mamba2")
H200 = Target("cuda", 1, 141 * 2**30, "NVIDIA H200", "9.0", elsewhere=True)
every_type = pytest.mark.parametrize("model_type", sorted(SMALL))


@pytest.fixture(autouse=True)
def plain_afterwards() -> Iterator[None]:
    yield
    for model_type in SMALL:
        transformers_inside.scan_mamba2_by(model_type, None)


def mixers_of(model: Model) -> Mamba2Mixers:
    family = family_of(model)
    assert isinstance(family, Mamba2Mixers)
    return family


def call_as_kernel(function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function be found as mamba-ssm's kernel."""
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    combined = SimpleNamespace(mamba_split_conv1d_scan_combined=function)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", combined)


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return the first arguments of calls of mamba-ssm's kernel, in place of which a product is computed."""
    calls: list[Tensor] = []

    def told(projected: Tensor, *_: Any, outproj_weight: Tensor, chunk_size: int, D: Tensor) -> Tensor:  # noqa: N803
        assert (chunk_size, D.numel()) == (8, HEADS)
        calls.append(projected)
        return projected[..., :WIDTH] @ outproj_weight[:, :WIDTH].t().to(projected.dtype)

    call_as_kernel(told, monkeypatch)
    return calls


def test_the_kernel_needs_a_gpu_and_two_packages() -> None:
    assert "NVIDIA GPUs" in (FAMILY.missing_kernels("cpu") or "")
    assert "causal_conv1d" in (FAMILY.missing_kernels("cuda", lambda name: name == "mamba_ssm") or "")
    assert FAMILY.missing_kernels("cuda", lambda _: True) is None


@every_type
def test_the_method_kernels_and_compiled_blocks_are_offered_on_a_gpu(model_type: str) -> None:
    model = small(model_type)
    refused = {name: known_methods()[name].why_not(model, H200) for name in ("kernels", "compile-blocks")}
    assert refused == {"kernels": None, "compile-blocks": None}
    assert "break the graph" in (known_methods()["compile"].why_not(model, H200) or "")


@every_type
def test_products_in_fp8_are_computed_without_the_kernel(model_type: str) -> None:
    reason = known_methods()["kernels"].why_not(small(model_type, precision="fp8"), H200)
    assert "the recipe is fp8" in (reason or "")


@every_type
def test_the_kernel_serves_adapters_unless_one_is_beside_the_layer_whose_weights_it_reads(
    model_type: str, kernel_calls: list[Tensor]
) -> None:
    model = small(model_type, lora=Lora(rank=4, alpha=8.0, dropout=0.0, targets="all-linear"))
    kernels, family = known_methods()["kernels"], family_of(model)
    assert kernels.why_not(model, H200) is None
    module = family.build(model, kernels=True)
    weights = dict(module.named_parameters())
    adapted = {name.split(".lora_A.")[0].rpartition(".")[2] for name in weights if ".lora_A." in name}
    assert "in_proj" in adapted and "out_proj" not in adapted
    loss_of(module, made_up_batch(model, 2)).backward()
    assert len(kernel_calls) == MIXERS_IN[model_type]
    assert all(weight.grad is not None for weight in weights.values() if weight.requires_grad)
    for targets in (("in_proj", "out_proj"), ("mamba.out_proj",)):
        beside = small(model_type, lora=Lora(rank=4, alpha=8.0, dropout=0.0, targets=targets))
        assert "would leave adapters out" in (kernels.why_not(beside, H200) or "")


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("bamba", {"hidden_act": "gelu"}, "computes silu, and these mixers gelu"),
        ("mamba2", {"hidden_act": "relu"}, "computes silu, and these mixers relu"),
        ("nemotron_h", {"mamba_hidden_act": "tanh"}, "computes silu, and these mixers tanh"),
        ("granitemoehybrid", {"mamba_d_conv": 8}, "convolve 2 to 4 positions, and these mixers 8"),
        ("zamba2", {"mamba_d_conv": 1}, "convolve 2 to 4 positions, and these mixers 1"),
        ("falcon_h1", {"mamba_d_state": 10}, "multiples of 8 channels, and these mixers 84"),
        ("mamba2", {"state_size": 6}, "multiples of 8 channels, and these mixers 76"),
        ("zamba2", {"mamba_ngroups": 2, "mamba_d_state": 5}, "multiples of 8 channels, and these mixers 84"),
    ],
)
def test_a_mixer_that_the_kernel_cannot_compute_is_refused_in_the_plan(
    model_type: str, fields: Mapping[str, Any], reason: str
) -> None:
    assert reason in (known_methods()["kernels"].why_not(small(model_type, fields), H200) or "")


def test_a_model_with_kernels_cannot_be_built_without_mamba_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    with pytest.raises(EnvironmentCannot, match="mamba-ssm cannot be imported"):
        FAMILY.build(small(), kernels=True)


@every_type
def test_each_mixer_trains_by_the_kernel_in_the_precision_of_products(
    model_type: str, kernel_calls: list[Tensor]
) -> None:
    model = small(model_type)
    family, batch = family_of(model), made_up_batch(model, 2)
    module = family.build(model, kernels=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(module, batch).backward()
    assert [call.dtype for call in kernel_calls] == [torch.bfloat16] * MIXERS_IN[model_type]
    plain = family.build(model, kernels=False)
    loss_of(plain, batch).backward()
    assert len(kernel_calls) == MIXERS_IN[model_type]


@every_type
def test_a_model_whose_operations_are_counted_once_it_is_built_trains_by_the_kernel_all_the_same(
    model_type: str, kernel_calls: list[Tensor]
) -> None:
    model = small(model_type)
    family = family_of(model)
    module = family.build(model, kernels=True)
    assert counted_work(model, family).flops.total > 0
    assert not kernel_calls
    loss_of(module, made_up_batch(model, 2)).backward()
    assert len(kernel_calls) == MIXERS_IN[model_type]


@every_type
def test_a_floor_convolves_and_scans_in_the_precision_of_products(
    model_type: str, kernel_calls: list[Tensor]
) -> None:
    for setting in (("kernels",), ("kernels", "half-weights")):
        found = recorded(small(model_type, precision="bf16"), setting, 2).computations.values()
        parts = [each for each in found if each.kind in ("convolutions", "scans")]
        assert {each.kind for each in parts} == {"convolutions", "scans"}
        assert {each.forms[0].dtype for each in parts} == {torch.bfloat16}
    assert not kernel_calls


@every_type
def test_the_states_of_all_scans_are_counted(model_type: str) -> None:
    model = small(model_type)
    counts = counted_work(model, family_of(model))
    assert counts.shapes.scanned_states == MIXERS_IN[model_type] * model.recipe.units_per_sample * INNER * 8


@every_type
def test_the_stand_in_gives_every_weight_a_gradient(model_type: str) -> None:
    family = family_of(small(model_type))
    assert isinstance(family, Mamba2Mixers)
    module = family.build_for_memory(small(model_type), "sdpa")
    loss_of(module, made_up_batch(small(model_type), 2)).backward()
    without = {name for name, weight in module.named_parameters() if weight.grad is None}
    # The stand-in takes all that the kernel takes. Only a kernel would use the plain code's other functions.
    assert without == set()


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_a_hybrid_keeps_less_with_the_kernel_than_with_the_plain_scan(model_type: str) -> None:
    said: list[str] = []
    counts = counted(small(model_type, precision="bf16"), family_of(small(model_type)), said.append)
    assert said == []
    kept = [
        sum(block.count * (block.inside + block.backward) for block in footprint.blocks)
        for setting in ((), ("kernels",), ("kernels", "compile-blocks"))
        if (footprint := counts.footprint(small(model_type), setting))
    ]
    assert kept[0] > 2 * kept[1] > 2 * kept[2]


def test_a_compiled_block_keeps_its_input_and_what_the_kernel_keeps() -> None:
    model = small(precision="bf16")
    counts = counted_for(model, ("kernels", "compile-blocks"), ("compile-blocks",), family=FAMILY)
    length = model.recipe.units_per_sample
    footprint = counts.footprint(model, ("kernels", "compile-blocks"))
    assert footprint is not None
    # The block's input in fp32, its norm's deviation, and the norm's result in half precision; then the
    # product, the scan's result, and the deviation of the gated norm.
    token = 4 * WIDTH + 4 + 2 * WIDTH + 2 * (INNER + CONVOLVED + HEADS) + 2 * INNER + 4
    assert [(block.count, block.inside) for block in footprint.blocks] == [(2, length * token)]
    plain = counts.footprint(model, ("compile-blocks",))
    assert plain is not None
    assert plain.blocks[0].inside > 2 * footprint.blocks[0].inside


@pytest.mark.parametrize("model_type", ["falcon_h1", "granitemoehybrid"])
def test_counted_memory_is_what_compiled_blocks_keep_whose_graphs_end_at_the_kernel(
    model_type: str, monkeypatch: pytest.MonkeyPatch, without_inductor: None
) -> None:
    """Weights have half precision, because the rules of a GPU's autocast cannot be compiled on a CPU.

    Attention of Falcon-H1 reads what its mixer reads, after the kernel, and multiplies it once more.
    """
    model, setting = small(model_type, precision="bf16"), ("kernels", "half-weights", "compile-blocks")
    family = mixers_of(model)
    footprint = counted_for(model, setting, family=family).footprint(model, setting)
    calls: list[str] = []

    form = inspect.signature(MambaSplitConv1dScanCombinedFn.forward)
    form = form.replace(parameters=[*form.parameters.values()][1:])  # a caller gives no context

    def kernel(*given: Any, **named: Any) -> Tensor:
        calls.append(model_type)
        return applied(**form.bind(*given, **named).arguments)

    kernel.__signature__ = form  # type: ignore[attr-defined]
    call_as_kernel(kernel, monkeypatch)
    module = halved(family.build(model, kernels=True), model)
    family.mix_by(family.mamba_ssm())
    for block in family.blocks(module):
        block.forward = torch.compile(block.forward, dynamic=False)
    kept = kept_bytes_a_sample(family, module, model)
    assert len(calls) == 2 * MIXERS_IN[model_type] and footprint is not None
    assert footprint.kept(checkpointing=False) == pytest.approx(kept, rel=0.02)


def test_what_falcon_h1_multiplies_in_fp32_is_written_before_the_kernel() -> None:
    """A buffer in fp32 multiplies the first product, and the compiled graph ends where the kernel begins."""
    numbers = small().recipe.units_per_sample * (INNER + CONVOLVED + HEADS)

    def written(model_type: str) -> list[bool]:
        model, setting = small(model_type, precision="bf16"), ("kernels", "compile-blocks")
        footprint = counted_for(model, setting, family=family_of(model)).footprint(model, setting)
        assert footprint
        tensors = from_text(footprint.blocks[0].tensors)
        found = [one for one in tensors.lifetimes if one.sample_bytes == 4 * numbers]
        return [one.born > tensors.backward for one in found]

    assert written("mamba2") == []
    assert written("falcon_h1") == [False, True]  # in the forward pass, and its gradient in the backward pass


def test_the_kernels_backward_pass_needs_states_in_two_precisions() -> None:
    # 20 positions are three chunks of 8. Six vectors of half precision a position, two numbers a head.
    expected = 20 * (2 * (3 * INNER + 2 * CONVOLVED) + 8 * HEADS) + 3 * (12 * INNER * 8 + 4 * 8 * 8)
    assert working_bytes(20, INNER, CONVOLVED, groups=1, chunk=8, heads=HEADS, half=2) == expected


def test_mamba2_of_the_zoo_is_counted_with_the_kernel() -> None:
    """The plain scan would need nearly four times the memory."""
    found = zoo_model("mamba2-2.7b")
    assert found and isinstance(family_of(found.model), Mamba2Mixers)
    counts = shipped_counts(found.model)
    assert counts

    def gib(*setting: str) -> float:
        return (predict_bytes(found.model, setting, 4, 1, counts) or 0) / 2**30

    assert gib("kernels", "compile-blocks") == pytest.approx(69.1, abs=0.1)
    assert gib("compile-blocks") == pytest.approx(260.8, abs=0.1)
