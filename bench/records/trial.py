"""The plain values that a run records: node, trial, outcome, measurement, ceiling. Pure, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Literal

from bench.base.frozen import dataclass
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json, later, to_json
from bench.records.products import Products
from bench.training.models import Flops, Model


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node, as NVML reports it."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    compute_capability: str
    bus: str | None = later(None)  # PCI address, as sysfs writes it; None: not reported, or an older bundle


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """One NVIDIA GPU as the kernel lists it."""

    bus: str  # its PCI address, as sysfs writes it
    uuid: str | None  # by the kernel's driver; None: it does not say
    name: str | None


@dataclass(frozen=True, slots=True)
class KernelGpus:
    """The kernel's own list of NVIDIA GPUs, or why it cannot be seen."""

    gpus: tuple[KernelGpu, ...] = ()
    unseen: str | None = None  # None: the list is complete


@dataclass(frozen=True, slots=True)
class Image:
    """The image that a run is in: its locks, and its identity if it was passed into the container."""

    variant: str
    lock: str  # sha256 of the lock of its wheels
    debian: str  # sha256 of the lock of its Debian packages
    config: str | None = None  # sha256 of its configuration, which a manifest's "image" names
    diff_ids: tuple[str, ...] = ()  # sha256 of each layer


@dataclass(frozen=True, slots=True)
class Environment:
    """The locked Python environment that a run is in, on a node without a container engine."""

    variant: str
    lock: str  # sha256 of the lock of its wheels
    python: str  # release of Python, which is the node's own
    build: str  # sha256 of the interpreter
    files: str  # sha256 of the tree of installed files
    without: tuple[str, ...] = ()  # packages of the lock that were left out
    confinement: tuple[str, ...] = ()  # the measures by which the run's process was confined

    @property
    def digest(self) -> str:
        """The digest that a manifest's "environment" names."""
        from bench.environment.identity import environment_digest  # few nodes have one

        return environment_digest(self.lock, self.python, self.build, self.files)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The machine as trials see it, without address or user name."""

    cpu: str
    cpu_cores: int
    memory_bytes: int
    os: str
    kernel: str
    python: str
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    image: Image | None = None  # None: not in an image built by bench
    switches: Mapping[str, str] | None = None  # None: the bundle is older than this field
    kernel_gpus: KernelGpus | None = later(None)
    environment: Environment | None = later(None)

    @property
    def stack(self) -> str:
        """A short digest of the software that trained: Python, its packages, and the image or environment."""
        image = self.image and (self.image.variant, self.image.lock, self.image.debian)
        parts = [self.python, dict(self.packages), image]
        parts += [self.environment.digest] if self.environment else []
        return sha256(canonical_json(parts))[:12]

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The kind of device that trials run on: GPUs if there are any."""
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True, slots=True)
class Timing:
    """The time to measure a trial: until its interval is narrow, or its time is up."""

    target_percent: float = 1.0  # half-width to reach, of the 95% interval of a step, in percent of the step
    measure_seconds: float = 30.0
    warmup_seconds: float = 60.0
    loss_steps: int = 3  # number of first steps whose losses are kept and compared with naive


@dataclass(frozen=True)
class Trial:
    """One setting of one model at one micro-batch: everything that can change its result."""

    model: Model
    setting: tuple[str, ...]
    micro_batch: int
    gpus: int
    seed: int
    timing: Timing
    memory_cap_bytes: int | None = None
    data: str | None = later(None)  # folder of data on the machine; None: made-up data

    @property
    def accumulation(self) -> int:
        """The passes of each GPU in a step, so that all GPUs together train the recipe's batch."""
        return self.model.recipe.batch_size // (self.gpus * self.micro_batch)

    @cached_property
    def id(self) -> str:
        """A digest of everything in the trial: equal trials of any run have the same id."""
        return sha256(canonical_json(to_json(self)))[:16]


@dataclass(frozen=True, slots=True)
class StepSample:
    """One optimizer step between two device synchronisations, by the slowest rank's clock."""

    accumulation: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """Every raw sample of a trial. Summaries are recomputed from them, and never stored without them."""

    steps: tuple[StepSample, ...]
    warmup: tuple[StepSample, ...]
    steady: bool  # whether two adjacent windows of the warm-up agreed
    losses: tuple[float, ...]
    gradient_norms: tuple[float | None, ...]  # None: an overflow, so the update was left out
    samples_per_loss: int
    peak_bytes: int  # on the device, during the timed steps
    parameters: int
    flops: Flops  # of a sample's forward pass: by the family's formula, or counted for a model without one
    master_dtype: str  # of the weights that the optimizer updates
    log_seconds: float | None
    save_seconds: float | None
    eval_seconds_per_sample: float | None
    phase_seconds: Mapping[str, float]
    started_at: float  # unix time: telemetry from then to ended_at belongs to the timed steps
    ended_at: float
    products: tuple[Products, ...] = later(())  # what a pass multiplies; empty in older bundles
    no_products: str | None = later(None)  # why `products` is not known


@dataclass(frozen=True, slots=True)
class Proof:
    """Real training that an estimate is compared with, by another process, after the estimate was recorded.

    The devices are synchronised only at its beginning and end.
    """

    steps: int
    seconds: float
    peak_bytes: int

    @property
    def step_seconds(self) -> float:
        """The time between the two synchronisations, divided by the number of steps."""
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class Proving:
    """The amount of real training that proves an estimate: the least steps and the least time."""

    steps: int = 3
    minutes: float = 3.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of a trial that was measured."""

    measurement: Measurement
    kind: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The outcome of a trial that needs more memory than a GPU or the host has, or the manifest allows."""

    where: Literal["gpu", "host"]
    detail: str
    kind: Literal["out-of-memory"] = "out-of-memory"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The outcome of a trial that this machine or its software cannot run."""

    reason: str
    kind: Literal["unsupported"] = "unsupported"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The outcome of a trial that was ended because it took too long, or was silent for too long."""

    limit_seconds: float
    phase: str
    kind: Literal["timed-out"] = "timed-out"

    @property
    def trained(self) -> bool:
        """Whether the trial came past its first steps: then it is slow, not stuck."""
        return self.phase in ("warm-up", "measure", "overheads", "products")


@dataclass(frozen=True, slots=True)
class Crashed:
    """The outcome of a trial that ended with an error, or whose process died."""

    reason: str
    kind: Literal["crashed"] = "crashed"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A setting that is not tried, with the reason."""

    model: str
    setting: tuple[str, ...]
    label: str
    reason: str


Failure = OutOfMemory | Unsupported | TimedOut | Crashed
Outcome = Measured | Failure
ProofOrFailure = Proof | Failure


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The measured limit of a device for one bare operation, such as a matrix product."""

    name: str  # matmul-PRECISION, memory-bandwidth, host-to-device, device-to-host, all-reduce
    device: int
    unit: Literal["FLOP/s", "B/s"]
    work: int  # FLOP or bytes of one call
    samples: tuple[float, ...]  # seconds of single calls

    @property
    def rate(self) -> float:
        """The best rate of any sample, in `unit`."""
        return self.work / min(self.samples)
