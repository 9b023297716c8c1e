"""What would it gain in whole passes? Changes that are not in the product, tried in it and without, in turn.

    python benchmarks/gpu/would_it_pay.py CHANGE MODEL MICRO_BATCH [METHOD...] > change.json

Each time the model is built anew from the same seed. Prints the milliseconds of a pass, the first losses and
the peak of each; a change that makes something else of the losses than rounding does is no gain.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.methods import Target, free_lunch, ordered
from bench.models import _common
from bench.models.paper_code import find_model
from bench.result import Timing, Trial
from bench.runner.device import Device
from bench.runner.halved import Halved
from bench.runner.loop import Strategy
from bench.runner.team import Team
from bench.runner.trial import TrialRun

TURNS = 2
STEPS, PASSES = 3, 2  # first steps, whose losses are compared
WAY_BACK = {
    "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 3, "bwd_num_warps": 4,
}  # fmt: skip


# Each change holds while a model is built and trains, and gives what is to be done once it is built.
Then = Callable[[Strategy], None]


@contextmanager
def flex_blocks() -> Iterator[Then]:
    """FlexAttention's way back in larger blocks than torch's 16 tokens, for fp32."""
    from torch.nn.attention import flex_attention as flex

    plain = flex.flex_attention

    def in_blocks(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, kernel_options=WAY_BACK, **kwargs)

    flex.flex_attention = in_blocks
    _common.flex_attention.cache_clear()
    yield lambda _: None
    flex.flex_attention = plain
    _common.flex_attention.cache_clear()


@contextmanager
def flash_attention_4() -> Iterator[Then]:
    """Behind PyTorch's own attention, in place of every other kernel."""
    import flash_attn.cute.interface as newest
    from torch.nn.attention import _fa4

    # PyTorch's door for it takes two results of the forward pass; later betas give more.
    door = ModuleType("bench_fa4")
    door._flash_attn_fwd = lambda *args, **kwargs: newest._flash_attn_fwd(*args, **kwargs)[:2]  # type: ignore[attr-defined]
    door._flash_attn_bwd = lambda *args, **kwargs: newest._flash_attn_bwd(*args, **kwargs)[:3]  # type: ignore[attr-defined]
    sys.modules[door.__name__] = door
    registered = _fa4.register_flash_attention_fa4(door.__name__)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        yield lambda _: None
    registered.remove()


@contextmanager
def sums_in_products() -> Iterator[Then]:
    """half-weights: the product of a gradient adds to the fp32 sums itself, and is never written apart."""

    def take_over(strategy: Strategy) -> None:
        assert isinstance(strategy, Halved), "a change of half-weights"
        pairs = zip(strategy.computed, strategy.weights, strict=True)
        # `data`, since they are all views of one buffer: each would seem changed when another one is.
        sums = {id(weight): copy.grad.data for weight, copy in pairs if copy.grad is not None}
        for layer in strategy.whole.modules():
            if isinstance(layer, nn.Linear):
                layer.register_buffer("sums", sums[id(layer.weight)], persistent=False)
                layer.weight.requires_grad_(False)  # autograd has nothing to give it
                layer.forward = adding_forward(layer)

    yield take_over


def adding_forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(entry: Tensor) -> Tensor:
        out = _product(entry, layer.weight, layer.sums)
        return out if layer.bias is None else out + layer.bias

    return forward


@torch.library.custom_op("bench_would::product", mutates_args=())
def _product(entry: Tensor, weight: Tensor, sums: Tensor) -> Tensor:  # noqa: ARG001
    return entry @ weight.T


@_product.register_fake
def _(entry: Tensor, weight: Tensor, _sums: Tensor) -> Tensor:
    return entry.new_empty(*entry.shape[:-1], weight.shape[0])


# It changes `sums`, which nothing else in a compiled graph reads: were that said, they would be copied.
@torch.library.custom_op("bench_would::product_back", mutates_args=())
def _product_back(gradient: Tensor, entry: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    gradients, entries = gradient.flatten(0, -2), entry.flatten(0, -2)
    if sums.is_cuda:
        torch.addmm(sums, gradients.T, entries, out_dtype=torch.float32, out=sums)
    else:  # to try this out: PyTorch has it for GPUs alone
        sums += gradients.T @ entries
    return gradient @ weight


@_product_back.register_fake
def _(gradient: Tensor, _entry: Tensor, weight: Tensor, _sums: Tensor) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], weight.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _product_back(gradient, *ctx.saved_tensors), None, None


torch.library.register_autograd("bench_would::product", _backward, setup_context=_keep)

CHANGES: dict[str, Callable[[], AbstractContextManager[Then]]] = {
    "without": lambda: nullcontext(lambda _: None),
    "flex-blocks": flex_blocks,
    "flash-attention-4": flash_attention_4,
    "sums-in-products": sums_in_products,
}


def measured(trial: Trial, device: Device, change: str) -> dict[str, Any]:
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as scratch, CHANGES[change]() as then:
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        then(run.strategy)
        losses, norms = [], []
        for _ in range(STEPS):
            losses.append(float(run.passes(PASSES)))
            norms.append(float(run.strategy.update(norm_wanted=True) or 0))
        device.reset_peak()
        run.step(2)
        device.synchronise()
        started, passes = time.perf_counter(), 0
        while time.perf_counter() - started < trial.timing.measure_seconds:
            run.passes(4, 4)
            device.synchronise()
            passes += 4
        ms = 1000 * (time.perf_counter() - started) / passes
        peak = device.peak_bytes() / 2**30
    del run, then
    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    return {"ms_a_pass": ms, "losses": losses, "gradient_norms": norms, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("change", choices=CHANGES)
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    model = find_model(asked.model)
    assert model is not None, f"{asked.model} is no model"
    here = "cuda" if torch.cuda.is_available() else "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory if here == "cuda" else 2**34
    setting = ordered(asked.methods) if asked.methods else free_lunch(model, Target(here, 1, memory))
    trial = Trial(model, setting, asked.micro_batch, 1, 0, Timing(measure_seconds=asked.seconds))
    print(json.dumps({"change": asked.change, "model": model.name, "setting": setting}), flush=True)
    for change in ["without", asked.change] * TURNS:
        found = {"change": change, "micro_batch": asked.micro_batch, **measured(trial, Device(here), change)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
