"""results.json and samples.jsonl: what a run answers, and everything it follows from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from bench.codec import DecodeError, canonical_json, from_json, pretty_json, strict_loads, to_json
from bench.errors import VerificationFailed
from bench.estimate import Estimate, estimate, loss_difference
from bench.methods import Setting
from bench.models import Model
from bench.plan import Skipped
from bench.result import (
    Ceiling,
    Failure,
    Image,
    Measured,
    Measurement,
    NodeFacts,
    Outcome,
    Proof,
    ProofOrFailure,
    Timing,
    Trial,
)

SCHEMA: Literal["bench/results/v1"] = "bench/results/v1"
ROUNDING = 1e-9  # mathematics libraries differ in the last digits; nothing else may


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
    setting: Setting
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
    schema: Literal["bench/results/v1"] = SCHEMA

    def to_bytes(self) -> bytes:
        return pretty_json(to_json(self))


def summarise(
    trials: Sequence[tuple[Trial, str, Outcome]],
    ceilings: Sequence[Ceiling],
    proofs: Mapping[str, ProofOrFailure],
) -> tuple[TrialResult, ...]:
    """Trials with label and outcome, to what the tables show."""
    naive = {
        trial.model.name: outcome.measurement
        for trial, _, outcome in trials
        if trial.setting == () and isinstance(outcome, Measured)
    }
    return tuple(
        _summary(trial, label, outcome, ceilings, naive.get(trial.model.name), proofs.get(trial.id))
        for trial, label, outcome in trials
    )


def _summary(
    trial: Trial,
    label: str,
    outcome: Outcome,
    ceilings: Sequence[Ceiling],
    naive: Measurement | None,
    proof: ProofOrFailure | None,
) -> TrialResult:
    measurement = outcome.measurement if isinstance(outcome, Measured) else None
    return TrialResult(
        id=trial.id,
        model=trial.model.name,
        setting=trial.setting,
        label=label,
        micro_batch=trial.micro_batch,
        accumulation=trial.accumulation,
        gpus=trial.gpus,
        outcome=outcome.kind,
        failure=None if isinstance(outcome, Measured) else outcome,
        estimate=estimate(trial, measurement, measurement.flops, ceilings) if measurement else None,
        loss_difference=loss_difference(measurement, naive)
        if measurement and naive and trial.setting
        else None,
        proof=proof if isinstance(proof, Proof) else None,
        unproven=None if isinstance(proof, Proof) else proof,
    )


def samples_bytes(trials: Sequence[tuple[Trial, str, Outcome]]) -> bytes:
    """A line a measured trial: its id and every raw sample."""
    return b"".join(
        canonical_json({"trial": trial.id, "measurement": to_json(outcome.measurement)}) + b"\n"
        for trial, _, outcome in trials
        if isinstance(outcome, Measured)
    )


def recompute(read: Callable[[str], bytes]) -> Mapping[str, Any]:
    """Every summary of results.json again, from samples.jsonl; VerificationFailed where one differs."""
    try:
        results = from_json(Results, strict_loads(read("results.json")))
        lines = [strict_loads(line) for line in read("samples.jsonl").splitlines()]
        measured = {line["trial"]: from_json(Measurement, line["measurement"]) for line in lines}
    except (DecodeError, KeyError, TypeError) as error:
        raise VerificationFailed(f"results do not have their form: {error}") from None
    manifest = read("manifest.json")
    if results.manifest_digest != "sha256:" + hashlib.sha256(manifest).hexdigest():
        raise VerificationFailed("the results are of another manifest")
    _check_image(strict_loads(manifest), results.node.image)
    if len(measured) != len(lines):
        raise VerificationFailed("samples.jsonl holds a trial twice")
    proofs = {t.id: proof for t in results.trials if (proof := t.proof or t.unproven)}
    rebuilt = [_rebuilt(results, trial, measured) for trial in results.trials]
    again = summarise(rebuilt, results.ceilings, proofs)
    for theirs, ours in zip(results.trials, again, strict=True):
        if difference := _difference(theirs, ours):
            raise VerificationFailed(f"trial {theirs.id}: {difference} does not follow from the samples")
    if unused := measured.keys() - {t.id for t in results.trials if t.outcome == "measured"}:
        raise VerificationFailed(f"samples of a trial that is not in the results: {min(unused)}")
    return {
        "results": results,
        "samples": sum(len(m.steps) + len(m.warmup) for m in measured.values()),
    }


def _check_image(manifest: Any, image: Image | None) -> None:
    """A manifest that names its image has no results from anywhere else."""
    wanted = manifest.get("image") if isinstance(manifest, dict) else None
    found = image.config if image else None
    if wanted not in (None, found):
        raise VerificationFailed(f"ran in {found or 'no known image'}, the manifest asks for {wanted}")


def _rebuilt(
    results: Results, entry: TrialResult, measured: Mapping[str, Measurement]
) -> tuple[Trial, str, Outcome]:
    """The trial that an entry claims to be; its id must follow from its parts."""
    model = next((m for m in results.models if m.name == entry.model), None)
    if model is None or entry.gpus < 1 or entry.micro_batch < 1:
        raise VerificationFailed(f"trial {entry.id} is of no model in the results")
    trial = Trial(
        model, entry.setting, entry.micro_batch, entry.gpus,
        results.seed, results.timing, results.memory_cap_bytes,
    )  # fmt: skip
    if trial.id != entry.id:
        raise VerificationFailed(f"trial {entry.id} is not what its parts say: {trial.id}")
    if entry.failure is not None:
        return trial, entry.label, entry.failure
    if entry.id not in measured:
        raise VerificationFailed(f"trial {entry.id} has no samples")
    return trial, entry.label, Measured(measured[entry.id])


def _difference(theirs: Any, ours: Any, name: str = "it") -> str | None:
    """The first field that differs by more than rounding; None if all agree."""
    if is_dataclass(theirs) and type(theirs) is type(ours):
        parts = (_difference(getattr(theirs, f.name), getattr(ours, f.name), f.name) for f in fields(theirs))
        return next(filter(None, parts), None)
    if isinstance(theirs, float) and isinstance(ours, float):
        close = abs(theirs - ours) <= ROUNDING * max(abs(theirs), abs(ours))
        return None if close else name
    return None if theirs == ours else name
