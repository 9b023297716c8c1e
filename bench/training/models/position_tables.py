"""Tables of positions that a model adds to its embeddings of words, for weights in half precision.

Imports torch only when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.models.cuda_autocast import half_of

if TYPE_CHECKING:
    from torch import nn


def lower_position_tables(module: nn.Module, precision: str) -> None:
    """Give tables of positions the precision of the embeddings that they are added to, in place.

    `precision` is that of the recipe, which trains in half precision.
    A sum with a table in fp32 would be in fp32, and the weights that it meets are not. Such a table is a
    buffer of a module without weights, and has rows as wide as those of an embedding. Tables of rotary
    positions have rows as wide as a head at most, and stay as they are.
    """
    from torch import nn

    half = half_of(precision)
    assert half is not None
    widths = {part.embedding_dim for part in module.modules() if isinstance(part, nn.Embedding)}
    for part in module.modules():
        if any(True for _ in part.parameters()):
            continue
        for name, table in part.named_buffers(recurse=False):
            if table.is_floating_point() and table.dim() == 2 and table.size(-1) in widths:
                setattr(part, name, table.to(half))
