"""NUMA nodes: read from trees of files, measured on this machine, and judged against each other."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.smbios import MemoryModule
from bench.base.strict_json import from_json, to_json
from bench.node_check.checks import CheckBudget, TimedWork, numa
from bench.node_check.checks.numa import (
    CHECK,
    MemoryChannels,
    NumaNode,
    channels_of,
    judge,
    measure,
    read_nodes,
)
from bench.node_check.judging import DEPTHS
from bench.node_check.judging.evidence import Evidence, Figure, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from tests.node_check.checks.answers import answers

CPUS = sorted(os.sched_getaffinity(0))
GIB = 1 << 30


def tree(root: Path, nodes: Sequence[tuple[str, int, int]], cache: str = "32768K") -> Path:
    """Write nodes with their lists of processors, and their memory and free memory in GiB."""
    for number, (processors, total, free) in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{processors}\n")
        (folder / "meminfo").write_text(
            f"Node {number} MemTotal:  {total << 20} kB\nNode {number} MemFree: {free << 20} kB\n"
        )
    for cpu in CPUS:
        for index, (level, size) in enumerate((("1", "48K"), ("3", cache))):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(level)
            (folder / "size").write_text(size)
            (folder / "shared_cpu_list").write_text(f"{cpu}" if level == "1" else "0-63")
    return root


def test_nodes_are_read_with_arrays_larger_than_their_caches(tmp_path: Path) -> None:
    (node,) = read_nodes(tree(tmp_path, [(f"{CPUS[0]}-{CPUS[-1]}", 512, 400)]), tiny=False)
    assert (node.number, node.processors, node.memory_bytes, node.why) == (0, len(CPUS), 512 * GIB, "")
    assert (node.cache_bytes, node.array_bytes) == (32 << 20, 128 << 20)


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    nodes = read_nodes(tree(tmp_path, [(str(CPUS[0]), 96, 96)] * 12), tiny=True)
    assert [node.number for node in nodes] == list(range(12))


@pytest.mark.parametrize(("size", "last"), [("32768K", 32 << 20), ("64M", 64 << 20)])
def test_a_cache_has_its_size_in_the_kernels_units(tmp_path: Path, size: str, last: int) -> None:
    (node,) = read_nodes(tree(tmp_path, [(f"{CPUS[0]}-{CPUS[-1]}", 512, 400)], size), tiny=False)
    assert node.cache_bytes == last


@pytest.mark.parametrize("size", ["2G", "32768", "K", ""])
def test_a_cache_of_another_unit_is_not_known(tmp_path: Path, size: str) -> None:
    """The known caches are those of 48 KiB of each processor."""
    (node,) = read_nodes(tree(tmp_path, [(f"{CPUS[0]}-{CPUS[-1]}", 512, 400)], size), tiny=False)
    assert node.cache_bytes == len(CPUS) * (48 << 10)


@pytest.mark.parametrize(
    ("processors", "total", "free", "cache", "why"),
    [
        (str(CPUS[0]), 0, 0, "32M", "it has no memory"),
        ("", 96, 96, "32M", "it has no processor that this process may use"),
        ("5000-5003", 96, 96, "32M", "it has no processor that this process may use"),
        (str(CPUS[0]), 96, 0, "32M", "0 MiB are free, too little for arrays of 128 MiB"),
        (str(CPUS[0]), 96, 1, "512M", "1024 MiB are free, too little for arrays of 2048 MiB"),
    ],
)
def test_a_node_that_cannot_be_measured_says_why(
    tmp_path: Path, processors: str, total: int, free: int, cache: str, why: str
) -> None:
    (node,) = read_nodes(tree(tmp_path, [(processors, total, free)], cache), tiny=False)
    assert node.why == why
    (finding,) = [f for f in judged([node], []) if f.subject == "node 0"]
    assert (finding.verdict, finding.counts) == ("not-run", False)


def test_memory_that_a_cpuset_forbids_is_not_measured(tmp_path: Path) -> None:
    root = tree(tmp_path, [(str(CPUS[0]), 96, 96)] * 2)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("Name:\tx\nMems_allowed_list:\t0\n")
    assert [node.why for node in read_nodes(root, tiny=False)] == ["", "this process may not use its memory"]


MIB = 1 << 20


def with_memory(root: Path, lines: str) -> NumaNode:
    """Read a node with these lines in its meminfo, whose arrays are of 64 MiB."""
    tree(root, [(str(CPUS[0]), 0, 0)], "48K")
    (root / "sys/devices/system/node/node0/meminfo").write_text(lines)
    (node,) = read_nodes(root, tiny=False)
    assert node.array_bytes == 64 * MIB
    return node


@pytest.mark.parametrize(
    ("free", "files", "shared", "all_memory", "why"),
    [
        (384 << 10, 0, 0, 2**50, ""),  # half of it is enough for three arrays
        ((384 << 10) - 1, 0, 0, 2**50, "383 MiB are free, too little for arrays of 64 MiB"),
        (84 << 10, 400 << 10, 100 << 10, 2**50, ""),
        (84 << 10, 400 << 10, 101 << 10, 2**50, "383 MiB are free, too little for arrays of 64 MiB"),
        (384 << 10, 10, 20, 2**50, ""),  # files cannot be fewer than none
        (384 << 10, 0, 0, 768 * MIB, ""),  # a quarter of what this process may use
        (384 << 10, 0, 0, 768 * MIB - 1, "384 MiB are free, too little for arrays of 64 MiB"),
    ],
)
def test_three_arrays_take_half_of_the_free_memory_and_a_quarter_of_all_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, files: int, shared: int, all_memory: int,
    why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(numa, "memory_bytes", lambda: all_memory)
    lines = {"MemTotal": 8 << 20, "MemFree": free, "FilePages": files, "Shmem": shared}
    node = with_memory(tmp_path, "".join(f"Node 0 {name}:  {kib} kB\n" for name, kib in lines.items()))
    assert (node.why, node.memory_bytes) == (why, 8 * GIB)


@pytest.mark.parametrize("lines", ["", "Node 0 MemTotal:\n", "Node 0 MemTotal: many kB\n", "odd\n"])
def test_memory_that_is_not_told_is_none(tmp_path: Path, lines: str) -> None:
    assert with_memory(tmp_path, lines).why == "it has no memory"


def test_files_that_are_not_utf_8_are_read_too(tmp_path: Path) -> None:
    root = tree(tmp_path, [(str(CPUS[0]), 96, 96)])
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_bytes(b"Name:\t\xff\nMems_allowed_list:\t3\n")
    with (root / "sys/devices/system/node/node0/meminfo").open("ab") as file:
        file.write(b"\xff")
    (node,) = read_nodes(root, tiny=True)
    assert (node.why, node.memory_bytes) == ("this process may not use its memory", 96 * GIB)


def test_a_node_whose_memory_cannot_be_read_has_none(tmp_path: Path) -> None:
    tree(tmp_path, [(str(CPUS[0]), 96, 96)])
    (tmp_path / "sys/devices/system/node/node0/meminfo").unlink()
    (node,) = read_nodes(tmp_path, tiny=True)
    assert (node.why, node.memory_bytes) == ("it has no memory", 0)


@pytest.mark.parametrize(("tiny", "cache", "array_mib"), [
    (True, "32M", 1), (False, "15M", 64), (False, "16M", 64), (False, "17M", 68), (False, "1023M", 4092),
    (False, "1025M", 4096),
])  # fmt: skip
def test_an_array_is_four_times_the_caches_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: bool, cache: str, array_mib: int
) -> None:
    monkeypatch.setattr(numa, "memory_bytes", lambda: 2**50)
    (node,) = read_nodes(tree(tmp_path, [(str(CPUS[0]), 512, 400)], cache), tiny=tiny)
    assert (node.array_bytes, node.why) == (array_mib * MIB, "")


def test_caches_of_several_groups_of_processors_are_added_up(tmp_path: Path) -> None:
    root = tree(tmp_path, [(f"{CPUS[0]}-{CPUS[-1]}", 512, 400)], "8M")
    for cpu in CPUS:  # each has its own
        (root / f"sys/devices/system/cpu/cpu{cpu}/cache/index1/shared_cpu_list").write_text(str(cpu))
    (node,) = read_nodes(root, tiny=True)
    assert node.cache_bytes == 8 * MIB * len(CPUS)


def test_at_most_64_nodes_are_read_and_other_folders_are_none(tmp_path: Path) -> None:
    root = tree(tmp_path, [(str(CPUS[0]), 1, 1)] * 65)
    (root / "sys/devices/system/node/nodes").mkdir()
    assert [node.number for node in read_nodes(root, tiny=True)] == list(range(64))


@pytest.mark.parametrize(
    ("nodes", "asked", "seconds"),
    [(1, 1.0, 1.0), (1, 60.0, 30.0), (4, 9.0, 7.5), (4, 7.0, 7.0), (0, 9.0, 9.0)],
)
def test_more_nodes_have_shorter_figures(
    monkeypatch: pytest.MonkeyPatch, nodes: int, asked: float, seconds: float
) -> None:
    found = [NumaNode(n) for n in range(nodes)] + [NumaNode(9, why="it has no memory")]
    told: list[float] = []

    def process(node: NumaNode, work: Any) -> tuple[NumaNode, list[Figure]]:
        told.append(work.args[2])
        return replace(node, bound=True), figures(1.0)

    monkeypatch.setattr(numa, "read_nodes", lambda root, tiny: tuple(found))
    monkeypatch.setattr(numa, "_in_own_process", process)
    monkeypatch.setattr(numa, "busy_cores", lambda: 1.5)
    monkeypatch.setattr(numa, "_channels", lambda: UNKNOWN)
    data = measure(OnceEach(), CheckBudget("standard", 0.0, asked, 0.0, "/", False))  # type: ignore[arg-type]
    assert told == [seconds] * nodes
    assert [(one["number"], one["bound"]) for one in data["nodes"]] == [*((n, True) for n in range(nodes)),
                                                                        (9, False)]  # fmt: skip
    assert len(data["figures"]) == 2 * nodes
    assert (data["busy_cores"], data["channels"]) == (1.5, to_json(UNKNOWN))


def test_cores_in_use_are_counted_from_the_kernels_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in the first two already."""
    monkeypatch.setattr(numa, "first_line", lambda path: "cpu 100 20 30 400 50 6 7 8 90 10")
    assert numa._busy_seconds() == 171 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("seconds", "cores"), [((10.0, 11.0), 2.0), ((10.0, 9.0), 0.0)])
