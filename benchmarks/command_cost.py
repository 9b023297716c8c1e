"""The time that a command takes, as a benchmark measures it."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple


class Cost(NamedTuple):
    """The seconds of a command and its children."""

    wall_seconds: float
    cpu_seconds: float  # processor time, which other work on the machine affects less


def cost(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    out: int | IO[str] = subprocess.DEVNULL,
) -> Cost:
    """Run a command, whose exit code must be 0, and measure it; nothing else may be started meanwhile."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=out, env=environment)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def in_turn(
    commands: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str] | None = None
) -> Mapping[str, list[Cost]]:
    """Measure each command `rounds` times; they take turns, so that a drift of the machine affects all."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(cost(command, environment))
    return costs
