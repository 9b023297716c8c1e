"""A verified bundle to rows: one for each model, with all that comparing needs and no more.

This runs in the process that verified the bundle, so that thousands of bundles never lie in memory at once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import VerificationFailed
from bench.base.strict_json import canonical_json, to_json
from bench.bundle.verdict import Contents, RunContents, Verdict
from bench.bundle.verify import Files
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.records.estimate import Interval
from bench.records.fastest import fastest, runner_up
from bench.records.run_results import Results, TrialResult
from bench.records.slowdown import Slowed
from bench.records.switches import deciding, in_words
from bench.records.text import failure_text
from bench.records.trial import NodeFacts
from bench.report.compare.energy import TelemetryCourse, course_of, telemetry_lines, watts_of
from bench.training.models import Model, Recipe

# What decides how fast the same code runs; the rest of the packages does not.
STACK = ("torch", "triton", "transformers", "flash-attn")
STACK_OF_A_FAMILY = {"mamba": ("mamba-ssm", "causal-conv1d")}
DEEPSPEED = "deepspeed"  # decides nothing where no row of a model has a setting of it


ON_TRUST = "of the manifest"
# Of what must be equal: what is trained, and how.
OF_RECIPE = frozenset({
    "batch", "steps", "precision", "sequence length", "image size", "optimizer", "architecture",
    "rest of the recipe",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    name: str  # of its GPUs, or of its CPU
    kind: str  # cuda, cpu
    devices: int  # that trained together
    memory_bytes: int  # of one device
    identity: str  # this very machine, or this run where a machine says nothing of itself
    nodes: int = 1  # that trained as one

    @property
    def label(self) -> str:
        short = self.name.replace("NVIDIA ", "") + (f" on {self.nodes} nodes" if self.nodes > 1 else "")
        if " + " in self.name and self.kind == "cuda":  # several kinds, each with its own number
            return short
        return f"{self.devices}x {short}" if self.kind == "cuda" or self.devices > 1 else short


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial, as plots and tables show it."""

    label: str
    setting: tuple[str, ...]
    micro_batch: int
    accumulation: int
    outcome: str  # as in the bundle, or "implausible"
    reason: str | None = None  # why there are no days
    days: Interval | None = None
    step_seconds: Interval | None = None
    units_per_second: float | None = None
    utilisation: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class UncertainFastest:
    """What goes with a fastest that is not sure to be it."""

    confidence: float  # that nothing measured is more than a percent faster
    rival: Attempt  # surely the fastest of the rest


@dataclass(frozen=True, slots=True)
class Row:
    path: str
    run_id: str
    started_at: str
    level: str
    trusted: bool
    complete: bool  # of this model: a run that ended early may have decided it
    machine: Machine
    model: str
    family: str
    precision: str
    unit: str
    conditions: tuple[tuple[str, str], ...]  # what must be equal before rows are ranked
    training_flops: float | None  # of the whole recipe, by the bundle's own count
    best: Attempt | None
    attempts: tuple[Attempt, ...]
    watts: float | None = None  # of the GPUs that trained, by their own energy counters, at `best`
    telemetry: TelemetryCourse | None = None
    close: UncertainFastest | None = None
    tried_zero: bool = False  # a setting of DeepSpeed's, whatever came of it
    samples_sha256: str | None = None  # of all that its figures follow from
    slowed: Slowed | None = None  # while `best` was timed

    @property
    def on_trust(self) -> str | None:
        """What nothing here could be held against: told even where it has no rival to be kept from."""
        return dict(self.conditions).get(ON_TRUST)

    @property
    def recipe(self) -> tuple[tuple[str, str], ...]:
        """Rows of one name may train different things: what a user calls his models is his to say."""
        return tuple(pair for pair in self.conditions if pair[0] in OF_RECIPE)

    @property
    def kwh(self) -> float | None:
        """What the GPUs draw in one run of the recipe."""
        if self.watts is None or self.best is None or self.best.days is None:
            return None
        return self.watts * self.best.days.value * 24 / 1000


@dataclass(frozen=True, slots=True)
class ComparedRun(RunContents):
    """A run with what its rows need besides: read while the bundle is open, before it is left alone."""

    manifest_conditions: Mapping[str, tuple[tuple[str, str], ...]]  # by model
    gpus: int  # of each node
    watts: Mapping[str, float | None]  # by trial
    course: TelemetryCourse | None
    samples_sha256: str


def gather(with_telemetry: bool, files: Files) -> ComparedRun | CheckContents:
    """Recompute a bundle, and read what rows need besides. No byte of it can be trusted to make sense."""
    run = recompute(files)
    if not isinstance(run, RunContents):
        return run
    results = run.results
    bests = {t.id: t for m in results.models if (t := fastest(_of(results, m.name))) is not None}
    lines = telemetry_lines(files)
    try:
        manifest_conditions = {m.name: run.stated.conditions_of(m.name) for m in results.models}
        gpus = run.stated.gpus_of(results.node)
        watts = watts_of(files, bests, lines, gpus)
        course = course_of(lines) if with_telemetry else None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise VerificationFailed(f"the manifest or the telemetry does not have its form: {error}") from None
    return ComparedRun(
        results=run.results,
        stated=run.stated,
        samples=run.samples,
        measured_seconds=run.measured_seconds,
        notes=run.notes,
        slowed=run.slowed,
        manifest_conditions=manifest_conditions,
        gpus=gpus,
        watts=watts,
        course=course,
        samples_sha256=files.sha256["samples.jsonl"],
    )