def test_cores_in_use_are_those_of_half_a_second(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], cores: float
) -> None:
    looks, slept = iter(seconds), list[float]()
    monkeypatch.setattr(numa, "_busy_seconds", lambda: next(looks))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert (numa.busy_cores(), slept) == (cores, [0.5])


def test_a_processor_whose_kernel_call_is_not_known_binds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert numa.bind_memory(0) is False


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 238), ("aarch64", 237)])
@pytest.mark.parametrize(("answer", "bound"), [(0, True), (-1, False)])
def test_memory_is_bound_by_the_kernels_call(
    monkeypatch: pytest.MonkeyPatch, machine: str, number: int, answer: int, bound: bool
) -> None:
    """set_mempolicy(MPOL_BIND, mask, bits of the mask + 1) with the node's bit in the mask."""
    asked: list[tuple[int, int, list[int], int]] = []

    class Libc:
        def syscall(self, which: int, mode: int, mask: Any, most: ctypes.c_ulong) -> int:
            asked.append((which, mode, list(mask), most.value))
            return answer

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: Libc())
    assert numa.bind_memory(5) is bound
    assert asked == [(number, 2, [32, 0], 65)]


def test_a_node_is_measured_by_its_own_processors_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    asked: list[Any] = []

    class Kept:
        """A rig that keeps what each call computed, and how it was asked for."""

        def timed(self, call: Callable[[], Any], work: float, **options: Any) -> TimedWork:
            asked.append((set(call().tolist()), options))
            return TimedWork(work, (0.5,))

    files = {"/sys/devices/system/node/node5/cpulist": "0-3"}
    monkeypatch.setattr(numa, "first_line", lambda path: files[str(path)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 9})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *told: asked.append(told))
    monkeypatch.setattr(numa, "bind_memory", lambda node: node == 5)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    rig: Any = Kept()
    bound, found = numa._measured(rig, NumaNode(5, 2, array_bytes=800), 0.25)
    options = {"wait": False, "seconds": 0.25}
    assert asked == [(0, {1, 2}), 2, ({3.0}, options), ({7.0}, options)]  # 3b, and b + 3c
    assert bound is True
    assert [(one.name, one.work, one.kind) for one in found] == [
        ("numa 5 scale", 1600.0, "numa scale"), ("numa 5 triad", 2400.0, "numa triad"),
    ]  # fmt: skip


