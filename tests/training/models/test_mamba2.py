"""Mamba 2 runs mamba-ssm's kernel on GPUs, and its memory is counted with that kernel and without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from bench.base.errors import EnvironmentCannot
from bench.planning.memory_prediction import predict_bytes
from bench.training.methods import Target, known_methods
from bench.training.models import Model, family_of
from bench.training.models.mamba2 import FAMILY, working_bytes
from bench.training.models.shipped_counts import shipped_counts
from bench.training.models.zoo import zoo_model
from bench.training.vendor import transformers_inside
from tests.training.models.keeping import counted_for, loss_of, made_up_batch
from tests.training.models.test_attention import model_of

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8,
    "head_dim": 8, "n_groups": 1, "chunk_size": 8, "expand": 2, "conv_kernel": 4,
    "time_step_limit": [0.0, 1.0],
}  # fmt: skip
WIDTH, INNER, CONVOLVED, HEADS = 32, 64, 64 + 2 * 8, 8


@pytest.fixture(autouse=True)
def plain_afterwards() -> Iterator[None]:
    yield
    transformers_inside.scan_mamba2_by(None)


def small(**recipe: Any) -> Model:
    model = model_of("mamba2", "causal-lm", SMALL)
    return replace(model, recipe=replace(model.recipe, **recipe))


def test_the_kernel_needs_a_gpu_and_two_packages() -> None:
    assert "NVIDIA GPUs" in (FAMILY.missing_kernels("cpu") or "")
    assert "causal_conv1d" in (FAMILY.missing_kernels("cuda", lambda name: name == "mamba_ssm") or "")
    assert FAMILY.missing_kernels("cuda", lambda _: True) is None


def test_the_method_kernels_and_compiled_blocks_are_offered_on_a_gpu() -> None:
    target = Target("cuda", 1, 80 * 2**30, "NVIDIA H100 80GB HBM3", "9.0", elsewhere=True)
    refused = {name: known_methods()[name].why_not(small(), target) for name in ("kernels", "compile-blocks")}
    assert refused == {"kernels": None, "compile-blocks": None}
    assert "break the graph" in (known_methods()["compile"].why_not(small(), target) or "")


def test_a_model_with_kernels_cannot_be_built_without_mamba_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    with pytest.raises(EnvironmentCannot, match="mamba-ssm cannot be imported"):
        FAMILY.build(small(), kernels=True)


def test_a_mixer_trains_by_the_kernel_with_the_arguments_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []

    def told(projected: Tensor, *_: Any, outproj_weight: Tensor, chunk_size: int, D: Tensor) -> Tensor:  # noqa: N803
        calls.append({"chunk_size": chunk_size, "D": D})
        return projected[..., :WIDTH] @ outproj_weight[:, :WIDTH].t()

    name = "mamba_ssm.ops.triton.ssd_combined"
    monkeypatch.setitem(sys.modules, "mamba_ssm", ModuleType("mamba_ssm"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops", ModuleType("mamba_ssm.ops"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton", ModuleType("mamba_ssm.ops.triton"))
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(mamba_split_conv1d_scan_combined=told))
    module = FAMILY.build(small(), kernels=True)
    loss_of(module, made_up_batch(small(), 2)).backward()
    assert [call["chunk_size"] for call in calls] == [8, 8]
    plain = FAMILY.build(small(), kernels=False)
    loss_of(plain, made_up_batch(small(), 2)).backward()
    assert len(calls) == 2


def test_the_stand_in_gives_every_weight_a_gradient() -> None:
    module = FAMILY.build_with(small(), "bench_kept")
    loss_of(module, made_up_batch(small(), 2)).backward()
    without = {name for name, weight in module.named_parameters() if weight.grad is None}
    # The stand-in takes all that the kernel takes. Only a kernel would use the plain code's other functions.
    assert without == set()


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


def test_the_kernels_backward_pass_needs_states_in_two_precisions() -> None:
    # 20 positions are three chunks of 8. Six vectors of half precision a position, two numbers a head.
    expected = 20 * (2 * (3 * INNER + 2 * CONVOLVED) + 8 * HEADS) + 3 * (12 * INNER * 8 + 4 * 8 * 8)
    assert working_bytes(20, INNER, CONVOLVED, groups=1, chunk=8, heads=HEADS, half=2) == expected


def test_mamba2_of_the_zoo_is_counted_with_the_kernel() -> None:
    """The plain scan would need nearly four times the memory."""
    found = zoo_model("mamba2-2.7b")
    assert found and family_of(found.model) is FAMILY
    counts = shipped_counts(found.model)
    assert counts

    def gib(*setting: str) -> float:
        return (predict_bytes(found.model, setting, 4, 1, counts) or 0) / 2**30

    assert gib("kernels", "compile-blocks") == pytest.approx(69.1, abs=0.1)
    assert gib("compile-blocks") == pytest.approx(260.8, abs=0.1)
