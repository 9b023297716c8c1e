"""Mixers of Mamba 1 run two kernels on GPUs, and memory and operations are counted with them and without."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.base.errors import BadInput, EnvironmentCannot
from bench.records.products import why_no_products
from bench.runner.trial.counted_products import counted_products
from bench.runner.trial.recorded_computations import recorded
from bench.training.methods import Target, known_methods
from bench.training.models import Lora, Model, families, family_of, repeated_blocks
from bench.training.models.counted_operations import counted, counted_work
from bench.training.models.fp8 import multiply_blocks_in_fp8
from bench.training.models.mamba1 import Mamba1Mixers
from bench.training.vendor import transformers_inside
from tests.training.models import plain_kernels
from tests.training.models.keeping import counted_for, halved, kept_bytes_a_sample, loss_of, made_up_batch
from tests.training.models.small_mixers import MIXERS_IN, SMALL_OF_MAMBA1, small

INNER, STATES = 64, 8
H200 = Target("cuda", 1, 141 * 2**30, "NVIDIA H200", "9.0", elsewhere=True)
every_type = pytest.mark.parametrize("model_type", sorted(SMALL_OF_MAMBA1))


@pytest.fixture(autouse=True)
def plain_afterwards() -> Iterator[None]:
    yield
    for model_type in SMALL_OF_MAMBA1:
        transformers_inside.scan_mamba1_by(model_type, None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Tensor]]:
    return plain_kernels.installed(monkeypatch)


def gradients(
    model: Model, *, kernels: bool, half: bool = False, compiled: bool = False
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = family_of(model).build(model, kernels=kernels)
    batch = made_up_batch(model, 2)
    if compiled:
        for block in family_of(model).blocks(module):
            block.forward = torch.compile(block.forward, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = loss_of(module, batch)
    loss.backward()
    found = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    return found | {"loss": loss.detach()}


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    square = sum(float((one[name] - other[name]).float().square().sum()) for name in one)
    return float((square / sum(float(part.float().square().sum()) for part in one.values())) ** 0.5)


def test_the_kernels_need_a_gpu_and_three_packages() -> None:
    family = Mamba1Mixers("jamba")
    assert "NVIDIA GPUs" in (family.missing_kernels("cpu") or "")
    reason = family.missing_kernels("cuda", lambda name: name != "selective_scan_cuda")
    assert "selective_scan_cuda" in (reason or "")
    assert family.missing_kernels("cuda", lambda _: True) is None


@every_type
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_the_method_kernels_and_compiled_blocks_are_offered_on_a_gpu(model_type: str, precision: Any) -> None:
    model = small(model_type, precision=precision)
    refused = {name: known_methods()[name].why_not(model, H200) for name in ("kernels", "compile-blocks")}
    assert refused == {"kernels": None, "compile-blocks": None}
    assert "break the graph" in (known_methods()["compile"].why_not(model, H200) or "")


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("jamba", {"hidden_act": "gelu"}, "computes silu, and these mixers gelu"),
        ("zamba", {"hidden_mamba_act": "relu"}, "computes silu, and these mixers relu"),
        ("falcon_mamba", {"conv_kernel": 8}, "convolve 2 to 4 positions, and these mixers 8"),
        ("jamba", {"mamba_d_conv": 1}, "convolve 2 to 4 positions, and these mixers 1"),
        ("zamba", {"mamba_d_state": 512}, "at most 256 states a channel, and these mixers 512"),
    ],
)
def test_a_mixer_that_the_kernels_cannot_compute_is_refused_in_the_plan(
    model_type: str, fields: Mapping[str, Any], reason: str
) -> None:
    assert reason in (known_methods()["kernels"].why_not(small(model_type, fields), H200) or "")
    assert known_methods()["kernels"].why_not(small(model_type), H200) is None


def test_a_model_with_kernels_cannot_be_built_without_mamba_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mamba_ssm", "causal_conv1d"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentCannot, match="mamba-ssm cannot be imported"):
        family_of(small("jamba")).build(small("jamba"), kernels=True)


@every_type
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_and_gradients_by_the_kernels_are_those_of_the_plain_code(
    model_type: str, compiled: bool, calls: list[tuple[str, Tensor]]
) -> None:
    model = small(model_type)
    plain = gradients(model, kernels=False)
    assert not calls
    fused = gradients(model, kernels=True, compiled=compiled)
    kinds = [kind for kind, _ in calls]
    heads = 2 if model_type == "zamba" else 1
    assert kinds == ["convolution", *["scan"] * heads] * MIXERS_IN[model_type]
    assert plain.keys() == fused.keys()
    for name in plain:
        torch.testing.assert_close(fused[name], plain[name], rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("kernels", [False, True])
def test_falcon_mamba_never_trains_by_the_function_for_the_whole_mixer(
    kernels: bool, calls: list[tuple[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers takes that function without torch.compile, where mamba-ssm can be imported."""
    model = small("falcon_mamba")
    expected = gradients(model, kernels=False)
    module = import_module(transformers_inside.modeling_module("falcon_mamba"))
    monkeypatch.setattr(module, transformers_inside.MAMBA_FUNCTIONS[0], plain_kernels.wrong)
    assert distance(expected, gradients(model, kernels=kernels)) < 1e-3
    assert bool(calls) == kernels


