"""What a node is held against: the profile of its GPUs, what its owner expects, its own past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.records.trial import Gpu


@dataclass(frozen=True, slots=True)
class Reference:
    """What a good card reaches, by whose word, and how much less is still good."""

    value: float
    unit: Literal["FLOP/s", "B/s"]
    warn_percent: float  # below the value
    fail_percent: float
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of GPU in one form."""

    name: str
    gpus: tuple[str, ...]  # as the driver spells them
    form_factor: str
    sources: tuple[str, ...]  # of what is not a figure
    figures: Mapping[str, Reference]
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None  # None: it has none, or it depends on the bridge
    ecc: bool = True
    power_watts: int | None = None  # the card's own limit


@dataclass(frozen=True, slots=True)
class Expect:
    """What the owner of the node says of it, in the manifest."""

    gpus: int | None = None
    gpu: str | None = None
    driver: str | None = None  # a beginning: "580." takes every 580
    vbios: str | None = None
    persistence: bool | None = None
    power_watts: int | None = None
    nvlinks: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    disk_gb_per_second: float | None = None
    host_gb_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What one GPU showed in earlier checks, the newest last."""

    runs: tuple[str, ...]
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)  # as they stood at the last check


@dataclass(frozen=True, slots=True)
class Standards:
    profile: Profile | None
    expect: Expect = field(default_factory=Expect)
    history: Mapping[str, Past] = field(default_factory=dict)  # by GPU UUID


@cache
def profiles() -> tuple[Profile, ...]:
    folder = files("bench.data") / "checks"
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".json"))
    return tuple(from_json(Profile, read_data(f"checks/{name}")) for name in names)


def profile_of(gpu: str) -> Profile | None:
    """By the driver's name of the GPU, whole: an H100 PCIe is no H100."""
    return next((p for p in profiles() if gpu in p.gpus), None)


def profile_for(gpus: Sequence[Gpu]) -> Profile | None:
    """Of those that answer, if all are of one kind: of two kinds neither is held against the other's."""
    kinds = {gpu.name for gpu in gpus if gpu.memory_bytes}
    return profile_of(kinds.pop()) if len(kinds) == 1 else None
