"""results.json and samples.jsonl: the results of a run, and the samples that they are computed from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from bench.base.frozen import dataclass
from bench.base.strict_json import canonical_json, later, pretty_json, to_json
from bench.records.estimate import Estimate, Interval, estimate, loss_difference
from bench.records.floor import Floor, FloorOrReason, share_of_floor
from bench.records.gradients import CheckOrReason, GradientCheck
from bench.records.products import Products
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
    """The run as a whole, as results.json has it under "run"."""

    id: str
    started_at: float  # unix time
    ended_at: float
    complete: bool
    stopped: str | None  # why the run is incomplete


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The summary of a trial, as results.json and the tables show it."""

    id: str
    model: str
    setting: tuple[str, ...]
    label: str
    micro_batch: int
    accumulation: int
    gpus: int
    outcome: Literal["measured", "out-of-memory", "unsupported", "timed-out", "crashed"]
    failure: Failure | None  # None: the trial was measured
    estimate: Estimate | None
    loss_difference: float | None  # from the naive setting's first losses; None: not comparable
    proof: Proof | None = None  # real training, after the estimate was recorded
    unproven: Failure | None = None  # why the proof failed
    earlier: Interval | None = None  # days by the first of two processes, which measured more briefly
    floor: Floor | None = None  # of a model's fastest trial; None in bundles older than this field
    no_floor: str | None = None  # why the floor was not measured
    gradient_check: GradientCheck | None = None  # of the fastest trials; None in older bundles
    no_gradient_check: str | None = None  # why the gradients were not checked
    data: str | None = later(None)  # folder that the trial read; None: made-up data
    products: tuple[Products, ...] = later(())  # what a pass multiplies; empty in older bundles
    no_products: str | None = later(None)  # why `products` is not known

    @property
    def share_of_floor(self) -> float | None:
        """The floor as a share of the measured step; None without a floor."""
        if self.floor is None or self.estimate is None:
            return None
        return share_of_floor(self.floor, self.accumulation, self.estimate)


def days_of(trials: Iterable[TrialResult]) -> dict[str, Interval]:
    """Return the days of every trial that has an estimate, by trial."""
    return {trial.id: trial.estimate.days for trial in trials if trial.estimate is not None}


@dataclass(frozen=True, slots=True)
class Results:
    """The document results.json."""

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
    winners: tuple[Fastest, ...] = ()  # one for each model; empty in bundles older than this field
    schema: Literal["bench/results/v1"] = SCHEMA
    bench_source: str | None = later(None)  # sha256 of its files; None in bundles older than this field
    bench_commit: str | None = later(None)  # None: unknown where bench was installed

    @property
    def measured_by(self) -> str:
        """The version of bench that measured, as exactly as the bundle records it."""
        exact = self.bench_commit or (self.bench_source and f"source {self.bench_source[:12]}")
        return f"bench {self.bench_version}, {exact}" if exact else f"bench {self.bench_version}"

    def trials_of(self, model: str) -> list[TrialResult]:
        """Return the trials of one model, in the order in which they were run."""
        return [trial for trial in self.trials if trial.model == model]

    def to_bytes(self) -> bytes:
        """Return the bytes of results.json: equal results give equal bytes."""
        return pretty_json(to_json(self))


@dataclass(frozen=True, slots=True)
class ReducedTrial:
    """A measurement reduced to its estimate and to sums of its samples, which may be many."""

    estimate: Estimate | None
    first: Measurement  # without steps and warm-up
    samples: int
    seconds: float  # the sum of the samples' times
    earlier: ReducedTrial | None = None  # the measurement by the first of two processes
    step_seconds: tuple[float, ...] = ()  # of the timed steps


def reduce_trial(trial: Trial, measurement: Measurement, ceilings: Sequence[Ceiling]) -> ReducedTrial:
    """Reduce a measurement to its estimate and sums, so that its samples need not stay in memory."""
    warmup = [step.seconds for step in measurement.warmup]
    steps = tuple([step.seconds for step in measurement.steps])
    return ReducedTrial(
        estimate(trial, measurement, measurement.flops, ceilings),
        replace(measurement, steps=(), warmup=()),
        len(warmup) + len(steps),
        sum(steps, start=sum(warmup)),
        step_seconds=steps,
    )


