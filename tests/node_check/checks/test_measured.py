"""A check asks its rig for so much work, for so long, and some wait for others: each in digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.base.strict_json import to_json
from bench.node_check.all_checks import known_checks
from bench.node_check.checks import (
    CheckBudget,
    TimedWork,
    clock,
    copies,
    disk,
    file_systems,
    host_memory,
    memory,
    own_card,
    peers,
)
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.judge_figures import Tolerances
from bench.node_check.judging.standards import Standards

TINY = CheckBudget("standard", 1.0, 3.0, 0.0, "/nowhere", True)
QUICK = CheckBudget("quick", 1.0, 3.0, 0.0, "/nowhere", True)
FULL = CheckBudget("standard", 1.0, 3.0, 0.0, "/nowhere", False)
MIB = 1 << 20


FULL_SIZES = {module: module.COPIED_BYTES for module in (copies, host_memory, memory, peers)}
FULL_SIZES[own_card] = own_card.SIZE


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 64 stand for each full size, which would take gigabytes here."""
    for module in FULL_SIZES:
        monkeypatch.setattr(module, "SIZE" if module is own_card else "COPIED_BYTES", 64)


class Recording:
    """A rig of CPUs that notes what it is asked."""

    device = torch.device("cpu")

    def __init__(self, rank: int = 1, gpus: tuple[int, ...] = (3, 7)) -> None:
        self.kind, self.rank, self.gpus, self.size = "cpu", rank, [*gpus], len(gpus)
        self.gpu = gpus[rank]
        self.events: list[str] = []
        self.asked: list[tuple[float, bool, float | None, float | None]] = []

    def at(self, _place: int) -> torch.device:
        return self.device

    def timed(
        self,
        call: Callable[[], object],
        work: float,
        *,
        wait: bool = True,
        seconds: float | None = None,
        warm_seconds: float | None = None,
    ) -> TimedWork:
        self.asked.append((work, wait, seconds, warm_seconds))
        self.events.append("timed")
        call()
        return TimedWork(work, (0.5,))

    def say(self, phase: str) -> None:
        self.events.append(phase)

    def wait(self) -> None:
        self.events.append("wait")

    def gather(self, value: Any) -> list[Any]:
        return [to_json(value)]


def measured(check: str, budget: CheckBudget = TINY, **rig: Any) -> tuple[list[Any], Recording]:
    measure = known_checks()[check].measure
    assert measure is not None
    recording = Recording(**rig)
    data: Any = measure(recording, budget)  # type: ignore[arg-type]
    return [(one["name"], one["gpu"], one["unit"], one["work"]) for one in data["figures"]], recording


def test_copies_are_timed_one_gpu_at_a_time_then_all_at_once() -> None:
    figures, rig = measured("copies")
    alone = [(name, 7, "B/s", 1.0 * MIB) for name in ("host-to-device", "device-to-host")]
    assert figures == [*alone, *((f"{name}, all at once", *rest) for name, *rest in alone)]
    assert rig.asked == [(MIB, False, 1.5, 0.1)] * 2 + [(MIB, True, None, None)] * 2
    assert rig.events == ["wait", "wait", "GPU 7 alone", "timed", "timed", "all at once", "timed", "timed"]
    figures, rig = measured("copies", QUICK, rank=0)
    assert figures == [(name, 3, unit, work) for name, _, unit, work in alone]
    assert rig.events == ["wait", "GPU 3 alone", "timed", "timed", "wait"]
    figures, rig = measured("copies", rank=0, gpus=(5,))
    assert [name for name, *_ in figures] == ["host-to-device", "device-to-host"]
    _, rig = measured("copies", gpus=tuple(range(10)))
    assert rig.asked[0] == (MIB, False, 0.4, 0.1), "the least time of a figure"


def test_the_memory_of_all_gpus_is_copied_at_once() -> None:
    figures, rig = measured("memory")
    assert figures == [("memory", 7, "B/s", 8.0 * MIB)], "bytes that are read and written"
    assert rig.asked == [(8.0 * MIB, True, None, None)]


def test_the_memory_of_the_host_is_read_and_written_by_an_addition() -> None:
    figures, rig = measured("host-memory")
    assert figures == [("host-memory", None, "B/s", 32.0 * MIB)]
    assert rig.asked == [(32.0 * MIB, True, None, None)]


def test_every_card_multiplies_alone_and_then_all_together() -> None:
    figures, rig = measured("own-card")
    assert figures == [(name, 7, "FLOP/s", 2.0 * 256**3) for name in ("matmul alone", "matmul together")]
    assert rig.asked == [(2.0 * 256**3, wait, 0.3, None) for wait in (False, True)]
    assert rig.events == [
        "GPU 3 alone", "wait", "GPU 7 alone", "wait", "timed", "wait", "all at once", "timed",
    ]  # fmt: skip


