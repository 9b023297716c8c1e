"""Read the GPUs' power, clocks and temperature from a bundle's telemetry, an optional file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.base.strict_json import strict_loads
from bench.bundle.telemetry_limits import MOST_WATTS
from bench.bundle.verify import Files
from bench.records.run_results import TrialResult

TELEMETRY_POINTS = 60  # of a plot, at most
# Timed steps have fewer passes than the recipe's steps, so optimizer updates take a larger share of them.
# If that share is larger by more than this, the power is not that of training.
MOST_UPDATE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class TelemetryCourse:
    """Readings over a run, thinned for a plot: means over the machine's GPUs, and the load of its CPUs.

    A figure that a card or an older bundle lacks is empty.
    """

    seconds: tuple[float, ...]
    watts: tuple[float, ...]
    sm_mhz: tuple[float, ...]
    celsius: tuple[float, ...]
    used_bytes: tuple[float, ...] = ()  # of a GPU's memory
    load: tuple[float, ...] = ()


def telemetry_lines(files: Files) -> list[bytes]:
    """Read the lines of telemetry.jsonl; an empty list if the bundle has no such file."""
    return list(files.lines("telemetry.jsonl")) if "telemetry.jsonl" in files.sha256 else []


def watts_of(
    files: Files, bests: Mapping[str, TrialResult], lines: list[bytes], gpus: int
) -> Mapping[str, float | None]:
    """Return, by trial, the mean power of all its GPUs while it was timed; a node trains on `gpus` GPUs."""
    if not gpus or not lines:
        return {}
    samples = list(files.lines("samples.jsonl"))
    watts: dict[str, float | None] = {}
    for name, trial in bests.items():
        measurement = strict_loads(next(line for line in samples if name.encode() in line))["measurement"]
        if _like_training(measurement["steps"], trial):
            span = (measurement["started_at"], measurement["ended_at"])
            of_trial = [line for line in lines if name.encode() in line]
            watts[name] = _mean_watts(span, of_trial, trial.gpus, min(gpus, trial.gpus))
    return watts


def _like_training(steps: list[Any], trial: TrialResult) -> bool:
    """Whether updates took about the same share of the timed steps as of training (MOST_UPDATE_SHARE)."""
    e = trial.estimate
    if e is None or e.update_seconds is None or not steps:
        return True
    timed = len(steps) * e.update_seconds / sum(step["seconds"] for step in steps)
    return bool(timed - e.update_seconds / e.step_seconds.value <= MOST_UPDATE_SHARE)


def _mean_watts(span: tuple[float, float], lines: list[bytes], gpus: int, read: int) -> float | None:
    """Divide energy by time between the first and last reading inside the span, for all GPUs of the trial.

    Reads the first `read` GPUs, which are the leader's, and assumes that those of other nodes draw as much.
    """
    inside = [line for line in lines if span[0] <= _at(line) <= span[1]]
    if len(inside) < 2:
        return None
    first, last = strict_loads(inside[0]), strict_loads(inside[-1])
    pairs = list(zip(first["gpus"][:read], last["gpus"][:read], strict=True))
    seconds = last["at"] - first["at"]
    if not pairs or seconds <= 0 or any("energy_joules" not in gpu for pair in pairs for gpu in pair):
        return None  # a card without an energy counter
    joules = sum(after["energy_joules"] - before["energy_joules"] for before, after in pairs)
    watts = float(joules / seconds / len(pairs) * gpus)
    return watts if 0 < watts < gpus * MOST_WATTS else None


def _at(line: bytes) -> float:
    """Return the time of a reading without parsing the rest: canonical JSON has the time first."""
    head, _, rest = line.partition(b":")
    if head != b'{"at"':
        raise ValueError(f"a reading does not begin with its time: {line[:40]!r}")
    return float(rest.partition(b",")[0])


def course_of(lines: list[bytes]) -> TelemetryCourse | None:
    """Thin the readings for a plot; None if there are fewer than two."""
    step = max(1, -(-len(lines) // TELEMETRY_POINTS))
    readings = [strict_loads(line) for line in lines[::step]]
    readings = [r for r in readings if r["gpus"]] or readings
    if len(readings) < 2:
        return None

    gpus = [gpu for r in readings for gpu in r["gpus"]]

    def mean(name: str) -> tuple[float, ...]:
        if not gpus or any(name not in gpu for gpu in gpus):
            return ()
        return tuple(sum(gpu[name] for gpu in r["gpus"]) / len(r["gpus"]) for r in readings)

    start = readings[0]["at"]
    return TelemetryCourse(
        seconds=tuple(r["at"] - start for r in readings),
        watts=mean("power_watts"),
        sm_mhz=mean("sm_mhz"),
        celsius=mean("celsius"),
        used_bytes=mean("used_bytes"),
        load=tuple(float(r["load"]) for r in readings) if all("load" in r for r in readings) else (),
    )
