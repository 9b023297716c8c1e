"""A tiny input on which a model runs once it is built, so that its parts can be found.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model
from bench.training.objectives.objective import Part

if TYPE_CHECKING:
    from torch import Tensor, nn

SAMPLES, POSITIONS = 2, 8
# Difference that rounding may make, as a share of the largest value: TF32 rounds in every layer. Other
# arithmetic changes values by a tenth and more.
ROUNDING = 1e-2


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Let a model drop no units and keep no activations within the context.

    Afterwards its modules have the attributes and parts that they had: on a short sample, for instance, the
    code of BigBird replaces sparse attention by full attention for good. Contents of tensors stay changed.
    """
    import torch

    before = [(part, dict(vars(part)), dict(part._modules)) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, attributes, parts in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._modules.clear()
            part._modules.update(parts)


@contextmanager
def on_tiny_input(module: nn.Module, model: Model) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that calls a built model on a tiny input; the model is at rest within the context."""
    with at_rest(module):
        yield partial(model.recipe.aim.answer, module, tiny_input(module, model))


@contextmanager
def model_call(
    *passing: type[Exception], failing: str = "the model cannot run on a tiny input"
) -> Iterator[None]:
    """Raise LookupError, which begins with `failing`, for any error of a call but those in `passing`."""
    try:
        yield
    except passing:
        raise
    except Exception as error:  # an architecture's code may raise anything
        raise LookupError(f"{failing}: {error}"[:200]) from error


@contextmanager
def taken_over(take_over: Callable[[], None], parts: Sequence[nn.Module]) -> Iterator[None]:
    """Replace forward passes of `parts` by `take_over` within the context."""
    take_over()
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def tiny_input(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """Return small inputs for a built model: a few samples of a few tokens, or of images of full size."""
    return {name: part for name, part in tiny_batch(module, model).items() if name != "labels"}


def tiny_batch(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """Return a batch of a few samples of a few tokens, or of images of full size."""
    import torch

    recipe = model.recipe
    small = replace(
        recipe,
        sequence_length=recipe.sequence_length and POSITIONS,
        target_length=recipe.target_length and POSITIONS,
    )
    parts = recipe.aim.parts(model.architecture, small)
    device, random = next(module.parameters()).device, torch.Generator("cpu").manual_seed(0)

    def contents(part: Part) -> Tensor:
        shape = (SAMPLES, *part.shape)
        if part.elements in ("pixels", "numbers"):
            return torch.rand(shape, generator=random, device="cpu").to(device)
        if part.elements == "ends":  # a single document
            return torch.full(shape, part.below - 1, device=device)
        alternating = torch.arange(math.prod(shape), device=device).view(shape) % min(2, part.below)
        return alternating.bool() if part.elements == "flags" else alternating

    return {part.name: contents(part) for part in parts}


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    if found.shape != expected.shape:
        return False
    limit = ROUNDING * float(expected.abs().max()) if expected.numel() else 0.0
    return not expected.numel() or float((found - expected).abs().max()) <= limit


AttentionCall = Mapping[str, Any]  # arguments of PyTorch's attention, by their names


@contextmanager
def watching_attention(tell: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Tell the arguments of each call of PyTorch's fused attention, which drops nothing in the context."""
    with _watching_attention()(tell):
        yield


@cache
def _watching_attention() -> Any:
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}

    class WatchingAttention(TorchFunctionMode):
        def __init__(self, tell: Callable[[AttentionCall], None]) -> None:
            super().__init__()
            self.tell = tell

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if func is not scaled_dot_product_attention:
                return func(*args, **(kwargs or {}))
            call = defaults | dict(zip(names, args, strict=False)) | dict(kwargs or {})
            self.tell(call)
            return func(**call | {"dropout_p": 0.0})

    return WatchingAttention
