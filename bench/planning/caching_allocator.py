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

Place = tuple[int, int, int]  # size, segment and offset of a block: the order in which free ones are taken


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

    @property
    def place(self) -> Place:
        return self.size, self.segment, self.offset


@dataclass(slots=True)
class CachingAllocator:
    reserved: int = 0  # in all segments
    allocated: int = 0  # in the blocks that are in use
    segments: int = 0  # ever reserved
    free_blocks: dict[Place, MemoryBlock] = field(default_factory=dict)
    places: dict[bool, list[Place]] = field(default_factory=lambda: {True: [], False: []})  # sorted, by small

    def allocate(self, size: int) -> MemoryBlock:
        """Take the smallest free block that is large enough, else a new segment; its rest stays free."""
        size = max(1, -(-size // SMALLEST)) * SMALLEST
        small = size <= SMALL
        places = self.places[small]
        at = bisect_left(places, (size, 0, 0))
        found = self._taken(self.free_blocks[places[at]]) if at < len(places) else self._segment(size, small)
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
        for block in [*self.free_blocks.values()]:
            if block.before is None and block.after is None:
                self._taken(block)
                self.reserved -= block.size

    def _segment(self, size: int, small: bool) -> MemoryBlock:
        large = LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUNDED) * ROUNDED
        whole = SMALL_SEGMENT if small else large
        self.segments += 1
        self.reserved += whole
        return MemoryBlock(small, self.segments, 0, whole)

    def _offer(self, block: MemoryBlock) -> None:
        block.free = True
        self.free_blocks[block.place] = block
        insort(self.places[block.small], block.place)

    def _taken(self, block: MemoryBlock) -> MemoryBlock:
        block.free = False
        del self.free_blocks[block.place]
        places = self.places[block.small]
        del places[bisect_left(places, block.place)]
        return block


def _joined(first: MemoryBlock, second: MemoryBlock) -> MemoryBlock:
    """Make one block of two neighbours."""
    first.size += second.size
    first.after = second.after
    if first.after:
        first.after.before = first
    return first
