"""Turn a verified bundle into rows, one for each model, with everything that comparing needs.

In: the files of a bundle and its verdict. Out: a `Row`, or a `RankedRow` if the model has a figure. Does I/O.
Runs in the process that verified the bundle, so that thousands of bundles never lie in memory at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import sha256
from bench.base.strict_json import INTERNAL, canonical_json, field_values, to_json
from bench.bundle.stated_manifest import SearchScope
from bench.bundle.verdict import Contents, RunContents, Verdict
from bench.bundle.verify import Files
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.records.copied import values_of
from bench.records.estimate import SECONDS_A_DAY, Interval
from bench.records.fastest import fastest, runner_up, wrong_settings
from bench.records.gradients import GradientCheck
from bench.records.marks import Mark
from bench.records.mfu import mfu_of
from bench.records.products import Products
from bench.records.run_results import Results, TrialResult
from bench.records.slowdown import Slowed
from bench.records.switches import deciding, in_words
from bench.records.text import failure_text, gradients_text, software_digest
from bench.records.trial import NodeFacts
from bench.report.compare.energy import TelemetryCourse, course_of, telemetry_lines, watts_of
from bench.report.compare.episodes import Episode, ends_of, episodes_of
from bench.training.models import Model
from bench.training.vendor.transformers_inside import MAMBA_SSM

# Packages that decide how fast the same code runs; rows with other versions of them are not comparable.
STACK = ("torch", "triton", "transformers", "flash-attn")
STACK_OF_A_FAMILY = dict.fromkeys(MAMBA_SSM, ("mamba-ssm", "causal-conv1d"))
DEEPSPEED = "deepspeed"  # compared only among rows whose fastest setting uses it

ON_TRUST = "of the manifest"  # the condition that holds what verification had to take on trust
# The conditions that say what is trained, as opposed to where and with which software.
PLAIN_CONDITIONS = ("batch", "steps", "precision", "sequence length", "image size", "optimizer")
RECIPE_CONDITIONS = frozenset((*PLAIN_CONDITIONS, "architecture", "rest of the recipe"))
Conditions = tuple[tuple[str, str], ...]  # (name, value); rows are ranked together if all are equal


def recipe_of(conditions: Conditions) -> Conditions:
    """Return the conditions about the model and its training, without those about machine and software."""
    return tuple(pair for pair in conditions if pair[0] in RECIPE_CONDITIONS)


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices that trained together, on one node or several."""

    name: str  # of its GPUs, or of its CPU
    kind: str  # cuda, cpu
    devices: int
    memory_bytes: int  # of one device
    identity: str  # equal for two runs on the same GPUs; a machine without GPUs is identified by its run
    nodes: int = 1

    @property
    def label(self) -> str:
        """The name in tables, as 8x H100 80GB HBM3 or 16x H200 on 2 nodes; without "NVIDIA"."""
        short = self.name.replace("NVIDIA ", "") + (f" on {self.nodes} nodes" if self.nodes > 1 else "")
        if " + " in self.name and self.kind == "cuda":  # several kinds of GPU: the name has the counts
            return short
        return f"{self.devices}x {short}" if self.kind == "cuda" or self.devices > 1 else short