def test_each_pair_of_gpus_is_copied_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, rig = measured("peers", rank=0)
    assert figures == [(f"peer {pair}", None, "B/s", 1.0 * MIB) for pair in ("3-7", "7-3")]
    assert rig.asked == [(MIB, False, 3.0, 0.0)] * 2
    assert rig.events == ["GPU 3 to GPU 7", "timed", "GPU 7 to GPU 3", "timed"]
    for gpus, seconds in ((8, 8 * 3.0 / 56), (17, 0.1)):
        _, rig = measured("peers", rank=0, gpus=tuple(range(gpus)))
        assert len(rig.asked) == gpus * (gpus - 1)
        assert [*{asked[2] for asked in rig.asked}] == [pytest.approx(seconds)]
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) == (0, 1))
    recording: Any = Recording(rank=0)
    assert peers.measure(recording, TINY)["direct"] == {}
    recording.kind = "cuda"
    assert peers.measure(recording, TINY)["direct"] == {"3-7": True, "7-3": False}


@pytest.mark.parametrize(
    ("module", "size", "work"),
    [
        (copies, 512 * MIB, 1.0),
        (memory, 2048 * MIB, 2.0),
        (host_memory, 1024 * MIB, 2.0),
        (peers, 256 * MIB, 1.0),
        (own_card, 8192, 2.0 * 64 * 64),
    ],
)
def test_a_gpu_is_measured_at_full_size_and_a_cpu_at_a_small_one(module: Any, size: int, work: float) -> None:
    assert FULL_SIZES[module] == size
    _, rig = measured(module.CHECK.name, FULL, rank=0)
    assert {asked[0] for asked in rig.asked} == {64 * work}


def test_data_are_made_on_the_device_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of any value: memory of a single value might be compressed. Only pinned memory is copied fast."""
    made: list[tuple[Any, ...]] = []

    def noted(name: str) -> Any:
        real = getattr(torch, name)

        def make(*given: Any, **more: Any) -> Any:
            shown = given if name == "randint" else ()
            made.append((name, *shown, more.get("device"), more.get("dtype"), more.pop("pin_memory", None)))
            return real(*given, **more)

        return make

    for name in ("randint", "randn", "empty_like"):
        monkeypatch.setattr(torch, name, noted(name))
    cpu = torch.device("cpu")
    data = ("randint", 0, 255, (MIB,), cpu, torch.uint8, None)
    measured("copies")
    assert made == [data, ("empty_like", "cpu", None, False)]
    recording: Any = Recording()
    recording.kind = "cuda"
    copies.measure(recording, TINY)
    assert made[-1] == ("empty_like", "cpu", None, True)
    made.clear()
    measured("memory")
    measured("peers", rank=0)
    target = ("empty_like", cpu, None, None)
    assert made == [
        ("randint", 0, 255, (4 * MIB,), cpu, torch.uint8, None), ("empty_like", None, None, None),
        data, target, data, target,
    ]  # fmt: skip
    made.clear()
    measured("own-card")
    assert made[:2] == [("randn", cpu, torch.bfloat16, None)] * 2


def test_the_rate_of_a_disk_is_told_in_bytes_a_second() -> None:
    data = {"free_bytes": 99 << 30, "written_bytes": 3e9, "write_seconds": 2.0}
    reading = Reading("disk", data)
    _, write = disk.judge(Evidence("quick", "cpu", (), {"disk": reading}), Standards(None))
    assert (write.found, write.expected) == ("1.5 GB/s", "at least 100 MB/s")


def test_how_far_rates_may_lie_below_those_of_other_gpus() -> None:
    assert Tolerances(10, 25, 8, copies.ADVICE) == copies.RULES
    assert Tolerances(3, 6, 4, memory.ADVICE) == memory.RULES
    assert Tolerances(8, 20, 8, peers.ADVICE) == peers.RULES


def test_copies_of_all_gpus_at_once_are_recorded_and_not_judged() -> None:
    figures = [
        {"name": name, "gpu": None, "unit": "B/s", "work": 1e9, "samples": [1.0]}
        for name in ("host-to-device", "host-to-device, all at once")
    ]
    reading = Reading("copies", {"figures": figures})
    (finding,) = copies.judge(Evidence("quick", "cpu", (), {"copies": reading}), Standards(None))
    assert (finding.check, finding.figure) == ("copies", "host-to-device")


@pytest.fixture
def disk_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the free space of the disk, and the clock by one that goes on at each look."""

    def replace(free: int, step_seconds: float = 0.001) -> None:
        looks = iter(range(100_000))
        clock = SimpleNamespace(perf_counter=lambda: step_seconds * next(looks))
        monkeypatch.setattr(file_systems, "time", clock)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    return replace


def written_and_read(folder: Path, depth: Any = "quick", *, tiny: bool = True) -> Any:
    rig: Any = None
    return disk.measure(rig, CheckBudget(depth, 1.0, 1.0, 0.0, str(folder), tiny))


