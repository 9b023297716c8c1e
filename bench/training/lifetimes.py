"""The tensors of a compiled block's pass: their bytes, and when each is allocated and freed. Pure.

They are also written as text: first the number of the first operation of the backward pass, then a word for
each tensor. `3145728+0@2-57` takes 3,145,728 bytes for each sample and no fixed bytes, is allocated by
operation 2 and freed after operation 57. `0+9437184@90-` takes 9,437,184 fixed bytes and is never freed, like
a weight's gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import accumulate

from bench.base.frozen import dataclass

SMALL = 1 << 20  # bytes; PyTorch's allocator keeps smaller tensors apart, in segments of two MiB


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How many bytes a tensor takes, and between which operations of a block it takes them."""

    sample_bytes: int
    bytes: int
    born: int  # the operation that allocates it
    freed: int | None  # the last operation that reads it, the first backward one if none does; None: it stays

    def size(self, samples: int) -> int:
        """Return the bytes that the tensor takes in a micro-batch of `samples` samples."""
        return self.sample_bytes * samples + self.bytes


@dataclass(frozen=True, slots=True)
class BlockTensors:
    """Tensors of one block's pass. Operations before `backward` belong to its forward pass."""

    backward: int
    lifetimes: tuple[Lifetime, ...]

    @property
    def backward_bytes(self) -> int:
        """Return the most bytes of a sample that the backward pass adds to what the forward pass kept."""
        changes: defaultdict[int, int] = defaultdict(int)  # by operation
        for tensor in self.lifetimes:
            if tensor.born >= self.backward:
                changes[tensor.born] += tensor.sample_bytes
            if tensor.freed is not None and tensor.freed >= self.backward:
                changes[tensor.freed + 1] -= tensor.sample_bytes
        added = accumulate((changes[operation] for operation in sorted(changes)), initial=0)
        return max(added)

    @property
    def gradients(self) -> list[Lifetime]:
        """Return the tensors that stay after the backward pass: the gradients of weights."""
        return [tensor for tensor in self.lifetimes if tensor.freed is None]


def to_text(tensors: BlockTensors) -> str:
    """Write the tensors of a block in one line, which `from_text` reads."""
    words = (
        f"{tensor.sample_bytes}+{tensor.bytes}@{tensor.born}-{'' if tensor.freed is None else tensor.freed}"
        for tensor in tensors.lifetimes
    )
    return " ".join([str(tensors.backward), *words])


@cache
def from_text(text: str) -> BlockTensors:
    """Read the tensors of a block from the words that `to_text` wrote."""
    backward, *words = text.split()
    return BlockTensors(int(backward), tuple(map(_lifetime, words)))


def _lifetime(word: str) -> Lifetime:
    size, _, time = word.partition("@")
    sample_bytes, _, more = size.partition("+")
    born, _, freed = time.partition("-")
    return Lifetime(int(sample_bytes), int(more), int(born), int(freed) if freed else None)


def notable(lifetimes: Iterable[Lifetime]) -> tuple[Lifetime, ...]:
    """Leave out tensors that are small for any number of samples: they share separate segments."""
    return tuple(tensor for tensor in lifetimes if tensor.bytes > SMALL or tensor.sample_bytes >= SMALL >> 7)
