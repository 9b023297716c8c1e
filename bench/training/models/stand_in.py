"""A function of tensors that computes nothing and has gradients for all of them.

It stands in for attention and other computations where operations are counted or recorded. Imports torch only
when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def stand_in(
    shape: Sequence[int], *given: Tensor, in_backward: Callable[[], object] = lambda: None
) -> Tensor:
    """Return a tensor of this shape that depends on the given ones; a backward pass calls `in_backward`."""
    made: Tensor = _function().apply(shape, in_backward, *given)
    return made


def empty_operator(name: str, schema: str, results: Callable[..., Any], *, ends_graph: bool = False) -> Any:
    """Register an operator of torch that computes nothing; `results` returns empty tensors of its results.

    With `ends_graph` it stands in for code that the compiler cannot look into, where a compiled graph ends.
    """
    import torch

    operator = torch.library.custom_op(f"bench::{name}", results, mutates_args=(), schema=schema)
    operator.register_fake(results)
    if ends_graph:
        _ending_graphs.add(f"bench.{name}.default")
    return operator


_ending_graphs: set[str] = set()  # operators, as torch names them in a graph


def ends_graph(operator: Any) -> bool:
    """Whether a compiled graph ends where the computation is called for which this operator stands in."""
    return str(operator) in _ending_graphs


@cache
def _function() -> Any:
    import torch

    class StandIn(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, shape: Sequence[int], in_backward: Callable[[], None], *given: Tensor
        ) -> Tensor:
            ctx.save_for_backward(*given)
            ctx.in_backward = in_backward
            return given[0].new_empty(shape)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            ctx.in_backward()
            return None, None, *map(torch.empty_like, ctx.saved_tensors)

    return StandIn