class OnceEach:
    """A rig that makes each call once."""

    def timed(self, call: Callable[[], object], work: float, **_: Any) -> TimedWork:
        call()
        return TimedWork(work, (0.5,))

    def say(self, _: str) -> None: ...


def test_this_machine_is_measured_in_processes_of_its_nodes() -> None:
    rig: Any = OnceEach()
    data = measure(rig, CheckBudget("standard", 0.0, 0.1, 0.0, "/nowhere", True))
    nodes = from_json(tuple[NumaNode, ...], data["nodes"])
    assert nodes and not any(node.failed for node in nodes)
    measured = [node.number for node in nodes if not node.why]
    assert [figure["name"] for figure in data["figures"]] == [
        f"numa {number} {kernel}" for number in measured for kernel in ("scale", "triad")
    ]
    for figure, arrays in zip(data["figures"], (2, 3) * len(measured), strict=True):
        kernel = figure["name"].split()[-1]
        assert (figure["work"], figure["unit"]) == (arrays * float(1 << 20), "B/s")
        assert (figure["gpu"], figure["kind"], figure["samples"]) == (None, f"numa {kernel}", [0.5])
    assert sorted(os.sched_getaffinity(0)) == CPUS  # this process stays where it was
    assert data["busy_cores"] >= 0


