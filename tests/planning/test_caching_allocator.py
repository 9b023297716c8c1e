"""Segments and blocks of PyTorch's caching allocator."""

from __future__ import annotations

import pytest

from bench.planning.caching_allocator import CachingAllocator

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "reserved", "allocated"),
    [
        (1, 2 * MIB, 512),  # the smallest block, in a segment of small ones
        (513, 2 * MIB, 1024),
        (MIB, 2 * MIB, MIB),
        (MIB + 1, 20 * MIB, MIB + 512),  # a segment that several large blocks share
        (10 * MIB, 10 * MIB, 10 * MIB),  # a segment of its own
        (11 * MIB, 12 * MIB, 12 * MIB),  # of an even number of MiB; up to one MiB over is not split off
    ],
)
def test_a_first_block_reserves_a_segment(size: int, reserved: int, allocated: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert (allocator.reserved, allocator.allocated) == (reserved, allocated)


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(50 * MIB)
    allocator.free(large)
    allocator.free(small)
    taken = allocator.allocate(40 * MIB)
    assert (taken.segment, taken.size) == (small.segment, 40 * MIB)
    assert allocator.allocate(60 * MIB).segment == large.segment
    assert allocator.reserved == 150 * MIB


def test_free_neighbours_become_one_block() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]  # of one segment of 20 MiB
    for part in (parts[0], parts[2], parts[1], parts[3]):
        allocator.free(part)
    assert allocator.allocate(20 * MIB).segment == parts[0].segment
    assert allocator.reserved == 20 * MIB


def test_small_and_large_blocks_never_share_a_segment() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved == 22 * MIB


def test_a_segment_is_returned_once_no_block_of_it_is_in_use() -> None:
    allocator = CachingAllocator()
    whole = allocator.allocate(100 * MIB)
    allocator.free(whole)
    kept, freed = allocator.allocate(3 * MIB), allocator.allocate(90 * MIB)
    allocator.free(freed)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.allocated) == (100 * MIB, 3 * MIB)
    allocator.free(kept)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.allocated) == (0, 0)
    assert allocator.allocate(3 * MIB).segment != whole.segment
