"""What the families share: bytes and losses, their defaults, and attention that needs no mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bench.base.errors import Mistake
from bench.training.models import Model
from bench.training.setting import Setting, halves_weights, in_group, sharded_by

if TYPE_CHECKING:
    from torch import Tensor, nn

FP32 = 4  # bytes
INDEX = 8  # bytes of a token's id or a label
EVEN = 8  # what the length of a row divides by where matrix kernels are fast
NORM_STATISTICS = 2 * FP32  # a layer norm keeps mean and deviation of every row
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh")
WRITTEN_OUT = {"gelu_fast": 8, "gelu_new": 5, "quick_gelu": 3}  # in transformers, and the numbers they keep
# FlexAttention's way back in fp32, where torch takes blocks of 16 tokens: of 13 choices that were tried these
# are the fastest (docs/methods.md). On an H200, for heads of 64; what has less room keeps torch's.
WAY_BACK = {
    "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 3, "bwd_num_warps": 4,
}  # fmt: skip
WAY_BACK_WIDTH = 64  # of a head, at the most
WAY_BACK_SHARED_BYTES = 227 * 1024  # of a block, at the least
SDPA = "scaled_dot_product_attention: scores and probabilities are never written to memory"


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one sample in one repeated unit; `count` of them are equal."""

    count: int
    entry: int  # its input in fp32: all that checkpointing keeps
    inside: int  # all that it keeps for its backward pass
    backward: int = 0  # what that backward pass holds besides


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one sample on its way through a model, as autocast on CUDA keeps them."""

    ends: int  # before the first block and after the last, without head and logits
    blocks: tuple[Block, ...]
    logits: int  # elements, not bytes: they are fp32 in the loss whatever the precision
    head: int = 0  # what a head of several layers keeps before the logits

    def asked(self, share: float) -> Footprint:
        """With the head at that share of the positions alone."""
        return replace(self, logits=round(share * self.logits), head=round(share * self.head))

    def kept(self, checkpointing: bool) -> int:
        """What autograd holds when the forward pass is done; log-probabilities stand for the loss."""
        blocks = sum(block.count * (block.entry if checkpointing else block.inside) for block in self.blocks)
        return self.ends + self.head + blocks + FP32 * self.logits

    def heights(self, checkpointing: bool, compiled_loss_bytes: int | None = None) -> tuple[int, int]:
        """The same at its highest: where the loss begins its backward pass, and where a block is redone.

        A compiled loss writes no fp32 logits: `compiled_loss_bytes` an element is all there is then.
        """
        kept = self.kept(checkpointing)
        # The gradient of the log-probabilities and that of the logits stand beside what is kept.
        loss = kept + 2 * FP32 * self.logits
        if compiled_loss_bytes is not None:
            loss = kept + (compiled_loss_bytes - FP32) * self.logits
        redone = (block.inside - block.entry for block in self.blocks)
        extra = [
            again * checkpointing + block.backward for again, block in zip(redone, self.blocks, strict=True)
        ]
        return loss, kept - FP32 * self.logits + max(extra, default=0)


class Bytes:
    """The part of the family contract that follows from a footprint."""

    body_and_head: tuple[str, str] | None = None
    breaks_graph: str | None = None
    by_blocks: bool = True  # measured: docs/measurements.md

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        raise NotImplementedError

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        return self.footprint(model, setting).kept("checkpointing" in setting)

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        footprint = self.footprint(model, setting)
        odd = footprint.logits // model.recipe.units_per_sample % EVEN != 0
        if "masked-head" in setting:
            footprint = footprint.asked(model.recipe.asked_per_sample / model.recipe.units_per_sample)
        # Compiled with the head, the loss writes its gradient over the logits. Rows of odd length are
        # padded for the head's product, and cut to length in a copy.
        loss_bytes = lowered(model) * (1 + odd) if in_group(setting, "compilation") else None
        return footprint.heights("checkpointing" in setting, loss_bytes)


def autocasts(model: Model, setting: Setting) -> bool:
    """Norms and sums in fp32. ZeRO and half-weights compute in the weights' own precision."""
    alone = "half-weights" in setting or sharded_by(setting) == "zero"
    return lowered(model) < FP32 and not alone


