"""Memory that PyTorch's allocator reserves on a GPU that replays a recorded pass.

A CUDA graph has a pool of memory of its own. Before a pass is recorded, the allocator returns the segments of
the first passes to the GPU, except for segments with a block in use. Such blocks are gradients and, after a
first update, the optimizer's moments, which were placed in segments of activations; the rest of these
segments is lost. How much that is depends on the order of allocations. Therefore the counted allocations of a
first pass and of the recorded one are run through the allocator's rules. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from bench.planning.caching_allocator import CachingAllocator, MemoryBlock
from bench.records.loss_curve import loss_passes
from bench.training.lifetimes import BlockTensors, from_text
from bench.training.methods import RECORDED
from bench.training.models import Model, Parts
from bench.training.models.footprint import (
    FP32,
    BlockCall,
    Footprint,
    calls_of,
    copies_logits,
    lowered,
    predictions_per_sample,
)
from bench.training.setting import Setting

UNRECORDED = 2  # passes before the recorded one: bench/runner/trial/recorded_pass.py
# cuBLAS gets this much memory for each thread and stream on Hopper and Blackwell, 8 MiB on earlier cards
# (aten/src/ATen/cuda/CublasHandlePool.cpp). Forward and backward pass run in two threads, the recording in a
# stream of its own.
PRODUCTS = 32 << 20


@dataclass(frozen=True, slots=True)
class Reserved:
    """Bytes of a GPU's segments while a recorded pass is replayed."""

    outside: int  # outside of the pool: weights, gradients, moments, batches and free parts between them
    lost: int  # the free parts
    pool: int  # the pool of the recorded pass


@dataclass(frozen=True, slots=True)
class Passes:
    """The allocations of a first pass, and of the recorded one, in bytes."""

    kinds: tuple[str, ...]  # the tensors of a block of each kind
    order: tuple[int, ...]  # the kinds of the blocks, in the order in which they run
    between: tuple[int, ...]  # kept outside of the blocks, before each of them
    samples: int
    batch: int  # of numbers and pixels
    logits: int  # of all rows
    copies: int  # of the logits at once: three if the compiler pads and cuts their rows
    features: int  # of all rows, as the head's product reads them
    after: int  # kept after the last block
    half: bool  # whether products read copies of the weights in half precision
    outside: tuple[int, ...]  # large weights outside of the blocks, in fp32; the first one is the head's
    weights: int  # all, in fp32
    moments: float  # of each byte of a weight
    updated: bool  # whether a step ends before the pass is recorded


