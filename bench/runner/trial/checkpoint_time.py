"""Measure how long saving this member's part of a checkpoint takes: weights and moments.

Imports torch at module level; writes one temporary file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from bench.base.sizes import bytes_text
from bench.runner.machine.disk_room import TooFull
from bench.runner.trial.device import Device
from bench.runner.trial.training_loop import Strategy

MAX_WRITTEN_BYTES = 1 << 30  # of the state; the time for the rest is scaled
MIN_WRITTEN_BYTES = 1 << 24  # of a larger state; the time of less cannot be scaled


def seconds_to_save(strategy: Strategy, device: Device, path: Path) -> float:
    """Return seconds of saving the optimizer's state to `path`, then deleted. TooFull if there is no room."""
    tensors = _state_tensors(strategy.optimizer)
    total = sum(t.nbytes for t in tensors)
    if not tensors:
        return 0.0  # an optimizer that updates nothing fails the trial by itself
    free = shutil.disk_usage(path.parent).free
    # Other members of the node may save at the same time.
    written = list(_first(tensors, free // 2 // device.count))
    size = sum(t.nbytes for t in written)
    if size < min(total, MIN_WRITTEN_BYTES):
        raise TooFull(f"{bytes_text(free)} free for temporary files, too little to time a checkpoint")
    device.synchronise()
    started = time.perf_counter()
    try:
        with path.open("wb") as file:
            torch.save(written, file)
            file.flush()
            os.fsync(file.fileno())
        seconds: float = time.perf_counter() - started
    finally:
        path.unlink(missing_ok=True)
    return seconds * float(total / size)


def _first(tensors: Iterable[torch.Tensor], room: int) -> Iterator[torch.Tensor]:
    """Yield the first tensors, up to MAX_WRITTEN_BYTES; cut the last one if all exceed `room` bytes."""
    size = 0
    for tensor in tensors:
        if size >= MAX_WRITTEN_BYTES:
            return
        if size + tensor.nbytes > room:
            yield tensor.flatten()[: (room - size) // tensor.itemsize].clone()  # a view would be saved whole
            return
        yield tensor
        size += tensor.nbytes


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return this member's part of the weights that the optimizer updates, and of their moments."""
    tensors = []
    for weight, state in optimizer.state.items():
        tensors += [weight.detach(), *(value for value in state.values() if isinstance(value, torch.Tensor))]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
