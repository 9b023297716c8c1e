"""A pass that is recorded once as a CUDA graph and then replayed, so that the host does not slow it down.

Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.runner.trial.training_loop import Batch, SingleDevice
from bench.training.methods import UNRECORDABLE

UNRECORDED = 2  # first passes: they compile code, choose kernels and allocate gradients
Replay = Callable[[], Tensor]


def record_graph(compute: Replay) -> Replay:
    """Record the kernels that `compute` launches on the GPU. Returns a function that launches all at once."""
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads may use the GPU while this one records: loaders pin memory, NCCL looks for failures.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = compute()
    except RuntimeError as error:  # CUDA's error, for instance because the code waits for the GPU
        cause = error.__context__ or error  # the end of a recording fails too if the code within it failed
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        first, *_ = str(cause).splitlines() or ["no reason given"]
        raise RuntimeError(f"{UNRECORDABLE}: {first}; leave cuda-graphs out") from error

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class RecordedPass:
    """Replaces a strategy's `run_pass`. Every batch is copied into the tensors that were recorded."""

    def __init__(self, run_pass: Callable[[Batch], Tensor]) -> None:
        self.run_pass = run_pass
        self.unrecorded = 0  # passes so far
        self.batch: Batch = {}
        self.replay: Replay | None = None

    def __call__(self, batch: Batch) -> Tensor:
        if self.unrecorded < UNRECORDED:
            self.unrecorded += 1
            return self.run_pass(batch)
        if self.replay is None:
            self.batch = {name: part.clone() for name, part in batch.items()}
            self.replay = record_graph(lambda: self.run_pass(self.batch))
        for name, part in batch.items():
            self.batch[name].copy_(part)
        return self.replay()


def record_passes(strategy: SingleDevice) -> None:
    """Let the strategy replay its passes. Gradients keep their memory, which the recorded pass writes to.

    Answers whose samples are compared come from a replay, too: launched one by one, their kernels wait for
    the host, for as long as its other work takes.
    """
    strategy.keeps_gradients = True
    strategy.run_pass = RecordedPass(strategy.run_pass)  # type: ignore[method-assign]
    strategy.answers = RecordedPass(strategy.answers)  # type: ignore[method-assign]
