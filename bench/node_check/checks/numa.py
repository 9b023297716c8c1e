"""Measure the memory bandwidth of each NUMA node by its own processors, one node after the other.

It runs two of STREAM's kernels, scale (a = 3b) and triad (a = b + 3c), with arrays of four times the
last-level cache, as STREAM asks for. Each node is measured in a separate process, which runs on the node's
processors and takes memory from the node alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.base.machine_share import memory_bytes
from bench.base.smbios import MemoryModule, read_modules
from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import first_line, numbers_of
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.judge_figures import Tolerances, by_usual
from bench.node_check.judging.standards import Standards

STREAM = "STREAM: each array at least four times the last-level cache"
CACHES = 4
LEAST_ARRAY, MOST_ARRAY, TINY_ARRAY = 64 << 20, 4 << 30, 1 << 20
ARRAYS = 3
SECONDS_IN_ALL = 60.0  # of all nodes' figures; more nodes have shorter ones
MOST_NODES = 64
BUSY_SECONDS = 0.5
BUSY_SHARE = 0.05  # of the cores that others may use before a slow node is not blamed on its memory
LEAST_OF_PEAK = 0.5  # of the channels' rate: most processors read a line of memory before they write to it
TOLERANCES = Tolerances(
    peers_warn=10,
    peers_fail=25,
    history_warn=100,
    advice="compare its modules with the other nodes': a missing or slower one halves a channel's rate",
)
_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node, and its measured figures."""

    number: int
    processors: int = 0  # that this process may use
    memory_bytes: int = 0
    cache_bytes: int = 0  # last-level caches of its processors
    array_bytes: int = 0
    bound: bool = False  # whether the process could take memory from this node only; else the kernel chose
    why: str = ""  # why nothing was measured
    failed: bool = False  # whether the measurement failed, on a node that can be measured


@dataclass(frozen=True, slots=True)
class MemoryChannels:
    """The channels of all sockets, from SMBIOS, or why they are not known."""

    count: int = 0
    modules: int = 0
    kind: str = ""  # DDR5
    transfers_per_second: float = 0.0  # of the slowest module
    data_bytes: int = 8
    mixed: bool = False  # modules of several rates
    why: str = ""

    @property
    def peak(self) -> float:
        """Bytes a second of all channels together."""
        return self.count * self.transfers_per_second * self.data_bytes

    @property
    def words(self) -> str:
        """Number, kind and rate of the channels in one text, for findings."""
        rate = f"{self.kind or 'memory'}-{self.transfers_per_second / 1e6:.0f}"
        return f"{self.count} channels of {rate}, {quantity(self.peak, 'B/s')}"


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Measure every NUMA node in a separate process, and read the memory's channels and the busy cores."""
    nodes: list[NumaNode] = []
    figures: list[Figure] = []
    found = read_nodes(Path("/"), tiny=budget.tiny)
    count = sum(not node.why for node in found)
    seconds = min(budget.seconds, SECONDS_IN_ALL / max(1, 2 * count))
    busy = busy_cores()
    for node in found:
        if node.why:
            nodes.append(node)
            continue
        rig.say(f"node {node.number}")
        measured, own = _in_own_process(node, partial(_measured, rig, node, seconds))
        nodes.append(measured)
        figures += own
    return {
        "figures": to_json(figures),
        "nodes": to_json(nodes),
        "channels": to_json(_channels()),
        "busy_cores": busy,
    }


def read_nodes(root: Path, *, tiny: bool) -> tuple[NumaNode, ...]:
    """Read the NUMA nodes of the machine below `root`; those that cannot be measured say why."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    allowed = os.sched_getaffinity(0)
    usable = numbers_of(_after_colon(root / "proc/self/status", "Mems_allowed_list"))
    folders = [folder for folder in root.glob("sys/devices/system/node/node*") if folder.name[4:].isdigit()]
    folders.sort(key=lambda folder: int(folder.name[4:]))
    nodes = []
    for folder in folders[:MOST_NODES]:
        number = int(folder.name[4:])
        own = [cpu for cpu in numbers_of(first_line(folder / "cpulist")) if cpu in allowed]
        cache = _cache_bytes(root, own)
        total, free = _memory(folder / "meminfo")
        limit = min(free // 2, memory_bytes() // 4) // ARRAYS
        wanted = TINY_ARRAY if tiny else min(MOST_ARRAY, max(LEAST_ARRAY, CACHES * cache))
        node = NumaNode(number, len(own), total, cache, wanted)
        if not total:
            node = replace(node, why="it has no memory")
        elif not own:
            node = replace(node, why="it has no processor that this process may use")
        elif usable and number not in usable:
            node = replace(node, why="this process may not use its memory")
        elif wanted > limit:
            node = replace(
                node, why=f"{free >> 20} MiB are free, too little for arrays of {wanted >> 20} MiB"
            )
        nodes.append(node)
    return tuple(nodes)


def _after_colon(path: Path, field: str) -> str:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:")), "")


def _memory(path: Path) -> tuple[int, int]:
    """Return the bytes of a node's memory, and those that are free or hold files that can be read again."""
    values = {}
    try:
        for line in path.read_text("utf-8", "replace").splitlines():
            words = line.split()  # Node 0 MemTotal:  131072 kB
            if len(words) >= 4 and words[3].isdigit():
                values[words[2]] = int(words[3]) << 10
    except OSError:
        return 0, 0
    files = max(0, values.get("FilePages:", 0) - values.get("Shmem:", 0))
    return values.get("MemTotal:", 0), values.get("MemFree:", 0) + files


