"""The time of a step, from counted operations and bytes, a card's rates and fitted multipliers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.planning.memory_prediction import predict_bytes
from bench.planning.prediction.card_rates import CardRates, ring_seconds
from bench.planning.prediction.kernel_rates import (
    ATTENTION_IN_FP32,
    CHUNKED_SCAN_CYCLES,
    DENSE_CONVOLUTIONS,
    QUERY_CYCLES,
    DepthwiseKernel,
    convolution_seconds,
    depthwise_cycles,
)
from bench.planning.prediction.product_times import BOTH_WAYS, fixed_seconds, slowed_by_memory
from bench.training.methods import RECORDED, TRANSPOSED_FACTORS, arithmetic, known_methods
from bench.training.models import Counted, Model, Parts, Precision, words_of
from bench.training.models.footprint import copies_logits
from bench.training.models.model import ConvolutionShape, ProductShape
from bench.training.setting import Setting, halves_weights, in_group

BACKWARD = BOTH_WAYS - 1  # products of a backward pass, in those of a forward pass
# Products of linear layers with transposed factors take this share of the time without, the copies included
# (those of weights by torch): 0.875 in vit-l, 0.886 in convnext-xl
# (results/transposed-h200/product-layouts.jsonl).
TRANSPOSED_TIME = 0.88
BACKWARD_ATTENTION = 2.5  # fused attention computes the scores again
FP32, HALF = 4, 2
# A logit is written by the head's product, read by the loss, read again and overwritten with its gradient;
# two products read the gradient.
LOGIT_MOVES = 6
# What a pass keeps is written and read forwards, read backwards, and its gradient is written and read.
KEPT_MOVES = 5
PADDING_MOVES = 4  # rows of odd length are copied: cut to length forwards, padded backwards
# Memory traffic for each parameter. A pass adds a gradient to its sum, and under autocast casts a weight; an
# update of Adam reads weight, gradient and both moments, writes all but the gradient, and clears that.
PASS_BYTES, PASS_BYTES_HALVED, UPDATE_BYTES = 18, 12, 36

# Share of the rate of computing that an exchange takes: NCCL's 24 blocks of threads have a multiprocessor
# each, of 108 (A100) or 132 (H100, H200).
TAKEN_BY_EXCHANGE = 0.2

OFFLOADING = "offloading is not predicted: it depends on the host"

Group = Literal["dense", "other"]
# Parts of fields of architectures with experts, with biases of positions, or with windows of pictures.
UNUSUAL = ("expert", "relative_attention", "position_buckets", "window_size")


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Shares of the rate of large products, and cycles of a multiprocessor; by benchmarks/prediction.py."""

    products: float
    products_in_fp32: float  # of the rate in TF32
    attention: float  # in half precision
    scans: float
    cycles: float  # for each element that a pass keeps for its backward pass
    bias_cycles: float  # for each score to which attention adds a bias


@dataclass(frozen=True, slots=True)
class Fit:
    """Multipliers, and the errors (0.1: 10%) that nine of ten predictions of left-out measurements keep."""

    multipliers: Multipliers
    errors: dict[Group, float]  # of models that were left out
    card_error: float  # of cards that were left out
    gpus_error: float  # of 64 to 512 GPUs, from fits of fewer
    cards: tuple[str, ...]  # that the multipliers were measured on
    most_gpus: int  # that they were measured on
    source: str
    dated: str  # day of the fit

    def error(self, group: Group, card: str, gpus: int) -> float:
        """Return the error of a prediction: the largest of those that apply."""
        found = [self.errors[group]]
        if card not in self.cards:
            found.append(self.card_error)
        if gpus > self.most_gpus:
            found.append(self.gpus_error)
        return max(found)


@cache
def shipped_fit() -> Fit:
    """Return the fit of bench/data/prediction.json, which benchmarks/prediction.py writes."""
    return from_json(Fit, read_data("prediction.json"))


