"""Measure a plan: ceilings, every trial in turn, then gradient checks, floors and proofs.

In:  a `Run` and its budget. Out: events recorded in the run. Imports no torch; the workers do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.sizes import bytes_text
from bench.planning.plan import Plan
from bench.planning.search.next_trial import finalist, longer, next_trial, tally, unproven
from bench.records.estimate import Estimate, ceiling_precisions
from bench.records.floor import Floor, FloorOrReason, why_no_floor
from bench.records.gradients import MOST_WRONG, CheckOrReason, GradientCheck, why_no_check, why_not_checked
from bench.records.marks import Cpus
from bench.records.switches import deciding, differences
from bench.records.text import failure_text, floor_line, gradients_line, proof_line, software_digest
from bench.records.trial import (
    Crashed,
    Failure,
    Measured,
    NodeFacts,
    Outcome,
    Proof,
    Proving,
    TimedOut,
    Trial,
    Unsupported,
)
from bench.runner.machine import telemetry
from bench.runner.processes.jobs import DeviceKind, Nodes, WorkerEvent
from bench.runner.processes.supervisor import TICK_SECONDS, Found, Limits, Supervisor
from bench.runner.run.events import (
    CeilingsMeasured,
    FloorLeftOut,
    FloorMeasured,
    GradientCheckLeftOut,
    GradientsChecked,
    NodesMet,
    ProofFailed,
    Proved,
    TrialBegun,
    TrialEnded,
    TrialMarked,
)
from bench.runner.run.progress import Course, Progress
from bench.runner.run.run_state import Run
from bench.training.setting import in_group
from bench.training.vendor import compiler_inside, transformers_inside

MAX_FATAL_ATTEMPTS = 3  # a trial during which the whole run died this often counts as crashed
CEILING_SECONDS = 300.0
FLOOR_SECONDS = 180.0  # most of this is for the start of the process, and to record a large model's products
EXAMINATION_LEAST_SECONDS = 60.0  # with less left of the budget, no floor and no gradient check is begun
MEETING_SECONDS = 600.0  # for all nodes to come to the meeting
DISMISSAL_SECONDS = 300.0  # for the job that tells the other nodes that the run is over: busy ones come late
SETTLE_SECONDS = 30.0  # for the driver to free the memory of a job that was killed
LEFTOVER_BYTES = 512 << 20  # on a GPU between jobs; less is the driver's own share, which varies

NOBODY_CAME = (
    "run the same command and manifest on each, with a --node of its own; open all ports between them, "
    "since gloo and NCCL choose theirs; set NCCL_SOCKET_IFNAME to choose a network"
)
INTERRUPTED = "interrupted"  # by the user, who wants the bundle without further waiting


class NodeGone(Exception):
    """A node that trains with this one no longer comes to the meeting."""


def measure(
    run: Run,
    progress: Progress,
    budget_seconds: float | None,
    nodes: Nodes | None,
    others: Callable[[], bool] = lambda: False,
) -> str | None:
    """Measure and prove until no trial is open. Returns why the run stopped early, or None.

    `others` says whether another bench measured on this machine since it was last called.
    """
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    meter = _Meter(run, progress, others)
    progress.start(run.id, _course(run, deadline))
    tell_of_others(meter.before, progress.say)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-run-") as scratch,
            Supervisor(preload(run.plan), meter.tick, _log(run, "forkserver"), nodes=nodes) as supervisor,
        ):
            jobs = _Jobs(run, supervisor, progress, Path(scratch), deadline)
            if nodes is not None:
                jobs.meet(nodes)
            stopped = _do_all(jobs, meter.settle, budget_seconds)
            if nodes is not None:
                jobs.dismiss()
            return stopped
    except NodeGone:
        return f"a node that trains with this one is gone, {what_is_open(run)}"
    except KeyboardInterrupt:
        return f"{INTERRUPTED}, {what_is_open(run)}"
    finally:
        meter.close()
        progress.stop()


class _Meter:
    """Samples telemetry while jobs run, and watches the GPU memory that is in use between them."""

    def __init__(self, run: Run, progress: Progress, others: Callable[[], bool]) -> None:
        self._sampler = telemetry.TelemetrySampler(run.folder / telemetry.FILE_NAME, run.node, others)
        self._gpus, self._progress = run.node.gpus[: run.gpus_of_a_node], progress
        self.before = self._used()

    def _used(self) -> dict[int, int]:
        """Return bytes in use on each GPU that trains, by index; the node's other GPUs do not matter."""
        return {gpu.index: used for gpu, used in zip(self._gpus, self._sampler.used_bytes(), strict=False)}

    def settle(self) -> None:
        """Wait for the memory of the last job; then note what other processes hold."""
        settle(self._used, self.before, self._progress.say)
        self._sampler.note_held(len(self._gpus))

    def tick(self, event: WorkerEvent | None) -> None:
        """Show a job's event, or the time that has passed, and a new reading if one is due."""
        if reading := self._sampler.sample(self._progress.current):
            self._progress.reading(reading)
        self._progress.event(event)

    def close(self) -> None:
        self._sampler.close()


