"""The processes that train one model together, one a device; one process alone is a team of one.

Whatever all must decide alike (is it warm, is it enough, is the time up) is decided on the slowest
one's figure, which every member gets.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from bench.runner import LISTENER
from bench.training.vendor import torch_inside

# Only a member that died, or hangs, makes the others wait this long; the supervisor ends them earlier.
PATIENCE = timedelta(minutes=30)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    rank: int = 0
    size: int = 1

    def wait(self) -> None:
        """Until every member is here."""
        if self.size > 1:
            self.slowest(0.0)

    def slowest(self, value: float) -> float:
        """The largest of the members' values, on the host: no device is waited for."""
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def mean(self, value: float) -> float:
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.SUM)
        return float(found) / self.size

    def one_of_each_node(self, value: T) -> list[T]:
        """What the first member of every node brings."""
        everyone: list[T | None] = [None] * self.size
        dist.all_gather_object(everyone, value if os.environ["LOCAL_RANK"] == "0" else None)
        return [found for found in everyone if found is not None]


def join(kind: str, alone: bool) -> Team:
    """The team that the environment describes: RANK, WORLD_SIZE and so on, as torchrun sets them.

    One device that shards nothing, or nothing but into the host's memory, needs no environment.
    """
    if alone:
        return Team()
    # gloo moves what lies on the host, beside NCCL for what lies on the GPUs.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if kind == "cuda" else None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend, store=_store(rank, size), rank=rank, world_size=size, timeout=PATIENCE, device_id=device
    )
    return Team(rank, size)


def _store(rank: int, size: int) -> dist.Store | None:
    """Where the members meet; None under torchrun, whose own place the environment names."""
    if LISTENER not in os.environ:
        return None
    return torch_inside.store_on_socket(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        listen_fd=int(os.environ[LISTENER]) if rank == 0 else None,
        timeout=PATIENCE,
    )
