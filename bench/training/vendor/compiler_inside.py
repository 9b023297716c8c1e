"""Reliance on internals of torch's compiler (see the package's docstring). Imports torch only when called."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Modules that the first compilation imports. Relies on: their private names, for `import_module`; the process
# that imports them ahead ignores a failure, so a renamed module costs one second per trial.
# No issue known. Remove when `import torch` loads the compiler itself.
COMPILER_MODULES = ("torch._dynamo", "torch._inductor.compile_fx")
CHEAP_OPERATIONS = 2  # of a part that is little more than a copy, by the compiler's own count


def fail_instead_of_eager() -> None:
    """Make a graph that cannot be compiled, or is recompiled without end, raise instead of running eagerly.

    Relies on: three private settings of dynamo; `recompile_limit` was once `cache_size_limit`.
    Why: a trial must never be timed as compiled when it is not.
    https://github.com/pytorch/pytorch/pull/87440 (suppress_errors)
    Remove when torch.compile takes these as arguments without requiring one graph (`fullgraph`).
    """
    import torch

    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = 64  # all blocks of a model may differ


def keep_graphs_whole_under_ddp() -> None:
    """Stop dynamo from splitting graphs at the ends of DDP's gradient buckets.

    Relies on: the private setting `optimize_ddp` of dynamo. Why: splitting gains nothing for a single block,
    and breaks checkpointing, because the recomputed graph is not split and saves other tensors.
    https://github.com/pytorch/pytorch/issues/144035 and https://github.com/pytorch/pytorch/issues/104674
    Remove when both issues' case works with `optimize_ddp` on.
    """
    import torch

    torch._dynamo.config.optimize_ddp = False


def keep_compiled_code_apart() -> None:
    """Let the compiler's caches return only code that was compiled beside the same code of bench.

    Relies on: `cache_key_tag` of torch.compiler.config, which is part of every key. Why: compiled code states
    the form of what bench's operators return, and calls them by their names alone. After a change of an
    operator, code that was kept from before fails or computes something else. No issue known.
    Remove when the keys contain the source of the operators that compiled code calls.
    """
    import torch

    if (tag := f"+bench-{_own_code()}") not in torch.compiler.config.cache_key_tag:
        torch.compiler.config.cache_key_tag += tag


@cache
def _own_code() -> str:
    """Return a digest of the files that define operators, models, and how the compiler treats them."""
    bench, digest = Path(__file__).parents[2], hashlib.sha256()
    for folder in ("training", "runner/trial"):
        for file in sorted((bench / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def wait_between_reduction_loops() -> None:
    """Let a compiled kernel wait for all of its threads before it reads what an earlier loop of it wrote.

    Relies on: the private class TritonKernel of the compiler, its attribute `cse.invalidated_stores`, which
    has the tensors that an earlier loop wrote, and `body`, to which a loop's lines are added when it ends.
    Why: a thread may read a value before another thread has written it. Gradients of Gemma 3 with heads of
    256 elements and two groups of keys were then 250,000 times too large (docs/methods.md).
    https://github.com/pytorch/pytorch/issues/190517 Remove when all supported versions of torch wait.
    """
    import torch
    from torch._inductor.codegen.triton import TritonKernel

    if getattr(TritonKernel.load, "waits", False):
        return
    load = TritonKernel.load

    def waiting_load(kernel: Any, name: str, index: Any) -> Any:
        waited_for = vars(kernel).setdefault("waited_for", set())
        if name in kernel.cse.invalidated_stores - waited_for:
            kernel.body.writeline("tl.debug_barrier()")
            waited_for |= kernel.cse.invalidated_stores
        return load(kernel, name, index)

    waiting_load.waits = True  # type: ignore[attr-defined]
    TritonKernel.load = waiting_load
    torch.compiler.config.cache_key_tag += "+waits"  # otherwise the caches return kernels that do not wait


def read_rows_without_dimension() -> None:
    """Let a compiled kernel that computes one row a program read values that belong to the row alone.

    Relies on: the private class TritonSymbols of the compiler, whose `get_block_shape` reads symbols of an
    expression, and on the kernel's ranges. Why: for a row, which is no dimension of the kernel's tensors,
    torch 2.11 fails with "TypeError: list indices must be integers or slices, not NoneType". It compiled
    neither Falcon-H1 nor Granite 4 on an H200. No issue known.
    Remove when all supported versions of torch look for ranges without a dimension, as 2.13 does.
    """
    from types import SimpleNamespace

    from torch._inductor.codegen import triton
    from torch.utils._sympy.symbol import symbol_is_type

    symbols = triton.TritonSymbols
    if "tensor_dim is None" in inspect.getsource(symbols.get_block_shape):
        return
    block_shape = symbols.get_block_shape.__func__

    def of_dimensions(cls: Any, expression: Any) -> Any:
        # A range whose tensor_dim is None is a row; its symbols have no part in the shape.
        rows = [tree.symt for tree in triton.V.kernel.active_range_trees() if tree.tensor_dim is None]
        others = {one for one in expression.free_symbols if not any(symbol_is_type(one, row) for row in rows)}
        return block_shape(cls, SimpleNamespace(free_symbols=others))

    symbols.get_block_shape = classmethod(of_dimensions)


def compute_parts_apart() -> None:
    """Let the compiler compute each part of a concatenated tensor on its own, if a product reads the tensor.

    Relies on: the private table `lowerings` of the compiler, `is_pointwise_use`, ConcatKernel, and
    `inner_fn_opcount` of a Pointwise. Why: for up to eight parts the compiler writes one kernel that computes
    every part for every element, and then chooses one. The gradient of ModernBERT's gated GELU, a tensor of
    two parts, took 710 us where its bytes need 215 (docs/methods.md). A part that an elementwise kernel reads
    is still fused into it. No issue known; torch 2.13 skips such kernels if parts share what they read.
    Remove when all supported versions of torch do.
    """
    import torch
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    operator, padding = torch.ops.aten.cat.default, torch.ops.aten.constant_pad_nd.default
    together = lowering.lowerings[operator]
    if hasattr(together, "together"):
        return

    def computes(part: Any) -> bool:
        while isinstance(part, ir.TensorBox | ir.StorageBox):
            part = part.data
        return isinstance(part, ir.Pointwise) and part.inner_fn_opcount().num_ops > CHEAP_OPERATIONS

    def cat(parts: Sequence[Any], dim: int = 0) -> Any:
        users = V.graph.current_node.users
        fused = all(lowering.is_pointwise_use(use, (operator, padding).__contains__) for use in users)
        alike = len({(part.get_dtype(), len(part.get_size())) for part in parts}) == 1
        if fused or not alike or len(parts) < 2 or not any(computes(part) for part in parts):
            return together(parts, dim)
        return ir.TensorBox(ir.ConcatKernel.create(parts, dim % len(parts[0].get_size())))

    cat.together = together  # type: ignore[attr-defined]
    lowering.lowerings[operator] = cat
    torch.compiler.config.cache_key_tag += "+parts-apart"  # otherwise the caches return the other kernels


def compute_once(operator: torch._ops.OpOverload) -> None:
    """Let compiled code call an operator once for all calls of a graph that have the same first argument.

    Relies on: the private table `lowerings` of the compiler, and `fallback_handler`, by which it calls
    operators that it does not know. Why: bench gives operators a second argument only to tell when they run,
    and the compiler takes two calls for one if all arguments are the same. No issue known.
    Remove when an operator can be declared to run in the backward pass.
    """
    import torch
    from torch._inductor import lowering
    from torch._inductor.virtualized import V

    if hasattr(lowering.lowerings.get(operator), "calls_once"):
        return
    call = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def first_result(*arguments: Any) -> Any:
        results = vars(V.graph).setdefault("results_computed_once", {})
        key = operator, V.graph.current_node.args[0]
        if key not in results:
            results[key] = call(*arguments)
        return results[key]

    first_result.calls_once = True  # type: ignore[attr-defined]
    lowering.lowerings[operator] = first_result
    torch.compiler.config.cache_key_tag += f"+once-{operator}"  # otherwise the caches return the other code