def _cache_bytes(root: Path, processors: Sequence[int]) -> int:
    """Add up the last-level caches of the processors, each once."""
    caches: dict[str, int] = {}
    for cpu in processors:
        levels = {}
        for folder in root.glob(f"sys/devices/system/cpu/cpu{cpu}/cache/index*"):
            size = first_line(folder / "size")
            if size[:-1].isdigit() and size[-1:] in ("K", "M"):
                levels[first_line(folder / "level"), first_line(folder / "shared_cpu_list")] = int(
                    size[:-1]
                ) << (10 if size.endswith("K") else 20)
        if levels:
            last = max(levels)
            caches[last[1]] = levels[last]
    return sum(caches.values())


def _channels() -> MemoryChannels:
    try:
        return channels_of(read_modules())
    except OSError as error:
        return MemoryChannels(why=f"SMBIOS cannot be read: {error.strerror}")


def channels_of(modules: Sequence[MemoryModule]) -> MemoryChannels:
    """Add up the channels that have a module."""
    rates = {module.transfers_per_second for module in modules if module.transfers_per_second}
    channels = {module.channel for module in modules}
    if not modules or not rates or None in {module.transfers_per_second for module in modules}:
        return MemoryChannels(why="SMBIOS tells no rate of the memory, as in a virtual machine")
    if None in channels:
        return MemoryChannels(why="SMBIOS names the slots in a way that tells no channels")
    return MemoryChannels(
        len(channels),
        len(modules),
        "/".join(sorted({module.kind for module in modules})),
        min(rates),
        min(module.data_bytes for module in modules),
        mixed=len(rates) > 1,
    )


def busy_cores() -> float:
    """Return how many cores are used at this moment, while this process waits."""
    before = _busy_seconds()
    time.sleep(BUSY_SECONDS)
    return max(0.0, (_busy_seconds() - before) / BUSY_SECONDS)


def _busy_seconds() -> float:
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    words = first_line(Path("/proc/stat")).split()[1:]
    ticks = [int(word) for word in words if word.isdigit()]
    idle = sum(ticks[3:5])  # idle, and waiting for a disk
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _measured(rig: Rig, node: NumaNode, seconds: float) -> tuple[bool, list[Figure]]:
    """Measure a NUMA node in this process, pinned to it. Returns whether memory was bound, and figures."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    own = numbers_of(first_line(Path(f"/sys/devices/system/node/node{node.number}/cpulist")))
    os.sched_setaffinity(0, set(own) & os.sched_getaffinity(0))
    bound = bind_memory(node.number)
    import torch

    torch.set_num_threads(node.processors)
    count = node.array_bytes // 8
    first, second, target = (torch.full((count,), value, dtype=torch.float64) for value in (1.0, 2.0, 0.0))
    kernels: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("scale", 2, lambda: torch.mul(first, 3.0, out=target)),
        ("triad", 3, lambda: torch.add(first, second, alpha=3.0, out=target)),
    )
    figures = []
    for name, arrays, call in kernels:
        timed = rig.timed(call, float(arrays * node.array_bytes), wait=False, seconds=seconds)
        figures.append(Figure(f"numa {node.number} {name}", None, "B/s", *timed, kind=f"numa {name}"))
    return bound, figures


def bind_memory(node: int) -> bool:
    """Let this process take memory from one NUMA node alone; False if the kernel refuses that."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    mask = (ctypes.c_ulong * (MOST_NODES // 64 + 1))(1 << node)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(MOST_NODES + 1)) == 0)