@dataclass(frozen=True, slots=True)
class Collectives:
    """Exchanges between GPUs."""

    count: int
    sent_bytes: float  # by each GPU, in all of them

    def seconds(self, gpus: int, rates: CardRates) -> float:
        """Return how long `gpus` GPUs take for them: their bytes, and the latency of each one's ring."""
        return self.sent_bytes / rates.exchange(gpus) + self.count * ring_seconds(gpus)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of a pass for one sample, and the bytes that each pass and each update moves."""

    products: float  # operations, forward and backward
    attention: float
    attention_in_fp32: float  # of the rate of products, what its kernel reaches if it computes in fp32
    query_elements: float  # of attention, in passes that are forward and backward
    biased_scores: float
    convolutions: float
    dense_convolutions: float  # operations of those that are not depthwise, if their shapes are not known
    depthwise_cycles: float
    scans: float
    chunked_scan_cycles: float
    kept_bytes: float  # for the backward pass, without logits
    kept_elements: float
    logit_bytes: float  # memory traffic of logits and their gradient
    weight_bytes: float  # memory traffic of weights and gradients in a pass
    exchanged_each_pass: Collectives
    exchanged_each_step: Collectives
    updated: float  # parameters that one GPU updates
    products_time: float = 1.0  # a share of that with factors as they lie in memory
    passes: float = 1.0  # forward and backward; with checkpointing a third more
    element_bytes: int = HALF  # of a number that products read and write
    product_shapes: tuple[ProductShape, ...] = ()  # of a forward pass; empty if they are not known
    convolution_shapes: tuple[ConvolutionShape, ...] = ()  # with the operations of all passes

    def sent_bytes(self, passes: int) -> float:
        """Return the bytes that each GPU sends in a step of `passes` passes."""
        return passes * self.exchanged_each_pass.sent_bytes + self.exchanged_each_step.sent_bytes


@dataclass(frozen=True, slots=True)
class StepPart:
    """A GPU's part of a step: `passes` passes of `samples` samples each."""

    samples: int
    passes: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a step of `passes` passes."""

    passes: int
    # The parts of a pass, by kind of work: "elements" is the arithmetic of fused operations without their
    # memory traffic, and "exchange" leaves out what computing hides.
    parts: Mapping[str, float]
    update: float

    @property
    def pass_seconds(self) -> float:
        """The seconds of one pass: those of its parts one after the other."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> float:
        """The seconds of the whole step: its passes and its update."""
        return self.passes * self.pass_seconds + self.update

    @property
    def limit(self) -> str:
        """The part that takes most of a pass."""
        parts = self.parts
        return max(parts, key=lambda name: parts[name])


def group_of(model: Model, counts: Counted) -> Group:
    """Return the group of models with similar errors: dense transformers, or others.

    Others have convolutions, scans, experts, or attention that no fused kernel computes.
    """
    flops = counts.flops
    scans = flops.scan or counts.shapes.scanned_states
    mixed = scans or flops.convolution > flops.matmul / 50
    unusual = any(word in field for field in model.architecture for word in UNUSUAL)
    return "other" if mixed or unusual else "dense"


def why_unpredicted(model: Model, setting: Setting) -> str | None:
    """Return why the time of a setting is not predicted; None if it is."""
    recipe = model.recipe
    if not known_methods().keys() >= {*setting}:
        return "a method of another version of bench is not predicted"
    if "offload" in setting:
        return OFFLOADING
    if in_group(setting, "compilation") is None:
        return "uncompiled code is not predicted"
    if recipe.precision == "fp8":
        return "fp8 is not predicted yet"
    if recipe.aim.compares_samples:
        return "contrastive steps of two phases are not predicted yet"
    return None