@dataclass(frozen=True, slots=True)
class Software:
    """The software that measured and trained: two rows with equal software ran the same code."""

    bench: str  # with its commit, or the digest of its source, if the bundle has it
    torch: str | None
    driver: str | None
    image: str | None
    stack: str  # digest of Python, packages and image


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial, with the figures that plots and tables show."""

    label: str
    setting: tuple[str, ...]
    micro_batch: int
    accumulation: int
    outcome: str  # as in the bundle, or "implausible" or "wrong-gradients"
    reason: str | None = None  # why it has no figures, or is not ranked
    days: Interval | None = None
    step_seconds: Interval | None = None
    units_per_second: float | None = None
    utilisation: float | None = None
    mfu: float | None = None  # of the vendor's peak
    share_of_floor: float | None = None
    peak_bytes: int | None = None
    no_gradient_check: str | None = None  # why its gradients were not checked
    marks: tuple[str, ...] = field(default=(), metadata=INTERNAL)  # their kinds


@dataclass(frozen=True, slots=True)
class MeasuredAttempt(Attempt):
    """A trial with figures; they may be implausible."""

    days: Interval = field(kw_only=True)
    step_seconds: Interval = field(kw_only=True)
    units_per_second: float = field(kw_only=True)
    peak_bytes: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class UncertainFastest:
    """The doubt about the fastest setting of a model, and the setting that may be faster."""

    confidence: float  # that no measured setting is more than 1% faster than the fastest
    rival: MeasuredAttempt  # of all others, the one whose interval ends first


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one model in one bundle."""

    path: str
    run_id: str
    started_at: str
    level: str
    trusted: bool
    complete: bool  # for this model, whose fastest setting a run that ended early may have decided
    machine: Machine
    model: str
    family: str
    precision: str
    unit: str
    conditions: Conditions
    searched: SearchScope
    software: Software
    training_flops: float | None  # of the whole recipe, as the bundle counts them
    best: MeasuredAttempt | None  # the fastest plausible trial
    attempts: tuple[Attempt, ...]
    watts: float | None = None  # of all GPUs that trained, by their energy counters, during `best`
    telemetry: TelemetryCourse | None = None
    episodes: tuple[Episode, ...] = field(default=(), metadata=INTERNAL)  # of the whole run
    close: UncertainFastest | None = None
    samples_sha256: str | None = None
    slowed: Slowed | None = None  # a GPU that was slowed down during `best`
    busy_share: float | None = None  # of the time of `best` in which GPUs ran kernels
    marks: tuple[Mark, ...] = ()  # of `best`
    products: tuple[Products, ...] = ()  # what a pass of `best` multiplies
    no_products: str | None = None  # why that is not known; None in older bundles too
    trained: Model | None = field(default=None, metadata=INTERNAL)  # what a prediction counts
    step_times: tuple[frozenset[float], ...] = field(default=(), metadata=INTERNAL)  # of each measurement
    received_at: str | None = field(default=None, metadata=INTERNAL)  # by the operator's clock
    statement_sha256: str = field(default="", metadata=INTERNAL)  # of all that was signed

    @property
    def rankable(self) -> list[MeasuredAttempt]:
        """The attempts with figures that are plausible, of settings without wrong gradients."""
        return [a for a in self.attempts if isinstance(a, MeasuredAttempt) and a.outcome == "measured"]

    @property
    def uses_deepspeed(self) -> bool:
        """Whether the fastest setting shards with DeepSpeed."""
        return self.best is not None and any(method.startswith("zero-") for method in self.best.setting)

    @property
    def on_trust(self) -> str | None:
        """The claims about this model that verification took on trust; None without any."""
        return dict(self.conditions).get(ON_TRUST)

    @property
    def recipe(self) -> Conditions:
        """The model and its training. Rows with equal model names may differ: names are free to choose."""
        return recipe_of(self.conditions)

    @property
    def kwh(self) -> float | None:
        """The GPUs' energy for one run of the recipe."""
        if self.watts is None or self.best is None:
            return None
        return self.watts * self.best.days.value * 24 / 1000


@dataclass(frozen=True, slots=True)
class RankedRow(Row):
    """A row with a figure to rank by."""

    best: MeasuredAttempt

    @property
    def units(self) -> float:
        """The tokens, images or pairs of the whole recipe."""
        return self.best.units_per_second * self.best.days.value * SECONDS_A_DAY

    @property
    def days(self) -> Interval:
        """The days of the whole recipe, with the interval of this measurement alone."""
        return self.best.days


@dataclass(frozen=True, slots=True)
class ComparedRun(RunContents):
    """A recomputed run, and further facts for its rows that are read while the bundle is open."""

    searched: Mapping[str, SearchScope]  # by model
    gpus: int  # of each node, as many as trained
    watts: Mapping[str, float | None]  # by trial
    course: TelemetryCourse | None
    episodes: tuple[Episode, ...]
    samples_sha256: str


