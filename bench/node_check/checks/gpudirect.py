"""Check that InfiniBand and RoCE adapters can read GPU memory directly (GPUDirect RDMA).

Without it every byte between nodes goes through the host's memory. Two ways lead there: the kernel module
nvidia_peermem, and DMA-BUF, which needs NVIDIA's open kernel modules and Linux 5.12.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from platform import release
from typing import Any

from bench.base.strict_json import from_json, to_json
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.ports import nodes_of
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

SOURCE = "NVIDIA GPU Operator: GPUDirect RDMA and GPUDirect Storage"
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
LEAST_KERNEL = (5, 12)  # with DMA-BUF for RDMA
_KERNEL = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """The facts of one node that decide whether its GPUs can use GPUDirect RDMA."""

    node: int
    driver: bool  # NVIDIA's kernel driver is loaded
    peer_module: str | None = None
    open_driver: bool = False
    kernel: tuple[int, int] = (0, 0)

    @property
    def dma_buf(self) -> bool:
        """Whether an adapter can read GPU memory through the kernel's DMA-BUF."""
        return self.open_driver and self.kernel >= LEAST_KERNEL

    @property
    def ways(self) -> list[str]:
        """The names of the ways in which an adapter can read GPU memory."""
        return [*([self.peer_module] if self.peer_module else []), *(["DMA-BUF"] if self.dma_buf else [])]


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the facts of this machine as node 0; a check between nodes collects one entry of each."""
    return {"nodes": to_json([read_gpudirect(0)])}


def read_gpudirect(node: int, root: Path = Path("/")) -> GpuDirect:
    """Read which modules are loaded, and the kind of the driver."""
    version = root / "proc/driver/nvidia/version"
    text = version.read_text("utf-8", "replace") if version.exists() else ""
    match = _KERNEL.match(release())
    return GpuDirect(
        node,
        driver=bool(text),
        peer_module=next((name for name in PEER_MODULES if (root / "sys/module" / name).is_dir()), None),
        open_driver="Open Kernel Module" in text,
        kernel=(int(match[1]), int(match[2])) if match else (0, 0),
    )


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Warn of nodes with a driver and ports, but no way from an adapter to GPU memory."""
    data = evidence.data("gpudirect")
    found = from_json(tuple[GpuDirect, ...], data["nodes"]) if data else ()
    with_ports = {node.node for node in nodes_of(evidence) if node.ports}
    for facts in found:
        question = Question("gpudirect", f"node {facts.node}" if len(found) > 1 else "the node")
        if not facts.driver or facts.node not in with_ports:
            lacks = "InfiniBand or RoCE port" if facts.driver else "NVIDIA driver"
            yield question.unread(f"there is no {lacks}", counts=False)
            continue
        yield question.judged(
            verdict_of(fail=False, warn=not facts.ways),
            f"by {' and '.join(facts.ways)}" if facts.ways else "neither nvidia_peermem nor DMA-BUF",
            expected="nvidia_peermem, or the open driver on Linux 5.12 or newer",
            source=SOURCE,
            advice="modprobe nvidia_peermem, or install NVIDIA's open kernel modules",
        )


CHECK = Check(
    "gpudirect",
    "can adapters read GPU memory without a copy through the host?",
    judge,
    measure,
    torch=False,
    limit_seconds=10,
    about_gpus=True,
    blames="node",
    passive=True,
    between_nodes=True,
    has_older_bundles=True,
)
