"""Arithmetic that families share: bytes of activations, parameters of layers, checks of fields.

Pure: no I/O, no torch. docs/accuracy.md compares the predictions with measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.base.errors import Mistake
from bench.training.models.model import Flops, Model, Parts
from bench.training.setting import Setting, halves_weights, in_group, sharded_by

FP32 = 4  # bytes
INDEX = 8  # bytes of a token's id or a label
ROW_MULTIPLE = 8  # elements; matrix kernels are fast on rows of a multiple
NORM_STATISTICS = 2 * FP32  # bytes; a layer norm keeps mean and deviation of every row
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh")
# Activations that transformers composes of PyTorch operations, with the numbers that autograd keeps for each.
COMPOSED_ACTIVATIONS = {"gelu_fast": 8, "gelu_new": 5, "quick_gelu": 3}
SDPA = "scaled_dot_product_attention: scores and probabilities are never written to memory"


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one sample in each of `count` equal blocks."""

    count: int
    entry: int  # the block's input in fp32: checkpointing keeps nothing else
    inside: int  # everything kept for the backward pass, without checkpointing
    backward: int = 0  # additional bytes during the backward pass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one sample that a model keeps for its backward pass, under autocast on CUDA."""

    ends: int  # before the first block and after the last, without head and logits
    blocks: tuple[Block, ...]
    logits: int  # elements, not bytes: the loss computes in fp32 in any precision
    head: int = 0  # kept by a head of several layers, before the logits

    def with_head_at(self, share: float) -> Footprint:
        """The footprint if the head runs at that share of the positions only."""
        return replace(self, logits=round(share * self.logits), head=round(share * self.head))

    def kept(self, checkpointing: bool) -> int:
        """Bytes kept at the end of the forward pass; the loss keeps its log-probabilities."""
        blocks = sum(block.count * (block.entry if checkpointing else block.inside) for block in self.blocks)
        return self.ends + self.head + blocks + FP32 * self.logits

    def heights(self, checkpointing: bool, compiled_loss_bytes: int | None = None) -> tuple[int, int]:
        """Peak bytes while the loss runs its backward pass, and while a block does, recomputed or not.

        A compiled loss writes no fp32 logits, only `compiled_loss_bytes` an element.
        """
        kept = self.kept(checkpointing)
        # The gradients of log-probabilities and logits exist in addition to what is kept.
        loss = kept + 2 * FP32 * self.logits
        if compiled_loss_bytes is not None:
            loss = kept + (compiled_loss_bytes - FP32) * self.logits
        extra = [(block.inside - block.entry) * checkpointing + block.backward for block in self.blocks]
        return loss, kept - FP32 * self.logits + max(extra, default=0)


@dataclass(frozen=True, slots=True)
class CountedFootprint:
    """A footprint that was counted, and how the model was built and computed."""

    kernels: bool
    compiled: bool
    halved: bool  # weights in the recipe's half precision, so that nothing is cast in a pass
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts from a built module, of a model whose family has no formulas. It is built without contents."""

    parts: Parts
    flops: Flops
    footprints: tuple[CountedFootprint, ...] = ()  # empty if the architecture's code cannot be followed

    def footprint(self, model: Model, setting: Setting) -> Footprint | None:
        """The footprint in a setting; None if it was not counted."""
        halved = lowered(model) < FP32 and halves_weights(setting)
        how = ("kernels" in setting, in_group(setting, "compilation") is not None, halved)
        found = (one for one in self.footprints if (one.kernels, one.compiled, one.halved) == how)
        return next((one.footprint for one in found), None)


class Bytes:
    """Base class of families with formulas: predicted bytes follow from `footprint`."""

    body_and_head: tuple[str, str] | None = None
    seams: Mapping[str, str] = {}
    breaks_graph: str | None = None
    by_blocks: bool = True  # measured: docs/measurements.md

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Predicted bytes that one sample keeps in this setting."""
        raise NotImplementedError

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        return self.footprint(model, setting).kept("checkpointing" in setting)

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        return activation_bytes(self.footprint(model, setting), model, setting)


def activation_bytes(footprint: Footprint, model: Model, setting: Setting) -> tuple[int, int]:
    """Peak bytes a sample while the loss runs its backward pass, and while a block does (`Family`)."""
    odd = footprint.logits // model.recipe.units_per_sample % ROW_MULTIPLE != 0
    if "masked-head" in setting:
        footprint = footprint.with_head_at(model.recipe.asked_per_sample / model.recipe.units_per_sample)
    # A loss that is compiled with the head overwrites the logits with their gradient. Rows of odd length are
    # padded for the head's product, and cut to length in a copy.
    loss_bytes = lowered(model) * (1 + odd) if in_group(setting, "compilation") else None
    return footprint.heights("checkpointing" in setting, loss_bytes)


def autocasts(model: Model, setting: Setting) -> bool:
    """Whether autocast computes norms and sums in fp32.

    ZeRO and half-weights use no autocast: they compute in the precision of their weights.
    """
    weights_decide = "half-weights" in setting or sharded_by(setting) == "zero"
    return lowered(model) < FP32 and not weights_decide


def between_blocks(model: Model, setting: Setting) -> int:
    """Bytes of an activation between blocks, which has the precision of the weights."""
    return lowered(model) if halves_weights(setting) else FP32


def lowered(model: Model) -> int:
    """Bytes of an activation that autocast computes in half precision."""
    return FP32 if model.recipe.precision == "fp32" else 2


def activated(model: Model, setting: Setting, activation: str) -> int:
    """Bytes kept for each element of an activation function: input and output, or output only."""
    h = lowered(model)
    if activation in ("relu", "tanh"):
        return h
    if in_group(setting, "compilation"):  # intermediate results are recomputed
        return 2 * h
    if activation == "gelu_new" and autocasts(model, setting):  # autocast computes its power in fp32
        return 4 * FP32
    return COMPOSED_ACTIVATIONS.get(activation, 2) * h


def complete(model: Model, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A model's architecture with its family's defaults."""
    return {**defaults, **model.architecture}


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + outputs * bias


def head_mistakes(a: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    """Refuse attention heads that do not divide the hidden size."""
    hidden, heads = a["hidden_size"], a["num_attention_heads"]
    if hidden % heads:
        allowed = "allowed: a divisor of hidden_size"
        yield Mistake(
            f"{path}/architecture/num_attention_heads", f"{heads} does not divide {hidden}", allowed
        )


def length_mistakes(model: Model, positions: int, path: str) -> Iterator[Mistake]:
    """Refuse samples that are longer than the architecture's positions."""
    length = model.recipe.units_per_sample
    if length > positions:
        found = f"{length} is more than the {positions} positions of the architecture"
        yield Mistake(f"{path}/recipe/sequence_length", found, f"allowed: at most {positions}")


def activation_mistakes(a: Mapping[str, Any], allowed: tuple[str, ...], path: str) -> Iterator[Mistake]:
    """Refuse activation functions that the family has no formulas for."""
    if a["hidden_act"] not in allowed:
        words = "allowed: " + ", ".join(allowed)
        yield Mistake(f"{path}/architecture/hidden_act", f'"{a["hidden_act"]}" is not one of these', words)
