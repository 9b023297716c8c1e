"""Buffers of memory-efficient attention with a bias follow from the rules of PyTorch's code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.training.vendor.efficient_attention import gradient_of_bias, seen_bias, workspace

MIB = 2**20


def heads(samples: int, count: int, length: int, width: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(samples, count, length, width, dtype=dtype, device="meta")


def test_the_first_stage_of_swin_adds_queries_gradients_up_in_384_mib() -> None:
    """128 pictures of 64 windows of 49 positions, with 3 heads of 32: a tile of 64 by 64 for each."""
    query = heads(128 * 64, 3, 49, 32)
    tiles = 128 * 64 * 3
    assert workspace(query, query).nbytes == tiles * (64 * 64 * 4 + 16)
    assert tiles * 64 * 64 * 4 == 384 * MIB


@pytest.mark.parametrize(
    ("width", "dtype", "rows", "columns"),
    [
        (64, torch.bfloat16, 64, 64),
        (96, torch.bfloat16, 128, 64),
        (128, torch.bfloat16, 128, 128),
        (64, torch.float32, 64, 64),
        (128, torch.float32, 128, 64),
        (256, torch.float32, 128, 64),
    ],
)
def test_tiles_follow_from_the_width_of_heads_and_the_precision(
    width: int, dtype: torch.dtype, rows: int, columns: int
) -> None:
    query = heads(1, 1, 512, width, dtype)
    tiles = 512 // rows * -(-width // columns)
    assert workspace(query, query).nbytes == tiles * (rows * columns * 4 + 16)


@pytest.mark.parametrize("width", [32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("named", "dtype"), [("bf16", torch.bfloat16), ("f32", torch.float32)])
def test_tiles_are_those_of_the_first_kernel_of_torch_that_takes_the_width(
    width: int, named: str, dtype: torch.dtype
) -> None:
    folder = "include/ATen/native/transformers/cuda/mem_eff_attention/kernels"
    header = (Path(torch.__file__).parent / folder / "cutlassB.h").read_text(encoding="utf-8")
    (order,) = re.findall(rf"void dispatch_cutlassB_{named}_sm80\(.*?^}}", header, flags=re.M | re.S)
    kernels = re.findall(rf"fmha_cutlassB_{named}_aligned_(\d+)x(\d+)_k(\d+)_sm80", order)
    rows, columns = next((int(i), int(j)) for i, j, widest in kernels if int(widest) >= width)
    query = heads(1, 1, rows, min(width, 128), dtype)
    value = heads(1, 1, rows, width, dtype)
    of_keys_and_values = 4 * columns * (128 + 256) * (width > 128 and dtype == torch.bfloat16)
    tiles = -(-min(width, 128) // columns)
    assert workspace(query, value).nbytes == tiles * (16 + 4 * rows * columns) + of_keys_and_values


def test_wide_heads_in_half_precision_add_gradients_of_keys_and_values_up_too() -> None:
    query = heads(1, 1, 128, 256)
    of_queries = 4 * (128 * 64 * 4 + 16)  # one tile of rows, four of columns
    assert workspace(query, query).nbytes == of_queries + 2 * 64 * 256 * 4


def test_a_bias_is_read_with_padded_rows_and_shared_by_all_samples() -> None:
    query = heads(16, 3, 49, 32)
    bias = torch.empty(1, 3, 49, 49, dtype=torch.float16, device="meta")
    seen = seen_bias(bias, query, query)
    assert seen.shape == (16, 3, 49, 49)
    assert seen.untyped_storage().nbytes() == 3 * 49 * 56 * 2


def test_aligned_rows_of_a_bias_are_not_copied() -> None:
    query = heads(16, 3, 48, 32)
    bias = torch.empty(1, 3, 48, 48, dtype=torch.float16, device="meta")
    assert seen_bias(bias, query, query).untyped_storage()._cdata == bias.untyped_storage()._cdata


def test_the_gradient_of_a_bias_is_written_for_every_sample_and_head() -> None:
    query = heads(16, 3, 49, 32)
    seen = seen_bias(torch.empty(1, 3, 49, 49, dtype=torch.float16, device="meta"), query, query)
    assert gradient_of_bias(seen).nbytes == 16 * 3 * 49 * 64 * 2
