"""The state of one run, derived from the events of its journal alone.

In:  events, replayed from the journal or recorded now. Out: outcomes, proofs, results. Writes the journal;
reads telemetry.jsonl. No torch.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import __version__
from bench.base.errors import BadInput
from bench.base.signals import held
from bench.base.source import source
from bench.base.strict_json import DecodeError, to_json
from bench.planning.manifest import Manifest
from bench.planning.plan import Plan
from bench.planning.search.next_trial import undecided
from bench.records.busy import BusyTime
from bench.records.fastest import fastest, fastest_with_confidence
from bench.records.floor import FloorOrReason
from bench.records.gradients import CheckOrReason, GradientCheck
from bench.records.marks import Cpus, Mark, all_marks, marks_of_other_work
from bench.records.run_results import (
    LabelledTrial,
    ReducedTrial,
    Results,
    RunFacts,
    TrialOutcome,
    TrialResult,
    days_of,
    reduce_outcome,
    trial_results,
)
from bench.records.slowdown import Slowed, Span, slowed_trials, trial_reading
from bench.records.trial import (
    Ceiling,
    Failure,
    Measured,
    NodeFacts,
    Outcome,
    ProofOrFailure,
    Trial,
    Unsupported,
)
from bench.runner.machine.telemetry import FILE_NAME, TelemetryReader
from bench.runner.run import events
from bench.runner.run.events import Event, event_from_json
from bench.runner.run.journal import ELSEWHERE, Journal
from bench.training.setting import Setting

IMPLAUSIBLE = Unsupported("implies more arithmetic than this machine reached")
WRONG = Unsupported("its gradients differ from those of the unmodified model")


@dataclass(frozen=True, slots=True)
class RunMachine:
    """A machine that measured a part of a run."""

    machine: str | None  # see run_folder.machine
    gpus: tuple[str, ...]  # UUIDs


class Run:
    """A run in progress. `record` is the only way to change it."""

    def __init__(
        self, manifest: Manifest, node: NodeFacts, plan: Plan, journal: Journal, folder: Path
    ) -> None:
        self.manifest = manifest
        self.node = node
        self.plan = plan
        self.journal = journal
        self.folder = folder
        self.id = folder.name
        self.source = source()  # before anything is measured: files may be replaced later
        self.started_at = time.time()
        self.outcomes: dict[str, Outcome] = {}
        self.plausible_outcomes: dict[str, Outcome] = {}  # for the search: those never ranked as failures
        self.again: set[str] = set()  # trials that were measured a second time, for longer
        self.earlier: dict[str, Measured] = {}  # the first measurement of trials measured twice
        self.ceilings: tuple[Ceiling, ...] = ()
        self.nodes: tuple[NodeFacts, ...] = ()  # all nodes, in a run on several
        self.proofs: dict[str, ProofOrFailure] = {}
        self.floors: dict[str, FloorOrReason] = {}  # by trial
        self.gradient_checks: dict[str, CheckOrReason] = {}  # by trial
        self.deaths: Counter[str] = Counter()  # by trial: how often the whole run died during it
        self.machines: list[RunMachine] = []  # the one that began the run, then those that continued it
        self._in_flight: str | None = None
        self._planned = {trial.id: (trial, cell.label) for cell in plan.cells for trial in cell.trials}
        self._reduced: dict[str, ReducedTrial | Failure] = {}  # by trial; kept: estimating takes a while
        self._telemetry = TelemetryReader(folder / FILE_NAME)
        try:
            for line in journal.events:
                self._apply(event_from_json(line))
        except DecodeError as error:
            message = f"not a journal of this version: {error}"
            raise BadInput(message, where=str(journal.path), advice=ELSEWHERE) from None
        self._count_death()

    def record(self, event: Event) -> None:
        """Append the event to the journal and apply it.

        Signals wait until both are done: an interrupt in between would leave an event of the journal out of
        the bundle.
        """
        with held():
            self.journal.append(to_json(event))
            self._apply(event)

    def _apply(self, event: Event) -> None:
        match event:
            case events.RunBegun():
                self.started_at = event.started_at
                self.machines = [RunMachine(event.machine, tuple(gpu.uuid for gpu in event.node.gpus))]
            case events.Moved():
                self.machines.append(RunMachine(event.machine, event.gpus))
            case events.NodesMet():
                self.nodes = event.nodes
            case events.CeilingsMeasured():
                self.ceilings = event.ceilings
                self._reduced.clear()  # estimates follow from the ceilings
            case events.TrialBegun():
                self._count_death()
                self._in_flight = event.id
            case events.TrialEnded():
                self._end_trial(event.id, event.outcome)
            case events.Proved():
                self.proofs[event.id] = event.proof
            case events.ProofFailed():
                self.proofs[event.id] = event.outcome
            case events.FloorMeasured():
                self.floors[event.id] = event.floor
            case events.FloorLeftOut():
                self.floors[event.id] = event.why
            case events.GradientsChecked():
                self.gradient_checks[event.id] = event.check
                self.plausible_outcomes.update(
                    {identity: self._plausible(identity) for identity in self.outcomes}
                )
            case events.GradientCheckLeftOut():
                self.gradient_checks[event.id] = event.why
            case events.TrialMarked():
                pass  # for readers of the journal: `marks` follows from telemetry
            case events.RunStopped():
                self._in_flight = None

    def _count_death(self) -> None:
        """Count a death for a trial that was begun and has no outcome: the run died during it."""
        if self._in_flight is not None:
            self.deaths[self._in_flight] += 1
            self._in_flight = None

    def _end_trial(self, identity: str, outcome: Outcome) -> None:
        """Keep the trial's outcome. A second, longer measurement replaces the first one unless it failed."""
        self._in_flight = None
        before = self.outcomes.get(identity)
        if before is not None:
            self.again.add(identity)
            if not isinstance(outcome, Measured):
                return
            if isinstance(before, Measured):
                self.earlier[identity] = before
        self.outcomes[identity] = outcome
        self.floors.pop(identity, None)  # it was compared with the earlier measurement
        self._reduced.pop(identity, None)
        self.plausible_outcomes[identity] = self._plausible(identity)

    def _plausible(self, identity: str) -> Outcome:
        """Return the outcome of a trial for the search: a failure if the trial is never ranked."""
        if identity not in self._planned:
            return self.outcomes[identity]
        trial, _ = self._planned[identity]
        if trial.setting in self.wrong_settings(trial.model.name):
            return WRONG
        reduced = self._reduce(identity)
        estimate = reduced.estimate if isinstance(reduced, ReducedTrial) else None
        return self.outcomes[identity] if estimate is None or estimate.plausible else IMPLAUSIBLE

    def wrong_settings(self, model: str) -> set[Setting]:
        """Return the settings of a model whose gradients were found to be wrong."""
        wrong = [
            self._planned[identity][0]
            for identity, check in self.gradient_checks.items()
            if identity in self._planned and isinstance(check, GradientCheck) and not check.agrees
        ]
        return {trial.setting for trial in wrong if trial.model.name == model}

    def _reduce(self, identity: str) -> ReducedTrial | Failure:
        """Return the estimate of a planned trial, or its failure; computed once for each outcome."""
        if identity not in self._reduced:
            trial, _ = self._planned[identity]
            outcome, earlier = self.outcomes[identity], self.earlier.get(identity)
            self._reduced[identity] = reduce_outcome(trial, outcome, earlier, self.ceilings)
        return self._reduced[identity]

    @property
    def gpus(self) -> list[str]:
        """UUIDs of the GPUs of every machine that the run was on."""
        return list(dict.fromkeys(uuid for machine in self.machines for uuid in machine.gpus))

    def summaries(self) -> tuple[TrialResult, ...]:
        """Return the results of the trials so far, in the plan's order."""
        labelled = [LabelledTrial(trial, label, self._reduce(trial.id)) for trial, label, _ in self.trials()]
        return trial_results(labelled, self.proofs, self.floors, self.gradient_checks)

    def summary(self, trial: Trial) -> TrialResult:
        """Return the result so far of a trial that has an outcome."""
        return next(result for result in self.summaries() if result.id == trial.id)

    def _bests(self) -> list[TrialResult]:
        """Return the trial of each model that will be ranked if no other is measured. Reads all telemetry."""
        results, marked = self.summaries(), self.marks()
        by_model = ([r for r in results if r.model == model.name] for model in self.manifest.models)
        return [best for trials in by_model if (best := fastest(trials, marked))]

    def without_floor(self) -> list[Trial]:
        """Return each model's fastest trial, if the trial has no floor yet."""
        return [self._planned[best.id][0] for best in self._bests() if best.floor is None]

    def without_gradient_check(self) -> list[Trial]:
        """Return each model's fastest trial, if its gradients have not been checked yet."""
        return [self._planned[best.id][0] for best in self._bests() if best.gradient_check is None]

    def results(self, stopped: str | None) -> Results:
        """Return the content of results.json; `stopped` says why the run is incomplete."""
        trials = self.summaries()
        return Results(
            bench_version=__version__,
            bench_source=self.source.digest,
            bench_commit=self.source.commit,
            manifest_digest=self.manifest.digest,
            run=RunFacts(self.id, self.started_at, time.time(), stopped is None, stopped),
            node=self.node,
            models=self.manifest.models,
            seed=self.manifest.seed,
            timing=self.manifest.timing,
            memory_cap_bytes=self.manifest.memory_cap_bytes,
            ceilings=self.ceilings,
            trials=trials,
            skipped=self.plan.skipped,
            winners=tuple(
                fastest_with_confidence(
                    model.name, trials, undecided(self.plan, self.plausible_outcomes, model.name)
                )
                for model in self.manifest.models
            ),
        )

    def spans(self) -> dict[str, tuple[float, float]]:
        """Return begin and end of each trial's timed steps, in unix time."""
        return {
            identity: (outcome.measurement.started_at, outcome.measurement.ended_at)
            for identity, outcome in self.outcomes.items()
            if isinstance(outcome, Measured)
        }

    def slowed(self) -> Mapping[str, Slowed]:
        """Return, by trial, the GPU held back most while the steps were timed. Reads all telemetry."""
        lines = self._all_telemetry()
        return slowed_trials(lambda: lines, self.spans(), self.gpus_of_a_node)

    def marks(self) -> Mapping[str, tuple[Mark, ...]]:
        """Return the marks of all trials. Reads all telemetry."""
        return self._marks(self._all_telemetry(), self.spans())

    def busy_shares(self) -> Mapping[str, float]:
        """Return, by trial, the share of the time in which its GPUs ran kernels. Reads all telemetry."""
        busy = BusyTime(self.spans(), self.gpus_of_a_node)
        deque(busy.noting(filter(None, map(trial_reading, self._all_telemetry()))), maxlen=0)
        return busy.shares()

    def _all_telemetry(self) -> list[bytes]:
        path = self.folder / FILE_NAME
        return path.read_bytes().splitlines() if path.exists() else []

    def marks_just_now(self, identity: str) -> tuple[Mark, ...]:
        """Return the marks of the trial that has just ended. Reads only telemetry since the last call."""
        spans = {key: span for key, span in self.spans().items() if key == identity}
        return self._marks(self._telemetry.new_lines(), spans).get(identity, ())

    def _marks(self, lines: list[bytes], spans: Mapping[str, Span]) -> Mapping[str, tuple[Mark, ...]]:
        slowed = slowed_trials(lambda: lines, spans, self.gpus_of_a_node)
        other_work = marks_of_other_work(lambda: lines, spans, Cpus(self.node.cpu_cores, self.node.device))
        days = {key: value for key, value in days_of(self.summaries()).items() if key in spans}
        return all_marks(slowed, other_work, days)

    @property
    def gpus_of_a_node(self) -> int:
        """How many GPUs of each node train."""
        return self.plan.target.gpus // self.plan.target.nodes

    def trials(self) -> list[TrialOutcome]:
        """Return the trials with an outcome, each with its setting's label, in the plan's order."""
        return [
            TrialOutcome(trial, label, self.outcomes[identity])
            for identity, (trial, label) in self._planned.items()
            if identity in self.outcomes
        ]
