"""Changes of would_it_pay.py: what the product does not have, and may be worth having.

Each holds while a model is built and trains, and gives what is to be done once it is built.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.activations import GELUActivation
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

from bench.models import _common
from bench.runner import loop
from bench.runner.halved import Halved
from bench.runner.loop import Strategy

WAY_BACK = {
    "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 3, "bwd_num_warps": 4,
}  # fmt: skip
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
    try:
        yield lambda _: None
    finally:
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
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            yield lambda _: None
    finally:
        registered.remove()


# What an activation is called, and the layer before it.
BEFORE_GELU = (
    ("act", "dense_h_to_4h"), ("act", "pwconv1"), ("intermediate_act_fn", "dense"), ("activation_fn", "fc1"),
)  # fmt: skip


@contextmanager
def gelu_in_triton() -> Iterator[Then]:
    """GELU and the bias before it by kernels of their own."""
    from gelu_kernels import take_over  # brings Triton

    def everywhere(strategy: Strategy) -> None:
        for parent in strategy.whole.modules():
            for name, before in BEFORE_GELU:
                activation, layer = getattr(parent, name, None), getattr(parent, before, None)
                if isinstance(activation, GELUActivation) and isinstance(layer, nn.Linear):
                    take_over(layer, activation)

    yield everywhere


@contextmanager
def gelu_written_out() -> Iterator[Then]:
    """The same arithmetic in PyTorch's own words, for the compiler to fuse."""

    def everywhere(strategy: Strategy) -> None:
        for module in strategy.whole.modules():
            if isinstance(module, GELUActivation):
                module.forward = WrittenOut.apply

    yield everywhere


class WrittenOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        below, _ = normal(x.float())
        return (x * below).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        below, beyond = normal(x.float())
        return (change * (below + x * beyond * 0.3989422804014327)).to(x.dtype)


def normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """As in gelu_kernels.py: the normal distribution up to x, and exp(-x*x/2)."""
    z = x.abs() * 0.7071067811865476
    t = 1 / (1 + 0.3275911 * z)
    beyond = torch.exp(-z * z)
    sums = 0.5307027145 * t - 0.7265760135
    sums = sums * t + 0.7107068705
    sums = sums * t - 0.142248368
    sums = (sums * t + 0.127414796) * t * beyond
    return torch.where(x < 0, sums, 1 - sums), beyond


@contextmanager
def norms_in_triton() -> Iterator[Then]:
    """GPT-NeoX with half-weights: both norms of a block by one kernel each way."""
    from norm_kernels import forward_of  # brings Triton

    def everywhere(strategy: Strategy) -> None:
        for block in strategy.whole.modules():
            if isinstance(block, GPTNeoXLayer):
                block.forward = torch.compile(forward_of(block), dynamic=False)

    yield everywhere


@contextmanager
def loss_in_triton() -> Iterator[Then]:
    """Cross entropy by kernels of its own, which hold the logits' gradient beside the logits."""
    from loss_kernels import cross_entropy  # brings Triton

    plain = loop.cross_entropy
    loop.cross_entropy = cross_entropy
    try:
        yield lambda _: None
    finally:
        loop.cross_entropy = plain


@contextmanager
def softmax_in_two_passes() -> Iterator[Then]:
    """The loss reads logits twice, and computes less for each of them."""
    with torch._inductor.config.patch(online_softmax=False):
        yield lambda _: None


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
    bias = "forward" not in vars(layer)  # else GELU has taken it over

    def forward(entry: Tensor) -> Tensor:
        out = _product(entry, layer.weight, layer.sums)
        return out + layer.bias if bias and layer.bias is not None else out

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
    "flex-blocks": flex_blocks,
    "flash-attention-4": flash_attention_4,
    "gelu-in-triton": gelu_in_triton,
    "gelu-written-out": gelu_written_out,
    "norms-in-triton": norms_in_triton,
    "loss-in-triton": loss_in_triton,
    "softmax-in-two-passes": softmax_in_two_passes,
    "sums-in-products": sums_in_products,
}