def test_the_scratch_disk_is_written_and_read_up_to_a_size(
    tmp_path: Path, disk_with: Callable[..., None]
) -> None:
    disk_with(1 << 40)
    data = written_and_read(tmp_path)
    assert data == {
        "free_bytes": 1 << 40, "written_bytes": 16 * MIB, "write_seconds": pytest.approx(0.003),
        "read_bytes": 16 * MIB, "read_seconds": pytest.approx(0.003),
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "written"), [(64 * MIB, 16), (63 * MIB, 8), (32 * MIB, 8), (32 * MIB - 1, None), (0, None)]
)
def test_a_quarter_of_the_free_space_is_written_in_whole_blocks(
    tmp_path: Path, disk_with: Callable[..., None], free: int, written: int | None
) -> None:
    disk_with(free)
    data = written_and_read(tmp_path)
    assert data.get("written_bytes") == (None if written is None else written * MIB)
    assert data["free_bytes"] == free


def test_a_full_size_depends_on_the_depth(
    tmp_path: Path, disk_with: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, bool]] = []

    def transfer(_opened: int, size: int, _seconds: float, block: int, *, writing: bool) -> Any:
        asked.append((size, block, writing))
        return file_systems.MovedBytes("", size // 2, 1.0)

    disk_with(1 << 50)
    monkeypatch.setattr(file_systems, "_in_sequence", transfer)
    for depth in ("quick", "standard", "soak"):
        written_and_read(tmp_path, depth, tiny=False)
    sizes = (1 << 30, 4 << 30, 8 << 30)
    block = 8 * MIB
    assert asked == [each for size in sizes for each in ((size, block, True), (size // 2, block, False))]


def test_a_transfer_ends_after_four_times_the_time_of_a_figure(
    tmp_path: Path, disk_with: Callable[..., None]
) -> None:
    """A look at the clock takes a second here, so four seconds are over after three blocks."""
    disk_with(1 << 50, step_seconds=1.0)
    data = written_and_read(tmp_path, tiny=False)
    assert (data["written_bytes"], data["write_seconds"]) == (3 * 8 * MIB, 5.0)
    assert (data["read_bytes"], data["read_seconds"]) == (3 * 8 * MIB, 4.0)


def test_a_file_that_ends_early_ends_the_reading(
    tmp_path: Path, disk_with: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_with(1 << 40)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    data = written_and_read(tmp_path)
    assert (data["read_bytes"], data["read_seconds"]) == (0, pytest.approx(0.002))


class Libc:
    """A C library whose clock answers as it is told."""

    def __init__(self, state: int, **fields: int) -> None:
        self.state, self.fields = state, fields

    def adjtimex(self, timex: Any) -> int:
        for name, value in self.fields.items():
            setattr(timex._obj, name, value)
        return self.state


@pytest.mark.parametrize(
    ("libc", "read"),
    [
        (
            Libc(0, status=0x2001, maxerror=500_000, esterror=1_500),
            {"state": 0, "status": 0x2001, "max_error_seconds": 0.5, "estimated_error_seconds": 0.0015},
        ),
        (
            Libc(5, status=0x40),
            {"state": 5, "status": 0x40, "max_error_seconds": 0.0, "estimated_error_seconds": 0.0},
        ),
        (Libc(-1), {"error": 1}),
    ],
)
def test_the_clock_is_read_from_the_kernel(
    libc: Libc, read: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig: Any = None
    loaded: list[object] = []

    def library(name: str | None, *, use_errno: bool) -> Libc:
        loaded.append((name, use_errno))
        return libc

    monkeypatch.setattr(clock.ctypes, "CDLL", library)
    monkeypatch.setattr(clock.ctypes, "get_errno", lambda: 1)
    cpuinfo = "processor : 0\nflags : fpu vme hypervisor sse\n"
    for text, virtual in ((cpuinfo, True), (cpuinfo.replace(" hypervisor", ""), False)):
        monkeypatch.setattr(Path, "read_text", lambda path, encoding, text=text: text)
        found = dict(clock.measure(rig, TINY))
        assert found.pop("virtual", virtual) == virtual
        assert found == read
    assert loaded == [(None, True)] * 2


def test_the_kernel_fills_in_its_clock_where_the_structure_has_it() -> None:
    """struct timex of Linux on 64 bits, by which adjtimex(2) writes."""
    places = {name: getattr(clock._Timex, name).offset for name in ("modes", "offset", "freq", "maxerror")}
    assert places == {"modes": 0, "offset": 8, "freq": 16, "maxerror": 24}
    assert (clock._Timex.esterror.offset, clock._Timex.status.offset) == (32, 40)  # type: ignore[attr-defined]
    assert clock.ctypes.sizeof(clock._Timex) >= 208


def test_a_clock_that_is_not_reported_does_not_count() -> None:
    reading = Reading("clock", {"error": 1})
    (finding,) = clock.judge(Evidence("quick", "cpu", (), {"clock": reading}), Standards(None))
    assert finding.found == "the kernel does not report the clock's state (errno 1)"
    assert (finding.verdict, finding.expected, finding.source) == ("not-run", "an answer", "adjtimex(2)")
    assert (finding.advice, finding.counts) == ("some containers forbid it", False)
