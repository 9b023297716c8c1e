"""Decide whether a run was reproduced: compare two runs of one manifest, figure by figure. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Literal

from bench.base.frozen import dataclass
from bench.base.pip_commands import BUILT_WITH_TORCH, environment_line, install_lines
from bench.bundle.verdict import RunContents
from bench.records.copied import are_copies, values_of
from bench.records.estimate import Interval
from bench.records.fastest import fastest
from bench.records.run_results import Results, TrialResult
from bench.records.spread import shipped_spreads
from bench.records.switches import NOT_SET, Switches, deciding, differences, others
from bench.records.text import figures, software_digest
from bench.records.trial import Ceiling, NodeFacts

Verdict = Literal["reproduced", "not reproduced", "undecided", "not measured"]
# Relative. With the same seed and software, losses differ only by the order in which sums are taken.
LOSS_TOLERANCE: Mapping[str, float] = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2, "fp8": 5e-2}
MEMORY_TOLERANCE = 0.03  # relative
UNDECIDED = 0.1  # relative to a step: agreement within intervals wider than this shows nothing
CLOCK_MATTERS = 0.02  # relative: a smaller difference of clocks or power explains nothing
CEILING_MATTERS = 0.1  # relative: ceilings of one machine vary as much from hour to hour


@dataclass(frozen=True, slots=True)
class MeanCourse:
    """Mean clock and power of the GPUs while a trial's steps were timed."""

    sm_mhz: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class FirstLosses:
    """The losses of a trial's first steps, which two runs with the same seed have in common."""

    samples: int  # of each step
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReproducibleRun(RunContents):
    """A recomputed run, and other facts that its reproduction needs."""

    losses: Mapping[str, FirstLosses]  # by trial
    courses: Mapping[str, MeanCourse]
    searched: frozenset[str]  # models whose settings or micro-batches a search chose

    def is_copy_of(self, other: ReproducibleRun) -> bool:
        """Whether this run has the step times of another one: it was not run again."""
        ours, theirs = (tuple(map(values_of, chain(*run.step_seconds.values()))) for run in (self, other))
        return are_copies(ours, theirs)


@dataclass(frozen=True, slots=True)
class FigureMatch:
    """One figure in both runs, and whether it was reproduced."""

    name: str  # step seconds, peak bytes, first losses, outcome, days
    verdict: Verdict
    here: float | str
    there: float | str
    half_width: float | None  # the largest difference that counts as reproduced
    percent: float | None  # by which `here` is larger than `there`
    here_half_width: float | None = None  # of the 95% interval; None: the figure has no interval
    there_half_width: float | None = None


