"""Transposed copies in Triton, in tiles whose rows and columns fill whole lines of the memory's cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64  # of a tile


def write_transposed(matrix: Tensor, out: Tensor) -> None:
    """Write a contiguous matrix to `out`, whose rows are the matrix's columns and may be apart."""
    rows, columns = matrix.shape
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
    _transpose_kernel[grid](matrix, out, rows, columns, out.stride(0), ROWS, COLUMNS, num_warps=8)


@triton.jit
def _transpose_kernel(
    matrix, out, rows, columns, stride, tile_rows: tl.constexpr, tile_columns: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    column = tl.program_id(1).to(tl.int64) * tile_columns + tl.arange(0, tile_columns)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(matrix + row[:, None] * columns + column[None, :], inside)
    inside = (column < columns)[:, None] & (row < rows)[None, :]
    tl.store(out + column[:, None] * stride + row[None, :], tl.trans(tile), inside)
