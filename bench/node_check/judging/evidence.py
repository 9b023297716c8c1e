"""What was read of a node: plain values, as they lie in samples.jsonl and telemetry.jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal

from bench.base.strict_json import DecodeError, from_json
from bench.node_check.judging import Level
from bench.records.trial import Gpu

BEFORE, AFTER, IDLE = "inventory-before", "inventory-after", "idle"  # readings that are no check's own


@dataclass(frozen=True, slots=True)
class Reading:
    """What one piece of work brought, or why it brought nothing."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None  # why there is none; None: it was read
    counts: bool = True  # of one that was not read: whether that keeps the node from passing
    started_at: float = 0.0  # unix time
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate, from the raw times of equal pieces of work."""

    name: str  # matmul-bf16, memory, host-to-device, peer 0-3, all-reduce 4 x 1 GiB
    gpu: int | None  # by its index here; None: of the node
    unit: Literal["FLOP/s", "B/s"]
    work: float  # FLOP or bytes of one sample
    samples: tuple[float, ...]  # seconds
    kind: str = ""  # what the reference profile calls it, where that is not the name

    @property
    def rate(self) -> float:
        """The mean, not the best: who takes a tenth of a GPU leaves the best call alone."""
        return self.work * len(self.samples) / fsum(self.samples)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What NVML said of one GPU at one moment; None where it said nothing."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    celsius: int | None = None
    throttle_reasons: int | None = None
    used_bytes: int | None = None
    busy_percent: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    xids: tuple[int, ...] | None = ()  # None: its driver reports none
    lost: str | None = None  # the error, where the GPU did not answer at all


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    gpus: tuple[GpuSample, ...]
    load: float = 0.0
    available_bytes: int = 0
    trial: str | None = None  # which reading was going on


@dataclass(frozen=True, slots=True)
class Evidence:
    level: Level
    device: Literal["cpu", "cuda"]
    gpus: tuple[Gpu, ...]
    readings: Mapping[str, Reading]
    course: tuple[Sample, ...] = ()

    def data(self, name: str) -> Mapping[str, Any] | None:
        reading = self.readings.get(name)
        return reading.data if reading is not None and reading.reason is None else None

    def figures(self, name: str) -> tuple[Figure, ...]:
        data = self.data(name)
        return from_json(tuple[Figure, ...], data["figures"]) if data else ()

    def inventory(self, name: str) -> tuple[Answers, ...]:
        """Our GPUs as NVML described them then; empty where it did not answer."""
        data = self.data(name)
        ours = {gpu.index for gpu in self.gpus}
        everyone = (Answers(index, raw) for index, raw in enumerate(data["gpus"])) if data else ()
        return tuple(answers for answers in everyone if answers.index in ours)

    def alive(self, name: str) -> dict[int, Answers]:
        """Those of them that answered, by index."""
        return {answers.index: answers for answers in self.inventory(name) if answers.lost is None}

    def gpu(self, index: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def during(self, name: str) -> Iterator[Sample]:
        """The samples that were taken while that reading went on."""
        reading = self.readings.get(name)
        if reading is not None:
            yield from (s for s in self.course if reading.started_at <= s.at <= reading.ended_at)


@dataclass(frozen=True, slots=True)
class Answers:
    """One GPU's answers to NVML's queries, by the query's name without "nvmlDeviceGet"."""

    index: int
    raw: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The answer; None where there is none."""
        found = self.raw.get(name)
        return None if isinstance(found, dict) and ("error" in found or "raised" in found) else found

    def number(self, name: str) -> float | None:
        found = self.get(name)
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def field(self, name: str) -> int | None:
        """Of nvmlDeviceGetFieldValues: the one value that was asked for, if NVML has it."""
        found = self.get(f"field.NVML_FI_DEV_{name}")
        if isinstance(found, list) and found and found[0].get("nvmlReturn") == 0:
            value = found[0]["value"]
            # Unions: the widest reading of a value that was written narrower has the same low bytes.
            return int(value["ullVal"] if found[0].get("valueType") in (2, 3, 4) else value["uiVal"])
        return None

    def why(self, name: str) -> str:
        """Why there is no answer, as NVML names it."""
        found = self.raw.get(name)
        if isinstance(found, dict) and "error" in found:
            return str(found["error"]).removeprefix("NVMLError_")
        return "not asked" if found is None else str(found)

    @property
    def lost(self) -> str | None:
        """The error that says that this GPU is gone; None while it answers."""
        for name in ("Name", "UUID", "MemoryInfo"):
            if self.why(name) in GONE:
                return self.why(name)
        # Whatever the error is called: a card without its power cable, an interrupt that does not come.
        return self.why("UUID") if self.get("Name") is None and self.get("UUID") is None else None

    @property
    def forbidden(self) -> bool:
        """A scheduler gave it to somebody else: it is counted, and may not be asked."""
        return self.why("UUID") == "NoPermission"

    @property
    def where(self) -> str:
        return f"GPU {self.index}"


GONE = {"GpuIsLost", "ResetRequired", "NoData", "Unknown", "GpuNotFound"}


def read_course(lines: Sequence[Any]) -> tuple[Sample, ...]:
    """Every line of telemetry.jsonl, already parsed."""
    return tuple(from_json(Sample, line) for line in lines)


def checked_figures(readings: Sequence[Reading]) -> None:
    """DecodeError where a figure holds what no clock can say."""
    for reading in readings:
        for raw in reading.data.get("figures", ()) if reading.reason is None else ():
            figure = from_json(Figure, raw)
            if not figure.samples or min(figure.samples) <= 0 or figure.work <= 0:
                raise DecodeError(f"{reading.name}: {figure.name} took no time")
