"""CUDA's rules of mixed precision, imitated on the CPU for models on tensors without contents.

Memory can so be counted without a GPU, and a floor's products be recorded. Imports torch only when called, in
the process of dry_build.py, in a worker and in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def half_of(precision: str) -> torch.dtype | None:
    """Return the precision in which autocast computes; None for fp32."""
    import torch

    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}[precision]


def as_on_cuda(*, autocast: bool) -> Any:
    """Return a context with CUDA's rules: dropout keeps one byte an element; autocast computes listed
    operations in fp32. No layer is skipped at random: a random number on its own, by which architectures
    decide that, is 1.

    The list is that of torch's documentation of mixed precision ("CUDA Ops that can autocast to float32"),
    without losses and trigonometry; the CPU's own list is shorter.
    """
    return _as_on_cuda()(autocast)


@cache
def _as_on_cuda() -> Callable[[bool], Any]:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    names = (
        "__pow__", "__rpow__", "cumprod", "cumsum", "exp", "expm1", "log", "log10", "log1p", "log2",
        "log_softmax", "norm", "pow", "prod", "reciprocal", "rsqrt", "softmax", "sum",
    )  # fmt: skip
    layers = ("group_norm", "layer_norm", "log_softmax", "normalize", "softmax", "softmin", "softplus")
    raised = {getattr(F, name) for name in layers}
    raised |= {getattr(place, name) for place in (torch, Tensor) for name in names if hasattr(place, name)}
    halves = (torch.bfloat16, torch.float16)

    def raised_to_fp32(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype in halves else value

    class AsOnCuda(TorchFunctionMode):
        def __init__(self, autocast: bool) -> None:
            super().__init__()
            self.autocast = autocast

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            given = kwargs or {}
            if func is torch.rand and args in (([],), ((),)):
                return 1.0
            if func is F.dropout:
                given = {**dict(zip(("input", "p", "training"), args, strict=False)), **given}
                if given.get("training", True) and given.get("p", 0.5) > 0:
                    return torch.native_dropout(given["input"], given.get("p", 0.5), True)[0]
                return given["input"]
            if self.autocast and func in raised:
                args = [raised_to_fp32(value) for value in args]
                given = {name: raised_to_fp32(value) for name, value in given.items()}
            return func(*args, **given)

    return AsOnCuda
