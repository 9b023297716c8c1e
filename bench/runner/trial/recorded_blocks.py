"""Blocks in a recorded pass: one of each kind runs both ways, and is counted for all that are built alike.

Imports torch at module level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bench.training.models.repeated_blocks import UnlikeBlocks, forwards_replaced, kind_name


class Counts(Protocol):
    """An object that counts computations."""

    counts: Counter[str]


@dataclass
class _Ran:
    """A block that ran, and what it computed; its graph stays for the backward passes of all of its kind."""

    inputs: list[Tensor]  # of which gradients are asked, weights too
    outputs: list[Tensor]
    structure: Any  # leaves and form of what the block returns; `outputs` are the tensors among the leaves
    forward: Counter[str]
    # By which of the outputs have gradients.
    backward: dict[tuple[bool, ...], Counter[str]] = field(default_factory=dict)


class RecordedBlocks:
    """The kinds of blocks of a pass: each runs once, and repeats what it computed for the others."""

    def __init__(self, recording: Counts, blocks: Sequence[nn.Module]) -> None:
        self.recording = recording
        self.blocks = blocks
        self.kinds: dict[str, _Ran] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, let blocks of known kinds compute nothing. UnlikeBlocks may end it."""
        with forwards_replaced(self.blocks, self._instead_of):
            yield

    def _instead_of(self, block: nn.Module, description: str, checked: bool) -> Callable[..., Any]:
        forward = block.forward

        def call(*arguments: Any, **keywords: Any) -> Any:
            name = kind_name(description, arguments, keywords)
            if (ran := self.kinds.get(name)) is None:
                ran = self.kinds[name] = self._run(block, forward, arguments, keywords)
            elif checked and self._run(block, forward, arguments, keywords).forward != ran.forward:
                raise UnlikeBlocks("blocks that are built alike do not compute alike")
            self.recording.counts.update(ran.forward)
            given = [leaf for leaf in tree_flatten((arguments, keywords))[0] if isinstance(leaf, Tensor)]
            trained = [weight for weight in block.parameters() if weight.requires_grad][:1]
            found = list(_Repeated.apply(self, ran, len(given), *given, *trained))
            leaves, structure = ran.structure
            return tree_unflatten(
                [found.pop(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure
            )

        return call

    def _run(self, block: nn.Module, forward: Callable[..., Any], given: Any, named: Any) -> _Ran:
        def alone(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().requires_grad_(value.requires_grad)

        given, named = tree_map(alone, (given, named))
        with self._apart() as counts, torch.enable_grad():
            leaves, structure = tree_flatten(forward(*given, **named))
        inputs = [leaf for leaf in tree_flatten((given, named))[0] if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        weights = (weight for weight in block.parameters() if weight.requires_grad)  # code may have cast them
        return _Ran([*inputs, *weights], outputs, (leaves, structure), counts)

    def backward(self, ran: _Ran, gradients: Sequence[Tensor | None]) -> None:
        """Count the backward pass of a block of this kind, with gradients of these outputs."""
        pattern = tuple(gradient is not None for gradient in gradients)
        if pattern not in ran.backward:
            asked = [one for one in ran.inputs if one.requires_grad]
            pairs = [
                (output, gradient)
                for output, gradient in zip(ran.outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            with self._apart() as counts:
                outputs, given = zip(*pairs, strict=True)
                torch.autograd.grad(outputs, asked, given, retain_graph=True, allow_unused=True)
            ran.backward[pattern] = counts
        self.recording.counts.update(ran.backward[pattern])

    @contextmanager
    def _apart(self) -> Iterator[Counter[str]]:
        """Within the context, count apart from the rest of the pass."""
        before, self.recording.counts = self.recording.counts, Counter()
        try:
            yield self.recording.counts
        finally:
            self.recording.counts = before


class _Repeated(torch.autograd.Function):
    """The results of a block that ran, as if another one of its kind had computed them."""

    @staticmethod
    def forward(ctx: Any, blocks: RecordedBlocks, ran: _Ran, number: int, *given: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.blocks, ctx.ran, ctx.number = blocks, ran, number
        ctx.save_for_backward(*given)
        outputs = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            if one.is_floating_point() else one.detach().clone()
            for one in ran.outputs
        ]  # fmt: skip
        ctx.mark_non_differentiable(
            *(new for new, one in zip(outputs, ran.outputs, strict=True) if not one.requires_grad)
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        given = ctx.saved_tensors
        if any(gradient is not None for gradient in gradients):
            ctx.blocks.backward(ctx.ran, gradients)
        found = [torch.empty_like(one) if one.requires_grad else None for one in given[: ctx.number]]
        return None, None, None, *found, *[None] * (len(given) - ctx.number)
