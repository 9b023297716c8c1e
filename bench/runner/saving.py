"""How long it takes to save what training goes on from: weights and moments, this member's part."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from bench.runner.device import Device
from bench.runner.loop import Strategy

SAVED_BYTES = 1 << 30  # how much of the state is really written; the rest is scaled


def seconds_to_save(strategy: Strategy, device: Device, path: Path) -> float:
    tensors = _state_tensors(strategy.optimizer)
    total = sum(t.nbytes for t in tensors)
    written, size = [], 0
    for tensor in tensors:
        if size >= SAVED_BYTES or size + tensor.nbytes > shutil.disk_usage(path.parent).free // 2:
            break
        written.append(tensor)
        size += tensor.nbytes
    if not written:
        return 0.0
    device.synchronise()
    started = time.perf_counter()
    with path.open("wb") as file:
        torch.save(written, file)
        file.flush()
        os.fsync(file.fileno())
    seconds: float = time.perf_counter() - started
    path.unlink()
    return seconds * float(total / size)


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What must be saved to go on later: the weights that are updated, and their moments; our part."""
    found = []
    for weight, state in optimizer.state.items():
        found += [weight.detach(), *(value for value in state.values() if isinstance(value, torch.Tensor))]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in found]