@every_type
def test_the_scan_gets_all_of_its_tensors_in_the_precision_of_products(
    model_type: str, calls: list[tuple[str, Tensor]]
) -> None:
    """Norms of Jamba return fp32 under autocast, which mamba-ssm refuses beside bf16."""
    model = small(model_type, precision="bf16")
    exact, plain = (gradients(model, kernels=False, half=half) for half in (False, True))
    fused = gradients(model, kernels=True, half=True)
    assert {entry.dtype for _, entry in calls} == {torch.bfloat16}
    assert distance(exact, fused) < 1.5 * distance(exact, plain)


@every_type
def test_a_model_whose_operations_are_counted_once_it_is_built_trains_by_the_kernels_all_the_same(
    model_type: str, calls: list[tuple[str, Tensor]]
) -> None:
    model = small(model_type)
    family = family_of(model)
    module = family.build(model, kernels=True)
    assert counted_work(model, family).flops.scan > 0
    assert not calls
    loss_of(module, made_up_batch(model, 2)).backward()
    assert len(calls) >= 2 * MIXERS_IN[model_type]


@every_type
def test_products_in_fp8_are_computed_beside_the_kernels(
    model_type: str, calls: list[tuple[str, Tensor]]
) -> None:
    model = small(model_type, precision="fp8")
    family = family_of(model)
    module = family.build(model, kernels=True)
    multiply_blocks_in_fp8(module, family.blocks(module), model.name)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(module, made_up_batch(model, 2)).backward()
    mixers = [name for name, part in module.named_modules() if hasattr(part, "A_log")]
    assert len(mixers) == MIXERS_IN[model_type]
    for name in mixers:
        mixer = module.get_submodule(name)
        assert all("product" in vars(getattr(mixer, layer)) for layer in ("in_proj", "out_proj"))
    assert all(weight.grad is not None for weight in module.parameters())
    assert {entry.dtype for _, entry in calls} == {torch.bfloat16}


@every_type
def test_adapters_are_beside_the_layers_that_a_mixer_calls(
    model_type: str, calls: list[tuple[str, Tensor]]
) -> None:
    """peft refuses adapters beside the last layer of Falcon Mamba; no code calls Jamba's `dt_proj`."""
    model = small(model_type, lora=Lora(rank=4, alpha=8.0, dropout=0.0, targets="all-linear"))
    family = family_of(model)
    assert known_methods()["kernels"].why_not(model, H200) is None
    module = family.build(model, kernels=True)
    weights = dict(module.named_parameters())
    adapted = {name.split(".lora_A.")[0].rpartition(".")[2] for name in weights if ".lora_A." in name}
    assert {"in_proj", "out_proj"} - adapted == ({"out_proj"} if model_type == "falcon_mamba" else set())
    assert "dt_proj" not in adapted
    loss_of(module, made_up_batch(model, 2)).backward()
    assert len(calls) >= 2 * MIXERS_IN[model_type]
    assert all(weight.grad is not None for weight in weights.values() if weight.requires_grad)


def test_an_adapter_beside_a_layer_that_a_mixer_reads_past_is_refused() -> None:
    beside = small("jamba", lora=Lora(rank=4, alpha=8.0, dropout=0.0, targets=("in_proj", "dt_proj")))
    with pytest.raises(BadInput, match="never calls the layers dt_proj"):
        counted_work(beside, family_of(beside))  # type: ignore[arg-type]


# --- operations -----------------------------------------------------------------------------------------


def test_falcon_mamba_has_the_operations_of_mamba() -> None:
    """Norms add no products. Torch's counter lets the convolution run past the end of a sample."""
    model = small("falcon_mamba")
    found = counted_work(model, family_of(model)).flops  # type: ignore[arg-type]
    expected = families()["mamba"].forward_flops(replace(model, family="mamba"))
    length = model.recipe.units_per_sample
    assert replace(found, convolution=expected.convolution) == expected
    assert found.convolution == expected.convolution * (length + 3) // length


@every_type
def test_a_scan_is_counted_at_once_at_any_length(model_type: str) -> None:
    lengths = [64, 100_000]
    short, long = (
        counted_work(model, family_of(model)).flops  # type: ignore[arg-type]
        for model in (small(model_type, sequence_length=length) for length in lengths)
    )
    assert short.scan == 6 * 64 * INNER * STATES * MIXERS_IN[model_type]
    assert (long.scan, long.matmul) == tuple(
        number * lengths[1] // lengths[0] for number in (short.scan, short.matmul)
    )


