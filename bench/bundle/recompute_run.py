"""Recompute every summary of a run's bundle from its raw samples, and refuse what does not follow from them.

In: results.json as parsed, and the other payload files. Out: `RunContents`, or VerificationFailed.
One line of samples.jsonl is in memory at a time, so that a bundle of any size can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.base.errors import VerificationFailed
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads
from bench.bundle.held_to_manifest import ManifestCheck
from bench.bundle.physical_limits import (
    peak_of_products,
    require_ceiling,
    require_memory,
    require_proof_rate,
    require_rate,
)
from bench.bundle.plausibility import (
    doubts,
    require_consistent,
    require_measured,
    require_operations,
    require_plain,
    require_positive,
    require_products,
    require_same_run,
    without_telemetry,
)
from bench.bundle.stated_manifest import StatedManifest, check_software, read_stated
from bench.bundle.telemetry_limits import ClaimedRate, require_telemetry
from bench.bundle.verdict import RunContents
from bench.records.busy import BusyTime
from bench.records.fastest import fastest_with_confidence
from bench.records.marks import Cpus, Mark, all_marks, marks_of_other_work
from bench.records.run_results import (
    SCHEMA,
    LabelledTrial,
    ReducedTrial,
    Results,
    TrialResult,
    days_of,
    reduce_trial,
    trial_results,
)
from bench.records.slowdown import Slowed, Span, slowed_trials, trial_reading
from bench.records.text import count_text
from bench.records.trial import Ceiling, Failure, Gpu, Measurement, NodeFacts, Trial

if TYPE_CHECKING:
    from bench.bundle.verify import Files

ROUNDING = 1e-9  # relative: mathematics libraries differ in the last digits, and in nothing else


def recompute_run(document: Any, files: Files) -> RunContents:
    """Recompute every summary in `document` from samples.jsonl; VerificationFailed where one differs."""
    _check_schema(document)
    manifest = read_stated(files.read("manifest.json"))
    require_plain(document, manifest.document)
    try:
        results = from_json(Results, document)
    except DecodeError as error:
        raise VerificationFailed(f"is malformed: {error}", where="results.json") from None
    if results.manifest_digest != "sha256:" + files.sha256["manifest.json"]:
        raise VerificationFailed("the results are of another manifest")
    check_software(manifest.document, results.node)
    try:
        return _recompute(results, manifest, files)
    except (ArithmeticError, ValueError) as error:  # a step that takes no time, a clock in the year 10^300
        message = f"the results and samples hold numbers that no run can give: {error}"
        raise VerificationFailed(message) from None


def _recompute(results: Results, manifest: StatedManifest, files: Files) -> RunContents:
    require_same_run(results.run, results.node, files.run)
    require_consistent(results)
    trained = results.node.gpus[: manifest.gpus_of(results.node)]
    for ceiling in results.ceilings:
        require_ceiling(results.node, trained, ceiling)
    manifest_check = ManifestCheck(manifest, results)
    manifest_check.require_all_tried()
    trials = {entry.id: _trial(results, entry) for entry in results.trials}
    if len(trials) != len(results.trials):
        raise VerificationFailed("holds a trial twice", where="results.json")
    for trial in trials.values():
        manifest_check.require_trial(trial)
    for entry in results.trials:
        if entry.proof is not None:
            manifest_check.require_proof(trials[entry.id], entry.proof)
    not_failed = {entry.id: trials[entry.id] for entry in results.trials if not entry.failure}
    measured = _read_samples(files, not_failed, results.ceilings, manifest_check)
    _require_summaries(results, trials, measured)
    _require_physics(results, trained, trials)
    busy = BusyTime(_spans(measured), manifest.gpus_of(results.node))
    silent = _require_telemetry(files, _timed(results, trained, trials, measured), trained, busy)
    reduced = [part for trial in measured.values() for part in (trial, trial.earlier) if part]
    spent_seconds = sum(part.seconds for part in reduced)
    spent_seconds += sum(entry.proof.seconds for entry in results.trials if entry.proof)
    spent_seconds += sum(entry.floor.measured_seconds for entry in results.trials if entry.floor)
    slowed = _slowed(files, manifest.gpus_of(results.node), measured)
    marks = all_marks(slowed, _other_work(files, results.node, measured), days_of(results.trials))
    notes = doubts(results, trained, (part.first for part in reduced), spent_seconds)
    return RunContents(
        results=results,
        stated=manifest,
        samples=sum(part.samples for part in reduced),
        measured_seconds=spent_seconds,
        notes=(*manifest_check.notes, *notes, *without_telemetry(results, silent, marks)),
        not_recomputed=_not_recomputed(results),
        slowed=slowed,
        marks=marks,
        busy_shares=busy.shares(),
        step_seconds={
            name: tuple(part.step_seconds for part in (trial, trial.earlier) if part)
            for name, trial in measured.items()
        },
    )


def _not_recomputed(results: Results) -> str:
    """Count the figures that are stated without samples, as: 3 proofs, 1 floor, 1 gradient check."""
    counts = {
        "proof": sum(entry.proof is not None for entry in results.trials),
        "floor": sum(entry.floor is not None for entry in results.trials),
        "gradient check": sum(entry.gradient_check is not None for entry in results.trials),
    }
    return ", ".join(count_text(count, what) for what, count in counts.items() if count)


def _require_summaries(
    results: Results, trials: Mapping[str, Trial], measured: Mapping[str, ReducedTrial]
) -> None:
    """Refuse summaries of trials, and fastest trials, that differ from the recomputed ones."""
    labelled = [
        LabelledTrial(trials[entry.id], entry.label, _end(entry, measured)) for entry in results.trials
    ]
    proofs = {entry.id: proof for entry in results.trials if (proof := entry.proof or entry.unproven)}
    floors = {entry.id: floor for entry in results.trials if (floor := entry.floor or entry.no_floor)}
    checks = {
        entry.id: check
        for entry in results.trials
        if (check := entry.gradient_check or entry.no_gradient_check)
    }
    for theirs, ours in zip(results.trials, trial_results(labelled, proofs, floors, checks), strict=True):
        if field := difference(theirs, ours):
            raise VerificationFailed(f"trial {theirs.id}: {field} does not follow from the samples")
    for claimed in results.winners:
        # The number of undecided settings depends on the version that ran: it is not recomputed.
        recomputed = fastest_with_confidence(claimed.model, results.trials, claimed.undecided)
        if claimed.undecided < 0 or difference(claimed, recomputed):
            raise VerificationFailed(f"the fastest of {claimed.model} is not the one that its trials show")


def _require_physics(results: Results, trained: Sequence[Gpu], trials: Mapping[str, Trial]) -> None:
    """Refuse trials that are faster, or use more memory, than the devices that trained can.

    A measured limit bounds an estimate that may be ranked, and is bounded itself. One without such a limit is
    bounded by the vendor's peak.
    """
    for entry in results.trials:
        trial, estimate = trials[entry.id], entry.estimate
        if estimate is not None:
            require_memory(results.node, trained, trial, estimate.peak_bytes)
        if estimate is not None and estimate.ceiling_flops_per_second is None:
            require_rate(results.node, trained, trial, estimate)
        if entry.proof is not None:
            if estimate is None:
                raise VerificationFailed(f"the proof of trial {trial.id} proves no figure")
            require_memory(results.node, trained, trial, entry.proof.peak_bytes)
            require_proof_rate(results.node, trained, trial, estimate, entry.proof)


def _require_telemetry(
    files: Files, timed: Mapping[str, ClaimedRate], trained: Sequence[Gpu], busy: BusyTime
) -> frozenset[str]:
    """Refuse trials that telemetry contradicts; return the trials that nothing in it bounds.

    Notes on the way, in `busy`, how much of the time the GPUs ran kernels: parsing telemetry takes long.
    """
    if not trained:
        return frozenset()
    lines = files.lines("telemetry.jsonl") if "telemetry.jsonl" in files.sha256 else ()
    readings = filter(None, map(trial_reading, lines))
    return require_telemetry(busy.noting(readings), timed, trained)


def _timed(
    results: Results,
    trained: Sequence[Gpu],
    trials: Mapping[str, Trial],
    measured: Mapping[str, ReducedTrial],
) -> Mapping[str, ClaimedRate]:
    """Return the span and the rate of each trial that may be ranked, by trial id."""
    return {
        entry.id: ClaimedRate(
            started_at=measured[entry.id].first.started_at,
            ended_at=measured[entry.id].first.ended_at,
            flops_per_second=entry.estimate.flops_per_second / entry.gpus,
            peaks=tuple(peak_of_products(results.node, gpu, trials[entry.id]).rate for gpu in trained),
        )
        for entry in results.trials
        if entry.estimate is not None and entry.estimate.plausible
    }


def _slowed(files: Files, gpus: int, measured: Mapping[str, ReducedTrial]) -> Mapping[str, Slowed]:
    if not files.held_back:
        return {}
    return slowed_trials(lambda: files.blocks("telemetry.jsonl"), _spans(measured), gpus)


def _other_work(
    files: Files, node: NodeFacts, measured: Mapping[str, ReducedTrial]
) -> Mapping[str, tuple[Mark, ...]]:
    cpus = Cpus(node.cpu_cores, node.device)
    if files.top_load <= cpus.most_total:
        return {}  # nearly every bundle: its telemetry is not read once more
    return marks_of_other_work(lambda: files.blocks("telemetry.jsonl"), _spans(measured), cpus)


def _spans(measured: Mapping[str, ReducedTrial]) -> Mapping[str, Span]:
    return {name: (trial.first.started_at, trial.first.ended_at) for name, trial in measured.items()}


def _check_schema(document: Any) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema != SCHEMA:
        advice = "another version of bench wrote it: verify and compare it with that one, or a newer one"
        raise VerificationFailed(f"its results are {schema:.40}, this bench knows {SCHEMA}", advice=advice)


def _read_samples(
    files: Files, trials: Mapping[str, Trial], ceilings: Sequence[Ceiling], manifest_check: ManifestCheck
) -> Mapping[str, ReducedTrial]:
    """Reduce the measurements in samples.jsonl, by trial; a trial may have one earlier measurement."""
    measured: dict[str, ReducedTrial] = {}
    earlier: dict[str, ReducedTrial] = {}
    for number, line in enumerate(files.lines("samples.jsonl"), start=1):
        where = f"samples.jsonl: line {number}"
        try:
            document = strict_loads(line)
            if canonical_json(document) != line:
                raise VerificationFailed("is not written as bench writes it", where=where)
            name, measurement = document["trial"], from_json(Measurement, document["measurement"])
            reduced = earlier if document.get("earlier") is True else measured
        except (DecodeError, KeyError, TypeError) as error:
            raise VerificationFailed(f"is malformed: {error}", where=where) from None
        if not isinstance(name, str) or name not in trials:
            raise VerificationFailed("is of a trial that is not in the results", where=where)
        if name in reduced:
            raise VerificationFailed(f"holds the trial {name} for the second time", where=where)
        trial = trials[name]
        require_measured(trial, measurement)
        require_operations(trial, measurement.flops)
        require_products(trial, measurement)
        manifest_check.require_flops(trial, measurement.flops)
        reduced[name] = reduce_trial(trial, measurement, ceilings)
        require_positive(trial, reduced[name].estimate)
    if only_earlier := earlier.keys() - measured.keys():
        message = f"holds only the first of two measurements of the trial {min(only_earlier)}"
        raise VerificationFailed(message, where="samples.jsonl")
    return {name: replace(trial, earlier=earlier.get(name)) for name, trial in measured.items()}


def _trial(results: Results, entry: TrialResult) -> Trial:
    """Rebuild the trial that an entry of the results describes; its id must follow from its parts."""
    model = next((m for m in results.models if m.name == entry.model), None)
    if model is None:
        raise VerificationFailed(f"trial {entry.id} is of no model in the results")
    if entry.gpus < 1 or entry.micro_batch < 1:
        raise VerificationFailed(f"trial {entry.id} is on no GPU, or has no micro-batch")
    trial = Trial(
        model=model,
        setting=entry.setting,
        micro_batch=entry.micro_batch,
        gpus=entry.gpus,
        seed=results.seed,
        timing=results.timing,
        memory_cap_bytes=results.memory_cap_bytes,
        data=entry.data,
    )
    if trial.id != entry.id:
        raise VerificationFailed(f"trial {entry.id} is not what its parts say: {trial.id}")
    return trial


def _end(entry: TrialResult, measured: Mapping[str, ReducedTrial]) -> ReducedTrial | Failure:
    if entry.failure is not None:
        return entry.failure
    if entry.id not in measured:
        raise VerificationFailed(f"trial {entry.id} has no samples")
    return measured[entry.id]


def difference(theirs: Any, ours: Any, name: str = "it") -> str | None:
    """Return the name of the first field that differs by more than rounding; None if all agree."""
    if theirs == ours:
        return None
    if is_dataclass(theirs) and type(theirs) is type(ours):
        parts = (difference(getattr(theirs, f.name), getattr(ours, f.name), f.name) for f in fields(theirs))
        return next(filter(None, parts), None)
    if isinstance(theirs, float) and isinstance(ours, float):
        close = abs(theirs - ours) <= ROUNDING * max(abs(theirs), abs(ours))
        return None if close else name
    return name
