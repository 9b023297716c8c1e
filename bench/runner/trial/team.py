"""The processes that train one model together, one a device; a single process is a team of one.

Decisions that all members must take alike, when to end a warm-up for instance, are based on the figure of
the slowest member, which all members receive. Imports torch at module level.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.base.strict_json import to_json
from bench.runner import LISTENER
from bench.training.vendor import torch_inside

# How long a collective waits for a member that died or hangs; the supervisor ends the others earlier.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Team:
    """This process's place among the processes that train together, and what they exchange on the host."""

    rank: int = 0
    size: int = 1

    def wait(self) -> None:
        """Wait until every member has called this."""
        if self.size > 1:
            self.slowest(0.0)

    def slowest(self, value: float) -> float:
        """Return the largest of the members' values, exchanged on the host without waiting for a device."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def mean(self, value: float) -> float:
        """Return the mean of the members' values."""
        return self._reduced(value, dist.ReduceOp.SUM) / self.size

    def _reduced(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        if self.size == 1:
            return value
        reduced = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(reduced, operation)
        return float(reduced)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all members as JSON documents, in the order of ranks.

        torch's own function for this unpickles what the other members send.
        """
        if self.size == 1:
            return [to_json(value)]
        own = torch.frombuffer(bytearray(json.dumps(to_json(value)).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([own.numel()]))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        everyone = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everyone, padded)
        texts = (t[: int(size)].numpy().tobytes() for t, size in zip(everyone, sizes, strict=True))
        return [json.loads(text) for text in texts]

    def rows(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rows of equal tensors of all members, on their devices: one's own first."""
        if self.size == 1:
            return own
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own.contiguous())
        return torch.cat((own, *everyone[: self.rank], *everyone[self.rank + 1 :]))

    def one_of_each_node(self, value: Any) -> list[Any]:
        """Return the value of each node's first member as a JSON document, in the order of nodes."""
        everyone = self.gather(value if os.environ["LOCAL_RANK"] == "0" else None)
        return [each for each in everyone if each is not None]


def join(kind: str, alone: bool, store: dist.Store | None = None) -> Team:
    """Join the team that RANK, WORLD_SIZE and other variables of torchrun describe.

    `alone`: a team of one without a process group, for a device that shards nothing with others. `store`:
    where the members meet; None: on the socket that the environment names.
    """
    if alone:
        return Team()
    # gloo exchanges tensors in the host's memory, NCCL those on GPUs.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if kind == "cuda" else None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend,
        store=store or _store(rank, size),
        rank=rank,
        world_size=size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device,
    )
    return Team(rank, size)


def _store(rank: int, size: int) -> dist.Store | None:
    """Return the store where members meet, on an open socket; None if torch must find torchrun's store."""
    if LISTENER not in os.environ:
        return None
    return torch_inside.store_on_socket(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        listen_fd=int(os.environ[LISTENER]) if rank == 0 else None,
        timeout=COLLECTIVE_TIMEOUT,
    )
