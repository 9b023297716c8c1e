"""torch.compile: model and loss at once, or each repeated block and the loss on their own.

A failure to compile ends the trial with its reason. It is never timed as if compiled:
dynamo's `suppress_errors` stays off, which the worker asserts.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.methods import Method, Target
from bench.models import Model
from bench.models.inline import family_of

if TYPE_CHECKING:
    from torch import nn


EVEN = 8  # numbers a row; other rows are padded for tensor cores, but by inductor alone


def _missing_compiler(target: Target) -> str | None:
    if target.device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        return "torch.compile on a CPU needs g++ or clang++: install one"
    return None


@dataclass(frozen=True, slots=True)
class Compile(Method):
    name: str = "compile"
    summary: str = "torch.compile of model and loss as one"
    group: ClassVar[str | None] = "compilation"
    free_lunch: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        why = family_of(model).breaks_graph if target.device == "cuda" else None
        return f"{why}: use compile-blocks" if why else _missing_compiler(target)

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        whole.compile()


@dataclass(frozen=True, slots=True)
class CompileBlocks(Method):
    name: str = "compile-blocks"
    summary: str = "torch.compile of head, loss and each repeated block: equal ones are compiled once"
    group: ClassVar[str | None] = "compilation"

    def refuse(self, model: Model, target: Target) -> str | None:
        return _missing_compiler(target)

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        import torch

        # `forward`, not the module: what wraps a block later (recomputation, the hooks that shard) stays
        # outside, and every block finds the first one's graph.
        for part in (*blocks, *_heads(model, whole), whole.criterion):
            part.forward = torch.compile(part.forward, dynamic=False)


def _heads(model: Model, whole: nn.Module) -> list[nn.Module]:
    """The head, where compiling it gains: a lone product of even rows is the same kernel either way."""
    from torch.nn import Linear

    parts = family_of(model).body_and_head
    head = getattr(whole.model, parts[1]) if parts else None
    lone = isinstance(head, Linear) and head.out_features % EVEN == 0
    return [] if head is None or lone else [head]


METHODS = (Compile(), CompileBlocks())
