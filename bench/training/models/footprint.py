"""What the families share: bytes and losses, their defaults, and attention that needs no mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.base.errors import Mistake
from bench.training.models.model import Model
from bench.training.setting import Setting, halves_weights, in_group, sharded_by

if TYPE_CHECKING:
    pass

FP32 = 4  # bytes
INDEX = 8  # bytes of a token's id or a label
EVEN = 8  # what the length of a row divides by where matrix kernels are fast
NORM_STATISTICS = 2 * FP32  # a layer norm keeps mean and deviation of every row
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh")
WRITTEN_OUT = {"gelu_fast": 8, "gelu_new": 5, "quick_gelu": 3}  # in transformers, and the numbers they keep
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
    seams: Mapping[str, str] = {}
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
