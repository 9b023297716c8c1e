"""Whole numbers with contents beside floats without: for code that reads what it computed.

A mixture's loop over its experts asks which of them the router chose, and attention with a window asks which
positions see all others. Such code stops at tensors without contents. Here, whole numbers and truth values
are computed, as if every float without contents was 0, and so are the few floats that follow from them alone.
Reliance on internals of torch (see the package's docstring). Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

# Elements of a tensor of whole numbers that is computed. Larger ones have no contents, and are read as 0.
MOST_COMPUTED = 2**24
MOST_FLOATS = 2**20  # elements of floats that are computed because they follow from whole numbers alone


def known_integers() -> Any:
    """Return a context, to be entered inside of `fake_tensors()`, in which whole numbers have contents.

    Relies on: FakeTensor and `unset_fake_temporarily` of the private module `torch._subclasses.fake_tensor`,
    on its exceptions, as `torch_inside.needs_contents` does, and on TorchDispatchMode. No issue known.
    Remove when torch can compute some of a pass's tensors and not the others.
    """
    return _mode()()


@cache
def _mode() -> Callable[[], Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    from bench.training.vendor.torch_inside import needs_contents

    aten = torch.ops.aten
    empty = (aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default)

    def is_float(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())

    def is_known(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not (isinstance(value, FakeTensor) or value.is_meta)

    def as_zeros(value: Any) -> Any:
        """Return numbers that are all 0, in memory for one, in place of a tensor without contents."""
        if isinstance(value, torch.Tensor) and not is_known(value):
            return torch.zeros((), dtype=value.dtype).expand(value.shape)
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def without_contents(value: Any, device: Any) -> Any:
        """Return a tensor without contents in place of a tensor with contents."""
        if not is_known(value):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    def floats_without(value: Any, device: Any) -> Any:
        return without_contents(value, device) if is_float(value) else value

    def computed(func: Any, args: Any, kwargs: Any) -> Any:
        with unset_fake_temporarily():
            args, kwargs = tree_map(as_zeros, (args, kwargs))
            found = func(*args, **kwargs)
            return found.zero_() if func in empty else found

    def in_numbers(index: Any) -> Any:
        """Return the places that an index of truth values stands for, as whole numbers."""
        places = []
        for one in index:
            if is_known(one) and one.dtype in (torch.bool, torch.uint8):
                with unset_fake_temporarily():
                    places += one.nonzero(as_tuple=True)
            else:
                places.append(one)
        return places

    def large_without(value: Any) -> Any:
        large = is_float(value) and value.numel() > MOST_FLOATS
        return without_contents(value, "cpu") if large else value

    def made(known: Any, without: Any) -> Any:
        """Return whole numbers of the first result, and floats of the second."""
        return without if is_float(without) or not isinstance(without, torch.Tensor) else known

    def of_nothing(func: Any, args: Any, kwargs: Any) -> Any:
        """Make a tensor: floats have no contents if they are many, or are to be filled."""
        without = func(*args, **kwargs)
        if is_float(without) and (func in empty or without.numel() > MOST_FLOATS):
            return without
        return computed(func, args, kwargs)

    class KnownIntegers(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
                args = (args[0], in_numbers(args[1]), *args[2:])
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if not given:
                return of_nothing(func, args, kwargs)
            all_known = all(map(is_known, given))
            device = next((leaf.device for leaf in given if not is_known(leaf)), "cpu")
            try:
                with_none = tree_map(partial(without_contents, device=device), (args, kwargs))
                without = func(*with_none[0], **with_none[1])
            except Exception as error:
                if not needs_contents(error):
                    raise
                found = computed(func, args, kwargs)
                return tree_map(large_without if all_known else partial(floats_without, device=device), found)
            results = [leaf for leaf in tree_leaves(without) if isinstance(leaf, torch.Tensor)]
            if all(map(is_float, results)) and not all_known:
                return without
            if max((leaf.numel() for leaf in results), default=0) > MOST_COMPUTED:
                return without
            known = computed(func, args, kwargs)
            return tree_map(large_without, known) if all_known else tree_map(made, known, without)

    return KnownIntegers
