"""torch.compile: model and loss at once, or each repeated block and the loss on their own.

A failure to compile ends the trial with its reason, and is never timed as if compiled: the worker switches
dynamo's fallback to eager off (`fail_instead_of_eager` in bench/training/vendor/torch_inside.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of
from bench.training.models.stochastic_depth import keep_rates_in_tensors
from bench.training.vendor import compiler_inside

if TYPE_CHECKING:
    from torch import nn


def _missing_compiler(_model: Model, target: Target) -> str | None:
    import shutil  # takes milliseconds of every start that imports the methods

    if target.device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        return "torch.compile on a CPU needs g++ or clang++: install one"
    return None


def compile_something() -> None:
    """Compile a tiny function, so that processes forked afterwards save a second or two of torch's start.

    A fork would lose threads, so only one compile thread is allowed, and tqdm's monitor is turned off.
    """
    import torch
    from tqdm import tqdm

    tqdm.monitor_interval = 0
    torch.compile(torch.sin, options={"compile_threads": 1})(torch.ones(64))


def _prepare_whole() -> None:
    compiler_inside.keep_compiled_code_apart()
    compiler_inside.wait_between_reduction_loops()
    compiler_inside.read_rows_without_dimension()
    compiler_inside.compute_parts_apart()


def _prepare_blocks() -> None:
    compiler_inside.keep_graphs_whole_under_ddp()
    _prepare_whole()


def _refuse_whole(model: Model, target: Target) -> str | None:
    reason = family_of(model).breaks_graph if target.device == "cuda" else None
    return f"{reason}: use compile-blocks" if reason else _missing_compiler(model, target)


def _compile_blocks(_model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
    import torch

    # Compile `forward`, not the module: wrappers added later (recomputation, sharding hooks) stay outside
    # of the graph, and every block reuses the first one's graph.
    for block in blocks:
        keep_rates_in_tensors(block)
        block.forward = torch.compile(block.forward, dynamic=False)
    if whole.head is None:
        whole.criterion.forward = torch.compile(whole.criterion.forward, dynamic=False)
    else:
        # Head and loss form one graph: logits are written once, and their gradient overwrites them.
        whole.tail = torch.compile(whole.tail, dynamic=False)


METHODS = (
    Method(
        name="compile",
        summary="torch.compile of model and loss as one",
        free_lunch=True,
        configured_by=("trainer",),
        refuse=_refuse_whole,
        prepare=_prepare_whole,
        apply=lambda _model, whole, _blocks: whole.compile(),
    ),
    Method(
        name="compile-blocks",
        summary="torch.compile of head, loss and each repeated block: equal ones are compiled once",
        head="if possible",
        refuse=_missing_compiler,
        prepare=_prepare_blocks,
        apply=_compile_blocks,
    ),
)