def reduce_outcome(
    trial: Trial, outcome: Outcome, earlier: Measured | None, ceilings: Sequence[Ceiling]
) -> ReducedTrial | Failure:
    """Reduce an outcome to the kept values; `earlier` is an earlier measurement by another process."""
    if not isinstance(outcome, Measured):
        return outcome
    before = reduce_trial(trial, earlier.measurement, ceilings) if earlier else None
    return replace(reduce_trial(trial, outcome.measurement, ceilings), earlier=before)


class LabelledTrial(NamedTuple):
    """A trial with the label of its setting, and how it ended."""

    trial: Trial
    label: str
    end: ReducedTrial | Failure


class TrialOutcome(NamedTuple):
    """A trial with the label of its setting, and its outcome with all samples."""

    trial: Trial
    label: str
    outcome: Outcome


def trial_results(
    labelled: Sequence[LabelledTrial],
    proofs: Mapping[str, ProofOrFailure],
    floors: Mapping[str, FloorOrReason] = MappingProxyType({}),
    checks: Mapping[str, CheckOrReason] = MappingProxyType({}),
) -> tuple[TrialResult, ...]:
    """Summarise trials, in their order; `proofs`, `floors` and `checks` are keyed by trial id."""
    # Naive may have been measured at several micro-batches, whose losses are over other samples.
    naive = {
        _losses_key(trial, end): end.first
        for trial, _, end in labelled
        if not trial.setting and isinstance(end, ReducedTrial)
    }
    return tuple(
        _result(each, naive, proofs.get(key), floors.get(key), checks.get(key))
        for each in labelled
        for key in (each.trial.id,)
    )


def _losses_key(trial: Trial, measured: ReducedTrial) -> tuple[str, int]:
    """Return a key that is equal for measurements with comparable losses."""
    return trial.model.name, measured.first.samples_per_loss


def _result(
    labelled: LabelledTrial,
    naive: Mapping[tuple[str, int], Measurement],
    proof: ProofOrFailure | None,
    floor: FloorOrReason | None,
    check: CheckOrReason | None,
) -> TrialResult:
    trial, label, end = labelled
    measured, failure = (end, None) if isinstance(end, ReducedTrial) else (None, end)
    earlier = measured.earlier.estimate if measured and measured.earlier else None
    compared = naive.get(_losses_key(trial, measured)) if measured and trial.setting else None
    return TrialResult(
        id=trial.id,
        model=trial.model.name,
        setting=trial.setting,
        label=label,
        micro_batch=trial.micro_batch,
        accumulation=trial.accumulation,
        gpus=trial.gpus,
        outcome=failure.kind if failure else "measured",
        failure=failure,
        estimate=measured.estimate if measured else None,
        loss_difference=loss_difference(measured.first, compared) if measured and compared else None,
        proof=proof if isinstance(proof, Proof) else None,
        unproven=None if isinstance(proof, Proof) else proof,
        earlier=earlier.days if earlier else None,
        floor=floor if isinstance(floor, Floor) else None,
        no_floor=floor if isinstance(floor, str) else None,
        gradient_check=check if isinstance(check, GradientCheck) else None,
        no_gradient_check=check if isinstance(check, str) else None,
        data=trial.data,
        products=measured.first.products if measured else (),
        no_products=measured.first.no_products if measured else None,
    )


def samples_bytes(
    trials: Sequence[TrialOutcome], earlier: Mapping[str, Measured] = MappingProxyType({})
) -> bytes:
    """Serialise samples.jsonl: one line for each measurement, with the trial's id and every raw sample.

    A trial that two processes measured has two lines; the first is marked "earlier".
    """
    lines: list[dict[str, Any]] = []
    for trial, _, outcome in trials:
        if isinstance(outcome, Measured):
            if first := earlier.get(trial.id):
                lines.append({"trial": trial.id, "earlier": True, "measurement": to_json(first.measurement)})
            lines.append({"trial": trial.id, "measurement": to_json(outcome.measurement)})
    return b"".join(canonical_json(line) + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Fastest:
    """A model's fastest trial, as results.json has it under "winners"."""

    model: str
    trial: str | None  # id of the trial; None: no trial was measured
    undecided: int  # settings that might still have been faster when the run ended
    confidence: float | None  # probability that no other measured trial is more than a percent faster
