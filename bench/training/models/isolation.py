"""Whether the documents of a sample are apart: no token of one affects the prediction of another.

Attention of bench and masks of transformers separate them. Layers that carry a state or convolve along the
sample know nothing of documents. Imports torch only when called, in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.base.errors import BadInput
from bench.training.models.cuda_autocast import half_of
from bench.training.models.model import Model
from bench.training.models.probe import at_rest
from bench.training.objectives.documents import ENDS

if TYPE_CHECKING:
    from torch import nn

LENGTH = 8  # tokens of a tiny sample of two documents
NOISE = 0.02  # of what a document changes in itself: mixtures of experts round differently beside other rows


def require_documents_apart(module: nn.Module, model: Model) -> None:
    """Change the first document of a tiny sample. BadInput if the prediction for the second one changes."""
    import torch

    first = next(module.parameters())
    half = half_of(model.recipe.precision)
    tokens = torch.zeros(2, LENGTH, dtype=torch.long, device=first.device)
    tokens[1, : LENGTH // 2] = 1
    ends = torch.tensor([LENGTH // 2, LENGTH], device=first.device).expand(2, 2)
    with at_rest(module), torch.autocast(first.device.type, dtype=half, enabled=half is not None):
        one, other = model.recipe.aim.answer(module, {"input_ids": tokens, ENDS: ends}).float()
    own, foreign = ((one - other).abs().split(LENGTH // 2)[i].max() for i in range(2))
    if not float(foreign) <= NOISE * float(own):
        raise BadInput(
            f"documents: in {model.family}, a document changes the prediction for the next one",
            where=model.name,
            advice="leave the recipe's documents out",
        )
