"""Attention of all positions to all others in fp32, in Triton on tensor cores (TF32), forward and backward.

Made for short sequences, such as the 197 patches of an image:

- One program of the backward pass has a whole head of a sample, and adds up all its gradients. Two kernels,
  one for the gradient of queries and one for those of keys and values, would both compute the scores.
- In the backward pass, what is left of the keys after whole blocks is a smaller block, and what is left of
  the queries is a whole block with zeros: for queries of two sizes, keys and values would be held in
  registers in two layouts.
- Two warps share a block of the forward pass. For four, Triton chooses instructions that can read values
  only after they were transposed in shared memory, and the pass takes longer.

Kernels take contiguous rows of `width` numbers: sample, position and head each have a stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

LEAST_ROWS = 16  # that tensor cores multiply at once
LOG2_E = tl.constexpr(1.4426950408889634)  # weights are powers of two


@dataclass(frozen=True)
class Blocks:
    """The queries and keys that a program multiplies at once, and its warps."""

    queries: int
    keys: int
    warps: int
    registers: int | None = None  # of a thread at most: with fewer, more programs share a multiprocessor


FORWARD = Blocks(64, 32, 2, 168)
BACKWARD = {16: Blocks(32, 64, 4), 32: Blocks(32, 64, 4), 64: Blocks(32, 128, 8)}  # by the width of heads


def write_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor, sums: Tensor
) -> None:
    """Write what positions read, and the logarithms of the sums of their weights, to base two.

    The first three tensors have equal strides and the shape (samples, positions, heads, width), as has
    `out`; `sums` has (samples, heads, positions). The last two are contiguous.
    """
    samples, length, heads, width = query.shape
    blocks = FORWARD
    _forward_kernel[(triton.cdiv(length, blocks.queries) * samples * heads,)](
        query, key, value, out, sums, scale, length, heads, *query.stride()[:3],
        width, blocks.queries, blocks.keys, _rest(length, blocks.queries), length % blocks.keys == 0,
        num_warps=blocks.warps, maxnreg=blocks.registers,
    )  # fmt: skip


def write_gradients(
    change: Tensor, along: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, sums: Tensor,
    of_query: Tensor, of_key: Tensor, of_value: Tensor,
) -> None:  # fmt: skip
    """Write the gradients of queries, keys and values for the change of what positions read.

    `along` is the product of the change and the result of each position, in the form of `sums`. The change
    and the gradients are contiguous.
    """
    samples, length, heads, width = query.shape
    blocks = BACKWARD[width]
    _backward_kernel[(samples * heads,)](
        change, along, query, key, value, sums, of_query, of_key, of_value, scale, length, heads,
        *query.stride()[:3],
        width, blocks.queries, blocks.keys, length % blocks.queries == 0, _rest(length, blocks.keys),
        num_warps=blocks.warps, maxnreg=blocks.registers,
    )  # fmt: skip


def _rest(length: int, block: int) -> int:
    """Return the rows of the block that takes what whole blocks leave; 0 if they leave nothing."""
    rest: int = triton.next_power_of_2(length % block) if length % block else 0
    return max(LEAST_ROWS, rest) if rest else 0


@triton.jit
def _rows(tensor, row, stride, length, width: tl.constexpr, whole: tl.constexpr):
    """Load rows, with zeros in place of rows after the last; a whole block has none of these."""
    place = tensor + row[:, None] * stride + tl.arange(0, width)[None, :]
    if whole:
        return tl.load(place)
    return tl.load(place, (row < length)[:, None], 0.0)


@triton.jit
def _store_rows(tensor, row, stride, length, numbers, width: tl.constexpr):
    place = tensor + row[:, None] * stride + tl.arange(0, width)[None, :]
    tl.store(place, numbers, (row < length)[:, None])


@triton.jit
def _product(one, other):
    return tl.dot(one, other, input_precision="tf32")


@triton.jit
def _forward_kernel(
    query, key, value, out, sums, scale, length, heads, of_sample, of_row, of_head,
    width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, last_queries: tl.constexpr,
    whole_keys: tl.constexpr,
):  # fmt: skip
    """Compute what a block of positions of one head reads."""
    blocks = tl.cdiv(length, queries)
    first, of_all = tl.program_id(0) % blocks * queries, tl.program_id(0) // blocks
    sample, head = (of_all // heads).to(tl.int64), of_all % heads
    start = sample * of_sample + head * of_head
    out += (sample * length * heads + head) * width
    sums += of_all.to(tl.int64) * length
    if first + queries <= length:
        _read_by_queries(
            query + start, key + start, value + start, out, sums, scale, first, length, of_row,
            heads * width, width, queries, keys, True, whole_keys,
        )  # fmt: skip
    elif last_queries > 0:
        _read_by_queries(
            query + start, key + start, value + start, out, sums, scale, first, length, of_row,
            heads * width, width, last_queries, keys, False, whole_keys,
        )  # fmt: skip


@triton.jit
def _read_by_queries(
    query, key, value, out, sums, scale, first, length, of_row, of_out_row,
    width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, whole_queries: tl.constexpr,
    whole_keys: tl.constexpr,
):  # fmt: skip
    """Compute what a block of positions reads, one block of keys after the other."""
    row = first + tl.arange(0, queries)
    q = _rows(query, row, of_row, length, width, whole_queries)
    read = tl.zeros((queries, width), tl.float32)
    highest = tl.full((queries,), float("-inf"), tl.float32)
    weights = tl.zeros((queries,), tl.float32)
    for at in tl.range(0, length, keys, num_stages=2):
        key_row = at + tl.arange(0, keys)
        k = _rows(key, key_row, of_row, length, width, whole_keys)
        v = _rows(value, key_row, of_row, length, width, whole_keys)
        score = _product(q, tl.trans(k)) * (scale * LOG2_E)
        if not whole_keys:
            score = tl.where((key_row < length)[None, :], score, float("-inf"))
        now = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp2(score - now[:, None])
        before = tl.exp2(highest - now)
        read = read * before[:, None] + _product(weight, v)
        weights = weights * before + tl.sum(weight, 1)
        highest = now
    _store_rows(out, row, of_out_row, length, read / weights[:, None], width)
    tl.store(sums + row, highest + tl.log2(weights), row < length)


@triton.jit
def _backward_kernel(
    change, along, query, key, value, sums, of_query, of_key, of_value, scale, length, heads,
    of_sample, of_row, of_head,
    width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, whole_queries: tl.constexpr,
    last_keys: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one head of a sample."""
    sample, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    start = sample * of_sample + head * of_head
    own = (sample * length * heads + head) * width
    of_sums = tl.program_id(0).to(tl.int64) * length
    end = length // keys * keys
    for at in tl.range(0, end, keys, num_stages=1):
        _gradients_by_keys(
            change + own, along + of_sums, query + start, key + start, value + start, sums + of_sums,
            of_query + own, of_key + own, of_value + own, scale, at, length, of_row, heads * width,
            width, queries, keys, whole_queries, True,
        )  # fmt: skip
    if last_keys > 0:
        _gradients_by_keys(
            change + own, along + of_sums, query + start, key + start, value + start, sums + of_sums,
            of_query + own, of_key + own, of_value + own, scale, end, length, of_row, heads * width,
            width, queries, last_keys, whole_queries, False,
        )  # fmt: skip


