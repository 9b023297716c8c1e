"""results.json and samples.jsonl: what a run answers, and everything it follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from bench.base.strict_json import canonical_json, pretty_json, to_json
from bench.records.estimate import Estimate, Interval, estimate, loss_difference
from bench.records.trial import (
    Ceiling,
    Failure,
    Measured,
    Measurement,
    NodeFacts,
    Outcome,
    Proof,
    ProofOrFailure,
    Skipped,
    Timing,
    Trial,
)
from bench.training.models import Model

SCHEMA: Literal["bench/results/v1"] = "bench/results/v1"


@dataclass(frozen=True, slots=True)
class RunFacts:
    id: str
    started_at: float  # unix time
    ended_at: float
    complete: bool
    stopped: str | None  # why it is incomplete


@dataclass(frozen=True, slots=True)
class TrialResult:
    id: str
    model: str
    setting: tuple[str, ...]
    label: str
    micro_batch: int
    accumulation: int
    gpus: int
    outcome: Literal["measured", "out-of-memory", "unsupported", "timed-out", "crashed"]
    failure: Failure | None  # None where it was measured
    estimate: Estimate | None
    loss_difference: float | None  # from the naive setting's first losses, where comparable
    proof: Proof | None = None  # real training, after the estimate was kept
    unproven: Failure | None = None  # why there is no proof
    earlier: Interval | None = None  # days by another process, which measured it first and not as long


@dataclass(frozen=True, slots=True)
class Results:
    bench_version: str
    manifest_digest: str
    run: RunFacts
    node: NodeFacts
    models: tuple[Model, ...]
    seed: int
    timing: Timing
    memory_cap_bytes: int | None
    ceilings: tuple[Ceiling, ...]
    trials: tuple[TrialResult, ...]
    skipped: tuple[Skipped, ...]
    winners: tuple[Fastest, ...] = ()  # one a model; none in bundles from before there were any
    schema: Literal["bench/results/v1"] = SCHEMA

    def to_bytes(self) -> bytes:
        return pretty_json(to_json(self))


@dataclass(frozen=True, slots=True)
class ReducedTrial:
    """What is kept of a measurement once its samples have been read: a file may hold many of them."""

    estimate: Estimate | None
    first: Measurement  # without its steps
    samples: int
    seconds: float  # that they took, one after the other
    earlier: ReducedTrial | None = None  # by the process that measured it first


def reduce_trial(trial: Trial, measurement: Measurement, ceilings: Sequence[Ceiling]) -> ReducedTrial:
    return ReducedTrial(
        estimate(trial, measurement, measurement.flops, ceilings),
        replace(measurement, steps=(), warmup=()),
        len(measurement.steps) + len(measurement.warmup),
        sum(step.seconds for step in (*measurement.warmup, *measurement.steps)),
    )


def reduce_trials(
    trials: Sequence[tuple[Trial, str, Outcome]],
    ceilings: Sequence[Ceiling],
    proofs: Mapping[str, ProofOrFailure],
    earlier: Mapping[str, Measured] = MappingProxyType({}),
) -> tuple[TrialResult, ...]:
    """Trials with label and outcome, to what the tables show; `earlier` by the trials' ids."""
    found: list[LabelledTrial] = []
    for trial, label, end in trials:
        if isinstance(end, Measured):
            first = earlier.get(trial.id)
            before = reduce_trial(trial, first.measurement, ceilings) if first else None
            ended = replace(reduce_trial(trial, end.measurement, ceilings), earlier=before)
            found.append((trial.id, trial, label, ended))
        else:
            found.append((trial.id, trial, label, end))
    return trial_results(found, proofs)


# A trial's id, which takes a while to compute, the trial, its label, and how it ended.
LabelledTrial = tuple[str, Trial, str, ReducedTrial | Failure]


def trial_results(
    found: Sequence[LabelledTrial], proofs: Mapping[str, ProofOrFailure]
) -> tuple[TrialResult, ...]:
    # Naive may have been measured at several micro-batches, whose losses are over other samples.
    naive = {
        _losses_of(t, s): s.first for _, t, _, s in found if not t.setting and isinstance(s, ReducedTrial)
    }
    return tuple(_result(each, naive, proofs.get(each[0])) for each in found)


def _losses_of(trial: Trial, measured: ReducedTrial) -> tuple[str, int]:
    return trial.model.name, measured.first.samples_per_loss


def _result(
    found: LabelledTrial, naive: Mapping[tuple[str, int], Measurement], proof: ProofOrFailure | None
) -> TrialResult:
    name, trial, label, end = found
    measured = end if isinstance(end, ReducedTrial) else None
    compared = naive.get(_losses_of(trial, measured)) if measured and trial.setting else None
    return TrialResult(
        id=name,
        model=trial.model.name,
        setting=trial.setting,
        label=label,
        micro_batch=trial.micro_batch,
        accumulation=trial.accumulation,
        gpus=trial.gpus,
        outcome="measured" if isinstance(end, ReducedTrial) else end.kind,
        failure=None if isinstance(end, ReducedTrial) else end,
        estimate=measured.estimate if measured else None,
        loss_difference=loss_difference(measured.first, compared) if measured and compared else None,
        proof=proof if isinstance(proof, Proof) else None,
        unproven=None if isinstance(proof, Proof) else proof,
        earlier=before.estimate.days
        if (before := measured and measured.earlier) and before.estimate
        else None,
    )


def samples_bytes(
    trials: Sequence[tuple[Trial, str, Outcome]], earlier: Mapping[str, Measured] = MappingProxyType({})
) -> bytes:
    """A line a measured trial: its id and every raw sample; one more where two processes measured it."""
    lines: list[dict[str, Any]] = []
    for trial, _, outcome in trials:
        if isinstance(outcome, Measured):
            if first := earlier.get(trial.id):
                lines.append({"trial": trial.id, "earlier": True, "measurement": to_json(first.measurement)})
            lines.append({"trial": trial.id, "measurement": to_json(outcome.measurement)})
    return b"".join(canonical_json(line) + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Fastest:
    model: str
    trial: str | None  # None: none was measured
    undecided: int  # settings that may yet be faster, when the run ended
    confidence: float | None  # that no other trial measured is more than a percent faster
