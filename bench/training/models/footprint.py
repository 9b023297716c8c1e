"""Arithmetic that families share: bytes of activations, parameters of layers, checks of fields.

Pure: no I/O, no torch. docs/accuracy.md compares the predictions with measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.base.errors import Mistake
from bench.base.frozen import dataclass
from bench.base.strict_json import later
from bench.training.lifetimes import from_text
from bench.training.models.mixed_precisions import mixes_precisions
from bench.training.models.model import (
    SDPA,
    Family,
    Flops,
    Model,
    OperationShapes,
    Parts,
    product_shapes,
)
from bench.training.setting import Setting, fuses_attention, halves_weights, in_group, sharded_by

if TYPE_CHECKING:
    from torch import nn

FP32 = 4  # bytes
INDEX = 8  # bytes of a token's id or a label
ROW_MULTIPLE = 8  # elements; matrix kernels are fast if rows are a multiple of this
NORM_STATISTICS = 2 * FP32  # bytes; a layer norm keeps mean and deviation of every row
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh")
# Activations that transformers composes of PyTorch operations, with the numbers that autograd keeps for each.
COMPOSED_ACTIVATIONS = {"gelu_fast": 8, "gelu_new": 5, "quick_gelu": 3}


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one sample in each of `count` equal blocks."""

    count: int
    entry: int  # the block's input in fp32: checkpointing keeps nothing else
    inside: int  # everything kept for the backward pass, without checkpointing
    backward: int = 0  # additional bytes during the backward pass
    tensors: str = later("")  # of a compiled block that was counted: see bench/training/lifetimes.py

    @property
    def freeing(self) -> Block:
        """The block if its backward pass puts gradients where it frees recomputed tensors."""
        return replace(self, backward=max(0, self.backward - (self.inside - self.entry)))

    @property
    def fused(self) -> Block:
        """The block if its backward pass does not write what the compiler computes on the way."""
        if not self.tensors:
            return self
        return replace(self, backward=min(self.backward, _backward_bytes(self.tensors)))


@cache
def _backward_bytes(tensors: str) -> int:
    """Return what the backward pass of a block adds, computed once for each text."""
    return from_text(tensors).backward_bytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one sample that a model keeps for its backward pass, under autocast on CUDA."""

    ends: int  # before the first block and after the last, without head and logits
    blocks: tuple[Block, ...]
    logits: int  # elements, not bytes: the loss computes in fp32 in any precision
    head: int = 0  # kept by a head of several layers, before the logits
    weights: tuple[int, ...] = later(())  # parameters of the large weights outside of the blocks, if counted
    before: int = later(0)  # of `ends`, before the first block, if counted
    order: str = later("")  # of the calls of blocks, if several kinds were counted: see `calls_of`

    def with_head_at(self, share: float) -> Footprint:
        """Return the footprint of the model if its head runs at that share of the positions only."""
        return replace(self, logits=round(share * self.logits), head=round(share * self.head))

    def kept(self, *, checkpointing: bool) -> int:
        """Return the bytes kept at the end of the forward pass, including the loss's log-probabilities."""
        blocks = sum(block.count * (block.entry if checkpointing else block.inside) for block in self.blocks)
        return self.ends + self.head + blocks + FP32 * self.logits

    def heights(self, *, checkpointing: bool, compiled_loss_bytes: int | None = None) -> tuple[int, int]:
        """Return the peak bytes of the loss's backward pass, and of a block's, recomputed or not.

        A compiled loss writes no fp32 logits, only `compiled_loss_bytes` an element.
        """
        kept = self.kept(checkpointing=checkpointing)
        # The gradients of log-probabilities and logits exist in addition to what is kept.
        loss = kept + 2 * FP32 * self.logits
        if compiled_loss_bytes is not None:
            loss = kept + (compiled_loss_bytes - FP32) * self.logits
        return loss, self._height_in_blocks(checkpointing)

    def _height_in_blocks(self, checkpointing: bool) -> int:
        """Return the peak bytes of the backward pass of any block.

        If the order of blocks is known, everything that the forward pass kept after a block has been freed.
        """
        keeps = [block.entry if checkpointing else block.inside for block in self.blocks]
        extra = [(block.inside - block.entry) * checkpointing + block.backward for block in self.blocks]
        calls = calls_of(self.order)
        if not calls:
            kept = self.kept(checkpointing=checkpointing) - FP32 * self.logits
            return kept + max(extra, default=0)
        kept_until = accumulate(keeps[call.kind] for call in calls)
        return max(
            call.ends_before + kept + extra[call.kind] for call, kept in zip(calls, kept_until, strict=True)
        )


class BlockCall(NamedTuple):
    """A call of a block in a forward pass."""

    kind: int  # the block's place in `Footprint.blocks`
    ends_before: int  # of `Footprint.ends`, kept before the call


@cache
def calls_of(order: str) -> tuple[BlockCall, ...]:
    """Read the calls that `order_of` wrote.

    `0x2@512 1x1@768` is two of the first kind and one of the second; 512 bytes of `ends` are kept before both
    of the former, 768 before the latter.
    """
    return tuple(chain.from_iterable(map(_equal_calls, order.split())))


