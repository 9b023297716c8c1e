"""The readings of a node as plain values, as samples.jsonl and telemetry.jsonl hold them. Pure, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, Literal, TypeVar

from bench.base.strict_json import DecodeError, from_json
from bench.node_check.judging import Depth
from bench.records.trial import Gpu

K = TypeVar("K")

MOST_GPUS = 1024  # of one machine
# Readings that belong to no single check: two inventories by NVML, and the idle node before any load.
BEFORE, AFTER, IDLE = "inventory-before", "inventory-after", "idle"


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of one measurement or inventory, or the reason why there is none."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None  # why there is no data; None: there is data
    counts: bool = True  # whether missing data keeps the node from passing
    started_at: float = 0.0  # unix time
    ended_at: float = 0.0


# Bytes or FLOP a second. Figures are divided by medians of figures, which must not be zero or nearly zero.
LEAST_RATE = 1.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate, from the raw times of equal pieces of work."""

    name: str  # matmul-bf16, memory, host-to-device, peer 0-3, all-reduce 4 x 1 GiB
    gpu: int | None  # index on this node; None: the node as a whole
    unit: Literal["FLOP/s", "B/s"]
    work: float  # FLOP or bytes of one sample
    samples: tuple[float, ...]  # seconds
    kind: str = ""  # its name in the reference profile; empty: `name`

    @property
    def rate(self) -> float:
        """Mean rate. The best call would hide another process that takes a tenth of the GPU."""
        return self.work * len(self.samples) / fsum(self.samples)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """NVML's readings of one GPU at one moment; None for each value that it does not report."""

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
    xids: tuple[int, ...] | None = ()  # since the last sample; None: the driver reports no Xid events
    lost: str | None = None  # the error if the GPU did not answer at all


@dataclass(frozen=True, slots=True)
class Sample:
    """The node at one moment: one line of telemetry.jsonl."""

    at: float  # unix time
    gpus: tuple[GpuSample, ...]
    load: float = 0.0
    available_bytes: int = 0
    trial: str | None = None  # name of the reading that was being made


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was read from a node, for the checks to judge."""

    level: Depth
    device: Literal["cpu", "cuda"]
    gpus: tuple[Gpu, ...]
    readings: Mapping[str, Reading]
    course: tuple[Sample, ...] = ()

    def data(self, name: str) -> Mapping[str, Any] | None:
        """Return what a reading found; None if there is no such reading, or only a reason why not."""
        reading = self.readings.get(name)
        return reading.data if reading is not None and reading.reason is None else None

    def figures(self, name: str) -> tuple[Figure, ...]:
        """Return the figures that a reading measured."""
        data = self.data(name)
        return from_json(tuple[Figure, ...], data["figures"]) if data else ()

    def inventory(self, name: str) -> tuple[Answers, ...]:
        """Return NVML's answers about the checked GPUs in one inventory; empty if NVML did not answer."""
        data = self.data(name)
        checked = {gpu.index for gpu in self.gpus}
        every = (Answers(index, raw) for index, raw in enumerate(data["gpus"])) if data else ()
        return tuple(answers for answers in every if answers.index in checked)

    def alive(self, name: str) -> dict[int, Answers]:
        """Return the inventory of the GPUs that answered, by index."""
        return {answers.index: answers for answers in self.inventory(name) if answers.lost is None}

    def gpu(self, index: int | None) -> Gpu | None:
        """Return a GPU by its index on the node; None if it was not checked, or for the node as a whole."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    @property
    def machine(self) -> str:
        """The digest that checks of one machine share; empty if it is unknown."""
        data = self.data("host-errors")
        return str(data["errors"]["machine"]) if data else ""

    def during(self, name: str) -> Iterator[Sample]:
        """Yield the samples that were taken while a reading was being made."""
        reading = self.readings.get(name)
        if reading is not None:
            yield from (s for s in self.course if reading.started_at <= s.at <= reading.ended_at)


def grown(counters: Mapping[K, tuple[float | None, float | None]]) -> dict[K, int] | None:
    """Return by how much each counter rose, if it did, between two readings; None if none was read twice."""
    read = [
        (name, then, now) for name, (then, now) in counters.items() if then is not None and now is not None
    ]
    return {name: int(now - then) for name, then, now in read if now > then} if read else None


@dataclass(frozen=True, slots=True)
class Answers:
    """One GPU's answers to NVML's queries, by the query's name without "nvmlDeviceGet"."""

    index: int
    raw: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Return the answer to a query; None if it failed or was not made."""
        answer = self.raw.get(name)
        return None if isinstance(answer, dict) and ("error" in answer or "raised" in answer) else answer

    def number(self, name: str) -> float | None:
        """Return the driver's answer to a question; None if it is not a number."""
        answer = self.get(name)
        return float(answer) if isinstance(answer, (int, float)) and not isinstance(answer, bool) else None

    def field(self, name: str) -> int | None:
        """Return the value of NVML_FI_DEV_`name`, from nvmlDeviceGetFieldValues; None if there is none."""
        answer = self.get(f"field.NVML_FI_DEV_{name}")
        if isinstance(answer, list) and answer and answer[0].get("nvmlReturn") == 0:
            value = answer[0]["value"]
            # The value is a C union: its widest member has the low bytes of whichever member was written.
            return int(value["ullVal"] if answer[0].get("valueType") in (2, 3, 4) else value["uiVal"])
        return None

    def why(self, name: str) -> str:
        """Return NVML's name of the error that a query ended with."""
        answer = self.raw.get(name)
        if isinstance(answer, dict) and "error" in answer:
            return str(answer["error"]).removeprefix("NVMLError_")
        return "not asked" if answer is None else str(answer)

    @property
    def lost(self) -> str | None:
        """The error by which NVML reports that this GPU is gone; None while it answers."""
        for name in ("Name", "UUID", "MemoryInfo"):
            if self.why(name) in GONE:
                return self.why(name)
        # Other errors, such as a missing power cable or interrupt, count if neither name nor UUID is known.
        return self.why("UUID") if self.get("Name") is None and self.get("UUID") is None else None

    @property
    def forbidden(self) -> bool:
        """Whether the scheduler gave this GPU to another job: NVML counts it but refuses queries."""
        return self.why("UUID") == "NoPermission"

    @property
    def where(self) -> str:
        """The GPU's name in findings: "GPU 3"."""
        return f"GPU {self.index}"


