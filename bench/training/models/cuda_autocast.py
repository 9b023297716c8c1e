"""CUDA's rules of mixed precision, imitated on the CPU so that memory can be counted without a GPU.

Imports torch only when called, in the process of dry_build.py and in tests.
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

    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def as_on_cuda(*, autocast: bool) -> Any:
    """Return a context with CUDA's rules: dropout keeps one byte an element; autocast computes listed
    operations in fp32.

    The list has those operations that families use ("CUDA Ops that can autocast to float32" in torch's
    documentation of mixed precision); the CPU's own list is shorter.
    """
    return _as_on_cuda()(autocast)


@cache
def _as_on_cuda() -> Callable[[bool], Any]:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    raised = {
        F.layer_norm, F.rms_norm, F.softmax, F.softplus, F.log_softmax, torch.exp, torch.rsqrt, Tensor.pow,
        torch.pow,
    }  # fmt: skip

    class AsOnCuda(TorchFunctionMode):
        def __init__(self, autocast: bool) -> None:
            super().__init__()
            self.autocast = autocast

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            given = kwargs or {}
            if func is F.dropout and given.get("training", True) and given["p"] > 0:
                return torch.native_dropout(args[0], given["p"], True)[0]
            if self.autocast and func in raised:
                halves = (torch.bfloat16, torch.float16)
                args = [a.float() if isinstance(a, Tensor) and a.dtype in halves else a for a in args]
            return func(*args, **given)

    return AsOnCuda
