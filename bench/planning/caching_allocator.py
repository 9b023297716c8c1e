"""How PyTorch's caching allocator divides a GPU's memory: in segments that it keeps, and in blocks of them.

The rules are those of c10/cuda/CUDACachingAllocator.cpp in torch 2.11, without expandable segments. Sizes in
bytes. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

SMALLEST = 512  # sizes are rounded up to a multiple of it
SMALL = 1 << 20  # blocks up to this size have separate segments, shared by many
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
OWN_SEGMENT = 10 << 20  # a block from this size on gets a segment of its size, unless a free one fits
ROUNDED = 2 << 20  # such segments are rounded up to a multiple of it


@dataclass(eq=False, slots=True)
class MemoryBlock:
    """A part of a segment, between its neighbours there."""

    small: bool  # whether its segment is one of small blocks
    segment: int
    offset: int
    size: int
    before: MemoryBlock | None = None
    after: MemoryBlock | None = None
    free: bool = False


# A free block after its size, segment and offset, which give the order in which free blocks are taken. These
# three differ for any two blocks, so that the blocks themselves are never compared.
FreeBlock = tuple[int, int, int, MemoryBlock]


@dataclass(slots=True)
class CachingAllocator:
    """The allocator's state: its segments, and the free blocks in them."""

    reserved: int = 0  # in all segments
    allocated: int = 0  # in the blocks that are in use
    segments: int = 0  # ever reserved
    free_small: list[FreeBlock] = field(default_factory=list)  # sorted
    free_large: list[FreeBlock] = field(default_factory=list)

    def allocate(self, size: int) -> MemoryBlock:
        """Take the smallest free block that is large enough, else a new segment; its rest stays free."""
        size = max(1, -(-size // SMALLEST)) * SMALLEST
        small = size <= SMALL
        places = self.free_small if small else self.free_large
        at = bisect_left(places, (size,))
        if at < len(places):
            found = places.pop(at)[3]
            found.free = False
        else:
            found = self._segment(size, small=small)
        over = found.size - size
        if over >= SMALLEST if small else over > SMALL:
            rest = MemoryBlock(small, found.segment, found.offset + size, over, found, found.after)
            if found.after:
                found.after.before = rest
            found.after, found.size = rest, size
            self._offer(rest)
        self.allocated += found.size
        return found

    def free(self, block: MemoryBlock) -> None:
        """Give a block back. It becomes one with the free blocks beside it."""
        self.allocated -= block.size
        if block.before and block.before.free:
            block = _joined(self._taken(block.before), block)
        if block.after and block.after.free:
            block = _joined(block, self._taken(block.after))
        self._offer(block)

    def empty_cache(self) -> None:
        """Return the segments that have no block in use to the GPU."""
        for places in (self.free_small, self.free_large):
            for _, _, _, block in [*places]:
                if block.before is None and block.after is None:
                    self._taken(block)
                    self.reserved -= block.size

    def _segment(self, size: int, *, small: bool) -> MemoryBlock:
        large = LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUNDED) * ROUNDED
        whole = SMALL_SEGMENT if small else large
        self.segments += 1
        self.reserved += whole
        return MemoryBlock(small, self.segments, 0, whole)

    def _offer(self, block: MemoryBlock) -> None:
        block.free = True
        places = self.free_small if block.small else self.free_large
        insort(places, (block.size, block.segment, block.offset, block))

    def _taken(self, block: MemoryBlock) -> MemoryBlock:
        block.free = False
        places = self.free_small if block.small else self.free_large
        del places[bisect_left(places, (block.size, block.segment, block.offset))]
        return block


def _joined(first: MemoryBlock, second: MemoryBlock) -> MemoryBlock:
    """Make one block of two neighbours."""
    first.size += second.size
    first.after = second.after
    if first.after:
        first.after.before = first
    return first
