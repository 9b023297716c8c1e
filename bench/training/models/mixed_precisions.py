"""Architectures whose code mixes precisions: with half-precision weights, they too compute under autocast.

Such code multiplies by a table in fp32, or turns what it computed into fp32, and hands the result to a
product with weights in half precision, which torch refuses. Under autocast each product casts what it
multiplies. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model

if TYPE_CHECKING:
    from torch import nn

# The plan tries every other architecture without contents, and refuses those that fail.
MIXING = frozenset({"fnet", "minimax", "mra", "openai-gpt", "swinv2", "xlstm"})


def mixes_precisions(model: Model) -> bool:
    """Whether a model computes under autocast in every setting, by the type of its architecture."""
    return model.family in MIXING


def autocast_half_weights(module: nn.Module) -> None:
    """Let a model of transformers whose weights have half precision run under autocast, in place.

    Its body is called on its own where a method computes the head apart, and then autocasts too. The code of
    DeepSpeed's engine turns autocast off that is on outside of it, so the model itself turns it on.
    """
    from torch import nn
    from transformers import PreTrainedModel

    for part in module.modules():
        if isinstance(part, PreTrainedModel):
            part.forward = _autocasting(part, part.forward)
        elif type(part) is nn.LayerNorm:
            part.__class__ = _norm_in_one_precision()


@cache
def _norm_in_one_precision() -> type[nn.LayerNorm]:
    import torch.nn.functional as F
    from torch import Tensor, nn

    class NormInOnePrecision(nn.LayerNorm):
        """A norm whose weights get the precision of a more precise input: autocast on a CPU casts neither."""

        def forward(self, given: Tensor) -> Tensor:
            """Return the norm of an input in half precision, or in fp32 beside weights in half precision."""
            weight, bias = self.weight, self.bias
            if given.dtype.itemsize > weight.dtype.itemsize:
                weight, bias = weight.to(given.dtype), None if bias is None else bias.to(given.dtype)
            return F.layer_norm(given, self.normalized_shape, weight, bias, self.eps)

    return NormInOnePrecision


def _autocasting(model: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    halves = (torch.bfloat16, torch.float16)

    @wraps(forward)
    def call(*given: Any, **named: Any) -> Any:
        weight = next(model.parameters())
        device = weight.device.type
        if weight.dtype not in halves or not torch.amp.is_autocast_available(device):  # on "meta" it is not
            return forward(*given, **named)
        with torch.autocast(device, dtype=weight.dtype):
            return forward(*given, **named)

    return call