@dataclass(frozen=True, slots=True)
class SettingMatch:
    """A setting in both runs, or the fastest setting that each search found."""

    model: str
    label: str
    figures: tuple[FigureMatch, ...]
    reasons: tuple[str, ...]  # what differs, where something was not reproduced
    micro_batch: int | None = None  # None: the fastest of each search, at any micro-batch
    marks: tuple[str, ...] = ()  # of either trial, reproduced or not: "slowed here: ..."

    @property
    def reproduced(self) -> bool:
        """Whether each of its figures was reproduced; an undecided figure was not."""
        return all(figure.verdict == "reproduced" for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The answer of `bench reproduce`."""

    here: str  # id of the run on this machine
    there: str  # id of the run that is reproduced
    tolerance: float
    same_machine: bool  # whether both runs were on the same GPUs
    spread: float  # one standard deviation between runs on such machines, as a share of a step
    compared: tuple[SettingMatch, ...]
    missing: tuple[str, ...]  # trials that only the run `there` has
    not_needed: tuple[str, ...] = ()  # trials of `there` that the search `here` did not need
    schema: Literal["bench/reproduction/v1"] = "bench/reproduction/v1"

    @property
    def reproduced(self) -> bool:
        """Whether every trial was reproduced; False if nothing could be compared."""
        return bool(self.compared) and not self.missing and all(one.reproduced for one in self.compared)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The allowed difference between the steps of two runs, as shares of a step."""

    spread: float  # one standard deviation between two such runs
    tolerance: float


def reproduce(here: ReproducibleRun, there: ReproducibleRun, tolerance: float) -> Reproduction:
    """Compare the run `here` with the original run `there`; a step may differ by the share `tolerance`."""
    same_machine, spreads = _on_same_gpus(here, there), shipped_spreads()
    limits = StepLimits(spreads.another_day if same_machine else spreads.another_machine, tolerance)
    trials_here = {_key(trial): trial for trial in here.results.trials}
    compared: list[SettingMatch] = []
    missing: list[str] = []
    not_needed: list[str] = []
    for model in there.results.models:
        searched = model.name in there.searched and here.results.run.complete
        before = len(not_needed)
        for theirs in there.results.trials_of(model.name):
            ours = trials_here.get(_key(theirs))
            if ours is not None:
                compared.append(_compare(here, there, ours, theirs, limits))
            else:
                name = f"{theirs.model}, {theirs.label}, micro-batch {theirs.micro_batch}"
                (not_needed if searched else missing).append(name)
        if len(not_needed) > before:
            compared += _fastest_match(here, there, model.name, limits)
    run_ids = here.results.run.id, there.results.run.id
    machines = same_machine, limits.spread
    return Reproduction(*run_ids, tolerance, *machines, tuple(compared), tuple(missing), tuple(not_needed))


def _on_same_gpus(here: ReproducibleRun, there: ReproducibleRun) -> bool:
    ours, theirs = ({gpu.uuid for gpu in run.results.node.gpus} for run in (here, there))
    return bool(ours) and ours == theirs


def _fastest_match(
    here: ReproducibleRun, there: ReproducibleRun, model: str, limits: StepLimits
) -> Iterator[SettingMatch]:
    """Compare the fastest settings that two searches found, whichever trials the searches made."""
    ours, theirs = (fastest(run.results.trials_of(model), run.marks) for run in (here, there))
    if theirs is None or theirs.estimate is None:
        return
    if ours is None or ours.estimate is None:
        figure = FigureMatch("outcome", "not measured", "nothing", "measured", None, None)
        yield SettingMatch(model, "fastest", (figure,), tuple(_of_machines(here, there)))
        return
    figure = replace(_step(ours.estimate.days, theirs.estimate.days, limits), name="days")
    reasons: tuple[str, ...] = ()
    if figure.verdict != "reproduced":
        found_here, found_there = (f"{t.label} at micro-batch {t.micro_batch}" for t in (ours, theirs))
        settings = () if found_here == found_there else (f"{found_here} here, {found_there} there",)
        reasons = (*settings, *_reasons(here, there, ours, theirs))
    marks = tuple(_marks(here, there, ours, theirs))
    yield SettingMatch(model, "fastest", (figure,), reasons, marks=marks)


def _key(trial: TrialResult) -> tuple[object, ...]:
    return trial.model, trial.setting, trial.micro_batch, trial.gpus


def _compare(
    here: ReproducibleRun, there: ReproducibleRun, ours: TrialResult, theirs: TrialResult, limits: StepLimits
) -> SettingMatch:
    figures = tuple(_figures(here, there, ours, theirs, limits))
    reasons: tuple[str, ...] = ()
    if any(figure.verdict != "reproduced" for figure in figures):
        reasons = tuple(_reasons(here, there, ours, theirs))
    marks = tuple(_marks(here, there, ours, theirs))
    return SettingMatch(theirs.model, theirs.label, figures, reasons, theirs.micro_batch, marks)


def _figures(
    here: ReproducibleRun, there: ReproducibleRun, ours: TrialResult, theirs: TrialResult, limits: StepLimits
) -> Iterator[FigureMatch]:
    if ours.estimate is None or theirs.estimate is None:
        yield FigureMatch("outcome", _outcome(ours, theirs), _ended(ours), _ended(theirs), None, None)
        return
    yield _step(ours.estimate.step_seconds, theirs.estimate.step_seconds, limits)
    yield _within("peak bytes", ours.estimate.peak_bytes, theirs.estimate.peak_bytes, MEMORY_TOLERANCE)
    precision = next(m.recipe.precision for m in there.results.models if m.name == theirs.model)
    yield from _losses(here.losses[ours.id], there.losses[theirs.id], LOSS_TOLERANCE[precision])


def _losses(ours: FirstLosses, theirs: FirstLosses, tolerance: float) -> Iterator[FigureMatch]:
    if ours.samples != theirs.samples:  # different versions of bench measured them
        here, there = (f"first losses of {one.samples} samples" for one in (ours, theirs))
        yield FigureMatch("first losses", "undecided", here, there, None, None)
    elif pairs := list(zip(ours.values, theirs.values, strict=False)):
        worst = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / max(abs(pair[1]), 1e-12))
        yield _within("first losses", *worst, tolerance)