@triton.jit
def _gradients_by_keys(
    change, along, query, key, value, sums, of_query, of_key, of_value, scale, at, length, of_row, of_own_row,
    width: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, whole_queries: tl.constexpr,
    whole_keys: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and values, and add up those of all queries for them.

    The next queries and changes are loaded while the kernel multiplies.
    """
    key_row, block = at + tl.arange(0, keys), tl.arange(0, queries)
    k = _rows(key, key_row, of_row, length, width, whole_keys)
    v = _rows(value, key_row, of_row, length, width, whole_keys)
    dk, dv = tl.zeros((keys, width), tl.float32), tl.zeros((keys, width), tl.float32)
    tl.debug_barrier()  # after it, this thread can read what others added to the gradient of queries
    next_q = _rows(query, block, of_row, length, width, whole_queries)
    next_dy = _rows(change, block, of_own_row, length, width, whole_queries)
    for first in tl.range(0, length, queries, num_stages=1):
        q, dy, row = next_q, next_dy, first + block
        next_q = _rows(query, row + queries, of_row, length, width, False)
        next_dy = _rows(change, row + queries, of_own_row, length, width, False)
        # Queries after the last are zeros, and add zeros. Of keys after the last, weights would be added.
        total, along_row = tl.load(sums + row, row < length, 0.0), tl.load(along + row, row < length, 0.0)
        weight = tl.exp2(_product(k, tl.trans(q)) * (scale * LOG2_E) - total[None, :])
        if not whole_keys:
            weight = tl.where((key_row < length)[:, None], weight, 0.0)
        dv += _product(weight, dy)
        score = weight * (_product(v, tl.trans(dy)) - along_row[None, :])
        dk += _product(score, q)
        written = tl.where(at > 0, length, 0)  # rows that hold what earlier blocks of keys added
        dq = _rows(of_query, row, of_own_row, written, width, False)
        dq += _product(tl.trans(score), k) * scale
        _store_rows(of_query, row, of_own_row, length, dq, width)
    _store_rows(of_key, key_row, of_own_row, length, dk * scale, width)
    _store_rows(of_value, key_row, of_own_row, length, dv, width)
