"""The operator of benchmarks/gpu for a mixer of Mamba 2 computes and keeps what mamba-ssm's function does."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.base.errors import EnvironmentCannot
from tests.training.models import plain_mixer
from tests.training.models.plain_mixer import MambaSplitConv1dScanCombinedFn, applied

SAMPLES, LENGTH, WIDTH, HEADS, HEAD, STATES = 2, 20, 32, 8, 8, 4
INNER = HEADS * HEAD


def arguments(*, norm: bool, bias: bool, precision: torch.dtype, groups: int = 2) -> dict[str, Any]:
    """Return what a mixer hands to the kernel; half precision is that of the products alone."""
    torch.manual_seed(0)
    channels = INNER + 2 * groups * STATES

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape) / 3

    tensors = {
        "zxbcdt": numbers(SAMPLES, LENGTH, INNER + channels + HEADS).to(precision),
        "conv1d_weight": numbers(channels, 4),
        "conv1d_bias": numbers(channels) if bias else None,
        "dt_bias": numbers(HEADS),
        "A": -torch.rand(HEADS),
        "D": numbers(HEADS),
        "rmsnorm_weight": numbers(INNER) if norm else None,
        "outproj_weight": numbers(WIDTH, INNER).to(precision),
        "outproj_bias": numbers(WIDTH).to(precision) if bias else None,
    }
    for tensor in tensors.values():
        if tensor is not None:
            tensor.requires_grad_()
    return tensors | {
        "chunk_size": 8, "dt_limit": (0.0, float("inf")), "activation": "silu",
        "rmsnorm_eps": 1e-5 if norm else None, "headdim": HEAD, "ngroups": groups, "norm_before_gate": False,
    }  # fmt: skip


def gradients(given: Mapping[str, Any], result: Tensor) -> dict[str, Tensor]:
    result.backward(torch.ones_like(result))
    return {name: value.grad for name, value in given.items() if isinstance(value, Tensor)}


def kept_by(function: Callable[..., Tensor], given: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return a function's result, and the bytes that autograd keeps for its backward pass."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(**given)
    return result, sum(tensor.untyped_storage().nbytes() for tensor in kept)


@pytest.fixture(scope="module")
def mixer_operator() -> Iterator[Callable[[], Callable[..., Tensor]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks/gpu"))
        yield import_module("mixer_operator").mixer_operator


@pytest.fixture
def mix(mixer_operator: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    plain_mixer.installed(monkeypatch)
    return mixer_operator()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("norm", "bias"), [(True, True), (True, False), (False, False)])
def test_it_computes_and_keeps_what_the_function_does(
    norm: bool, bias: bool, precision: torch.dtype, mix: Any
) -> None:
    ours, theirs = (arguments(norm=norm, bias=bias, precision=precision) for _ in range(2))
    found, kept = kept_by(mix, ours)
    expected, most = kept_by(applied, theirs)
    assert torch.equal(found, expected)
    assert kept == most
    torch.testing.assert_close(gradients(ours, found), gradients(theirs, expected), rtol=0, atol=0)


def test_it_holds_no_tensor_once_autograd_lets_go_of_the_result(
    mixer_operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's search for reference cycles is off, so that only the last reference frees a tensor."""
    calls, mix = plain_mixer.installed(monkeypatch), mixer_operator()
    given = arguments(norm=True, bias=False, precision=torch.float32)
    mix(**given)  # torch itself holds the tensors of an operator's first call
    gc.disable()
    try:
        entry = given["zxbcdt"] * 1
        result = mix(**(given | {"zxbcdt": entry}))
        alive = weakref.ref(entry)
        calls.clear()
        del entry, result
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("norm", [True, False])
def test_it_is_an_operator_as_torch_demands(norm: bool, mix: Any) -> None:
    given = arguments(norm=norm, bias=norm, precision=torch.bfloat16)
    mix(**given)
    torch.library.opcheck(torch.ops.bench.mixer.default, tuple(given.values()))


def test_compiled_code_hands_over_rows_with_padding_between_them(
    mixer_operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler pads rows of some products on GPUs, and would copy each mixer's product to remove it."""
    calls, mix = plain_mixer.installed(monkeypatch), mixer_operator()
    given = arguments(norm=True, bias=True, precision=torch.float32)
    mix(**given)
    operators = torch.ops.bench.mixer.default, torch.ops.bench.mixer_backward.default
    assert all(torch.Tag.needs_fixed_stride_order in operator.tags for operator in operators)
    product = given["zxbcdt"].detach()
    padded = torch.cat((product, product), -1)[..., : product.size(-1)].requires_grad_()
    result = mix(**(given | {"zxbcdt": padded}))
    assert calls[-1].stride() == padded.stride() != product.stride()
    assert torch.equal(result, applied(**given))
    found = gradients({"zxbcdt": padded}, result)
    torch.testing.assert_close(found["zxbcdt"], gradients(given, applied(**given))["zxbcdt"], rtol=0, atol=0)


def test_autocast_lowers_what_is_multiplied_and_nothing_else(mix: Any) -> None:
    """Falcon-H1 hands over its first product in fp32."""
    given = arguments(norm=True, bias=True, precision=torch.float32)
    half = arguments(norm=True, bias=True, precision=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = mix(**given)
    expected = mix(**half)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
    ours, theirs = gradients(given, found), gradients(half, expected)
    assert {gradient.dtype for gradient in ours.values()} == {torch.float32}
    torch.testing.assert_close(ours, {name: one.float() for name, one in theirs.items()}, rtol=0, atol=0)


def test_it_leaves_out_what_the_function_does_not_take_and_refuses_what_it_would_ignore(mix: Any) -> None:
    given = arguments(norm=True, bias=False, precision=torch.float32)
    assert torch.equal(mix(**given, position_ids=torch.ones(1)), applied(**given))
    mix(**given, seq_idx=None, return_final_states=False)
    with pytest.raises(NotImplementedError, match="takes no seq_idx"):
        mix(**given, seq_idx=torch.zeros(SAMPLES, LENGTH))


def with_argument(default: Any) -> Any:
    """Return a function with one argument more than the forward pass that bench knows."""
    signature = inspect.signature(MambaSplitConv1dScanCombinedFn.forward)
    more = inspect.Parameter("state_dtype", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
    form: Any = lambda: None  # noqa: E731
    parameters = [*signature.parameters.values(), more]
    if default is more.empty:
        parameters = [one.replace(default=default) for one in parameters]
    form.__signature__ = signature.replace(parameters=parameters)
    return form


def test_a_version_with_one_more_argument_that_has_a_default_serves(
    mixer_operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_mixer.installed(monkeypatch, with_argument(None))
    ours, theirs = (arguments(norm=True, bias=True, precision=torch.float32) for _ in range(2))
    found = gradients(ours, mixer_operator()(**ours))
    torch.testing.assert_close(found, gradients(theirs, applied(**theirs)), rtol=0, atol=0)


@pytest.mark.parametrize("form", [with_argument(inspect.Parameter.empty), lambda ctx, projected: None])
def test_a_function_with_other_arguments_is_refused(
    form: Any, mixer_operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_mixer.installed(monkeypatch, form)
    with pytest.raises(
        EnvironmentCannot, match=r"mamba-ssm 2\.3\.2 computes mixers of Mamba 2 by"
    ) as refused:
        mixer_operator()
    assert "install mamba-ssm 2.3" in (refused.value.advice or "")