def _course(run: Run, deadline: float | None) -> Course:
    cpus, gpus = Cpus(run.node.cpu_cores, run.node.device), run.gpus_of_a_node
    return Course(run.plan, run.plausible_outcomes, run.proofs, run.manifest.prove, deadline, cpus, gpus)


def _do_all(jobs: _Jobs, settled: Callable[[], None], budget_seconds: float | None) -> str | None:
    """Measure ceilings and trials, check gradients, measure floors, prove. Returns why it stopped early."""
    run = jobs.run
    jobs.measure_ceilings()
    stopped = _measure_trials(jobs, settled, budget_seconds)
    if _wanted(run, run.manifest.gradient_check):
        stopped = _check_gradients(jobs, settled, budget_seconds) or stopped
    for best in run.without_floor() if _wanted(run, run.manifest.floor) else ():
        settled()
        jobs.measure_floor(best)
    while run.manifest.prove and (trial := unproven(run.plan, run.plausible_outcomes, run.proofs)):
        if _spent(jobs.deadline):
            return stopped or f"the budget of {budget_seconds or 0:.0f} s is spent before all was proven"
        settled()
        jobs.prove_trial(trial, run.manifest.prove)
    return stopped


def _measure_trials(jobs: _Jobs, settled: Callable[[], None], budget_seconds: float | None) -> str | None:
    """Measure until no trial is open. Returns why it stopped early, or None."""
    while trial := _next(jobs.run, jobs.deadline):
        if _spent(jobs.deadline):
            return f"the budget of {budget_seconds or 0:.0f} s is spent, {what_is_open(jobs.run)}"
        settled()
        jobs.measure_trial(trial)
    return None


def _check_gradients(jobs: _Jobs, settled: Callable[[], None], budget_seconds: float | None) -> str | None:
    """Check the fastest trial of each model, and the next fastest as long as gradients are wrong.

    Once a setting is found wrong, others may be the fastest that the search had ruled out because of it: they
    are measured before the next check. Returns why measuring them stopped early, or None.
    """
    tried: set[str] = set()
    stopped = None
    while unchecked := [trial for trial in jobs.run.without_gradient_check() if trial.id not in tried]:
        trial = unchecked[0]
        tried.add(trial.id)
        settled()
        jobs.check_gradients(trial)
        if trial.setting in jobs.run.wrong_settings(trial.model.name):
            stopped = _measure_trials(jobs, settled, budget_seconds)
    return stopped


def _next(run: Run, deadline: float | None) -> Trial | None:
    """Return the next open trial; without one, if time is left, a finalist to measure again for longer."""
    if trial := next_trial(run.plan, run.plausible_outcomes):
        return trial
    again = finalist(run.plan, run.plausible_outcomes, run.again)
    return None if _spent(deadline) else again  # choosing the finalist took time, too


def _wanted(run: Run, stated: bool | None) -> bool:
    """Return the manifest's choice, for example of floors; without one, True on GPUs only."""
    return run.plan.target.device == "cuda" if stated is None else stated