def rows_of(path: Path, verdict: Verdict[Contents], run: ComparedRun) -> tuple[Row, ...]:
    return tuple(_row(path, verdict, run, model) for model in run.results.models)


def _of(results: Results, model: str) -> list[TrialResult]:
    return [trial for trial in results.trials if trial.model == model]


def _row(path: Path, verdict: Verdict[Contents], run: ComparedRun, model: Model) -> Row:
    results = run.results
    trials = _of(results, model.name)
    best = fastest(trials)
    devices = best.gpus if best else max((trial.gpus for trial in trials), default=1)
    flops = None
    if best is not None and best.estimate is not None:
        e = best.estimate
        flops = e.flops_per_second * e.step_seconds.value * model.recipe.steps
    return Row(
        path=str(path),
        run_id=verdict.run_id,
        started_at=verdict.started_at,
        level=verdict.level,
        trusted=verdict.trusted,
        complete=verdict.complete or _is_decided(results, model.name),
        machine=_machine(results.node, run.gpus, devices, verdict.run_id),
        model=model.name,
        family=model.family,
        precision=model.recipe.precision,
        unit=model.recipe.unit,
        conditions=tuple(_conditions(run, model, verdict.level)),
        training_flops=flops,
        best=_attempt(best) if best else None,
        attempts=tuple(_attempt(trial) for trial in trials),
        watts=run.watts.get(best.id) if best else None,
        telemetry=run.course,
        close=UncertainFastest(doubt[0], _attempt(doubt[1]))
        if (doubt := runner_up(model.name, results.trials))
        else None,
        tried_zero=any("zero" in method for trial in trials for method in trial.setting),
        samples_sha256=run.samples_sha256,
        slowed=run.slowed.get(best.id) if best else None,
    )


def _is_decided(results: Results, model: str) -> bool:
    return any(winner.model == model and winner.undecided == 0 for winner in results.winners)


def _machine(node: NodeFacts, each: int, devices: int, run_id: str) -> Machine:
    if not node.gpus:
        return Machine(node.cpu, "cpu", devices, node.memory_bytes, f"run {run_id}")
    used = node.gpus[: min(each, devices)]
    names = Counter(gpu.name for gpu in used)
    identity = hashlib.sha256(" ".join(sorted(gpu.uuid for gpu in used)).encode()).hexdigest()[:12]
    # Of several nodes that train together the leader's GPUs stand for all.
    name = used[0].name if len(names) == 1 else " + ".join(f"{n}x {gpu}" for gpu, n in names.items())
    nodes = -(-devices // each)
    return Machine(name, "cuda", devices, min(g.memory_bytes for g in used), f"{identity}-{devices}", nodes)


def _attempt(trial: TrialResult) -> Attempt:
    base = (trial.label, trial.setting, trial.micro_batch, trial.accumulation)
    if trial.failure is not None:
        return Attempt(*base, trial.outcome, failure_text(trial.failure))
    e = trial.estimate
    if e is None:
        return Attempt(*base, trial.outcome, "too few samples for an interval")
    outcome = "measured" if e.plausible else "implausible"
    reason = None if e.plausible else "implies more arithmetic than this machine reached: never ranked"
    return Attempt(
        *base, outcome, reason, e.days, e.step_seconds, e.units_per_second, e.utilisation, e.peak_bytes
    )


# What must be equal


def _conditions(run: ComparedRun, model: Model, level: str) -> Iterator[tuple[str, str]]:
    results = run.results
    yield from _recipe_conditions(model)
    cap = results.memory_cap_bytes
    yield "memory cap", "none" if cap is None else f"{cap / 2**30:g} GiB"
    yield from run.manifest_conditions[model.name]
    image = results.node.image
    yield "image", (image.config or f"{image.variant}, wheels {image.lock}") if image else "none"
    yield "device", results.node.device
    if switches := deciding(results.node.switches or {}):
        yield "switches", in_words(switches)
    for name in (*STACK, *STACK_OF_A_FAMILY.get(model.family, ()), DEEPSPEED):
        if name in results.node.packages:
            yield name, results.node.packages[name]
    if own := [note.text for note in run.notes if note.model in (None, model.name)]:
        yield ON_TRUST, "; ".join(own)
    yield "assurance level", level


def _recipe_conditions(model: Model) -> Iterator[tuple[str, str]]:
    recipe = model.recipe
    words = {
        "batch": recipe.batch_size, "steps": recipe.steps, "precision": recipe.precision,
        "sequence length": recipe.sequence_length, "image size": recipe.image_size,
        "optimizer": recipe.optimizer.name,
    }  # fmt: skip
    for name, value in words.items():
        if value is not None:
            yield name, str(value)
    yield "architecture", _short_digest([model.family, dict(model.architecture)])
    yield "rest of the recipe", _short_digest(_rest(recipe))


def _rest(recipe: Recipe) -> object:
    named = {"batch_size", "steps", "precision", "sequence_length", "image_size", "source"}
    return {key: value for key, value in to_json(recipe).items() if key not in named}


def _short_digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:8]
