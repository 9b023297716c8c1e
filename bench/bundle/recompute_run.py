"""Every summary of a bundle again, from its raw samples: what does not follow from them is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.base.errors import VerificationFailed
from bench.base.stamps import utc
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.bundle.held_to_manifest import ManifestCheck, check_image
from bench.bundle.plausibility import (
    doubts,
    require_consistent,
    require_limits,
    require_measured,
    require_plain,
    require_same_node,
)
from bench.bundle.statement import Predicate
from bench.bundle.verdict import RunContents
from bench.records.fastest import fastest_with_confidence
from bench.records.run_results import (
    SCHEMA,
    LabelledTrial,
    ReducedTrial,
    Results,
    RunFacts,
    TrialResult,
    reduce_trial,
    trial_results,
)
from bench.records.slowdown import Slowed, slowed_trials
from bench.records.trial import Ceiling, Failure, Measurement, NodeFacts, Trial

if TYPE_CHECKING:
    from bench.bundle.verify import Files

ROUNDING = 1e-9  # mathematics libraries differ in the last digits; nothing else may


def recompute_run(document: Any, files: Files) -> RunContents:
    """Every summary of results.json again, from samples.jsonl; VerificationFailed where one differs.

    `document` is results.json as parsed. Only one line of samples is in memory at a time, so that a bundle of
    any size can be checked.
    """
    _check_schema(document)
    require_plain(document, files)
    try:
        results = from_json(Results, document)
    except DecodeError as error:
        raise VerificationFailed(f"does not have its form: {error}", where="results.json") from None
    if results.manifest_digest != "sha256:" + files.sha256["manifest.json"]:
        raise VerificationFailed("the results are of another manifest")
    check_image(files.read("manifest.json"), results.node.image)
    try:
        return _recompute(results, files)
    except (ArithmeticError, ValueError) as error:  # a step of no time at all, a clock in the year 10^300
        message = f"the results and samples hold numbers that no run can give: {error}"
        raise VerificationFailed(message) from None


def _recompute(results: Results, files: Files) -> RunContents:
    require_same_run(results.run, results.node, files.run)
    require_consistent(results)
    require_limits(results)
    held = ManifestCheck(files.read("manifest.json"), results)
    held.require_all_tried()
    trials = {entry.id: _trial(results, entry) for entry in results.trials}
    if len(trials) != len(results.trials):
        raise VerificationFailed("holds a trial twice", where="results.json")
    for trial in trials.values():
        held.require_trial(trial)
    there = {entry.id: trials[entry.id] for entry in results.trials if not entry.failure}
    measured = _read_samples(files, there, results.ceilings, held)
    found: list[LabelledTrial] = [(e.id, trials[e.id], e.label, _end(e, measured)) for e in results.trials]
    proofs = {t.id: proof for t in results.trials if (proof := t.proof or t.unproven)}
    for theirs, ours in zip(results.trials, trial_results(found, proofs), strict=True):
        if difference := _difference(theirs, ours):
            raise VerificationFailed(f"trial {theirs.id}: {difference} does not follow from the samples")
    for claimed in results.winners:  # how many settings are undecided is the run's own word
        if claimed.undecided < 0 or _difference(
            claimed, fastest_with_confidence(claimed.model, results.trials, claimed.undecided)
        ):
            raise VerificationFailed(f"the fastest of {claimed.model} is not the one that its trials show")
    all_of_it = [part for s in measured.values() for part in (s, s.earlier) if part]
    spent = sum(s.seconds for s in all_of_it)
    spent += sum(t.proof.seconds for t in results.trials if t.proof)
    told = doubts(results, (s.first for s in all_of_it), spent)
    return RunContents(
        results=results,
        samples=sum(s.samples for s in all_of_it),
        measured_seconds=spent,
        notes=(*held.notes, *told),
        slowed=_slowed(files, held.gpus, measured),
    )


def _slowed(files: Files, gpus: int, measured: Mapping[str, ReducedTrial]) -> Mapping[str, Slowed]:
    if "telemetry.jsonl" not in files.sha256:
        return {}
    spans = {name: (one.first.started_at, one.first.ended_at) for name, one in measured.items()}
    return slowed_trials(lambda: files.lines("telemetry.jsonl"), spans, gpus)


def _check_schema(document: Any) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema != SCHEMA:
        advice = "another version of bench wrote it: verify and compare it with that one, or a newer one"
        raise VerificationFailed(f"its results are {schema:.40}, this bench knows {SCHEMA}", advice=advice)


def require_same_run(ours: RunFacts, node: NodeFacts, signed: Predicate) -> None:
    found = (ours.id, ours.complete, utc(ours.started_at), utc(ours.ended_at))
    if found != (signed.run_id, signed.complete, signed.started_at, signed.ended_at):
        raise VerificationFailed("the results are of another run than the statement")
    require_same_node(node, signed.node)


def _read_samples(
    files: Files, trials: Mapping[str, Trial], ceilings: Sequence[Ceiling], held: ManifestCheck
) -> Mapping[str, ReducedTrial]:
    measured: dict[str, ReducedTrial] = {}
    earlier: dict[str, ReducedTrial] = {}
    for number, line in enumerate(files.lines("samples.jsonl"), start=1):
        where = f"samples.jsonl: line {number}"
        try:
            document = strict_loads(line)
            name, measurement = document["trial"], from_json(Measurement, document["measurement"])
            of = earlier if document.get("earlier") is True else measured
        except (DecodeError, KeyError, TypeError) as error:
            raise VerificationFailed(f"does not have its form: {error}", where=where) from None
        if not isinstance(name, str) or name not in trials:
            raise VerificationFailed("is of a trial that is not in the results", where=where)
        if name in of:
            raise VerificationFailed(f"holds the trial {name} for the second time", where=where)
        require_measured(name, measurement)
        held.require_flops(trials[name], measurement.flops)
        of[name] = reduce_trial(trials[name], measurement, ceilings)
    if alone := earlier.keys() - measured.keys():
        message = f"holds only the first of two measurements of the trial {min(alone)}"
        raise VerificationFailed(message, where="samples.jsonl")
    return {name: replace(one, earlier=earlier.get(name)) for name, one in measured.items()}


def _trial(results: Results, entry: TrialResult) -> Trial:
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
    return trial


def _end(entry: TrialResult, measured: Mapping[str, ReducedTrial]) -> ReducedTrial | Failure:
    if entry.failure is not None:
        return entry.failure
    if entry.id not in measured:
        raise VerificationFailed(f"trial {entry.id} has no samples")
    return measured[entry.id]


def _difference(theirs: Any, ours: Any, name: str = "it") -> str | None:
    """The first field that differs by more than rounding; None if all agree."""
    if theirs == ours:
        return None
    if is_dataclass(theirs) and type(theirs) is type(ours):
        parts = (_difference(getattr(theirs, f.name), getattr(ours, f.name), f.name) for f in fields(theirs))
        return next(filter(None, parts), None)
    if isinstance(theirs, float) and isinstance(ours, float):
        close = abs(theirs - ours) <= ROUNDING * max(abs(theirs), abs(ours))
        return None if close else name
    return None if theirs == ours else name