def gather(files: Files, *, with_telemetry: bool) -> ComparedRun | CheckContents:
    """Recompute a bundle, and read other facts for its rows; VerificationFailed if a file is malformed."""
    run = recompute(files)
    if not isinstance(run, RunContents):
        return run
    results = run.results
    found = (fastest(results.trials_of(model.name), run.marks) for model in results.models)
    bests = {best.id: best for best in found if best is not None}
    lines = telemetry_lines(files)
    try:
        searched = {m.name: run.stated.scope_of(m.name) for m in results.models}
        gpus = run.stated.gpus_of(results.node)
        watts = watts_of(files, bests, lines, gpus)
        course = course_of(lines) if with_telemetry else None
        ends = ends_of(files.lines("samples.jsonl")) if with_telemetry else {}
        episodes = episodes_of(lines, results, ends) if with_telemetry else ()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise VerificationFailed(f"the manifest or the telemetry is malformed: {error}") from None
    return ComparedRun(
        **field_values(run),
        searched=searched,
        gpus=gpus,
        watts=watts,
        course=course,
        episodes=episodes,
        samples_sha256=files.sha256["samples.jsonl"],
    )


def rows_of(path: Path, verdict: Verdict[Contents], run: ComparedRun) -> tuple[Row, ...]:
    """Make a row for each model of a verified run, in the order of its results."""
    return tuple(_row(path, verdict, run, model) for model in run.results.models)


def _row(path: Path, verdict: Verdict[Contents], run: ComparedRun, model: Model) -> Row:
    results = run.results
    trials = results.trials_of(model.name)
    best, wrong = fastest(trials, run.marks), wrong_settings(trials)
    mfu = {trial.id: mfu_of(trial, results.node, model.recipe.precision) for trial in trials}
    kinds = {trial: tuple(mark.kind for mark in marks) for trial, marks in run.marks.items()}
    best_attempt = _attempt(best, mfu, kinds) if best else None
    doubt = runner_up(model.name, results.trials, run.marks)
    devices = best.gpus if best else max((trial.gpus for trial in trials), default=1)
    e = best.estimate if best else None
    row = Row(
        path=str(path),
        run_id=verdict.run_id,
        started_at=verdict.started_at,
        level=verdict.level,
        trusted=verdict.trusted,
        complete=verdict.complete or any(w.model == model.name and w.undecided == 0 for w in results.winners),
        machine=_machine(results.node, run.gpus, devices, verdict.run_id),
        model=model.name,
        family=model.family,
        trained=model,
        step_times=tuple(values_of(s) for trial in trials for s in run.step_seconds.get(trial.id, ())),
        received_at=verdict.received_at,
        statement_sha256=verdict.statement_sha256,
        searched=run.searched[model.name],
        software=_software(results),
        precision=model.recipe.precision,
        unit=model.recipe.unit,
        conditions=tuple(_conditions(run, model, verdict.level)),
        training_flops=e.flops_per_second * e.step_seconds.value * model.recipe.steps if e else None,
        best=None,
        attempts=tuple(
            _attempt(trial, mfu, kinds, wrong.get((model.name, trial.setting))) for trial in trials
        ),
        watts=run.watts.get(best.id) if best else None,
        telemetry=run.course,
        episodes=run.episodes,
        close=_uncertain(*doubt, mfu, kinds) if doubt else None,
        samples_sha256=run.samples_sha256,
        slowed=run.slowed.get(best.id) if best else None,
        busy_share=run.busy_shares.get(best.id) if best else None,
        marks=run.marks.get(best.id, ()) if best else (),
        products=best.products if best else (),
        no_products=best.no_products if best else None,
    )
    if not isinstance(best_attempt, MeasuredAttempt):
        return row
    return RankedRow(**field_values(row) | {"best": best_attempt})


def _software(results: Results) -> Software:
    node = results.node
    kind, digest = software_digest(node)
    image = f"{kind} {digest}" if node.environment else digest if node.image else None
    return Software(results.measured_by, node.packages.get("torch"), node.driver, image, node.stack)


def _uncertain(
    confidence: float,
    rival: TrialResult,
    mfu: Mapping[str, float | None],
    kinds: Mapping[str, tuple[str, ...]],
) -> UncertainFastest | None:
    attempt = _attempt(rival, mfu, kinds)
    return UncertainFastest(confidence, attempt) if isinstance(attempt, MeasuredAttempt) else None