def work_of(model: Model, setting: Setting, gpus: int, counts: Counted) -> Work | None:
    """Return the work of a setting; None if its memory traffic is not counted."""
    kept = _kept_bytes(model, setting, counts)
    if kept is None:
        return None
    flops = arithmetic(setting, model, counts)
    again = 1 if "checkpointing" in setting else 0  # forward passes that are computed twice
    times = 1 + BACKWARD + again
    products = times * flops.matmul
    if flops.backward is not None:  # most weights are frozen
        products = (1 + again) * flops.matmul + max(
            0, flops.backward - BACKWARD * (flops.attention + flops.scan)
        )
    parameters, half = counts.parts.total, model.recipe.precision != "fp32"
    size = HALF if half else FP32
    each_pass, each_step = _exchanged(setting, counts.parts, gpus, half=half)
    sharded = in_group(setting, "sharding") is not None
    shapes, passes = counts.shapes, times / (1 + BACKWARD)
    dense = flops.convolution - shapes.depthwise_operations
    kernel: DepthwiseKernel = "bench" if "depthwise" in setting else "cudnn"
    return Work(
        products=products,
        attention=(1 + BACKWARD_ATTENTION + again) * flops.attention,
        attention_in_fp32=ATTENTION_IN_FP32[in_group(setting, "attention")],
        query_elements=passes * shapes.query_elements,
        biased_scores=passes * shapes.computed_biased_scores,
        convolutions=times * flops.convolution,
        dense_convolutions=0 if shapes.convolutions else times * dense,
        depthwise_cycles=passes
        * shapes.depthwise_elements
        * depthwise_cycles(kernel, fp32=not half, weights=shapes.filter_weights),
        scans=times * flops.scan,
        chunked_scan_cycles=passes * shapes.scanned_states * CHUNKED_SCAN_CYCLES,
        kept_bytes=kept * passes,
        kept_elements=kept / size * passes,
        logit_bytes=size * _moved_logits(model, setting),
        weight_bytes=parameters * (PASS_BYTES_HALVED if halves_weights(setting) else PASS_BYTES),
        exchanged_each_pass=each_pass,
        exchanged_each_step=each_step,
        updated=parameters / gpus if sharded else parameters,
        products_time=TRANSPOSED_TIME if TRANSPOSED_FACTORS in setting else 1.0,
        passes=passes,
        element_bytes=size,
        product_shapes=computed_products(model, setting, shapes.products),
        convolution_shapes=tuple(
            replace(shape, operations=times * shape.operations) for shape in shapes.convolutions
        ),
    )


def computed_products(
    model: Model, setting: Setting, shapes: tuple[ProductShape, ...]
) -> tuple[ProductShape, ...]:
    """Return the shapes of a forward pass's products; masked-head has logits of hidden positions only."""
    recipe = model.recipe
    if "masked-head" not in setting:
        return shapes
    share = recipe.asked_per_sample / recipe.units_per_sample
    return tuple(
        replace(shape, rows=round(share * shape.rows)) if shape.columns == words_of(model) else shape
        for shape in shapes
    )


def _moved_logits(model: Model, setting: Setting) -> int:
    """Return the number of a sample's logits over words that cost memory traffic; classes are negligible."""
    recipe = model.recipe
    positions = recipe.asked_per_sample if "masked-head" in setting else recipe.units_per_sample
    words = words_of(model)
    moves = LOGIT_MOVES + (PADDING_MOVES if copies_logits(model, setting, words) else 0)
    return (recipe.target_length or positions) * words * moves


def _kept_bytes(model: Model, setting: Setting, counts: Counted) -> float | None:
    """Return the bytes of a sample's activations without logits, neither sharded nor checkpointed."""
    left_out = {in_group(setting, "sharding"), "offload", "checkpointing", RECORDED}
    # A loss by chunks keeps no logits: they are counted apart.
    plain = (*(name for name in setting if name not in left_out), "chunked-loss")
    one, two = (predict_bytes(model, plain, samples, 1, counts) for samples in (64, 128))
    return None if one is None or two is None else (two - one) / 64


