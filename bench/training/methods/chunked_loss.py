"""Head and loss by chunks of positions, so that the logits of a large vocabulary are never all in memory."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.training.methods.method import Method, Target
from bench.training.models import Model, words_of
from bench.training.objectives.objective import IGNORED

if TYPE_CHECKING:
    from torch import Tensor, nn

MIN_WORDS = 65_536  # smaller vocabularies have small logits
CHUNK_BYTES = 2 << 30  # of a chunk's logits in half precision; every chunk reads and writes the sums once
HALF = 2  # bytes of a logit


def logits_bytes(model: Model, setting: tuple[str, ...], micro_batch: int) -> int:
    """Return the bytes of one chunk's logits and their gradient; 0 in settings without this method."""
    if "chunked-loss" not in setting:
        return 0
    rows = micro_batch * model.recipe.units_per_sample
    return 2 * min(CHUNK_BYTES, rows * words_of(model) * HALF)


def _refuse(model: Model, _target: Target) -> str | None:
    if model.recipe.objective != "causal-lm":
        return "only a model that predicts every position has many logits"
    if (words := words_of(model)) < MIN_WORDS:
        return f"a vocabulary of {words:,} words has small logits; it pays from {MIN_WORDS:,} words on"
    return None


def _apply(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    import torch

    most, head = CHUNK_BYTES // (HALF * words_of(model)), torch.compile(whole.head, dynamic=False)

    def tail(features: Tensor, labels: Tensor) -> Tensor:
        features, labels = features.flatten(0, 1), labels.flatten()
        size = math.ceil(len(labels) / math.ceil(len(labels) / most))
        loss: Tensor = _by_chunks()(features, labels, size, head, whole.loss_scale, torch.is_grad_enabled())
        return loss

    whole.tail = tail


@cache
def _by_chunks() -> Any:
    """Return a function of features and labels [positions, ...] that computes the mean loss by chunks.

    It computes gradients on the way forward, so that each chunk's logits are freed before the next. The
    gradients of weights are added up at once, so the factor `scale`, by which the loss will be multiplied
    before its backward pass, has to be known by then.
    """
    import torch

    class ByChunks(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, features: Tensor, labels: Tensor, size: int, head: Any, scale: Any, trains: bool
        ) -> Tensor:
            gradients, loss = torch.empty_like(features), torch.zeros((), device=features.device)
            count = (labels != IGNORED).sum()
            for i in range(0, len(labels), size):
                part = slice(i, i + size)
                entry = features[part].detach()[None].requires_grad_()
                with torch.set_grad_enabled(trains):
                    logits = head(entry)
                # Views only: the backward pass of an index would fill and copy a tensor of all logits.
                losses, change = _loss_and_gradient(
                    logits.detach().flatten(0, 1), labels[part], scale / count
                )
                loss += losses.sum()
                if trains:
                    logits.backward(change.view_as(logits))
                    gradients[part] = entry.grad[0]
                del logits, change
            ctx.save_for_backward(gradients)
            return loss / count

        @staticmethod
        def backward(ctx: Any, _scale: Tensor) -> tuple[Tensor, None, None, None, None, None]:
            (gradients,) = ctx.saved_tensors
            return gradients, None, None, None, None, None

    return ByChunks.apply


def _loss_and_gradient(logits: Tensor, labels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row of logits, 0 where the label is ignored, and `scale` times its gradient."""
    import torch
    from torch.nn.functional import cross_entropy

    if logits.is_cuda:
        from bench.training.triton.loss import loss_and_gradient  # imports Triton, which needs a GPU

        return loss_and_gradient(logits, labels, scale, IGNORED)
    with torch.enable_grad():
        entry = logits.float().requires_grad_()
        losses = cross_entropy(entry, labels, ignore_index=IGNORED, reduction="none")
        (gradient,) = torch.autograd.grad(losses.sum(), entry)
    return losses.detach(), (scale * gradient).to(logits.dtype)


METHODS = (
    Method(
        name="chunked-loss",
        summary="head and loss by chunks of positions: logits of a large vocabulary are never all in memory",
        not_exported_to={
            "standalone": (
                "chunked-loss is code of bench: without it the logits of all positions are in memory "
                "at once, and may not fit"
            ),
        },
        free_lunch=True,
        compiled_on_first_use=True,
        head="needed",
        requires={
            "half-weights": "chunked-loss adds gradients while it computes the loss: add half-weights",
            "compile-blocks": "chunked-loss calls a compiled head: add compile-blocks",
        },
        no_adapters="chunked-loss needs half-weights, which adapters do not have",
        refuse=_refuse,
        apply=_apply,
    ),
)
