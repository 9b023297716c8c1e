"""Refusals of operators that torch raises for tensors with contents, and not for those without.

A pass without contents multiplies an fp32 tensor by weights in half precision, and fills a tensor in half
precision with the least fp32 number. With contents, on a CPU and on a GPU, torch raises RuntimeError.
Reliance on internals of torch (see the package's docstring). Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


class KernelRefuses(RuntimeError):
    """A call that kernels refuse, on a GPU as on a CPU, with autocast and without."""


def kernel_rules() -> Any:
    """Return a context in which operators without contents raise KernelRefuses where kernels would raise.

    Relies on: TorchDispatchMode, and the names and arguments of operators. No issue known.
    Remove when tensors without contents refuse these calls.
    """
    return _mode()()


@cache
def _mode() -> Callable[[], Any]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    aten = torch.ops.aten
    of_one_precision = {
        aten.mm, aten.addmm, aten.convolution, aten.native_layer_norm, aten.native_group_norm,
        aten.index_add, aten.index_add_, aten.index_copy, aten.index_copy_,
    }  # fmt: skip
    fill = {aten.masked_fill.Scalar, aten.masked_fill_.Scalar}

    class KernelRules(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func.overloadpacket in of_one_precision:
                tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
                found = dict.fromkeys(str(one.dtype) for one in tensors if one.is_floating_point())
                if len(found) > 1:
                    raise KernelRefuses(f"{func.overloadpacket} takes no tensors of {' and '.join(found)}")
            if func in fill and args[0].is_floating_point():
                largest = torch.finfo(args[0].dtype).max
                if largest < abs(args[2]) < float("inf"):
                    raise KernelRefuses(f"{args[2]} is too large a number for {args[0].dtype}")
            return func(*args, **kwargs)

    return KernelRules