def test_a_process_that_fails_or_dies_is_a_missing_answer() -> None:
    def fails() -> Any:
        raise MemoryError("no room")

    node, none = numa._in_own_process(NumaNode(0), fails)
    assert (node.why, node.failed, none) == ("MemoryError: no room", True, [])
    node, none = numa._in_own_process(NumaNode(0), lambda: os._exit(3))  # type: ignore[arg-type, return-value]
    assert (node.failed, node.why, none) == (True, "its process ended with exit code 3", [])

    def long() -> Any:
        raise ValueError("x" * 300)

    node, _ = numa._in_own_process(NumaNode(0), long)
    assert node.why == f"ValueError: {'x' * 188}"
    node, found = numa._in_own_process(NumaNode(0), lambda: (True, figures(200)))
    assert (node.bound, node.failed, node.why, found) == (True, False, "", figures(200))


def figures(*gigabytes: float) -> list[Figure]:
    return [
        Figure(f"numa {number} {kernel}", None, "B/s", rate * 1e9, (1.0,), f"numa {kernel}")
        for number, rate in enumerate(gigabytes)
        for kernel in ("scale", "triad")
    ]


NODE = NumaNode(0, 48, 512 * GIB, 256 << 20, GIB, bound=True)
UNKNOWN = MemoryChannels(why="SMBIOS cannot be read: Permission denied")


def judged(
    nodes: Sequence[NumaNode], rates: Sequence[Figure], channels: MemoryChannels = UNKNOWN, busy: float = 0.0
) -> list[Finding]:
    data = {
        "nodes": to_json(nodes),
        "figures": to_json(rates),
        "channels": to_json(channels),
        "busy_cores": busy,
    }
    evidence = Evidence("standard", "cpu", (), {"numa": Reading("numa", data)})
    return answers("numa", judge(evidence, Standards(None)))


def four(*rates: float, **options: Any) -> list[tuple[str, str]]:
    nodes = [replace(NODE, number=number) for number in range(4)]
    findings = judged(nodes, figures(*rates), **options)
    return [(f.subject, f.verdict) for f in findings if f.verdict in ("warn", "fail")]


