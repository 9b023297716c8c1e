"""Count the costs of a push: time, the bytes of both lines, and processor time, used and waited for.

On a machine with other work, wall time says little. The time that a line needs at least follows from its
bytes, and the kernel counts what the processes of a benchmark use and how long one of them waits for a core.
The node's processes count too, since they are on this machine; those in containers of its engine do not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.slow_lines import INDEX_LINE, OPERATOR_LINE

_CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))  # beside version 1, or alone
_LINES = Path("/sys/class/net")


@dataclass(frozen=True)
class Costs:
    """The costs since a moment: times in seconds, bytes with all headers."""

    wall_seconds: float
    operator_up_bytes: int
    operator_down_bytes: int
    index_bytes: int
    cpu_seconds: float
    waiting_for_cpu_seconds: float  # in which at least one process was ready and had no core

    @property
    def line_seconds(self) -> float:
        """The time that these bytes need at least, one line after the other."""
        up, down, index = (_rate(line) for line in (OPERATOR_LINE[2], OPERATOR_LINE[3], INDEX_LINE[3]))
        return 8 * (self.operator_up_bytes / up + self.operator_down_bytes / down + self.index_bytes / index)

    def document(self) -> dict[str, float]:
        """Return the costs by name, in megabytes and seconds."""
        lines = {
            "operators_line_megabytes": (self.operator_up_bytes + self.operator_down_bytes) / 1e6,
            "index_line_megabytes": self.index_bytes / 1e6,
            "lines_need_seconds": self.line_seconds,
        }
        times = {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "waiting_for_cpu_seconds": self.waiting_for_cpu_seconds,
        }
        return {
            name: round(value, 1) for name, value in {**times, **lines, "load": os.getloadavg()[0]}.items()
        }


@dataclass(frozen=True)
class Meter:
    """Counts from the moment in which it was made."""

    group: Path
    began: float = field(default_factory=time.monotonic)
    before: tuple[float, ...] = ()

    def costs(self) -> Costs:
        """Return what was counted since the meter was started."""
        now = self.counted(self.group)
        up, down, index, cpu, waited = (b - a for a, b in zip(self.before, now, strict=True))
        wall = time.monotonic() - self.began
        return Costs(wall, int(up), int(down), int(index), cpu, waited)

    @staticmethod
    def counted(group: Path) -> tuple[float, ...]:
        """Return the counters now: bytes of both lines, processor seconds, and seconds of waiting for it."""
        usage = next(line for line in (group / "cpu.stat").read_text().splitlines() if "usage_usec" in line)
        some = (group / "cpu.pressure").read_text().splitlines()[0]
        return (
            _line("bench-op0", "tx_bytes"),
            _line("bench-op0", "rx_bytes"),
            _line("bench-ix0", "tx_bytes") + _line("bench-ix0", "rx_bytes"),
            int(usage.split()[1]) / 1e6,
            int(some.rpartition("total=")[2]) / 1e6,
        )


def start(group: Path) -> Meter:
    """Start a meter for the processes of a control group."""
    return Meter(group, before=Meter.counted(group))


@contextmanager
def counted_processes() -> Iterator[Path]:
    """Put this process, and so all that it starts, into a cgroup; yield the group's folder."""
    root = next(path for path in _CGROUPS if (path / "cgroup.controllers").exists())
    group = root / f"bench-line-costs-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():  # this process, and what outlives it
            with suppress(ProcessLookupError):
                (root / "cgroup.procs").write_text(pid)
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a group, which the kernel refuses until its last process is reaped."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    print(f"{group} still has processes", file=sys.stderr)


def _line(device: str, name: str) -> float:
    return float((_LINES / device / "statistics" / name).read_text())


def _rate(text: str) -> float:
    """Return the bits per second of a rate as tc writes it."""
    units = {"gbit": 1e9, "mbit": 1e6}
    unit = next(unit for unit in units if text.endswith(unit))
    return float(text.removesuffix(unit)) * units[unit]