def _exchanged(setting: Setting, parts: Parts, gpus: int, *, half: bool) -> tuple[Collectives, Collectives]:
    """Return the exchanges of GPUs in a pass and in a step: for each block, and for the rest of the model."""
    none = Collectives(0, 0.0)
    if gpus == 1:
        return none, none
    units, sent, size = len(parts.blocks) + 1, (gpus - 1) / gpus * parts.total, HALF if half else FP32
    match in_group(setting, "sharding"):
        case None | "zero-1":  # sums of gradients are reduced, and gathered or weights are
            return none, Collectives(2 * units, 2 * sent * FP32)
        case "fsdp-2" | "zero-2":  # weights are whole: gathered once a step
            return Collectives(units, sent * FP32), Collectives(units, sent * size)
        case _:  # weights are gathered for the forward and the backward pass
            return Collectives(3 * units, sent * (2 * size + FP32)), none


def beside(computing: float, sent: float) -> float:
    """Combine the seconds of computing alone and of exchange alone into the seconds of a pass.

    Exchange runs at the same time as computing and slows it. The longer of the two counts; if they take about
    equally long, a little of the other is added. Also takes arrays of numpy.
    """
    slowed = computing + TAKEN_BY_EXCHANGE * sent  # so that the ratio below is bounded, whatever the card
    both: float = slowed * (1 + (sent / slowed) ** 4) ** 0.25
    return both


def attention_seconds(work: Work, rates: CardRates, precision: Precision, m: Multipliers) -> float:
    """Return the seconds of a sample's attention; the rates of fp32's kernels contain all that they do."""
    biased = work.biased_scores * m.bias_cycles / rates.cycles
    if precision == "fp32":
        return work.attention / (rates.products(precision) * work.attention_in_fp32) + biased
    queries = work.query_elements * QUERY_CYCLES / rates.cycles
    return work.attention / (rates.products(precision) * m.attention) + queries + biased


def product_seconds(
    work: Work, samples: int, rates: CardRates, precision: Precision, m: Multipliers
) -> float:
    """Return the seconds of the products in a pass of `samples` samples, by their operations and shapes."""
    rate, share = rates.products(precision), m.products_in_fp32 if precision == "fp32" else m.products
    slower = slowed_by_memory(work.product_shapes, samples, work.element_bytes, rate, rates.memory)
    operations = samples * work.products_time * work.products * slower / (rate * share)
    return operations + work.passes * fixed_seconds(work.product_shapes)


def step_time(
    work: Work, batch: StepPart, gpus: int, rates: CardRates, precision: Precision, m: Multipliers
) -> StepTime:
    """Divide the work of a step by the rates of a card."""
    products = rates.products(precision)
    dense = (convolution_seconds(shape, products, rates.cycles) for shape in work.convolution_shapes)
    times = {
        "attention": attention_seconds(work, rates, precision, m),
        "convolutions": math.fsum(dense)
        + work.dense_convolutions / (products * DENSE_CONVOLUTIONS)
        + work.depthwise_cycles / rates.cycles,
        "scans": work.scans / (products * m.scans) + work.chunked_scan_cycles / rates.cycles,
        "memory": (work.kept_bytes * KEPT_MOVES + work.logit_bytes) / rates.memory,
        "elements": work.kept_elements * m.cycles / rates.cycles,
    }
    times = {name: batch.samples * seconds for name, seconds in times.items()}
    times = {"products": product_seconds(work, batch.samples, rates, precision, m), **times}
    times["memory"] += work.weight_bytes / rates.memory
    computing = math.fsum(times.values())
    times["exchange"] = beside(computing, work.exchanged_each_pass.seconds(gpus, rates)) - computing
    update = work.updated * UPDATE_BYTES / rates.memory + work.exchanged_each_step.seconds(gpus, rates)
    return StepTime(batch.passes, times, update)