def test_a_node_that_is_slower_than_the_others_is_named() -> None:
    assert four(200, 200, 181, 200) == []
    assert four(200, 200, 179, 200) == [("numa 2 scale", "warn"), ("numa 2 triad", "warn")]
    assert four(200, 200, 149, 200) == [("numa 2 scale", "fail"), ("numa 2 triad", "fail")]


def test_a_node_is_compared_with_the_median_of_the_others() -> None:
    nodes = [replace(NODE, number=number) for number in range(3)]
    found = judged(nodes, figures(100, 200, 400))
    assert [f.reference for f in found if f.figure and "scale" in f.figure] == [300e9, 250e9, 150e9]
    assert [f.verdict for f in found if f.figure and "scale" in f.figure] == ["fail", "warn", "pass"]
    slow = found[0]
    assert (slow.basis, slow.source) == ("peers", "the other NUMA nodes of this machine")
    assert slow.advice == (
        "compare its modules with the other nodes': a missing or slower one halves a channel's rate"
    )


@pytest.mark.parametrize(
    ("rate", "verdict"), [(180, "pass"), (179.9, "warn"), (150, "warn"), (149.9, "fail")]
)
def test_a_node_10_percent_slower_warns_and_one_25_percent_slower_fails(rate: float, verdict: str) -> None:
    found = judged([replace(NODE, number=number) for number in range(3)], figures(200, 200, rate))
    assert [f.verdict for f in found if f.figure == "numa 2 triad"] == [verdict]


@pytest.mark.parametrize(("busy", "verdict"), [(0.5, "fail"), (0.51, "warn")])
def test_on_a_small_machine_half_a_core_is_busy(busy: float, verdict: str) -> None:
    nodes = [replace(NODE, number=number, processors=2) for number in range(2)]
    found = [f for f in judged(nodes, figures(200, 100), busy=busy) if f.figure == "numa 1 scale"]
    assert [f.verdict for f in found] == [verdict]
    told = "other processes used 0.5 cores: check again with --if-idle, or without them"
    assert (found[0].advice == told) is (verdict == "warn")


def test_a_node_that_could_have_been_measured_counts() -> None:
    told = [(f.subject, f.found, f.counts) for f in judged([
        replace(NODE, why="it has no memory"), replace(NODE, number=1, why="no room", failed=True),
    ], []) if f.verdict == "not-run"]  # fmt: skip
    assert told == [("node 0", "it has no memory", False), ("node 1", "no room", True)]


def test_more_nodes_than_any_machine_has_are_refused() -> None:
    assert judged([NODE] * 64, []) == []
    with pytest.raises(ValueError, match="more than 64"):
        judged([NODE] * 65, [])


def test_a_machine_whose_nodes_were_not_read_has_no_answer() -> None:
    assert list(judge(Evidence("standard", "cpu", (), {}), Standards(None))) == []


def test_while_others_use_the_machine_a_slow_node_is_a_warning() -> None:
    assert four(200, 200, 100, 200, busy=9.0)[0] == ("numa 2 scale", "fail")  # under 5% of 192
    assert four(200, 200, 100, 200, busy=10.0) == [("numa 2 scale", "warn"), ("numa 2 triad", "warn")]


def test_a_single_node_has_no_peers() -> None:
    scale, triad, channels = judged([NODE], figures(200))
    assert (scale.verdict, scale.figure, scale.found, scale.value) == (
        "pass",
        "numa 0 scale",
        "200 GB/s",
        200e9,
    )
    assert (triad.verdict, triad.figure) == ("pass", "numa 0 triad")
    assert (channels.verdict, channels.counts) == ("not-run", False)
    assert channels.found == (
        "not compared with the memory's channels: SMBIOS cannot be read: Permission denied"
    )


def dimm(slot: str, rate: float | None = 4.8e9) -> MemoryModule:
    return MemoryModule(slot, "", 64 * GIB, "DDR5", rate, 8)


