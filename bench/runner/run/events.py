"""The events of a run's journal: one frozen dataclass for each kind of line.

In:  a line of journal.jsonl as plain JSON. Out: an `Event`; `to_json` gives back exactly that line. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from bench.base.strict_json import DecodeError, from_json
from bench.records.floor import Floor
from bench.records.gradients import GradientCheck
from bench.records.marks import Mark
from bench.records.trial import Ceiling, Failure, NodeFacts, Outcome, Proof


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The first line of a journal: what is measured, by which version, on which machine."""

    bench: str  # version
    manifest: str  # digest
    node: NodeFacts
    machine: str | None  # see run_folder.machine
    started_at: float  # unix time
    schema: Literal["bench/journal/v1"] = "bench/journal/v1"
    event: Literal["run"] = "run"


@dataclass(frozen=True, slots=True)
class Moved:
    """Another machine of the same kind continues the run."""

    machine: str | None
    gpus: tuple[str, ...]  # UUIDs
    event: Literal["moved"] = "moved"


@dataclass(frozen=True, slots=True)
class NodesMet:
    """All nodes of a run on several nodes have met, and are alike."""

    nodes: tuple[NodeFacts, ...]
    event: Literal["nodes"] = "nodes"


@dataclass(frozen=True, slots=True)
class CeilingsMeasured:
    """The ceilings of the machine are measured."""

    ceilings: tuple[Ceiling, ...]
    event: Literal["ceilings"] = "ceilings"


@dataclass(frozen=True, slots=True)
class TrialBegun:
    """A trial begins; if no end follows, the run or its machine died during it."""

    id: str
    event: Literal["begun"] = "begun"


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial has ended; a finalist that is measured again ends twice."""

    id: str
    outcome: Outcome
    event: Literal["trial"] = "trial"


@dataclass(frozen=True, slots=True)
class TrialMarked:
    """Why the figure of the trial that has just ended is to be read with care."""

    id: str
    marks: tuple[Mark, ...]
    event: Literal["marked"] = "marked"


@dataclass(frozen=True, slots=True)
class Proved:
    """A trial is proven by training."""

    id: str
    proof: Proof
    event: Literal["proof"] = "proof"


@dataclass(frozen=True, slots=True)
class ProofFailed:
    """The proof of a trial failed."""

    id: str
    outcome: Failure
    event: Literal["unproven"] = "unproven"


@dataclass(frozen=True, slots=True)
class FloorMeasured:
    """The floor of a trial's step is measured."""

    id: str  # of the trial that the floor belongs to
    floor: Floor
    event: Literal["floor"] = "floor"


@dataclass(frozen=True, slots=True)
class FloorLeftOut:
    """The floor of a trial was not measured; a run that is continued tries again."""

    id: str
    why: str
    event: Literal["no-floor"] = "no-floor"


@dataclass(frozen=True, slots=True)
class GradientsChecked:
    """The gradients of a trial's setting are checked."""

    id: str  # of the trial whose setting computed the gradients
    check: GradientCheck
    event: Literal["gradient-check"] = "gradient-check"


@dataclass(frozen=True, slots=True)
class GradientCheckLeftOut:
    """The gradients of a trial were not checked; a run that is continued tries again."""

    id: str
    why: str
    event: Literal["no-gradient-check"] = "no-gradient-check"


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The run was ended early: by the user, by its budget, or by an error that no trial caused."""

    why: str
    event: Literal["stopped"] = "stopped"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The bundle of a complete run is written."""

    bundle: str  # its file name
    event: Literal["end"] = "end"


Event = (
    RunBegun
    | Moved
    | NodesMet
    | CeilingsMeasured
    | TrialBegun
    | TrialEnded
    | TrialMarked
    | Proved
    | ProofFailed
    | FloorMeasured
    | FloorLeftOut
    | GradientsChecked
    | GradientCheckLeftOut
    | RunStopped
    | RunEnded
)
_KINDS: Mapping[object, type[Event]] = {
    field.default: kind for kind in get_args(Event) for field in fields(kind) if field.name == "event"
}


def event_from_json(line: Mapping[str, Any]) -> Event:
    """Decode a line of the journal. DecodeError if this version does not know the event."""
    name = line.get("event")
    if not isinstance(name, str) or name not in _KINDS:
        raise DecodeError(f"unknown event {name!r:.60}")
    return from_json(_KINDS[name], line)