def _outcome(ours: TrialResult, theirs: TrialResult) -> Verdict:
    if ours.outcome == theirs.outcome and ours.failure is not None:
        return "reproduced"
    if ours.estimate is None:
        return "not measured"
    # `theirs` failed and `ours` did not, or `theirs` had too few samples for an interval.
    return "not reproduced" if theirs.failure is not None else "undecided"


def _ended(trial: TrialResult) -> str:
    few = trial.outcome == "measured" and trial.estimate is None
    return "too few samples" if few else trial.outcome


def _step(ours: Interval, theirs: Interval, limits: StepLimits) -> FigureMatch:
    """Compare two times, which may differ as two runs on such machines do, or by the tolerance."""
    said = theirs.widened(limits.spread)
    allowed = max(math.hypot(ours.half_width, said.half_width), limits.tolerance * theirs.value)
    close = abs(ours.value - theirs.value) <= allowed
    percent = 100 * (ours.value / theirs.value - 1)
    verdict: Verdict = "reproduced" if close else "not reproduced"
    if close and allowed > max(UNDECIDED, limits.tolerance) * theirs.value:
        verdict = "undecided"
    return FigureMatch(
        name="step seconds",
        verdict=verdict,
        here=ours.value,
        there=theirs.value,
        half_width=allowed,
        percent=percent,
        here_half_width=ours.half_width,
        there_half_width=theirs.half_width,
    )


def _within(name: str, ours: float, theirs: float, tolerance: float) -> FigureMatch:
    close = abs(ours - theirs) <= tolerance * abs(theirs)
    percent = 100 * (ours / theirs - 1) if theirs else None
    verdict: Verdict = "reproduced" if close else "not reproduced"
    return FigureMatch(name, verdict, float(ours), float(theirs), tolerance * abs(theirs), percent)


def _reasons(
    here: ReproducibleRun, there: ReproducibleRun, ours: TrialResult, theirs: TrialResult
) -> Iterator[str]:
    if ours.failure is not None:
        yield f"{ours.outcome} here, {theirs.outcome} there"
    yield from _of_machines(here, there)
    a, b = here.courses.get(ours.id, MeanCourse()), there.courses.get(theirs.id, MeanCourse())
    for words, x, y in (("MHz", a.sm_mhz, b.sm_mhz), ("W a GPU", a.watts, b.watts)):
        if x is not None and y is not None and abs(x - y) > CLOCK_MATTERS * y:
            yield f"{x:,.0f} {words} here, {y:,.0f} there"


def _marks(
    here: ReproducibleRun, there: ReproducibleRun, ours: TrialResult, theirs: TrialResult
) -> Iterator[str]:
    for run, trial, where in ((here, ours, "here"), (there, theirs, "there")):
        yield from (f"{mark.kind.lower()} {where}: {mark.text}" for mark in run.marks.get(trial.id, ()))


