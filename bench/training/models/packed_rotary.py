"""Attention with rotary positions whose query, key and value one linear layer returns side by side.

It is found by running a model once on a tiny input. The arithmetic of rotating is an argument, so that models
are searched and compared on any device. Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model
from bench.training.models.probe import close, model_call, on_tiny_input, taken_over, watching_attention

if TYPE_CHECKING:
    from torch import Tensor, nn

# Splits [samples, positions, heads, 3 x width] into query, key and value, and rotates the first two by tables
# of cosines and sines.
Rotate = Callable[["Tensor", "Tensor", "Tensor"], tuple["Tensor", "Tensor", "Tensor"]]
TABLES = "position_embeddings"  # the argument in which transformers hands on cosines and sines


@dataclass(frozen=True, slots=True)
class PackedRotary:
    """Causal attention whose projection returns query, key and value head by head."""

    attention: nn.Module
    projection: nn.Linear  # to query, key and value
    output: nn.Linear
    width: int  # of a head
    scale: float | None  # of scores; None: PyTorch's own
    dropout: float  # of probabilities, in training


def packed_rotary_of(
    module: nn.Module, blocks: Sequence[nn.Module], model: Model
) -> tuple[PackedRotary, ...]:
    """Return the attention of a model's blocks whose query and key can be rotated where they are packed.

    Raises LookupError if there is none, if the model cannot run on a tiny input, or if it gives another
    output when its positions are rotated so.
    """
    with on_tiny_input(module, model) as answer:
        with model_call():
            rotaries, expected = _search(blocks, answer)
        if not rotaries:
            raise LookupError("no attention has rotary positions of packed queries, keys and values")
        modules = [rotary.attention for rotary in rotaries]
        with taken_over(lambda: take_over(rotaries, rotated_by_pytorch), modules):
            if not close(answer(), expected):
                raise LookupError("the model gives another output if its positions are rotated by bench")
    return rotaries


def take_over(rotaries: Sequence[PackedRotary], rotate: Rotate) -> None:
    """Let each attention rotate by this function, and attend without a mask."""
    for rotary in rotaries:
        rotary.attention.forward = _attending(rotary, rotate)


def _attending(rotary: PackedRotary, rotate: Rotate) -> Callable[..., tuple[Tensor, None]]:
    import torch.nn.functional as F

    def forward(
        hidden_states: Tensor, *, position_embeddings: Any, attention_mask: None = None, **_: Any
    ) -> tuple[Tensor, None]:
        assert attention_mask is None, "nothing is padded here"
        samples, positions, _width = hidden_states.shape
        packed = rotary.projection(hidden_states).view(samples, positions, -1, 3 * rotary.width)
        query, key, value = (part.transpose(1, 2) for part in rotate(packed, *position_embeddings))
        dropout = rotary.dropout * rotary.attention.training
        out = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, scale=rotary.scale
        )
        return rotary.output(out.transpose(1, 2).reshape(samples, positions, -1)), None

    return forward


def rotated_by_pytorch(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split and rotate as PyTorch does it, on any device.

    Of a head's first numbers, as many as a table has, each in the first half forms a pair with one in the
    second half; the numbers after them stay.
    """
    import torch

    rotated, (query, key, value) = cos.size(-1), packed.chunk(3, dim=-1)
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)  # one for all heads

    def turn(part: Tensor) -> Tensor:
        turning, staying = part[..., :rotated], part[..., rotated:]
        first, second = turning.chunk(2, dim=-1)
        return torch.cat((turning * cos + torch.cat((-second, first), dim=-1) * sin, staying), dim=-1)

    return turn(query), turn(key), value


def _search(
    blocks: Sequence[nn.Module], answer: Callable[[], Tensor]
) -> tuple[tuple[PackedRotary, ...], Tensor]:
    """Run a model once, without gradients; return the attention that fits, and the model's output."""
    called: dict[nn.Module, PackedRotary | None] = {}  # None: not known to be of this form
    calls: list[Mapping[str, Any]] = []  # of PyTorch's attention

    def enter(part: nn.Module, _given: Any, _named: Any) -> None:
        part.training = True  # it alone, so that it says with which dropout it attends
        calls.clear()

    def leave(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        part.training = False
        call = calls[0] if len(calls) == 1 and part not in called else None
        called[part] = _packed(part, call, given, named, result) if call else None

    with ExitStack() as stack:
        for part in {part: None for block in blocks for part in block.modules() if _linear_layers(part)}:
            stack.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(leave, with_kwargs=True).remove)
        stack.enter_context(watching_attention(calls.append))
        expected = answer()
    return tuple(rotary for rotary in called.values() if rotary), expected


def _linear_layers(part: nn.Module) -> tuple[nn.Linear, nn.Linear] | None:
    """Return the linear layers of a module that has two, the one with three times the output first."""
    from torch import nn

    layers = [layer for layer in part.children() if isinstance(layer, nn.Linear)]
    if len(layers) != 2 or "forward" in vars(part):
        return None
    output, packed = sorted(layers, key=lambda layer: layer.out_features)
    return (packed, output) if packed.out_features == 3 * output.in_features else None


def _packed(
    part: nn.Module, call: Mapping[str, Any], given: tuple[Any, ...], named: Mapping[str, Any], result: Any
) -> PackedRotary | None:
    """Return a module as attention of this form, if its call and its result are those of that form."""
    import torch

    layers, tables = _linear_layers(part), named.get(TABLES)
    hidden = given[0] if len(given) == 1 else named.get("hidden_states") if not given else None
    causal = call["is_causal"] and call["attn_mask"] is None and not call["enable_gqa"]
    if not (layers and causal and isinstance(hidden, torch.Tensor) and hidden.dim() == 3):
        return None
    if not (isinstance(tables, tuple) and len(tables) == 2 and all(table.dim() == 3 for table in tables)):
        return None
    if not (isinstance(result, tuple) and len(result) == 2 and result[1] is None):
        return None
    width = call["query"].size(-1)
    if layers[0].out_features % (3 * width) or tables[0].size(-1) > width or tables[0].size(-1) % 2:
        return None
    rotary = PackedRotary(part, *layers, width, call["scale"], call["dropout_p"])
    seen: list[Tensor] = []  # what attention reads, if the module is of this form: scores near zero hide it

    def rotate(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rotated = rotated_by_pytorch(*given)
        seen.extend(rotated)
        return rotated

    again, _ = _attending(replace(rotary, dropout=0.0), rotate)(hidden, position_embeddings=tables)
    read = [call[name] for name in ("query", "key", "value")]
    alike = [close(mine.transpose(1, 2), theirs) for mine, theirs in zip(seen, read, strict=True)]
    return rotary if all(alike) and close(again, result[0]) else None
