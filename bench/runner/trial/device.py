"""A trial's device: synchronise with it, cap and read its memory, divide loader processes and threads.

Imports torch at module level.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch

from bench.base.machine_share import cores


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or this process's share of the CPU, on which a trial runs."""

    kind: Literal["cpu", "cuda"]
    index: int = 0  # of this device among those of this node that train together
    count: int = 1  # devices of this node that train together: they share its cores

    @classmethod
    def own(cls, kind: Literal["cpu", "cuda"]) -> Self:
        """Return this process's device, from LOCAL_RANK and LOCAL_WORLD_SIZE; without these the only one."""
        rank, size = os.environ.get("LOCAL_RANK", "0"), os.environ.get("LOCAL_WORLD_SIZE", "1")
        return cls(kind, int(rank), int(size))

    @property
    def torch(self) -> torch.device:
        """The device by which torch knows it."""
        return torch.device("cuda", self.index) if self.kind == "cuda" else torch.device("cpu")

    def loaders(self) -> int:
        """Return the number of this device's loader processes; 0 on a CPU, whose cores train."""
        if self.kind == "cpu":
            return 0
        return max(1, min(8, cores() // (2 * self.count)))

    def choose(self) -> None:
        """Make this the process's current device; on a CPU, limit threads to its share of cores."""
        if self.kind == "cuda":
            if not torch.backends.cuda.is_built():
                raise RuntimeError(
                    "this torch has no CUDA support: install one that has, or pass --device cpu"
                )
            torch.cuda.set_device(self.index)
            _require_code_for(torch.cuda.get_device_capability(self.index))
            return
        threads = max(1, cores() // self.count)
        # More threads than cores slow each other down.
        if self.count > 1 or threads < torch.get_num_threads():
            torch.set_num_threads(threads)

    def synchronise(self) -> None:
        """Wait until the GPU has done all work; a CPU's is done when the call returns."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Make a GPU's allocator refuse memory beyond the cap. On a CPU the supervisor enforces it."""
        if self.kind == "cuda" and cap_bytes is not None:
            total = torch.cuda.get_device_properties(self.index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), self.index)

    def reset_peak(self) -> None:
        """Begin a new measurement of the memory's peak, for `peak_bytes`."""
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.index)
        else:
            # Where a confined root may not write to /proc, the peak is that of the trial's whole process.
            with suppress(PermissionError):
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM: proc(5)

    def peak_bytes(self, *, recorded: bool = False) -> int:
        """Return the peak of this process's memory; `recorded` says that it replays CUDA graphs.

        Memory of CUDA graphs counts as allocated only while they are recorded.
        """
        if self.kind == "cuda":
            graphs = recorded or os.environ.get("TORCHINDUCTOR_CUDAGRAPHS") == "1"
            peak = torch.cuda.max_memory_reserved if graphs else torch.cuda.max_memory_allocated
            return int(peak(self.index))
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _require_code_for(capability: tuple[int, int]) -> None:
    """Refuse a GPU that is older than all architectures this torch was compiled for.

    CUDA's own error only says that there is no kernel image.
    """
    oldest = min(
        (int(name.rpartition("_")[2].rstrip("af")) for name in torch.cuda.get_arch_list()), default=0
    )
    major, minor = capability
    if 10 * major + minor < oldest:
        raise RuntimeError(
            f"this torch has no code for compute capability {major}.{minor}, its oldest is "
            f"{oldest // 10}.{oldest % 10}: install a torch of an older CUDA, and run without an image"
        )
