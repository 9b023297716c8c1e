"""The contract of an objective: what a model is trained to predict, from which data, with which loss.

Pure: torch is imported only by the functions that a worker calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bench.base.frozen import dataclass
from bench.training.objectives.documents import Documents

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

ObjectiveName = Literal[
    "causal-lm",
    "masked-lm",
    "image-classification",
    "sequence-to-sequence",
    "speech-recognition",
    "audio-classification",
    "masked-image",
    "contrastive",
    "own-loss",
    "denoising",
]
Unit = Literal["tokens", "images", "seconds", "pairs", "samples"]
Architecture = Mapping[str, Any]
Sample = dict[str, Any]
Gather = Callable[["Tensor"], "Tensor"]  # rows of this device to those of all devices, its own first
IGNORED = -100  # the label of positions without a loss


def of_one_device(rows: Tensor) -> Tensor:
    """Return a device's own rows: where it is the only device, they are the rows of all."""
    return rows


class SampleSize(Protocol):
    """The fields of a recipe that say how large a sample is; None for those that its objective lacks."""

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sample, or of its source if it has a target too."""
        ...

    @property
    def target_length(self) -> int | None:
        """Tokens of the text that a decoder predicts."""
        ...

    @property
    def image_size(self) -> int | None:
        """The side of an image in pixels."""
        ...

    @property
    def audio_seconds(self) -> int | None:
        """The length of a sound in seconds."""
        ...

    @property
    def masked_fraction(self) -> float | None:
        """The share of tokens or patches that is hidden; None for the usual share."""
        ...

    @property
    def documents(self) -> Documents | None:
        """How long the documents in a sample are; None if a sample is one document."""
        ...


class Pool(Protocol):
    """Data on disk, from which samples are cut. Equal arguments give equal data."""

    own: bool  # whether these are data of one's own, and not made up

    def tokens(self, index: int, count: int) -> NDArray[np.int64]:
        """Return consecutive tokens of the pool, below the vocabulary's size."""
        ...

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return an image of the recipe's size: channels, height, width."""
        ...

    def numbers(self, index: int, *shape: int) -> NDArray[np.float32]:
        """Return numbers of a normal distribution in this shape."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """The ingredients of one sample: its place in the pool, and its random numbers."""

    pool: Pool
    index: int
    random: np.random.Generator

    def tokens(self, count: int) -> NDArray[np.int64]:
        """Return `count` tokens from the sample's place in the pool."""
        return self.pool.tokens(self.index, count)

    def image(self) -> NDArray[np.uint8]:
        """Return the pool's image for this sample."""
        return self.pool.image(self.index)

    def numbers(self, *shape: int) -> NDArray[np.float32]:
        """Return normally distributed numbers from the sample's place in the pool."""
        return self.pool.numbers(self.index, *shape)


Elements = Literal["indices", "pixels", "numbers", "flags", "ends"]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a batch: its name, its shape for one sample, and what its elements are.

    "pixels" come as bytes from the data loader and are floats on the device; "numbers" are floats in both.
    "ends" are positions in ascending order.
    """

    name: str
    shape: tuple[int, ...]
    elements: Elements
    below: int = 2  # indices are below this number, which is at least 2 in most models


class Objective:
    """Base class: what most objectives have in common. An objective is one object in a file of this folder.

    The built module is called with every part of a batch except `labels`, by name, and returns an object
    with `.logits`, in fp32 or lower precision, unless its objective says otherwise. The mean loss of a batch
    must be the mean of its samples' losses, so every sample needs equally many predictions; an objective that
    compares samples with each other says so (`compares_samples`).
    """

    name: ObjectiveName
    title: str  # for people, of a group of models
    unit: Unit  # in which a sample is counted, for throughput
    # transformers' class that builds a model for this objective; None if transformers has none.
    auto_class: str | None = None
    mapping: str = ""  # the table in transformers' source in which that class finds the model of a type
    sizes: tuple[str, ...]  # fields of the recipe that say how large a sample is; all are required
    defaults: Mapping[str, float] = {}  # of those fields
    data: tuple[Literal["tokens", "images"], ...] = ()  # what the pool must hold
    packs_documents: bool = False  # whether a sample may hold several documents
    # Fields of an architecture that made-up data depends on, and the unit of each, for people.
    counts: Mapping[str, str] = {}
    # By type of transformers: fields on which made-up data depend, for configurations that leave them out.
    # They stand here because planning and verifying must come to the same model without transformers.
    defaults_of_types: Mapping[str, Mapping[str, int]] = {}
    has_text_head: bool = False  # whether a head of features gives logits over tokens, at every position
    towers: tuple[str, ...] = ()  # fields with the configurations of a model's parts, the text's first
    # Whether samples are compared with each other: then `loss` is that of the whole step, `labels` takes a
    # batch without labels, and `targets` makes the labels of a step of several passes.
    compares_samples: bool = False

    def vocabulary(self, architecture: Architecture) -> int:
        """Return the number of different tokens, for objectives whose data are tokens."""
        holder = architecture[self.towers[0]] if self.towers else architecture
        return int(holder["vocab_size"])

    def units_per_sample(self, size: SampleSize) -> int:
        """Return how many of `unit` a sample holds; tokens of a target count beside those of its source."""
        match self.unit:
            case "tokens":
                return (size.sequence_length or 1) + (size.target_length or 0)
            case "seconds":
                return size.audio_seconds or 1
            case _:
                return 1

    def asked_per_sample(self, size: SampleSize) -> int:
        """Return the positions of a sample that enter the loss: those of its target; all without a target.

        Every sample has equally many.
        """
        return size.target_length or self.units_per_sample(size)

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the tensors of a batch."""
        raise NotImplementedError

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Return a sample of endless made-up data, as numpy arrays by the names of the parts."""
        raise NotImplementedError

    def answer(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Call the model; return the answer, which the loss compares with the labels."""
        out: Tensor = module(**self.given(module, batch)).logits
        return out

    def given(self, module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of the model: by default every part of a batch but the labels."""
        return {name: part for name, part in batch.items() if name != "labels"}

    def labels(self, batch: Mapping[str, Tensor], answer: Tensor, module: nn.Module) -> Tensor:
        """Return the labels, with which the loss compares the answer: a part of the batch."""
        return batch["labels"]

    def targets(self, module: nn.Module, answers: Tensor, gather: Gather, passes: int = 1) -> Tensor:
        """Return the labels of a step's passes, from the answers of all of them."""
        raise NotImplementedError

    def bytes_of_a_step(self, size: SampleSize, batch_size: int, gpus: int, answer: int) -> int:
        """Return the bytes that a step needs on a device in addition to its passes.

        An answer has `answer` numbers a sample.
        """
        return 0

    def loss(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch. Default: cross-entropy, without positions labelled -100.

        It replaces the losses of transformers' models, which would shift causal labels a second time.
        """
        from torch.nn.functional import cross_entropy

        loss: Tensor = cross_entropy(answer.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
        return loss

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe to the user of an exported script the form of a micro-batch of `samples` samples."""
        raise NotImplementedError


def with_value(architecture: Architecture, path: str, value: Any) -> Architecture:
    """Return an architecture with a value for a field that it leaves out; a part that is missing stays so."""
    name, _, rest = path.partition("/")
    if rest:
        part = architecture.get(name)
        inside = {name: with_value(part, rest, value)} if isinstance(part, Mapping) else {}
        return {**architecture, **inside}
    return {name: value, **architecture}


def value_at(architecture: Architecture, path: str) -> Any:
    """Return the value of a field, which may be inside of another one ("text_config/vocab_size"), or None."""
    found: Any = architecture
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
