"""One device of the worker: waiting for it, its memory, its share of loader processes."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch

from bench.base.machine_share import cores


@dataclass(frozen=True, slots=True)
class Device:
    kind: Literal["cpu", "cuda"]
    index: int = 0  # among the devices of this node that train together
    count: int = 1  # of those: they share the node's cores

    @classmethod
    def own(cls, kind: Literal["cpu", "cuda"]) -> Self:
        """This process's, by what a launcher says of its node; alone without one."""
        rank, size = os.environ.get("LOCAL_RANK", "0"), os.environ.get("LOCAL_WORLD_SIZE", "1")
        return cls(kind, int(rank), int(size))

    @property
    def torch(self) -> torch.device:
        return torch.device("cuda", self.index) if self.kind == "cuda" else torch.device("cpu")

    def loaders(self) -> int:
        """Loader processes of this device; none on a CPU: they would take the cores that train."""
        if self.kind == "cpu":
            return 0
        return max(1, min(8, cores() // (2 * self.count)))

    def choose(self) -> None:
        """From here on this process's own device: what says "cuda" means it."""
        if self.kind == "cuda":
            if not torch.backends.cuda.is_built():
                raise RuntimeError("this torch is for CPUs alone: install one with CUDA, or --device cpu")
            torch.cuda.set_device(self.index)
            _require_code_for(torch.cuda.get_device_capability(self.index))
            return
        threads = max(1, cores() // self.count)
        if self.count > 1 or threads < torch.get_num_threads():  # more would wait for each other's time
            torch.set_num_threads(threads)

    def synchronise(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)

    def cap_memory(self, cap_bytes: int | None) -> None:
        """On a GPU the allocator refuses beyond the cap; on a CPU the supervisor watches."""
        if self.kind == "cuda" and cap_bytes is not None:
            total = torch.cuda.get_device_properties(self.index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), self.index)

    def reset_peak(self) -> None:
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.index)
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM: proc(5)

    def peak_bytes(self) -> int:
        if self.kind == "cuda":
            # What CUDA graphs keep counts as allocated only while they are recorded.
            graphs = os.environ.get("TORCHINDUCTOR_CUDAGRAPHS") == "1"
            told = torch.cuda.max_memory_reserved if graphs else torch.cuda.max_memory_allocated
            return int(told(self.index))
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _require_code_for(capability: tuple[int, int]) -> None:
    """Newer versions of CUDA leave older cards out; CUDA itself says no more than that there is no kernel."""
    oldest = min(
        (int(name.rpartition("_")[2].rstrip("af")) for name in torch.cuda.get_arch_list()), default=0
    )
    major, minor = capability
    if 10 * major + minor < oldest:
        raise RuntimeError(
            f"this torch has no code for compute capability {major}.{minor}, its oldest is "
            f"{oldest // 10}.{oldest % 10}: install a torch of an older CUDA, and run without an image"
        )
