"""Memory that a recorded pass cannot use: segments that the passes before it reserved.

The memory of a CUDA graph is a pool of its own. Before it is recorded, the allocator returns the segments of
the first passes to the GPU, except those that still have a block in use: gradients, and the optimizer's
moments after a first update, which took free parts of activations' segments. The rest of these segments is
lost. Which segments that are follows from the order of allocations, so the first pass is run through the
allocator's rules, with the sizes that were counted. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from bench.planning.caching_allocator import CachingAllocator, MemoryBlock
from bench.records.loss_curve import loss_passes
from bench.training.lifetimes import BlockTensors, from_text
from bench.training.methods import RECORDED
from bench.training.models import Model, Parts
from bench.training.models.footprint import FP32, ROW_MULTIPLE, Footprint, lowered
from bench.training.setting import Setting

Event = tuple[int, bool, int]  # the operation, whether it frees, and the tensor's place
UNRECORDED = 2  # passes before the recorded one: bench/runner/trial/recorded_pass.py


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The allocations of a first pass, in bytes."""

    blocks: tuple[tuple[int, str], ...]  # how many there are of each kind, and their tensors
    samples: int
    logits: int  # of all rows
    copies: int  # of the logits at once: three if their rows are padded and cut for the products
    features: int  # of all rows, as the head's product reads them
    ends: int  # kept outside of the blocks
    half: bool  # whether products read copies of the weights in half precision
    outside: tuple[int, ...]  # weights outside of the blocks, in fp32; the first one is the head's
    moments: float  # of each byte of a weight
    updated: bool  # whether a step ends before the pass is recorded


def lost_bytes(
    footprint: Footprint, model: Model, parts: Parts, setting: Setting, micro_batch: int, moments: int
) -> int:
    """Return the bytes that are reserved beside a recorded pass, and not in use; 0 if this was not counted.

    With half-weights, gradients are added to sums, and those of a pass are freed in it.
    """
    counted = all(block.tensors for block in footprint.blocks)
    if RECORDED not in setting or "half-weights" in setting or not counted or not footprint.blocks:
        return 0
    recipe = model.recipe
    share = recipe.asked_per_sample / recipe.units_per_sample if "masked-head" in setting else 1.0
    size, rows = lowered(model), share * micro_batch
    odd = footprint.logits // recipe.units_per_sample % ROW_MULTIPLE != 0
    last = footprint.blocks[-1]
    accumulation = max(1, recipe.batch_size // micro_batch)
    return _lost_bytes(
        FirstPass(
            tuple((block.count, block.tensors) for block in footprint.blocks),
            micro_batch,
            logits=round(size * footprint.logits * rows),
            copies=3 if odd else 1,
            features=round(last.entry * rows) * size // FP32,
            ends=footprint.ends * micro_batch,
            half=size < FP32,
            outside=tuple(FP32 * weight for weight in footprint.weights),
            moments=moments / (FP32 * parts.total),
            updated=loss_passes(parts.total, recipe, micro_batch, accumulation) <= UNRECORDED,
        )
    )


@cache
def _lost_bytes(first: FirstPass) -> int:
    memory = _Memory(first)
    memory.run_pass()
    if first.updated:
        memory.add_moments()
    memory.allocator.empty_cache()
    if not first.updated:
        memory.add_moments()
    return memory.allocator.reserved - memory.allocator.allocated


@dataclass
class _Memory:
    """A GPU's memory during a first pass. Weights were allocated before, in separate segments."""

    first: FirstPass
    allocator: CachingAllocator = field(default_factory=CachingAllocator)
    gradients: list[MemoryBlock] = field(default_factory=list)

    def run_pass(self) -> None:
        first = self.first
        blocks = [
            _RunningBlock(from_text(text), first.samples, self.allocator)
            for count, text in first.blocks
            for _ in range(count)
        ]
        for block in blocks:
            block.forward()
        self._head_and_loss()
        for block in reversed(blocks):
            self.gradients += block.backward()
        self.gradients += map(self.allocator.allocate, first.outside[1:])

    def add_moments(self) -> None:
        """Allocate two moments of each weight, in the order in which the optimizer goes through them."""
        for gradient in [*self.gradients]:
            for _ in range(2):
                self.allocator.allocate(round(gradient.size * self.first.moments / 2))

    def _head_and_loss(self) -> None:
        """Compute the logits, whose gradient overwrites them, and the gradients of head and features.

        The head's product writes a gradient in half precision. A last kernel converts it, when the logits
        have been freed: so that it lies in their memory.
        """
        first, allocate, free = self.first, self.allocator.allocate, self.allocator.free
        head = first.outside[0] if first.outside else 0
        ends, read = allocate(first.ends), [allocate(first.features)]
        if first.half and head:
            read.append(allocate(head // 2))
        logits = [allocate(first.logits) for _ in range(first.copies)]
        of_head = allocate(head // 2 if first.half else head) if head else None
        of_features = allocate(first.features)
        for one in (*logits, *read):
            free(one)
        if of_head and first.half:
            self.gradients.append(allocate(head))
            free(of_head)
        elif of_head:
            self.gradients.append(of_head)
        free(of_features)
        free(ends)


@dataclass
class _RunningBlock:
    tensors: BlockTensors
    samples: int
    allocator: CachingAllocator
    in_use: dict[int, MemoryBlock] = field(default_factory=dict)  # by place among the lifetimes

    def forward(self) -> None:
        self._run(_events(self.tensors)[0])

    def backward(self) -> list[MemoryBlock]:
        """Run the backward pass; return the gradients of weights, which stay."""
        self._run(_events(self.tensors)[1])
        return [*self.in_use.values()]

    def _run(self, events: list[Event]) -> None:
        for _, frees, place in events:
            if frees:
                self.allocator.free(self.in_use.pop(place))
            else:
                size = self.tensors.lifetimes[place].size(self.samples)
                self.in_use[place] = self.allocator.allocate(size)


@cache
def _events(tensors: BlockTensors) -> tuple[list[Event], list[Event]]:
    """Return the order in which tensors are allocated and freed, in the forward and in the backward pass.

    An operation's result exists before its input is freed.
    """
    born = [(one.born, False, place) for place, one in enumerate(tensors.lifetimes)]
    freed = [(one.freed, True, place) for place, one in enumerate(tensors.lifetimes) if one.freed is not None]
    begin = (
        tensors.backward,
        False,
        -1,
    )  # what is freed at that time was freed when the forward pass was over
    events = sorted(born + freed)
    forward = [event for event in events if event < begin or event[:2] == (tensors.backward, True)]
    return forward, [event for event in events if event not in forward]