@every_type
def test_adapters_beside_a_frozen_scan_count_its_backward_pass(model_type: str) -> None:
    model = small(model_type, lora=Lora(rank=4, alpha=8.0, dropout=0.0, targets=("in_proj",)))
    flops = counted_work(model, family_of(model)).flops  # type: ignore[arg-type]
    assert flops.backward is not None and flops.backward > 2 * flops.scan > 0


@every_type
@pytest.mark.parametrize("setting", [(), ("kernels",)])
def test_a_recorded_pass_has_the_scans_that_are_counted(
    model_type: str, setting: tuple[str, ...], calls: list[tuple[str, Tensor]]
) -> None:
    model = small(model_type, precision="bf16")
    flops = counted_work(model, family_of(model)).flops  # type: ignore[arg-type]
    recording = recorded(model, setting, 1)
    heads = 2 if model_type == "zamba" else 1
    kinds = dict.fromkeys(("convolutions", "scans"), 0)
    for key, each in recording.computations.items():
        if each.kind in kinds:
            kinds[each.kind] += recording.counts[key]
    assert kinds == {"convolutions": MIXERS_IN[model_type], "scans": heads * MIXERS_IN[model_type]}
    products = counted_products(recording, flops, setting)
    assert why_no_products(products, flops, model, setting) is None
    scans = [part for part in products if part.kind == "scans"]
    assert [(part.precision, part.forward) for part in scans] == [("bf16", flops.scan)]
    assert not calls


# --- memory ---------------------------------------------------------------------------------------------


@every_type
@pytest.mark.parametrize("setting", [("kernels",), ("kernels", "half-weights")])
def test_counted_memory_is_what_the_kernels_keep(
    model_type: str, setting: tuple[str, ...], calls: list[tuple[str, Tensor]]
) -> None:
    model = small(model_type, precision="bf16")
    family = family_of(model)
    assert isinstance(family, Mamba1Mixers)
    footprint = counted_for(model, setting, family=family).footprint(model, setting)
    module = family.build(model, kernels=True)
    if "half-weights" in setting:
        halved(module, model)
    kept = kept_bytes_a_sample(family, module, model)
    assert calls and footprint is not None
    assert footprint.kept(checkpointing=False) == pytest.approx(kept, rel=0.02)


@every_type
def test_the_stand_ins_give_every_weight_a_gradient(model_type: str) -> None:
    family = family_of(small(model_type))
    assert isinstance(family, Mamba1Mixers)
    module = family.build_for_memory(small(model_type), "sdpa")
    loss_of(module, made_up_batch(small(model_type), 2)).backward()
    assert {name for name, weight in module.named_parameters() if weight.grad is None} == set()


@every_type
def test_a_model_keeps_less_with_the_kernels_than_with_the_plain_scan(model_type: str) -> None:
    model = small(model_type, precision="bf16", sequence_length=16)
    # In two calls: plain code is not compiled, because the compiler takes every position apart.
    plain = counted_for(model, (), family=family_of(model))  # type: ignore[arg-type]
    settings = ("kernels",), ("kernels", "compile-blocks")
    fused = counted_for(model, *settings, family=family_of(model))  # type: ignore[arg-type]
    kept = [
        sum(block.count * (block.inside + block.backward) for block in footprint.blocks)
        for counts, setting in ((plain, ()), *((fused, setting) for setting in settings))
        if (footprint := counts.footprint(model, setting))
    ]
    assert kept[0] > 2 * kept[1]
    assert kept[1] > kept[2]


def test_a_loop_that_the_kernels_replace_is_none_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_blocks, "MOST_CALLS", 250)
    monkeypatch.setattr(repeated_blocks, "STEP", 8)
    model = small("jamba", precision="bf16", sequence_length=45)
    compiled = ("kernels", "compile-blocks")
    counts = counted_for(model, (), ("kernels",), compiled, family=family_of(model))  # type: ignore[arg-type]
    exact = counted_for(model, ("kernels",), family=family_of(model))  # type: ignore[arg-type]
    assert counts.footprint(model, compiled) is not None
    assert counts.footprint(model, ("kernels",)) == exact.footprint(model, ("kernels",))


def test_kernels_are_counted_before_a_loop_that_takes_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    family = Mamba1Mixers("jamba")

    def build(model: Model, attention: str) -> Any:
        ran.append(attention)
        return Mamba1Mixers.build_for_memory(family, model, attention)

    monkeypatch.setattr(family, "build_for_memory", build)
    counted(small("jamba", precision="fp32"), family)
    assert ran == ["bench_kept", "eager"]
