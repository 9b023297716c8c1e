"""GPT-NeoX's attention with rotary positions in Triton: each number read and written once.

The projection gives query, key and value side by side, head by head. Compiled from transformers' code, the
way back through slices and concatenations runs at a quarter of the memory's rate, and its results lie
otherwise than attention wants them (docs/methods.md). Here all lies as the projections have it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS = 16  # heads of positions, of one program


def forward_of(attention: nn.Module) -> Any:
    """The same attention, with the same parameters and without a mask."""

    def forward(
        hidden: Tensor, attention_mask: None = None, position_embeddings: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        assert attention_mask is None, "nothing is padded here"
        samples, positions, _width = hidden.shape
        packed = attention.query_key_value(hidden)
        packed = packed.view(samples, positions, -1, 3 * attention.head_size)
        query, key, value = (part.transpose(1, 2) for part in _turned(packed, *position_embeddings))
        out = F.scaled_dot_product_attention(
            query, key, value, dropout_p=attention.attention_dropout * attention.training,
            is_causal=True, scale=attention.scaling,
        )  # fmt: skip
        return attention.dense(out.transpose(1, 2).reshape(samples, positions, -1)), None

    return forward


# Operators of their own, so that torch.compile takes them as they are.


@torch.library.custom_op("bench::rotary", mutates_args=())
def _turned(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[samples, positions, heads, 3 x width] to three of [samples, positions, heads, width]."""
    packed = packed.contiguous()
    width = packed.shape[-1] // 3
    query, key, value = (packed.new_empty(*packed.shape[:-1], width) for _ in range(3))
    _launch(packed.split(width, -1), (query, key, value), cos, sin, back=False)
    return query, key, value


@torch.library.custom_op("bench::rotary_gradient", mutates_args=())
def _turned_back(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turned the other way: what the loss makes of the three, side by side again."""
    packed = query.new_empty(*query.shape[:-1], 3 * query.shape[-1])
    parts = (query.contiguous(), key.contiguous(), value.contiguous())
    _launch(parts, packed.split(query.shape[-1], -1), cos, sin, back=True)
    return packed


def _launch(given: Any, made: Any, cos: Tensor, sin: Tensor, *, back: bool) -> None:
    samples, positions, heads, width = given[0].shape
    strides = (width, 3 * width) if back else (3 * width, width)
    cos, sin = cos.contiguous(), sin.contiguous()
    turned = cos.shape[-1]
    rows = samples * positions * heads
    tables = cos.numel() // turned  # of positions: one for all samples, or one for each
    _turn[(triton.cdiv(rows, ROWS),)](
        *given, *made, cos, sin, rows, heads, tables, *strides,
        width, turned, triton.next_power_of_2(width), ROWS, back,
    )  # fmt: skip


@_turned.register_fake
def _(packed: Tensor, _cos: Tensor, _sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*packed.shape[:-1], packed.shape[-1] // 3)
    return packed.new_empty(shape), packed.new_empty(shape), packed.new_empty(shape)


@_turned_back.register_fake
def _(query: Tensor, _key: Tensor, _value: Tensor, _cos: Tensor, _sin: Tensor) -> Tensor:
    return query.new_empty(*query.shape[:-1], 3 * query.shape[-1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None, None]:
    return _turned_back(query, key, value, *ctx.saved_tensors), None, None


torch.library.register_autograd("bench::rotary", _backward, setup_context=_keep)


@triton.jit
def _turn(
    query, key, value, to_query, to_key, to_value, cos, sin, rows, heads, tables, stride, to_stride,
    width: tl.constexpr, turned: tl.constexpr, columns: tl.constexpr, many: tl.constexpr, back: tl.constexpr,
):  # fmt: skip
    """Some heads of some positions. The first half of the numbers that turn pair up with the second half."""
    row = tl.program_id(0).to(tl.int64) * many + tl.arange(0, many)[:, None]
    column = tl.arange(0, columns)[None, :]
    inside = (row < rows) & (column < width)
    turns = inside & (column < turned)
    first = column < turned // 2
    other = tl.where(first, column + turned // 2, column - turned // 2)
    place = row // heads % tables * turned + column
    c = tl.load(cos + place, turns, 1.0).to(tl.float32)
    s = tl.load(sin + place, turns, 0.0).to(tl.float32)
    # Turned by the angle, or back by it.
    s = tl.where(first != back, -s, s)
    source, target = row * stride, row * to_stride + column
    q = tl.load(query + source + column, inside, 0.0).to(tl.float32) * c
    q += tl.load(query + source + other, turns, 0.0).to(tl.float32) * s
    tl.store(to_query + target, q, inside)
    k = tl.load(key + source + column, inside, 0.0).to(tl.float32) * c
    k += tl.load(key + source + other, turns, 0.0).to(tl.float32) * s
    tl.store(to_key + target, k, inside)
    tl.store(to_value + target, tl.load(value + source + column, inside, 0.0), inside)