def between_blocks(model: Model, setting: Setting) -> int:
    """Bytes of an activation there, a sum of embeddings and products: as precise as weights are."""
    return lowered(model) if halves_weights(setting) else FP32


def lowered(model: Model) -> int:
    """Bytes of an activation that autocast computes in half precision."""
    return FP32 if model.recipe.precision == "fp32" else 2


def activated(model: Model, setting: Setting, activation: str) -> int:
    """Bytes kept for a number that passes an activation: both of its sides, or its output alone."""
    h = lowered(model)
    if activation in ("relu", "tanh"):
        return h
    if in_group(setting, "compilation"):  # what lies between is made again
        return 2 * h
    if activation == "gelu_new" and autocasts(model, setting):  # a power is fp32 there
        return 4 * FP32
    return WRITTEN_OUT.get(activation, 2) * h


def complete(model: Model, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {**defaults, **model.architecture}


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + outputs * bias


def head_mistakes(a: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    hidden, heads = a["hidden_size"], a["num_attention_heads"]
    if hidden % heads:
        allowed = "allowed: a divisor of hidden_size"
        yield Mistake(
            f"{path}/architecture/num_attention_heads", f"{heads} does not divide {hidden}", allowed
        )


def length_mistakes(model: Model, positions: int, path: str) -> Iterator[Mistake]:
    length = model.recipe.units_per_sample
    if length > positions:
        found = f"{length} is more than the {positions} positions of the architecture"
        yield Mistake(f"{path}/recipe/sequence_length", found, f"allowed: at most {positions}")


def activation_mistakes(a: Mapping[str, Any], allowed: tuple[str, ...], path: str) -> Iterator[Mistake]:
    if a["hidden_act"] not in allowed:
        words = "allowed: " + ", ".join(allowed)
        yield Mistake(f"{path}/architecture/hidden_act", f'"{a["hidden_act"]}" is not one of these', words)


# What imports torch or transformers, in the worker alone


def logits(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """What the model answers to a batch's one input: `input_ids` or `pixel_values`."""
    out: Tensor = module(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return out


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that are asked; ours, because transformers shifts causal labels again."""
    from torch.nn.functional import cross_entropy

    loss: Tensor = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100)
    return loss


def attention(kernels: bool) -> Literal["eager", "bench_unmasked"]:
    return unmasked_attention() if kernels else "eager"


@cache
def unmasked_attention() -> Literal["bench_unmasked"]:
    """Attention without a mask, under a name of our own.

    While tracing for torch.compile, transformers 5.17 hands SDPA a mask of every pair of positions,
    causal or not, which shuts out the flash kernels; outside of it, it waits for the device to learn
    whether sequences are packed (`find_packed_sequence_indices`, `is_tracing` in masking_utils.py).
    Under a name for which it knows no mask it does neither: docs, "Attention Interface".
    """
    import torch.nn.functional as F
    from transformers import AttentionInterface

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None,
        scaling: float | None = None, dropout: float = 0.0, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        assert attention_mask is None, "nothing is padded here"
        # Rotary embeddings come back in fp32; autocast would lower them here too.
        query, key = query.to(value.dtype), key.to(value.dtype)
        out = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=module.is_causal, scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("bench_unmasked", attend)
    return "bench_unmasked"


@cache
def flex_attention() -> Literal["bench_flex"]:
    """Attention by PyTorch's FlexAttention, without a mask; worth its name once it is compiled."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from transformers import AttentionInterface

    roomy = (
        torch.cuda.is_available()
        and torch.cuda.get_device_properties().shared_memory_per_block_optin >= WAY_BACK_SHARED_BYTES
    )

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None,
        scaling: float | None = None, dropout: float = 0.0, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        assert attention_mask is None and not dropout and not module.is_causal
        blocks = WAY_BACK if roomy and query.size(-1) <= WAY_BACK_WIDTH else None
        out = flex_attention(query, key, value, scale=scaling, kernel_options=blocks)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("bench_flex", attend)
    return "bench_flex"
