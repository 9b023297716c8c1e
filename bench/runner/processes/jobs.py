"""Jobs that a supervisor sends to workers, and the type of events that workers emit. Pure; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bench.records.trial import Trial

# Events of a worker: {"phase": name}; {"step": passes} after each step, with "seconds" if it was timed and
# "loss" if that was read; once "flops" of a sample and "peak_bytes"; or its final event (supervisor.FINAL).
# The supervisor adds {"compiling": True} while the job is silent and compilers work.
WorkerEvent = dict[str, Any]
Emit = Callable[[WorkerEvent], None]
DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many nodes a run is on, which of them this one is, and where all meet."""

    count: int
    node: int  # number of this node; node 0 leads
    meet: str  # HOST:PORT of the leader, where all nodes meet
    identity: str  # names the run on all nodes: the manifest's digest
    store: str = ""  # HOST:PORT on this machine that leads to the meeting's store; empty: no proxy is open


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, without the brackets around an IPv6 address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def devices_text(count: int, kind: str) -> str:
    """Name what a node trains on or is checked on in messages: "8 GPUs", "2 processes of its CPU"."""
    return f"{count} {'GPUs' if kind == 'cuda' else 'processes of its CPU'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """The fields that all kinds of a run's jobs have in common."""

    device: DeviceKind
    gpus: int  # processes, one a device, on all nodes together
    scratch: str | None = None  # folder for temporary files
    nodes: Nodes | None = None  # None: a run on one node
    number: int = 0  # by which the nodes of a run find each other for this job


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob(RunJob):
    """Measure a trial. Final event: outcome."""

    trial: Trial
    kind: Literal["trial"] = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofJob(RunJob):
    """Train for at least `steps` and `seconds`. Final event: proof, or outcome if the training failed."""

    trial: Trial
    steps: int
    seconds: float
    kind: Literal["proof"] = "proof"


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorJob(RunJob):
    """Measure the floor of a trial on one device. Final event: floor."""

    trial: Trial
    kind: Literal["floor"] = "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheckJob(RunJob):
    """Compare the gradients of a trial's setting with the unmodified model's. Final event: gradient_check."""

    trial: Trial
    kind: Literal["gradient-check"] = "gradient-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingsJob(RunJob):
    """Measure the ceilings of the devices at these precisions. Final event: ceilings."""

    precisions: tuple[str, ...]
    kind: Literal["ceilings"] = "ceilings"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsJob(RunJob):
    """Describe each node. Final event: facts."""

    kind: Literal["facts"] = "facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowJob(RunJob):
    """Do this node's part of the leader's job of the same number. Final event: followed."""

    kind: Literal["follow"] = "follow"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastJob(RunJob):
    """Tell the nodes that follow the leader that the run is over, and `why` if an error ended it."""

    why: str | None = None
    kind: Literal["last"] = "last"


LAST = "last"  # the kind of LastJob
AnyRunJob = TrialJob | ProofJob | FloorJob | GradientCheckJob | CeilingsJob | FactsJob | FollowJob | LastJob
