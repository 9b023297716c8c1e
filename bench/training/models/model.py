"""The types of a model: its architecture as data, the recipe that trains it, the contract of its family.

Pure: plain values and arithmetic. torch is imported only by the methods of a family that a worker calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bench.base.errors import Mistake
from bench.base.frozen import dataclass
from bench.base.strict_json import later
from bench.training.objectives import ObjectiveName, objective_of
from bench.training.objectives.documents import Documents
from bench.training.objectives.objective import Objective, Unit
from bench.training.optimizers import Optimizer
from bench.training.schedules import Schedule
from bench.training.setting import Setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Half = Literal["bf16", "fp16"]
# The least compute capability of a GPU whose matrix units multiply in a precision.
LEAST_CAPABILITY: Mapping[str, float] = {"bf16": 8.0, "fp8": 8.9}
SDPA = "scaled_dot_product_attention: scores and probabilities are never written to memory"
# Fields of fairseq in published configurations of wav2vec 2.0 and its relatives; transformers reads none.
_FAIRSEQ = (
    *(f"mask_{of}_{name}" for of in ("time", "channel") for name in ("min_space", "other", "selection")),
    *(f"no_mask_{of}_overlap" for of in ("time", "channel")),
)
# Fields of published configurations that do not affect how the model trains.
INERT = frozenset(
    {
        *_FAIRSEQ,
        "_name_or_path",
        "architectures",
        "classifier_dropout",
        "dtype",
        "finetuning_task",
        "gradient_checkpointing",  # would turn it on in every setting; it is bench's method checkpointing
        "id2label",
        "label2id",
        "model_type",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
    }
)
TOKENS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})  # only families with a default read them
Has = Callable[[str], bool]  # whether a package can be imported, by its import name


def installed(package: str) -> bool:
    """Whether a package can be found here; it is not imported."""
    return find_spec(package) is not None


ADAPTERS = "peft"  # the package that adds the adapters of a Lora to a model


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters beside linear layers, as peft builds them. All other weights are frozen."""

    rank: int
    alpha: float  # adapters count `alpha / rank` times
    dropout: float  # of the adapters' input
    targets: Literal["all-linear"] | tuple[str, ...]  # names of linear layers, or ends of their full names


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: everything that must be the same on every machine."""

    objective: ObjectiveName
    batch_size: int
    steps: int
    precision: Precision
    optimizer: Optimizer
    schedule: Schedule
    # The size of a sample: the fields that its objective needs, and None for all others.
    sequence_length: int | None = None  # tokens; of the source, if an objective has a target, too
    target_length: int | None = later(None)  # tokens of the target
    image_size: int | None = None  # pixels a side
    audio_seconds: int | None = later(None)
    masked_fraction: float | None = None  # of the tokens or patches
    clip_norm: float | None = None
    log_every_steps: int | None = None
    save_every_steps: int | None = None
    eval_every_steps: int | None = None
    eval_samples: int | None = None
    source: str = ""
    # None: every weight is trained.
    lora: Lora | None = later(None)
    # None: a sample is one document.
    documents: Documents | None = later(None)

    @property
    def aim(self) -> Objective:
        """The model's training objective."""
        return objective_of(self.objective)

    @property
    def unit(self) -> Unit:
        """The unit of rates, which the objective fixes: tokens, images, seconds."""
        return self.aim.unit

    @property
    def half(self) -> Half | None:
        """The precision of autocast and half-precision weights: bf16 beside products in fp8, None in fp32."""
        return {"fp32": None, "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}[self.precision]

    @property
    def units_per_sample(self) -> int:
        """How many units of the objective a sample has."""
        return self.aim.units_per_sample(self)

    @property
    def asked_per_sample(self) -> int:
        """Positions of a sample that enter the loss: equally many in every sample, and at least one."""
        return self.aim.asked_per_sample(self)


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture with the recipe that trains it."""

    name: str
    family: str
    architecture: Mapping[str, Any]  # a Hugging Face configuration, without its defaults
    recipe: Recipe


def empty_batch(model: Model, samples: int, floats: torch.dtype) -> dict[str, Tensor]:
    """Return a batch whose contents are arbitrary, with pixels and numbers in this precision."""
    import torch

    whole = torch.long
    dtypes = {"indices": whole, "pixels": floats, "numbers": floats, "flags": torch.bool, "ends": whole}
    parts = model.recipe.aim.parts(model.architecture, model.recipe)
    return {part.name: torch.empty(samples, *part.shape, dtype=dtypes[part.elements]) for part in parts}


def tiny(model: Model, architecture: Mapping[str, Any], whose: str, **changes: Any) -> Model:
    """Return a model of `model`'s family and changed recipe that two CPU cores can train."""
    source = f"ours: {whose} recipe for two CPU cores"
    recipe = replace(model.recipe, batch_size=64, steps=2_000, precision="fp32", source=source, **changes)
    return Model(f"tiny-{model.family.replace('_', '-')}", model.family, architecture, recipe)


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one forward pass over one sample; a multiply-add counts as two.

    `attention` counts necessary operations only: under a causal mask, those of the lower triangle. `backward`
    has those of the backward pass if some weights are frozen, because these need no gradients.
    """

    matmul: int
    attention: int = 0
    convolution: int = 0
    scan: int = 0
    backward: int | None = later(None)  # None: twice as many

    @property
    def total(self) -> int:
        """All operations of a forward pass."""
        return self.matmul + self.attention + self.convolution + self.scan

    def less(self, other: Flops) -> Flops:
        """Return what is left without the operations of `other`, which are a part of these."""
        return Flops(
            self.matmul - other.matmul,
            self.attention - other.attention,
            self.convolution - other.convolution,
            self.scan - other.scan,
            None if self.backward is None else self.backward - other.of_backward,
        )

    @property
    def of_backward(self) -> int:
        """The operations of the backward pass: twice the forward pass's unless stated."""
        return 2 * self.total if self.backward is None else self.backward

    @property
    def training(self) -> int:
        """Operations of a forward and a backward pass."""
        return self.total + self.of_backward


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The products of matrices in a forward pass over one sample that have one inner size and one width."""

    inner: int  # numbers that are multiplied and added for one number of the result
    columns: int  # of the result
    rows: int  # of the results of all these products together
    number: int  # of products


def product_shapes(products: Iterable[tuple[int, int, int]]) -> tuple[ProductShape, ...]:
    """Return the shapes of single products, each given by its inner size, its columns and its rows."""
    rows, number = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for inner, columns, of_one in products:
        rows[inner, columns] += of_one
        number[inner, columns] += 1
    return tuple(ProductShape(*key, rows[key], number[key]) for key in sorted(rows, reverse=True))


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """The dense convolutions of a forward pass over one sample whose filters have one form."""

    channels: int  # that a filter reads: those of its group
    filters: int  # of a group
    weights: int  # of a filter for each channel
    operations: int  # of all these convolutions


# Positions of queries, and of keys, that kernels for attention with a bias compute together: samples of 49
# positions, as in Swin's windows, take as long as those of 64.
SCORE_BLOCK = 64


@dataclass(frozen=True, slots=True)
class OperationShapes:
    """Facts about a forward pass over one sample beside the number of its operations."""

    query_elements: int = 0  # of all attention: positions times heads times their width
    biased_scores: int = 0  # to which attention adds a bias for each head
    depthwise_elements: int = 0  # that depthwise convolutions write
    depthwise_operations: int = 0  # part of the operations of convolutions
    scanned_states: int = later(0)  # of scans of Mamba 2: positions times channels times states of a channel
    products: tuple[ProductShape, ...] = later(())  # empty if they were not counted
    convolutions: tuple[ConvolutionShape, ...] = later(())  # dense ones; empty if they were not counted
    biased_blocks: int = later(0)  # of SCORE_BLOCK by SCORE_BLOCK scores, that hold all biased ones

    @property
    def computed_biased_scores(self) -> int:
        """The scores with a bias that kernels compute, which work on whole blocks; or those of the model."""
        return self.biased_blocks * SCORE_BLOCK**2 or self.biased_scores

    @property
    def filter_weights(self) -> float:
        """The weights of a filter of the depthwise convolutions, in their mean; 0 if there are none."""
        return self.depthwise_operations / (2 * max(1, self.depthwise_elements))


@dataclass(frozen=True, slots=True)
class Parts:
    """Trainable parameters, exactly as the built module has them, and the bytes of frozen ones."""

    outside: int  # outside of the repeated blocks: embedding tables, stem, head
    blocks: tuple[int, ...]  # in each block
    counted_matrices: int | None = None  # in matrices of the blocks (optimizers/updates/block_matrices.py)
    frozen_outside_bytes: int = 0
    frozen_blocks_bytes: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The parameters that are trained, in and outside of blocks."""
        return self.outside + sum(self.blocks)

    @property
    def matrices(self) -> int:
        """Parameters in matrices of the blocks; by formula all of the blocks', which have little else."""
        return sum(self.blocks) if self.counted_matrices is None else self.counted_matrices

    @property
    def frozen_bytes(self) -> int:
        """The bytes of the weights that are not trained, in and outside of blocks."""
        return self.frozen_outside_bytes + sum(self.frozen_blocks_bytes)


class Family(Protocol):
    """The contract of one family; tests/training/models runs over all of them.

    The functions down to `missing_kernels` are arithmetic on the configuration and import neither torch nor
    transformers; if only a built module can tell (generic.py), they raise LookupError. The functions after it
    are called by a worker and import both.

    The built module is called as its objective says (bench/training/objectives).
    """

    name: str  # the `model_type` of Hugging Face
    objectives: tuple[ObjectiveName, ...]
    defaults: Mapping[str, Any] = {}  # every architecture field that a manifest may set
    kernels: str | None = SDPA  # the parts that the method "kernels" replaces in this family, in words
    # Whether "kernels" calls the model's linear layers; kernels that read their weights multiply in bf16.
    kernels_call_layers: bool = True
    slow_without_kernels: bool = False  # whether one sample takes minutes on a GPU without them
    keeps_fp32_weights: str | None = None  # why weights must not have half precision; None if they may
    no_adapters: str | None = None  # why the family's models cannot be trained by low-rank adapters
    read_past: Sequence[str] = ()  # names of layers whose weights code or kernels read without a call
    breaks_graph: str | None = None  # why the kernels cannot be compiled as one graph with all blocks
    uses_all_weights: bool = True  # whether every weight is known to affect the loss

    def kept_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a manifest's architecture that affect training, with the family's defaults."""
        inert = INERT | TOKENS if self.defaults else INERT
        kept = {key: value for key, value in given.items() if key in self.defaults or key not in inert}
        if isinstance(labels := given.get("id2label"), dict):  # published configurations have no num_labels
            kept.setdefault("num_labels", len(labels))
        return {**self.defaults, **kept}

    def why_no_documents(self) -> str | None:
        """Return why a sample cannot hold several documents; None if each can attend within itself."""
        return f"bench cannot tell the attention of {self.name} where documents end"

    def complete(self, model: Model) -> dict[str, Any]:
        """Return a model's architecture with the family's defaults."""
        return {**self.defaults, **model.architecture}

    def mistakes(self, model: Model, path: str) -> Iterable[Mistake]:
        """Find values of the right type that cannot work; `path` is the model's place in the manifest."""
        ...

    def parameters(self, model: Model) -> Parts:
        """Count the parameters of each block and those outside of blocks."""
        ...

    def forward_flops(self, model: Model) -> Flops:
        """Count the operations of one sample's forward pass, by kind."""
        ...

    def head_flops(self, model: Model) -> int:
        """Return the operations of the head's products for one sample, of masked language models."""
        return 0

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return facts on which the time of a pass depends beside its operations; empty by default."""
        return OperationShapes()

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        """Predict the bytes a sample that autograd keeps for the backward pass, including the loss.

        Excludes half-precision copies of weights, which do not depend on the number of samples.
        """
        ...

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        """Predict the peak bytes a sample of kept activations and their gradients, at two moments.

        The first is the loss's backward pass; the second is a block's, after the loss was freed.
        """
        ...

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return why "kernels" cannot work on a device; None if it can. `has` finds the device's packages."""
        return None if self.kernels else f"no kernels exist for {self.name}"

    def why_no_kernels(self, model: Model) -> str | None:
        """Return why "kernels" does not compute what this model computes; None if it does."""
        return None

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build the module: in training mode, with fp32 weights, on the current default device."""
        ...

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the repeated blocks, in order: each is checkpointed, compiled or sharded as a unit."""
        ...