def reserved_memory(
    footprint: Footprint, model: Model, parts: Parts, setting: Setting, micro_batch: int, moments: int
) -> Reserved | None:
    """Return the reserved bytes of a setting that replays a recorded pass; None if this was not counted.

    With half-weights, gradients are added to sums, and those of a pass are freed in it.
    """
    counted = all(block.tensors for block in footprint.blocks)
    if RECORDED not in setting or "half-weights" in setting or not counted or not footprint.blocks:
        return None
    recipe = model.recipe
    share = recipe.asked_per_sample / recipe.units_per_sample if "masked-head" in setting else 1.0
    size, rows = lowered(model), share * micro_batch
    words = footprint.logits // predictions_per_sample(model)
    last = footprint.blocks[-1]
    accumulation = max(1, recipe.batch_size // micro_batch)
    calls = _calls(footprint)
    ends_before = [call.ends_before for call in calls]
    reserved = _reserved(
        Passes(
            tuple(block.tensors for block in footprint.blocks),
            tuple(call.kind for call in calls),
            tuple(micro_batch * (now - last) for last, now in pairwise((0, *ends_before))),
            micro_batch,
            batch=micro_batch * _batch_bytes(model),
            logits=round(size * footprint.logits * rows),
            copies=3 if copies_logits(model, setting, words) else 1,
            features=round(last.entry * rows) * size // FP32,
            after=(footprint.ends - ends_before[-1]) * micro_batch,
            half=size < FP32,
            outside=tuple(FP32 * weight for weight in footprint.weights),
            weights=FP32 * parts.total,
            moments=moments / (FP32 * parts.total),
            updated=loss_passes(parts.total, recipe, micro_batch, accumulation) <= UNRECORDED,
        )
    )
    return replace(reserved, outside=reserved.outside + parts.frozen_bytes)


def _calls(footprint: Footprint) -> Sequence[BlockCall]:
    """Return the calls of blocks in their order; without one, the kinds run one after the other."""
    one_by_one = (
        BlockCall(kind, footprint.before)
        for kind, block in enumerate(footprint.blocks)
        for _ in range(block.count)
    )
    return calls_of(footprint.order) or [*one_by_one]


def _batch_bytes(model: Model) -> int:
    """Return the bytes of a sample's pixels and numbers on the device; indices are negligible."""
    parts = model.recipe.aim.parts(model.architecture, model.recipe)
    return sum(FP32 * prod(part.shape) for part in parts if part.elements in ("pixels", "numbers"))


@cache
def _reserved(passes: Passes) -> Reserved:
    memory = _Memory(passes)
    memory.allocate_weights()
    memory.allocate_batch()
    gradients = memory.run_pass(keeps_gradients=True)
    if passes.updated:
        memory.add_moments(gradients)
    memory.allocate_batch()  # a copy, which the recorded pass reads
    memory.allocator.empty_cache()
    if not passes.updated:
        memory.add_moments(gradients)
    recorded = _Memory(passes)
    recorded.run_pass(keeps_gradients=False)
    outside = memory.allocator
    return Reserved(
        outside.reserved + memory.small_bytes(),
        outside.reserved - outside.allocated,
        recorded.allocator.reserved,
    )


@dataclass
class _Memory:
    """A pool of the GPU's memory."""

    passes: Passes
    allocator: CachingAllocator = field(default_factory=CachingAllocator)

    def weights(self) -> list[int]:
        """Return the sizes of the large weights."""
        passes = self.passes
        gradients = [from_text(text).gradients for text in passes.kinds]
        of_blocks = (gradient.size(passes.samples) for kind in passes.order for gradient in gradients[kind])
        return [*passes.outside, *of_blocks]

    def allocate_weights(self) -> None:
        for size in self.weights():
            self.allocator.allocate(size)

    def allocate_batch(self) -> None:
        if self.passes.batch:
            self.allocator.allocate(self.passes.batch)

    def small_bytes(self) -> int:
        """Return the bytes of small weights, of their gradients and moments: they share segments."""
        small = max(0, self.passes.weights - sum(self.weights()))
        return round(small * (2 + self.passes.moments))

    def run_pass(self, *, keeps_gradients: bool) -> list[MemoryBlock]:
        """Run a pass; return the gradients, unless they are added to those of an earlier pass and freed."""
        passes, allocate, free = self.passes, self.allocator.allocate, self.allocator.free
        kept = list[MemoryBlock]()

        def add(gradients: list[MemoryBlock]) -> None:
            if keeps_gradients:
                kept.extend(gradients)
            else:
                for gradient in gradients:
                    free(gradient)

        allocate(PRODUCTS)
        kinds = [_events(from_text(text), passes.samples) for text in passes.kinds]
        running = list[tuple[MemoryBlock | None, _RunningBlock]]()
        for kind, size in zip(passes.order, passes.between, strict=True):
            running.append((allocate(size) if size else None, _RunningBlock(*kinds[kind], self.allocator)))
            running[-1][1].forward()
        add(self._head_and_loss())
        for between, block in reversed(running):
            add(block.backward())
            if between:
                free(between)
        add([*map(allocate, passes.outside[1:])])
        return kept

    def add_moments(self, gradients: list[MemoryBlock]) -> None:
        """Allocate two moments of each weight, in the order in which the optimizer goes through them."""
        for gradient in gradients:
            for _ in range(2):
                self.allocator.allocate(round(gradient.size * self.passes.moments / 2))

    def _head_and_loss(self) -> list[MemoryBlock]:
        """Allocate the logits, which their gradient overwrites, and the gradients of head and features.

        The head's product writes a gradient in half precision. After the logits are freed, a last kernel
        converts it to fp32, in their memory. Returns the gradient of the head.
        """
        passes, allocate, free = self.passes, self.allocator.allocate, self.allocator.free
        head = passes.outside[0] if passes.outside else 0
        after, read = allocate(passes.after), [allocate(passes.features)]
        if passes.half and head:
            read.append(allocate(head // 2))
        logits = [allocate(passes.logits) for _ in range(passes.copies)]
        allocate(PRODUCTS)
        of_head = allocate(head // 2 if passes.half else head) if head else None
        of_features = allocate(passes.features)
        for block in (*logits, *read):
            free(block)
        gradients = [of_head] if of_head else []
        if of_head and passes.half:
            gradients = [allocate(head)]
            free(of_head)
        free(of_features)
        free(after)
        return gradients


class _MemoryEvent(NamedTuple):
    """A tensor of a block that is allocated or freed."""

    size: int | None  # bytes to allocate; None: the tensor is freed
    place: int  # of the tensor among the block's lifetimes


class _Change(NamedTuple):
    """An operation that allocates or frees a tensor; natural order is that of time."""

    operation: int
    frees: bool
    place: int  # of the tensor among the block's lifetimes


@dataclass
class _RunningBlock:
    """A block that runs on the allocator: its events, and the tensors that exist now."""

    in_forward: list[_MemoryEvent]
    in_backward: list[_MemoryEvent]
    allocator: CachingAllocator
    in_use: dict[int, MemoryBlock] = field(default_factory=dict)  # by place

    def forward(self) -> None:
        self._run(self.in_forward)

    def backward(self) -> list[MemoryBlock]:
        """Run the backward pass; return the gradients of weights."""
        self._run(self.in_backward)
        return [*self.in_use.values()]

    def _run(self, events: list[_MemoryEvent]) -> None:
        for size, place in events:
            if size is None:
                self.allocator.free(self.in_use.pop(place))
            else:
                self.in_use[place] = self.allocator.allocate(size)


def _events(tensors: BlockTensors, samples: int) -> tuple[list[_MemoryEvent], list[_MemoryEvent]]:
    """Return the order in which tensors are allocated and freed, in the forward and in the backward pass.

    An operation's result exists before its input is freed.
    """
    forward, backward = list[_MemoryEvent](), list[_MemoryEvent]()
    for change in _changes(tensors):
        # A tensor that the first operation of the backward pass would free is freed at the end of the forward
        # pass.
        when = forward if change.operation < tensors.backward + change.frees else backward
        size = None if change.frees else tensors.lifetimes[change.place].size(samples)
        when.append(_MemoryEvent(size, change.place))
    return forward, backward


def _changes(tensors: BlockTensors) -> list[_Change]:
    """Return what each operation allocates or frees, in the order of the operations."""
    tensors_by_place = [*enumerate(tensors.lifetimes)]
    born = [_Change(tensor.born, False, place) for place, tensor in tensors_by_place]
    freed = [
        _Change(tensor.freed, True, place) for place, tensor in tensors_by_place if tensor.freed is not None
    ]
    return sorted(born + freed)