EIGHT = channels_of([dimm(f"{letter}{slot}") for letter in "ABCDEFGH" for slot in (1, 2)])


def test_channels_with_two_modules_count_once() -> None:
    assert (EIGHT.count, EIGHT.modules, EIGHT.mixed, EIGHT.data_bytes, EIGHT.why) == (8, 16, False, 8, "")
    assert EIGHT.words == "8 channels of DDR5-4800, 307 GB/s"
    assert replace(EIGHT, kind="").words == "8 channels of memory-4800, 307 GB/s"
    assert channels_of([replace(dimm("A1"), kind="HBM3"), dimm("B1")]).kind == "DDR5/HBM3"
    assert channels_of([replace(dimm("A1"), data_bytes=4), dimm("B1")]).data_bytes == 4


def test_tables_that_cannot_be_read_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(numa, "read_modules", refused)
    assert numa._channels() == MemoryChannels(why="SMBIOS cannot be read: Permission denied")
    monkeypatch.setattr(numa, "read_modules", lambda: (dimm("A1"),))
    assert numa._channels().count == 1


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ([], "tells no rate"),
        ([dimm("A1", None)], "tells no rate"),
        ([dimm("A1"), dimm("B1", None)], "tells no rate"),
        ([dimm("DIMM 0")], "tells no channels"),
    ],
)
def test_channels_that_are_not_known_are_not_guessed(modules: list[MemoryModule], why: str) -> None:
    assert why in channels_of(modules).why


def test_all_nodes_together_are_compared_with_the_channels() -> None:
    assert [f.verdict for f in judged([NODE], figures(154), EIGHT)] == ["pass"] * 3
    slow = judged([NODE], figures(153), EIGHT)[-1]
    assert (slow.verdict, slow.expected) == ("warn", "at least 50% of 8 channels of DDR5-4800, 307 GB/s")
    assert (slow.value, slow.reference, slow.unit, slow.basis) == (153e9, 307.2e9, "B/s", "reference")
    assert (slow.subject, slow.figure, slow.found) == ("all channels", "numa triad", "153 GB/s")
    assert slow.advice == (
        "look for empty channels with dmidecode -t memory (root), and at the BIOS's memory settings"
    )
    busy = judged([NODE], figures(153), EIGHT, busy=9.0)[-1]
    assert busy.advice == "close other programs and check again"
    half = judged([NODE], figures(153.6), EIGHT)[-1]
    assert half.verdict == "pass"
    both = judged([NODE, replace(NODE, number=1)], figures(100, 100), EIGHT)[-1]
    assert (both.verdict, both.value) == ("pass", 200e9)
    in_cache = judged([replace(NODE, array_bytes=(1 << 30) - 1)], figures(900), EIGHT)[-1]
    assert (in_cache.verdict, in_cache.counts) == ("not-run", False)
    assert in_cache.found == (
        "not compared with the memory's channels: the arrays of this check fit into the caches"
    )


def test_nodes_that_were_not_measured_keep_the_others_from_a_comparison_with_all_channels() -> None:
    other = replace(NODE, number=1, why="no room", failed=True)
    last = judged([NODE, other], figures(200), EIGHT)[-1]
    assert (last.verdict, last.counts) == ("not-run", False)
    assert last.found == "not compared with the memory's channels: not every node was measured"
    without_memory = replace(other, memory_bytes=0)
    assert judged([NODE, without_memory], figures(200), EIGHT)[-1].verdict == "pass"


def test_modules_of_several_rates_are_a_warning() -> None:
    mixed = channels_of([dimm("A1"), dimm("B1", 4.4e9)])
    assert mixed.peak == 2 * 4.4e9 * 8
    (finding,) = [f for f in judged([NODE], figures(60), mixed) if f.subject == "modules"]
    assert (finding.verdict, finding.found) == ("warn", "2 modules of several rates: all run at the slowest")


def test_it_is_left_out_where_it_would_take_too_long_or_disturb() -> None:
    assert [depth for depth in DEPTHS if CHECK.is_asked_at(depth) and CHECK.is_made_at(depth)] == [
        "standard",
        "soak",
    ]