def _spent(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def tell_of_others(before: Mapping[int, int], say: Callable[[str], None]) -> None:
    """Warn of GPU memory that other processes use: fewer micro-batches fit, and trials may be slower."""
    in_use = [
        f"{bytes_text(used)} on GPU {index}"
        for index, used in before.items()
        if used > telemetry.IN_USE_BYTES
    ]
    if in_use:
        say(
            f"other processes use GPU memory: {', '.join(in_use)}; "
            "which micro-batches fit, and how fast they are, depends on them"
        )


def settle(
    used: Callable[[], Mapping[int, int]],
    before: Mapping[int, int],
    say: Callable[[str], None],
    seconds: float = SETTLE_SECONDS,
) -> None:
    """Wait until as much GPU memory is free as `before` the run: the memory of a killed job is freed late.

    After `seconds`, warn and return, since another process may have taken the memory.
    """
    deadline = time.monotonic() + seconds
    while more := [
        f"{bytes_text(now - before[index])} on GPU {index}"
        for index, now in used().items()
        if now - before[index] > LEFTOVER_BYTES
    ]:
        if time.monotonic() > deadline:
            say(f"GPU memory that was free at the start is in use: {', '.join(more)}; by another process?")
            return
        time.sleep(TICK_SECONDS)


@dataclass(frozen=True, slots=True)
class _Examination:
    """A kind of job on a trial that was measured before: its floor, or its gradient check."""

    what: str  # in messages
    log: str  # the end of the log's name
    silent_seconds: float  # a job that emits nothing for so long is ended


_FLOOR = _Examination("a floor", "floor", FLOOR_SECONDS)
_GRADIENT_CHECK = _Examination("a check", "gradients", 300.0)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Starts the jobs of a run, waits for each and records it."""

    run: Run
    supervisor: Supervisor
    progress: Progress
    scratch: Path
    deadline: float | None

    def meet(self, nodes: Nodes) -> None:
        """Wait for all nodes and record them. EnvironmentCannot if a node does not come, or nodes differ."""
        self.progress.begin("nodes", [f"{nodes.count} nodes meet at {nodes.meet}"])
        try:
            facts = self._facts(MEETING_SECONDS)
        except EnvironmentCannot as error:
            # A reason from the nodes themselves already ends with advice, in a second line.
            raise EnvironmentCannot(
                f"the {nodes.count} nodes did not come together at {nodes.meet}: {error.message}",
                where=error.where,
                advice=None if "\n" in error.message else NOBODY_CAME,
            ) from None
        leader, *others = map(_must_be_alike, facts)
        for number, other in enumerate(others, 1):
            names = ("on node 0", f"on node {number}")
            if different := "; ".join(differences(leader, other, "missing", names)):
                why = f"the nodes differ: {different}"
                self.dismiss(why)
                raise EnvironmentCannot(why)
        self.run.record(NodesMet(facts))

    def _facts(self, seconds: float) -> tuple[NodeFacts, ...]:
        target = self.run.plan.target
        return self.supervisor.facts(target.device, target.gpus, _log(self.run, "nodes"), seconds)

    def _require_all(self, outcome: Outcome) -> None:
        """After a failed trial, raise NodeGone if a node is gone: the trial stays open, to be resumed."""
        if self.supervisor.nodes is None or not isinstance(outcome, Crashed | TimedOut):
            return
        self.progress.begin("nodes", ["asking whether the other nodes are still there"])
        try:
            self._facts(min(MEETING_SECONDS, self.run.manifest.trial_seconds))
        except EnvironmentCannot:
            raise NodeGone from None

    def dismiss(self, why: str | None = None) -> None:
        """Tell the other nodes that the run is over; `why` says what ended it, if it failed."""
        self.progress.begin("nodes", ["telling the other nodes that the run is over"])
        target, limits = self.run.plan.target, Limits(DISMISSAL_SECONDS)
        self.supervisor.dismiss(target.device, target.gpus, _log(self.run, "nodes"), limits, why)

    def measure_ceilings(self) -> None:
        """Measure the machine's ceilings for the plan's precisions, unless the run has them already."""
        run, target = self.run, self.run.plan.target
        if run.ceilings:
            return
        asked = (ceiling_precisions(cell.model, cell.setting) for cell in run.plan.cells)
        precisions = sorted(set(chain.from_iterable(asked)))
        self.progress.begin("ceilings", ["ceilings of this machine"])
        log, limits = _log(run, "ceilings"), Limits(self._until(CEILING_SECONDS))
        try:
            ceilings = self.supervisor.ceilings(precisions, target.device, target.gpus, log, limits)
        except EnvironmentCannot:
            if _spent(self.deadline):
                return
            raise
        run.record(CeilingsMeasured(ceilings))

    def measure_trial(self, trial: Trial) -> None:
        """Measure a trial, for longer if it was measured before; it stays open if the budget ends first."""
        run = self.run
        again = trial.id in run.outcomes
        self._begin(trial, f"micro-batch {trial.micro_batch}" + ", again" * again, timed=True)
        timed = replace(trial, timing=longer(trial.timing)) if again else trial
        seconds = self._until(run.manifest.trial_seconds)
        log = _log(run, f"{trial.id}{'-again' * again}")
        limits = Limits(seconds, min(seconds, 300.0), self._host_limit(trial))
        outcome: Outcome = Crashed(f"the run or its machine died during it, {MAX_FATAL_ATTEMPTS} times")
        if run.deaths[trial.id] < MAX_FATAL_ATTEMPTS:
            run.record(TrialBegun(trial.id))
            outcome = self.supervisor.trial(timed, run.plan.target.device, self.scratch, log, limits)
        if self._cut_off(outcome):
            return
        self._require_all(outcome)
        run.record(TrialEnded(trial.id, outcome))
        replaced = again and isinstance(outcome, Measured)
        if marks := run.marks_just_now(trial.id):
            run.record(TrialMarked(trial.id, marks))
        self.progress.end(trial, run.summary(trial), marks, again=replaced)

    def measure_floor(self, trial: Trial) -> None:
        """Measure the floor of a trial, or record why it has none, which is never the run's failure."""
        run = self.run
        self.progress.begin("floor", [trial.model.name, "floor"])
        if isinstance(floor := self._floor(trial), Floor):
            run.record(FloorMeasured(trial.id, floor))
        else:
            run.record(FloorLeftOut(trial.id, floor))
        self.progress.say(floor_line(run.summary(trial)))

    def _floor(self, trial: Trial) -> FloorOrReason:
        if self.supervisor.nodes is not None:
            return "a floor is measured on one node, and this run is on several"
        if trial.model.recipe.documents:
            return "how long attention takes depends on the lengths of documents, which a floor does not know"
        return self._examine(
            self.supervisor.floor,
            trial,
            _FLOOR,
            FLOOR_SECONDS,
            lambda floor, estimate: why_no_floor(floor, trial.accumulation, estimate),
        )

    def check_gradients(self, trial: Trial) -> None:
        """Check the gradients of a trial, or record why not, which is never the run's failure."""
        run = self.run
        self._begin(trial, "gradients", "gradients")
        if isinstance(check := self._gradient_check(trial), GradientCheck):
            run.record(GradientsChecked(trial.id, check))
        else:
            run.record(GradientCheckLeftOut(trial.id, check))
        self.progress.say(gradients_line(run.summary(trial)))

    def _gradient_check(self, trial: Trial) -> CheckOrReason:
        run = self.run
        if why := why_not_checked(trial.setting):
            return why
        if self.supervisor.nodes is not None:
            return "gradients are checked on one node, and this run is on several"
        if len(run.wrong_settings(trial.model.name)) >= MOST_WRONG:
            return f"{MOST_WRONG} faster settings have wrong gradients, and no more are checked"
        return self._examine(
            self.supervisor.gradient_check,
            trial,
            _GRADIENT_CHECK,
            run.manifest.trial_seconds,
            lambda check, estimate: why_no_check(check, trial.setting, estimate),
        )

    def _examine(
        self,
        job: Callable[[Trial, DeviceKind, Path, Path, Limits], Found | Failure],
        trial: Trial,
        kind: _Examination,
        most_seconds: float,
        why_not: Callable[[Found, Estimate | None], str | None],
    ) -> Found | str:
        """Examine a measured trial; return the result, or in a line why there is none.

        `why_not` says, by the trial's estimate, why the trial cannot have this result.
        """
        seconds = self._until(most_seconds)
        if seconds < EXAMINATION_LEAST_SECONDS:
            least = f"{kind.what} may take {EXAMINATION_LEAST_SECONDS:.0f} s"
            return f"{seconds:.0f} s of the budget are left, {least}"
        limits = Limits(seconds, min(seconds, kind.silent_seconds), self._host_limit(trial))
        log = _log(self.run, f"{trial.id}-{kind.log}")
        try:
            outcome = job(trial, self.run.plan.target.device, self.scratch, log, limits)
        except EnvironmentCannot as error:
            return str(error).splitlines()[0]
        if isinstance(outcome, Unsupported):
            return outcome.reason
        if isinstance(outcome, Failure):
            return failure_text(outcome)
        summary = next(summary for summary in self.run.summaries() if summary.id == trial.id)
        return why_not(outcome, summary.estimate) or outcome

    def prove_trial(self, trial: Trial, proving: Proving) -> None:
        """Prove a trial by training. Its estimate is in the journal, and the proof cannot change it."""
        run = self.run
        self._begin(trial, "proof")
        log = _log(run, f"{trial.id}-proof")
        seconds = self._until(run.manifest.trial_seconds + 2 * proving.minutes * 60)
        limits = Limits(seconds, seconds, self._host_limit(trial))
        match self.supervisor.proof(trial, proving, run.plan.target.device, self.scratch, log, limits):
            case Proof() as proof:
                run.record(Proved(trial.id, proof))
            case failure if self._cut_off(failure):
                return
            case failure:
                self._require_all(failure)
                run.record(ProofFailed(trial.id, failure))
        self.progress.say(proof_line(run.summary(trial)))

    def _begin(self, trial: Trial, what: str, key: str | None = None, *, timed: bool = False) -> None:
        """Show that a job of a trial begins; telemetry is the trial's, or has the key."""
        label = next(cell.label for cell in self.run.plan.cells if trial in cell.trials)
        title = (trial.model.name, label, what)
        self.progress.begin(key or trial.id, title, trial if timed else None, self.run.ceilings)

    def _until(self, seconds: float) -> float:
        """Return `seconds`, or less if the budget ends earlier: a job that still runs is then cut off."""
        return seconds if self.deadline is None else max(0.0, min(seconds, self.deadline - time.monotonic()))

    def _cut_off(self, outcome: object) -> bool:
        """True if the end of the budget cut the trial off; the trial then stays open."""
        return isinstance(outcome, TimedOut) and _spent(self.deadline)

    def _host_limit(self, trial: Trial) -> int | None:
        """Return the process group's memory limit on a CPU; None on a GPU, whose allocator keeps the cap."""
        return trial.memory_cap_bytes if self.run.plan.target.device == "cpu" else None


def _log(run: Run, name: str) -> Path:
    return run.folder / "logs" / f"{name}.txt"


def _must_be_alike(node: NodeFacts) -> dict[str, str]:
    """Return the facts in which nodes that measure together must agree, by name."""
    gpus = ", ".join(gpu.name for gpu in node.gpus)
    kind, software = software_digest(node)
    facts = {"GPUs": gpus, "driver": node.driver or "none", kind: software, "Python": node.python}
    return {**facts, **node.packages, **deciding(node.switches or {})}


def what_is_open(run: Run) -> str:
    """Return a phrase: the number of undecided models or settings, or the work that comes after them."""
    decided, total, what = tally(run.plan, run.plausible_outcomes)
    if decided < total:
        return f"{total - decided} of {total} {what} undecided"
    trial = unproven(run.plan, run.plausible_outcomes, run.proofs) if run.manifest.prove else None
    return f"before {trial.model.name} was proven" if trial else f"all {what} decided"


def preload(plan: Plan) -> list[str]:
    """Return modules and functions that the fork server prepares once, for all trials of the plan."""
    families = sorted({cell.model.family for cell in plan.cells})
    modeling = [transformers_inside.modeling_module(name) for name in families]
    compiles = any(in_group(cell.setting, "compilation") for cell in plan.cells)
    compiler = [*compiler_inside.COMPILER_MODULES] if compiles else []
    if compiles and plan.target.device == "cpu":  # the fork server must not initialise CUDA
        compiler.append("bench.training.methods.compile:compile_something")
    return ["numpy", "torch", "torch.utils.data", "transformers", *modeling, *compiler]