GONE = {"GpuIsLost", "ResetRequired", "NoData", "Unknown", "GpuNotFound"}


def read_course(lines: Iterable[Any]) -> tuple[Sample, ...]:
    """Decode the parsed lines of telemetry.jsonl; DecodeError for more GPUs than any machine has."""
    return tuple(map(_sample, lines))


def _sample(line: Any) -> Sample:
    gpus = line.get("gpus") if isinstance(line, dict) else None
    if isinstance(gpus, list) and len(gpus) > MOST_GPUS:
        raise DecodeError(f"a reading of telemetry.jsonl has more than {MOST_GPUS} GPUs")
    return from_json(Sample, line)


def figures_of(reading: Reading) -> tuple[Figure, ...]:
    """Return every rate of a reading, in whichever form its check keeps it; empty if there is no data.

    The soak keeps windows of each GPU, and the disk keeps bytes with their seconds. Raises DecodeError for a
    figure without samples, with a time or an amount of work that is not positive, with a rate below
    LEAST_RATE, or in another unit.
    """
    if reading.reason is not None:
        return ()
    data = reading.data
    figures = [from_json(Figure, raw) for raw in data.get("figures", ())]
    if reading.name == "soak":  # a window is judged by its first sample, as one of its group's GPU
        windows = [(gpu["gpu"], from_json(Figure, raw)) for gpu in data["gpus"] for raw in gpu["windows"]]
        figures += [replace(window, gpu=gpu, samples=window.samples[:1]) for gpu, window in windows]
    if reading.name == "disk":
        moved = (("write", "written_bytes", "write_seconds"), ("read", "read_bytes", "read_seconds"))
        figures += [
            Figure(f"disk {what}", None, "B/s", data[size], (data[seconds],))
            for what, size, seconds in moved
            if data.get(size)
        ]
    for figure in figures:
        if not figure.samples or min(figure.samples) <= 0 or figure.work <= 0:
            raise DecodeError(f"{reading.name}: {figure.name} took no time")
        if not figure.rate >= LEAST_RATE:
            raise DecodeError(
                f"{reading.name}: {figure.name} is slower than one {figure.unit[:-2]} in a second"
            )
        if (figure.unit == "FLOP/s") != figure.name.startswith(("matmul", "soak")):
            raise DecodeError(f"{reading.name}: {figure.name} is not measured in {figure.unit}")
    return tuple(figures)
