"""Find the matrices of the repeated blocks, by what a module is.

Imports torch at module level.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def block_matrices(whole: nn.Module, blocks: Iterable[nn.Module]) -> list[int]:
    """Return, for each trained parameter of `whole` in order, how many matrices of blocks it holds.

    Matrices are the weights of linear layers and of convolutions of all channels, whose filters are rows.
    Experts that are stacked in one parameter are as many matrices. Biases, norms, tables of embeddings,
    parameters of other modules (routers, scans) and everything outside of the blocks hold none: 0.
    """
    tables = {module.weight for module in whole.modules() if isinstance(module, nn.Embedding)}
    found = {
        weight: count
        for block in blocks
        for module in block.modules()
        for weight, count in _matrices_of(module)
        if weight not in tables
    }
    return [found.get(weight, 0) for weight in whole.parameters() if weight.requires_grad]


def _matrices_of(module: nn.Module) -> Iterator[tuple[nn.Parameter, int]]:
    own = dict(module.named_parameters(recurse=False))
    if is_linear(module) or (isinstance(module, CONVOLUTIONS) and module.groups == 1):
        if (weight := own.get("weight")) is not None:  # None if it is computed, by weight_norm for instance
            yield weight, 1
    elif isinstance(experts := getattr(module, "num_experts", None), int):
        for weight in own.values():
            if weight.dim() == 3 and weight.size(0) == experts > 1:
                yield weight, experts


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by a matrix; GPT-2's linear layers are a class of transformers."""
    of_transformers = sys.modules.get("transformers.pytorch_utils")  # not imported: no module has its class
    return isinstance(module, nn.Linear) or (
        of_transformers is not None and isinstance(module, of_transformers.Conv1D)
    )