def _equal_calls(word: str) -> list[BlockCall]:
    kind, _, run = word.partition("x")
    number, _, ends_before = run.partition("@")
    return int(number) * [BlockCall(int(kind), int(ends_before))]


def order_of(calls: Iterable[BlockCall]) -> str:
    """Write calls in one line: a word for each run of equal ones."""
    return " ".join(f"{call.kind}x{len([*run])}@{call.ends_before}" for call, run in groupby(calls))


@dataclass(frozen=True, slots=True)
class CountedFootprint:
    """A footprint that was counted, and how the model was built and computed."""

    kernels: bool
    compiled: bool
    halved: bool  # weights in the recipe's half precision, so that nothing is cast in a pass
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Failing:
    """Why a model's code cannot compute in half precision in a way, though it can in the other one."""

    kernels: bool
    halved: bool  # weights in half precision; otherwise autocast casts what the code multiplies
    reason: str


@dataclass(frozen=True, slots=True)
class CountedMemory:
    """The footprints of a model that were counted, and what its code was found to be unable to do."""

    footprints: tuple[CountedFootprint, ...]
    failing: tuple[Failing, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of a model before it runs, by formulas or from a module without contents."""

    parts: Parts
    flops: Flops
    head: int = 0  # operations of the head's products, part of `flops`; counted for masked-lm only
    head_backward: int | None = None  # of the head's products in the backward pass; None: twice `head`
    footprints: tuple[CountedFootprint, ...] = ()  # empty if the architecture's code cannot be followed
    shapes: OperationShapes = later(OperationShapes())
    failing: tuple[Failing, ...] = later(())

    def why_not(self, model: Model, setting: Setting) -> str | None:
        """Return why the model's code fails in a setting; None if it does not, or if nobody tried.

        Autocast casts what the code multiplies. Without it, code that mixes precisions fails; with it, code
        that expects the precision of its weights.
        """
        if lowered(model) == FP32:
            return None
        way = "kernels" in setting, lowers_weights(model, setting)
        return next((one.reason for one in self.failing if (one.kernels, one.halved) == way), None)

    def footprint(self, model: Model, setting: Setting) -> Footprint | None:
        """Find the footprint counted with a setting's kernels, compilation and dtype; None if none was.

        The backward pass of a block was counted as PyTorch runs it operation by operation. A compiled
        backward pass frees what it recomputed as soon as it has used it, and needs no more than the tensors
        that the compiler writes.

        The method gelu does not change it, compiled or not: PyTorch keeps a layer's product with the bias for
        GELU, the kernels of bench keep it without the bias, and both keep the result for the next layer.
        """
        halved = lowered(model) < FP32 and halves_weights(setting)
        how = (fuses_attention(setting), in_group(setting, "compilation") is not None, halved)
        found = (entry for entry in self.footprints if (entry.kernels, entry.compiled, entry.halved) == how)
        footprint = next((entry.footprint for entry in found), None)
        if footprint is None or not how[1]:
            return footprint
        blocks = (block.freeing if "checkpointing" in setting else block for block in footprint.blocks)
        return replace(footprint, blocks=tuple(block.fused for block in blocks))


class FamilyWithFormulas(Family):
    """Base class of families with formulas: predicted bytes follow from `footprint`."""

    classes: tuple[str, str]  # transformers' configuration and model
    layers: str  # path of the repeated blocks in the model
    activations: tuple[str, ...] = ACTIVATIONS  # activation functions that formulas and kernels support

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find widths that heads do not divide, and samples longer than the table of positions."""
        a = self.complete(model)
        hidden, heads = a.get("hidden_size", 0), a.get("num_attention_heads", 1)
        if hidden % heads:
            found, allowed = f"{heads} does not divide {hidden}", "allowed: a divisor of hidden_size"
            yield Mistake(f"{path}/architecture/num_attention_heads", found, allowed)
        if "max_position_embeddings" in a:
            # Positions start after the padding token's id: fairseq, utils.make_positions.
            positions = a["max_position_embeddings"] - (a["pad_token_id"] + 1 if "pad_token_id" in a else 0)
            length = model.recipe.units_per_sample
            if length > positions:
                found = f"{length} is more than the {positions} positions of the architecture"
                yield Mistake(f"{path}/recipe/sequence_length", found, f"allowed: at most {positions}")
        if a["hidden_act"] not in self.activations:
            found, allowed = f'"{a["hidden_act"]}" is not one of these', ", ".join(self.activations)
            yield Mistake(f"{path}/architecture/hidden_act", found, f"allowed: {allowed}")
        if a.get("num_channels", 3) != 3:
            yield Mistake(f"{path}/architecture/num_channels", f"{a['num_channels']} is not 3", "allowed: 3")

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Predict the bytes that one sample keeps in this setting."""
        raise NotImplementedError

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        """Sum the footprint's parts; with checkpointing only the inputs of blocks stay."""
        return self.footprint(model, setting).kept(checkpointing="checkpointing" in setting)

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        """Compute both moments from the footprint of the setting."""
        return activation_bytes(self.footprint(model, setting), model, setting)

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build the class of transformers without a cache; "kernels" chooses the attention, if it has any."""
        import transformers

        from bench.training.models.attention import attention_implementation

        config_class, model_class = (getattr(transformers, name) for name in self.classes)
        options: dict[str, Any] = {} if model.recipe.image_size else {"use_cache": False}
        if self.kernels == SDPA:
            options["attn_implementation"] = attention_implementation(kernels=kernels)
        module: nn.Module = model_class(config_class(**self.complete(model), **options)).train()
        return module

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the children of the module that `layers` names."""
        return list(module.get_submodule(self.layers).children())


def activation_bytes(footprint: Footprint, model: Model, setting: Setting) -> tuple[int, int]:
    """Return the two peaks of `Family.activation_bytes` for any footprint."""
    copies = 2 * copies_logits(model, setting, footprint.logits // predictions_per_sample(model))
    if "masked-head" in setting:
        footprint = footprint.with_head_at(model.recipe.asked_per_sample / model.recipe.units_per_sample)
    if "chunked-loss" in setting:  # logits exist for one chunk at a time: chunked_loss.py counts them
        footprint = footprint.with_head_at(0)
    # A loss that is compiled with the head overwrites the logits with their gradient.
    loss_bytes = lowered(model) * (1 + copies) if in_group(setting, "compilation") else None
    return footprint.heights(checkpointing="checkpointing" in setting, compiled_loss_bytes=loss_bytes)


def copies_logits(model: Model, setting: Setting, words: int) -> bool:
    """Whether the logits of a compiled loss exist three times, because the head's product has them padded.

    Rows of odd length are padded for the product, and cut to length in a copy; their gradient is padded in
    another one. The method padded-head needs neither where head and loss are one compiled graph.
    """
    one_graph = "compile" in setting or model.recipe.aim.has_text_head
    return words % ROW_MULTIPLE != 0 and not ("padded-head" in setting and one_graph)


def predictions_per_sample(model: Model) -> int:
    """Return the positions of a sample that have logits: of an encoder with a decoder, the target's."""
    return model.recipe.target_length or model.recipe.units_per_sample


def autocasts(model: Model, setting: Setting) -> bool:
    """Whether autocast computes norms and sums in fp32.

    ZeRO and half-weights use no autocast: they compute in the precision of their weights, unless the code of
    the model mixes precisions.
    """
    return lowered(model) < FP32 and (mixes_precisions(model) or not lowers_weights(model, setting))


def lowers_weights(model: Model, setting: Setting) -> bool:
    """Whether the weights of a pass have half precision before it begins, and the model computes in it."""
    return lowered(model) < FP32 and ("half-weights" in setting or sharded_by(setting) == "zero")


def between_blocks(model: Model, setting: Setting) -> int:
    """Return the bytes of an activation between blocks, which has the precision of the weights."""
    return lowered(model) if halves_weights(setting) else FP32


def lowered(model: Model) -> int:
    """Return the bytes of an activation that autocast computes in half precision."""
    return FP32 if model.recipe.precision == "fp32" else 2


def activated(model: Model, setting: Setting, activation: str) -> int:
    """Return the bytes kept for each element of an activation function: input and output, or output only.

    The method gelu keeps as much: the input before its bias is added, and the output.
    """
    h = lowered(model)
    if activation in ("relu", "tanh"):
        return h
    if in_group(setting, "compilation"):  # intermediate results are recomputed
        return 2 * h
    if activation == "gelu_new" and autocasts(model, setting):  # autocast computes its power in fp32
        return 4 * FP32
    return COMPOSED_ACTIVATIONS.get(activation, 2) * h


def transformer_shapes(
    a: Mapping[str, Any], positions: int, *, joined: bool, head: Sequence[tuple[int, int, int]]
) -> OperationShapes:
    """Return the shapes of a transformer's attention and products, by an architecture with its defaults.

    `joined` says whether one product computes queries, keys and values. `head` has the inner size, the
    columns and the rows of each product after the blocks.
    """
    d, f, layers = a["hidden_size"], a["intermediate_size"], a["num_hidden_layers"]
    attending = [(d, 3 * d), (d, d)] if joined else 4 * [(d, d)]
    block = [(*shape, positions) for shape in (*attending, (d, f), (f, d))]
    return OperationShapes(
        query_elements=layers * positions * d, products=product_shapes([*(layers * block), *head])
    )


def eager_attention(
    length: int, heads: int, copy: int, dropout: float, softmax: int = FP32
) -> tuple[int, int]:
    """Return the bytes of one sample's pairs of positions: those kept, and those that a backward pass adds.

    `softmax` is the size of the softmax's numbers; `copy` is that of their copy in the product's precision,
    0 without a copy. The backward pass holds the gradients of the softmax's input and output.
    """
    dropped = (1 + (0 if copy else softmax)) if dropout else 0
    pairs = length * length * heads
    return pairs * (softmax + copy + dropped), pairs * 2 * softmax


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Return the number of parameters of a linear layer."""
    return inputs * outputs + outputs * bias
