"""What a model is: an architecture as data, and the recipe that trains it.

A family is one file here with one object `FAMILY`; a model is one value in its `MODELS`.
Nothing here imports torch at module level: planning must not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bench.base.errors import Mistake
from bench.training.setting import Setting

if TYPE_CHECKING:
    from torch import nn

Objective = Literal["causal-lm", "masked-lm", "image-classification"]
Precision = Literal["fp32", "bf16", "fp16"]
Has = Callable[[str], bool]  # a package, by the name it is imported by

_FAMILY_FILES = ("gpt_neox", "roberta", "mamba", "convnext", "vit")


def installed(package: str) -> bool:
    return find_spec(package) is not None


@dataclass(frozen=True, slots=True)
class Optimizer:
    name: Literal["adam", "adamw"]  # as the source calls it; weights decay beside the gradient in both
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then the named decay down to `final_ratio` of the peak."""

    name: Literal["cosine", "linear", "constant"]
    warmup_steps: int
    final_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about training that must not change, whatever the machine."""

    objective: Objective
    batch_size: int
    steps: int
    precision: Precision
    optimizer: Optimizer
    schedule: Schedule
    sequence_length: int | None = None  # predictions a sample, for language models
    image_size: int | None = None  # pixels a side
    masked_fraction: float | None = None  # of the tokens, for masked-lm
    clip_norm: float | None = None
    log_every_steps: int | None = None
    save_every_steps: int | None = None
    eval_every_steps: int | None = None
    eval_samples: int | None = None
    source: str = ""

    @property
    def unit(self) -> Literal["tokens", "images"]:
        return "images" if self.objective == "image-classification" else "tokens"

    @property
    def units_per_sample(self) -> int:
        return self.sequence_length or 1

    @property
    def asked_per_sample(self) -> int:
        """Positions whose prediction counts: the same number in every sample, and never none."""
        if self.objective == "masked-lm":
            return max(1, round(self.units_per_sample * (self.masked_fraction or 0.15)))
        return self.units_per_sample


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    family: str
    architecture: Mapping[str, Any]  # a Hugging Face configuration, without its defaults
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Flops:
    """Multiply-adds counted as two, in one forward pass over one sample.

    `attention` counts what must be computed: the lower triangle alone under a causal mask.
    """

    matmul: int
    attention: int = 0
    convolution: int = 0
    scan: int = 0

    @property
    def total(self) -> int:
        return self.matmul + self.attention + self.convolution + self.scan

    def less(self, other: Flops) -> Flops:
        return Flops(
            self.matmul - other.matmul,
            self.attention - other.attention,
            self.convolution - other.convolution,
            self.scan - other.scan,
        )

    @property
    def training(self) -> int:
        """Forward and backward: the backward pass costs twice the forward one."""
        return 3 * self.total


@dataclass(frozen=True, slots=True)
class Parts:
    """Trainable parameters, exactly as the built module has them."""

    outside: int  # of the repeated blocks: tables, stem, head
    blocks: tuple[int, ...]  # of each block

    @property
    def total(self) -> int:
        return self.outside + sum(self.blocks)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the built module tells of a model that has no formulas: once it is built, without contents."""

    parts: Parts
    flops: Flops  # of the forward pass over one sample


class Family(Protocol):
    """The contract of one family; tests/models runs over all of them.

    The functions down to `missing_kernels` are arithmetic on the configuration and import nothing
    heavy; where only a built module could tell (bench.training.models.generic) they raise LookupError.
    Those after it import torch and transformers when called, in the worker alone.

    The built module is called with one keyword, and answers with `.logits`, fp32 or lower:
    causal-lm             input_ids [b, s]; labels [b, s] are already shifted
    masked-lm             input_ids [b, s]; labels [b, s], -100 where nothing is asked
    image-classification  pixel_values [b, 3, h, w]; labels [b]
    """

    name: str  # the `model_type` of Hugging Face
    objectives: tuple[Objective, ...]
    kernels: str | None  # what the method "kernels" brings to this family, in words
    body_and_head: tuple[str, str] | None  # the module's parts: features of positions, their logits
    breaks_graph: str | None  # why those kernels cannot be compiled as one graph with all blocks
    by_blocks: bool  # compiled block by block it is as fast as all at once, and sooner there

    def defaults(self) -> Mapping[str, Any]:
        """Every architecture field that a manifest may set, with its default."""
        ...

    def mistakes(self, model: Model, path: str) -> Iterable[Mistake]:
        """What cannot work in fields of the right type; `path` is the model's place in the manifest."""
        ...

    def parameters(self, model: Model) -> Parts: ...

    def forward_flops(self, model: Model) -> Flops: ...

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        """Predicted bytes that autograd keeps for the backward pass, a sample; the loss included.

        Half-precision copies of the weights are not: they are there once, whatever the samples.
        """
        ...

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        """Predicted bytes a sample takes at the height of a pass: those kept, and the gradients there.

        Where the loss begins its backward pass, and, once that is gone, where a block is at it.
        """
        ...

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Why the method "kernels" cannot work where it `has` these packages; None if it can."""
        ...

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """The module in training mode, fp32 weights, on the current default device."""
        ...

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The repeated units, in order: what is checkpointed, compiled or sharded as one."""
        ...


@cache
def families() -> Mapping[str, Family]:
    loaded = [import_module(f"bench.training.models.{name}").FAMILY for name in _FAMILY_FILES]
    return {family.name: family for family in loaded}


def uses_all_weights(model: Model) -> bool:
    """For every loss. Of an architecture without a file here nobody knows.

    ESM, say, has a head for contacts, by which no token is guessed.
    """
    return model.family in families()


@cache
def known_models() -> Mapping[str, Model]:
    """Every model that a manifest may name, in the order of the family files."""
    files = [import_module(f"bench.training.models.{name}") for name in _FAMILY_FILES]
    return {model.name: model for file in files for model in file.MODELS}
