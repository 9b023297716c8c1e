"""The standards a node is judged by: the profile of its GPUs, its owner's expectations, its own past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from bench.base.shipped_data import DATA, read_data
from bench.base.strict_json import from_json, later
from bench.records.trial import Gpu


@dataclass(frozen=True, slots=True)
class Reference:
    """The value that a good card reaches, its source, and the tolerated shortfall."""

    value: float
    unit: Literal["FLOP/s", "B/s"]
    warn_percent: float  # below the value
    fail_percent: float
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The properties and reference figures of one GPU model in one form factor."""

    name: str
    gpus: tuple[str, ...]  # as the driver spells them
    form_factor: str
    sources: tuple[str, ...]  # of the properties; each figure has its own
    figures: Mapping[str, Reference]
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None  # None: no NVLink, or the number depends on the bridge
    ecc: bool = True
    power_watts: int | None = None  # the card's own limit
    dated: str = later("")  # day on which its figures were entered or last checked; "" in older bundles


@dataclass(frozen=True, slots=True)
class FileSystemRates:
    """The least that the owner expects of a file system; None where nothing is expected."""

    write_gb_per_second: float | None = None
    read_gb_per_second: float | None = None
    random_reads_per_second: float | None = None

    def least(self, kind: str, random_bytes: int) -> float | None:
        """Return the bytes a second that are expected of "write", "read" or "random read"."""
        if kind == "random read":
            return self.random_reads_per_second and self.random_reads_per_second * random_bytes
        rate = self.write_gb_per_second if kind == "write" else self.read_gb_per_second
        return rate and rate * 1e9


@dataclass(frozen=True, slots=True)
class Expectations:
    """The manifest's "expect": properties that the owner requires of the node."""

    gpus: int | None = None
    gpu: str | None = None
    driver: str | None = None  # a prefix: "580." accepts every 580
    vbios: str | None = None
    persistence: bool | None = None
    power_watts: int | None = None
    nvlinks: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    ports: int | None = None  # active ports of InfiniBand and RoCE, of each node
    leaves: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # nodes under each leaf switch
    disk_gb_per_second: float | None = None
    host_gb_per_second: float | None = None
    disks: Mapping[str, FileSystemRates] | None = later(None)


# Counters of a machine's past: its corrected memory errors, and the unix time at which they were counted.
CORRECTED_ERRORS, COUNTED_AT = "corrected errors", "counted at"


@dataclass(frozen=True, slots=True)
class Past:
    """The figures of one GPU, or the counters of one machine, in earlier checks, the newest last."""

    runs: tuple[str, ...]
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)  # as they stood at the last check


@dataclass(frozen=True, slots=True)
class Baseline:
    """The facts of a machine in an earlier check, which it is compared with."""

    run: str
    ended_at: float  # unix time
    facts: Mapping[str, Mapping[str, str]]  # by group, such as "kernel", and name
    signer: str = ""  # fingerprint of the key that signed the check


@dataclass(frozen=True, slots=True)
class Standards:
    """Everything that the readings of one node are compared with."""

    profile: Profile | None
    expect: Expectations = field(default_factory=Expectations)
    history: Mapping[str, Past] = field(default_factory=dict)  # by GPU UUID, and by the machine's digest
    baseline: Baseline | None = None


@cache
def profiles() -> tuple[Profile, ...]:
    """Return the profiles that bench ships."""
    names = sorted(path.name for path in (DATA / "checks").glob("*.json"))
    return tuple(from_json(Profile, read_data(f"checks/{name}")) for name in names)


def profile_of(gpu: str) -> Profile | None:
    """Find a GPU's profile by the driver's full name: an H100 PCIe has another profile than an H100 SXM."""
    return next((p for p in profiles() if gpu in p.gpus), None)


def profile_for(gpus: Sequence[Gpu]) -> Profile | None:
    """Find the profile of the GPUs that answer; None if they are of several models."""
    models = {gpu.name for gpu in gpus if gpu.memory_bytes}
    return profile_of(models.pop()) if len(models) == 1 else None
