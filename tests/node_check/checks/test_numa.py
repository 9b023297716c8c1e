"""NUMA nodes: read from trees of files, measured on this machine, and judged against each other."""

from __future__ import annotations

import os
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
    assert sorted(os.sched_getaffinity(0)) == CPUS  # this process stays where it was
    assert data["busy_cores"] >= 0


def test_a_process_that_fails_or_dies_is_a_missing_answer() -> None:
    def fails() -> Any:
        raise MemoryError("no room")

    node, figures = numa._in_own_process(NumaNode(0), fails)
    assert (node.why, node.failed, figures) == ("MemoryError: no room", True, [])
    node, _ = numa._in_own_process(NumaNode(0), lambda: os._exit(3))  # type: ignore[arg-type, return-value]
    assert node.failed and node.why.startswith("its process ended")


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
    return list(judge(Evidence("standard", "cpu", (), {"numa": Reading("numa", data)}), Standards(None)))


def four(*rates: float, **options: Any) -> list[tuple[str, str]]:
    nodes = [replace(NODE, number=number) for number in range(4)]
    findings = judged(nodes, figures(*rates), **options)
    return [(f.subject, f.verdict) for f in findings if f.verdict in ("warn", "fail")]


def test_a_node_that_is_slower_than_the_others_is_named() -> None:
    assert four(200, 200, 181, 200) == []
    assert four(200, 200, 179, 200) == [("numa 2 scale", "warn"), ("numa 2 triad", "warn")]
    assert four(200, 200, 149, 200) == [("numa 2 scale", "fail"), ("numa 2 triad", "fail")]


def test_while_others_use_the_machine_a_slow_node_is_a_warning() -> None:
    assert four(200, 200, 100, 200, busy=9.0)[0] == ("numa 2 scale", "fail")  # under 5% of 192
    assert four(200, 200, 100, 200, busy=10.0) == [("numa 2 scale", "warn"), ("numa 2 triad", "warn")]


def test_a_single_node_has_no_peers() -> None:
    assert [f.verdict for f in judged([NODE], figures(200))] == ["pass", "pass", "not-run"]


def dimm(slot: str, rate: float | None = 4.8e9) -> MemoryModule:
    return MemoryModule(slot, "", 64 * GIB, "DDR5", rate, 8)


EIGHT = channels_of([dimm(f"{letter}{slot}") for letter in "ABCDEFGH" for slot in (1, 2)])


def test_channels_with_two_modules_count_once() -> None:
    assert (EIGHT.count, EIGHT.modules, EIGHT.mixed) == (8, 16, False)
    assert EIGHT.words == "8 channels of DDR5-4800, 307 GB/s"


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
    in_cache = judged([replace(NODE, array_bytes=1 << 20)], figures(900), EIGHT)[-1]
    assert (in_cache.verdict, in_cache.counts) == ("not-run", False)


def test_modules_of_several_rates_are_a_warning() -> None:
    mixed = channels_of([dimm("A1"), dimm("B1", 4.4e9)])
    assert mixed.peak == 2 * 4.4e9 * 8
    assert ("modules", "warn") in [(f.subject, f.verdict) for f in judged([NODE], figures(60), mixed)]


def test_it_is_left_out_where_it_would_take_too_long_or_disturb() -> None:
    assert [depth for depth in DEPTHS if CHECK.is_asked_at(depth) and CHECK.is_made_at(depth)] == [
        "standard",
        "soak",
    ]
