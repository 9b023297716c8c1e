"""How long it takes to save what training goes on from: weights and moments, this member's part."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from bench.records.text import bytes_text
from bench.runner.machine.disk_room import TooFull
from bench.runner.trial.device import Device
from bench.runner.trial.training_loop import Strategy

SAVED_BYTES = 1 << 30  # how much of the state is really written; the rest is scaled
LEAST_BYTES = 1 << 24  # of a larger state: from less nothing can be scaled


def seconds_to_save(strategy: Strategy, device: Device, path: Path) -> float:
    tensors = _state_tensors(strategy.optimizer)
    total = sum(t.nbytes for t in tensors)
    if not tensors:
        return 0.0  # an optimizer that updates nothing fails the trial by itself
    free = shutil.disk_usage(path.parent).free
    written = list(_first(tensors, free // 2 // device.count))  # the node's others may save beside this one
    size = sum(t.nbytes for t in written)
    if size < min(total, LEAST_BYTES):
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
    """Whole ones, until they are enough; where there is no room for that, the last is cut."""
    size = 0
    for tensor in tensors:
        if size >= SAVED_BYTES:
            return
        if size + tensor.nbytes > room:
            yield tensor.flatten()[: (room - size) // tensor.itemsize].clone()  # a view is saved whole
            return
        yield tensor
        size += tensor.nbytes


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What must be saved to go on later: the weights that are updated, and their moments; our part."""
    found = []
    for weight, state in optimizer.state.items():
        found += [weight.detach(), *(value for value in state.values() if isinstance(value, torch.Tensor))]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in found]