def _in_own_process(
    node: NumaNode, work: Callable[[], tuple[bool, list[Figure]]]
) -> tuple[NumaNode, list[Figure]]:
    """Do the work in a fork of this process; return the node with its figures, or with why it has none."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "w", encoding="utf-8") as answer:
                try:
                    bound, figures = work()
                    json.dump({"bound": bound, "figures": to_json(figures)}, answer)
                except Exception as error:
                    json.dump({"why": f"{type(error).__name__}: {error}"[:200]}, answer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    if not text:
        code = os.waitstatus_to_exitcode(status)
        return replace(node, why=f"its process ended with exit code {code}", failed=True), []
    document = json.loads(text)
    if "why" in document:
        return replace(node, why=document["why"], failed=True), []
    return replace(node, bound=document["bound"]), list(from_json(tuple[Figure, ...], document["figures"]))


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Compare nodes with each other, their sum with the channels; on a busy machine, slowness only warns."""
    data = evidence.data("numa")
    if data is None:
        return
    nodes = from_json(tuple[NumaNode, ...], data["nodes"])
    if len(nodes) > MOST_NODES:
        raise ValueError(f"more than {MOST_NODES} NUMA nodes")
    figures, busy = evidence.figures("numa"), float(data["busy_cores"])
    disturbed = busy > max(0.5, BUSY_SHARE * sum(node.processors for node in nodes))
    for node in nodes:
        if node.why:
            yield Question("numa", f"node {node.number}").unread(node.why, counts=node.failed)
    for kernel in ("scale", "triad"):
        yield from _spread([f for f in figures if f.kind == f"numa {kernel}"], busy, disturbed=disturbed)
    if figures:
        yield from _against_channels(
            nodes, figures, from_json(MemoryChannels, data["channels"]), disturbed=disturbed
        )


def _spread(figures: Sequence[Figure], busy: float, *, disturbed: bool) -> Iterator[Finding]:
    """Compare each node with the median of the others; on a busy machine a slow node is a warning at most."""
    if len(figures) == 1:
        (figure,) = figures
        yield Question.of_figure("numa", None, figure.name, figure.unit).judged(
            "pass",
            quantity(figure.rate, figure.unit),
            expected="one NUMA node, which has no peers",
            source=STREAM,
            value=figure.rate,
        )
        return
    for figure in figures:
        rates = sorted(other.rate for other in figures if other is not figure)
        usual = (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2
        source = "the other NUMA nodes of this machine"
        found = by_usual("numa", figure, usual, "the others' median", "peers", source, TOLERANCES)
        if disturbed and found.verdict == "fail":
            advice = f"other processes used {busy:.1f} cores: check again with --if-idle, or without them"
            found = replace(found, verdict="warn", advice=advice)
        yield found


def _against_channels(
    nodes: Sequence[NumaNode], figures: Sequence[Figure], channels: MemoryChannels, *, disturbed: bool
) -> Iterator[Finding]:
    """Compare the sum of all nodes' rates with the rate of the memory channels, if both are known."""
    question = Question("numa", "all channels", figure="numa triad", unit="B/s")
    if channels.why or not all(node.array_bytes >= CACHES * node.cache_bytes for node in nodes):
        why = channels.why or "the arrays of this check fit into the caches"
        yield question.unread(f"not compared with the memory's channels: {why}", counts=False)
        return
    triad = sum(figure.rate for figure in figures if figure.kind == "numa triad")
    if channels.mixed:
        yield Question("numa", "modules").judged(
            "warn",
            f"{channels.modules} modules of several rates: all run at the slowest",
            expected="modules of one rate",
            source="SMBIOS, type 17",
            advice="look at dmidecode -t memory, and replace the slow ones",
        )
    if any(node.why and node.memory_bytes for node in nodes):
        yield question.unread(
            "not compared with the memory's channels: not every node was measured", counts=False
        )
        return
    yield question.judged(
        verdict_of(fail=False, warn=triad < LEAST_OF_PEAK * channels.peak),
        quantity(triad, "B/s"),
        expected=f"at least {LEAST_OF_PEAK:.0%} of {channels.words}",
        basis="reference",
        source="SMBIOS, type 17; bench: half of the channels' rate",
        advice="close other programs and check again"
        if disturbed
        else "look for empty channels with dmidecode -t memory (root), and at the BIOS's memory settings",
        value=triad,
        reference=channels.peak,
    )


CHECK = Check(
    "numa",
    "does each NUMA node's memory reach its bandwidth?",
    judge,
    measure,
    limit_seconds=150,
    blames="node",
    thorough=True,
    has_older_bundles=True,
)