def _machine(node: NodeFacts, gpus_a_node: int, devices: int, run_id: str) -> Machine:
    if not node.gpus:
        return Machine(node.cpu, "cpu", devices, node.memory_bytes, f"run {run_id}")
    used = node.gpus[: min(gpus_a_node, devices)]
    names = Counter(gpu.name for gpu in used)
    identity = sha256(" ".join(sorted(gpu.uuid for gpu in used)).encode())[:12]
    # Of several nodes that trained together, the bundle has the GPUs of the leader only.
    name = used[0].name if len(names) == 1 else " + ".join(f"{n}x {gpu}" for gpu, n in names.items())
    nodes = -(-devices // gpus_a_node)
    return Machine(name, "cuda", devices, min(g.memory_bytes for g in used), f"{identity}-{devices}", nodes)


def _attempt(
    trial: TrialResult,
    mfu: Mapping[str, float | None],
    kinds: Mapping[str, tuple[str, ...]],
    wrong: GradientCheck | None = None,
) -> Attempt:
    """Make the attempt of a trial; `mfu` and `kinds`, those of marks, are by the trials' ids."""
    batch = (trial.label, trial.setting, trial.micro_batch, trial.accumulation)
    if trial.failure is not None:
        return Attempt(*batch, trial.outcome, failure_text(trial.failure))
    e = trial.estimate
    if e is None:
        return Attempt(*batch, trial.outcome, "too few samples for an interval")
    outcome, reason = "measured", None
    if not e.plausible:
        outcome, reason = "implausible", "implies more arithmetic than this machine reached: never ranked"
    if wrong is not None:
        differ = "its gradients differ from the unmodified model's by"
        outcome, reason = "wrong-gradients", f"{differ} {gradients_text(wrong)}: never ranked"
    return MeasuredAttempt(
        *batch,
        outcome=outcome,
        reason=reason,
        days=e.days,
        step_seconds=e.step_seconds,
        units_per_second=e.units_per_second,
        utilisation=e.utilisation,
        mfu=mfu[trial.id],
        share_of_floor=trial.share_of_floor,
        peak_bytes=e.peak_bytes,
        no_gradient_check=trial.no_gradient_check,
        marks=kinds.get(trial.id, ()),
    )


# Conditions: what must be equal before rows are ranked together


def _conditions(run: ComparedRun, model: Model, level: str) -> Iterator[tuple[str, str]]:
    results = run.results
    yield from recipe_conditions(model)
    cap = results.memory_cap_bytes
    yield "memory cap", "none" if cap is None else f"{cap / 2**30:g} GiB"
    if folder := run.stated.data_of(model.name):
        yield "data", str(folder)
    yield software_digest(results.node)
    yield "device", results.node.device
    if switches := deciding(results.node.switches or {}):
        yield "switches", in_words(switches)
    for name in (*STACK, *STACK_OF_A_FAMILY.get(model.family, ()), DEEPSPEED):
        if name in results.node.packages:
            yield name, results.node.packages[name]
    if notes := [note.text for note in run.notes if note.model in (None, model.name)]:
        yield ON_TRUST, "; ".join(notes)
    yield "assurance level", level


def recipe_conditions(model: Model) -> Iterator[tuple[str, str]]:
    """Yield the conditions about the training itself, which are those that `recipe_of` selects."""
    recipe = model.recipe
    size, optimizer = recipe.image_size, recipe.optimizer.name
    plain = (recipe.batch_size, recipe.steps, recipe.precision, recipe.sequence_length, size, optimizer)
    for name, value in zip(PLAIN_CONDITIONS, plain, strict=True):
        if value is not None:
            yield name, str(value)
    yield "architecture", _short_digest([model.family, dict(model.architecture)])
    named = {"batch_size", "steps", "precision", "sequence_length", "image_size", "source"}
    rest = {key: value for key, value in to_json(recipe).items() if key not in named}
    yield "rest of the recipe", _short_digest(rest)


def _short_digest(value: object) -> str:
    return sha256(canonical_json(value))[:8]