def _of_machines(here: ReproducibleRun, there: ReproducibleRun) -> Iterator[str]:
    ours, theirs = here.results, there.results
    if (ours.bench_version, ours.bench_source) != (theirs.bench_version, theirs.bench_source):
        yield f"{ours.measured_by} here, {theirs.measured_by} there"  # possibly other kernels or timing
    yield from node_differences(here.results.node, there.results.node)
    yield from _ceilings(here.results, there.results)


def _ceilings(here: Results, there: Results) -> Iterator[str]:
    """Yield differences between the rates of bare operations: they show a busy or throttled machine."""
    ours, theirs = _slowest(here.ceilings), _slowest(there.ceilings)
    for key in sorted(ours.keys() & theirs.keys()):
        x, y = ours[key], theirs[key]
        if abs(x - y) > CEILING_MATTERS * max(x, y):
            name, unit = key
            yield f"{name} {figures(x / 1e9)} G{unit} here, {figures(y / 1e9)} there"


def _slowest(ceilings: Iterable[Ceiling]) -> Mapping[tuple[str, str], float]:
    """Return the ceilings of the slowest device, which the other devices wait for."""
    rates: dict[tuple[str, str], float] = {}
    for ceiling in ceilings:
        key = ceiling.name, ceiling.unit
        rates[key] = min(rates.get(key, ceiling.rate), ceiling.rate)
    return rates


def node_differences(here: NodeFacts, there: NodeFacts) -> Iterator[str]:
    """Yield differences between two machines and their software, in words."""
    for words, ours, theirs in (
        ("", _devices(here), _devices(there)),
        ("driver ", here.driver, there.driver),
        ("CPU ", f"{here.cpu}, {here.cpu_cores} cores", f"{there.cpu}, {there.cpu_cores} cores"),
        ("Python ", here.python, there.python),
    ):
        if ours != theirs:
            yield f"{words}{ours} here, {theirs} there"
    yield from stack_differences(here, there)
    yield from _switches(here, there, others)


def stack_differences(here: NodeFacts, there: NodeFacts) -> Iterator[str]:
    """Yield differences in image, environment, packages and switches, each of which can change figures."""
    if (ours := software_digest(here)) != (theirs := software_digest(there)) or here.image != there.image:
        yield f"{' '.join(ours)} here, {' '.join(theirs)} there"
    yield from differences(here.packages, there.packages, "none")
    yield from _switches(here, there, deciding)


def pip_lines(here: NodeFacts, there: NodeFacts) -> Iterator[str]:
    """Yield commands that make the packages of `here` equal to those of `there`.

    If `there` has another version of Python, they make an environment with it, because the versions of
    packages may not exist for this one.
    """
    differing = {name: v for name, v in there.packages.items() if here.packages.get(name) != v}
    surplus = sorted(here.packages.keys() - there.packages.keys())
    environment = environment_line(there.python) if _minor(here.python) != _minor(there.python) else None
    if environment and (differing or surplus):
        yield environment
        yield "pip install .   # in the repository of bench"
        yield from install_lines(there.packages)
        return
    kernels = there.packages.keys() & set(BUILT_WITH_TORCH) - differing.keys()
    yield from install_lines(differing, {n: there.packages[n] for n in kernels if "torch" in differing})
    if surplus:
        yield f"pip uninstall --yes {shlex.join(surplus)}"


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]


def _switches(here: NodeFacts, there: NodeFacts, choose: Callable[[Switches], Switches]) -> Iterator[str]:
    """Yield differences among the switches that `choose` keeps; nothing if a bundle does not record any."""
    if here.switches is not None and there.switches is not None:
        yield from differences(choose(here.switches), choose(there.switches), NOT_SET)


def _devices(node: NodeFacts) -> str:
    return f"{len(node.gpus)}x {node.gpus[0].name}" if node.gpus else "no GPU"
