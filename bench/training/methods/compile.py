"""torch.compile: model and loss at once, or each repeated block and the loss on their own.

A failure to compile ends the trial with its reason. It is never timed as if compiled:
dynamo's `suppress_errors` stays off, which the worker asserts.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model
from bench.training.models.own_models import family_of

if TYPE_CHECKING:
    from torch import nn


def _missing_compiler(target: Target) -> str | None:
    if target.device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        return "torch.compile on a CPU needs g++ or clang++: install one"
    return None


def compile_something() -> None:
    """What a process does once, at its first compilation: a second or two that processes forked from it save.

    In this one thread, without a pool and without the monitor of a progress bar that nobody sees: threads
    would be missing in what is forked.
    """
    import torch
    from tqdm import tqdm

    tqdm.monitor_interval = 0
    torch.compile(torch.sin, options={"compile_threads": 1})(torch.ones(64))


@dataclass(frozen=True, slots=True)
class Compile(Method):
    name: str = "compile"
    summary: str = "torch.compile of model and loss as one"
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

    def prepare(self) -> None:
        import torch

        # Under DDP dynamo would cut every graph where a bucket of gradients ends, for them to be sent early.
        # A block is small enough, and recomputed it is not cut: other tensors were kept than are asked for.
        torch._dynamo.config.optimize_ddp = False

    def refuse(self, model: Model, target: Target) -> str | None:
        return _missing_compiler(target)

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        import torch

        # `forward`, not the module: what wraps a block later (recomputation, the hooks that shard) stays
        # outside, and every block finds the first one's graph.
        for block in blocks:
            block.forward = torch.compile(block.forward, dynamic=False)
        whole.parts = family_of(model).body_and_head
        if whole.parts is None:
            whole.criterion.forward = torch.compile(whole.criterion.forward, dynamic=False)
        else:
            # As one: logits are written once, and their gradient over them.
            whole.tail = torch.compile(whole.tail, dynamic=False)


METHODS = (Compile(), CompileBlocks())
