"""The state of one run, all of it derived from the journal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BadInput
from bench.base.signals import held
from bench.base.strict_json import DecodeError, from_json, union_from_json
from bench.planning.manifest import Manifest
from bench.planning.plan import Plan
from bench.planning.search.next_trial import undecided
from bench.records.estimate import estimate
from bench.records.fastest import fastest_with_confidence
from bench.records.run_results import Results, RunFacts, TrialResult, reduce_trials
from bench.records.slowdown import Slowed, slowed_trials
from bench.records.trial import (
    Ceiling,
    Failure,
    Measured,
    NodeFacts,
    Outcome,
    Proof,
    ProofOrFailure,
    Trial,
    Unsupported,
)
from bench.runner.machine.telemetry import FILE_NAME
from bench.runner.run.journal import ELSEWHERE, Journal

IMPLAUSIBLE = Unsupported("implies more arithmetic than this machine reached")


class Run:
    def __init__(
        self, manifest: Manifest, node: NodeFacts, plan: Plan, journal: Journal, folder: Path
    ) -> None:
        self.manifest = manifest
        self.node = node
        self.plan = plan
        self.journal = journal
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}
        # For the search, in which an implausible time counts as a failure.
        self.plausible_outcomes: dict[str, Outcome] = {}
        self.again: set[str] = set()  # trials that were tried a second time, longer
        self.earlier: dict[str, Measured] = {}  # of those measured twice, what the first process said
        self.ceilings: tuple[Ceiling, ...] = ()
        self.nodes: tuple[NodeFacts, ...] = ()  # all of them, where there are several
        self.proofs: dict[str, ProofOrFailure] = {}
        self.deaths: Counter[str] = Counter()  # of this run, without a word, while a trial was measured
        self._in_flight: str | None = None
        self.machines: list[dict[str, Any]] = []  # that began it, and that went on with it
        self.id = folder.name
        self.started_at = time.time()
        for event in journal.events:
            self._replay(event)
        self._died()

    def _replay(self, event: dict[str, Any]) -> None:
        try:
            match event["event"]:
                case "run":
                    self.started_at = event["started_at"]
                    gpus = [gpu["uuid"] for gpu in event["node"]["gpus"]]
                    self.machines = [{"machine": event.get("machine"), "gpus": gpus}]
                case "moved":
                    self.machines.append({"machine": event["machine"], "gpus": event["gpus"]})
                case "nodes":
                    self.nodes = from_json(tuple[NodeFacts, ...], event["nodes"])
                case "begun":
                    self._died()
                    self._in_flight = event["id"]
                case "stopped":
                    self._in_flight = None
                case "ceilings":
                    self.ceilings = from_json(tuple[Ceiling, ...], event["ceilings"])
                case "trial":
                    self._ended(event["id"], union_from_json(Outcome, event["outcome"]))
                case "proof":
                    self.proofs[event["id"]] = from_json(Proof, event["proof"])
                case "unproven":
                    self.proofs[event["id"]] = union_from_json(Failure, event["outcome"])
        except (DecodeError, KeyError) as error:
            message = f"not a journal of this version: {error}"
            raise BadInput(message, where=str(self.journal.path), advice=ELSEWHERE) from None

    def _died(self) -> None:
        if self._in_flight is not None:
            self.deaths[self._in_flight] += 1
            self._in_flight = None

    def _ended(self, trial: str, outcome: Outcome) -> None:
        """The second time counts, which was longer; unless it failed."""
        self._in_flight = None
        if trial in self.outcomes:
            self.again.add(trial)
            before = self.outcomes[trial]
            if isinstance(before, Measured) and isinstance(outcome, Measured):
                self.earlier[trial] = before
        if isinstance(outcome, Measured) or trial not in self.outcomes:
            self.outcomes[trial] = outcome
            self.plausible_outcomes[trial] = outcome if self._is_plausible(trial, outcome) else IMPLAUSIBLE

    def _is_plausible(self, identity: str, outcome: Outcome) -> bool:
        trials = (trial for cell in self.plan.cells for trial in cell.trials)
        trial = next((trial for trial in trials if trial.id == identity), None)
        if trial is None or not isinstance(outcome, Measured):
            return True
        found = estimate(trial, outcome.measurement, outcome.measurement.flops, self.ceilings)
        return found is None or found.plausible

    @property
    def gpus(self) -> list[str]:
        """Of every machine that it was on."""
        return list(dict.fromkeys(uuid for one in self.machines for uuid in one["gpus"]))

    def record(self, event: dict[str, Any]) -> None:
        """An interrupt that comes in between would leave out of the bundle what is in the journal."""
        with held():
            self.journal.append(event)
            self._replay(event)

    def summaries(self) -> tuple[TrialResult, ...]:
        return reduce_trials(self.trials(), self.ceilings, self.proofs, self.earlier)

    def results(self, stopped: str | None) -> Results:
        trials = self.summaries()
        return Results(
            bench_version=__version__,
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
        """When each trial's steps were timed."""
        return {
            name: (end.measurement.started_at, end.measurement.ended_at)
            for name, end in self.outcomes.items()
            if isinstance(end, Measured)
        }

    def slowed(self) -> Mapping[str, Slowed]:
        course = self.folder / FILE_NAME
        lines = course.read_bytes().splitlines() if course.exists() else []
        target = self.plan.target
        return slowed_trials(lambda: lines, self.spans(), target.gpus // target.nodes)

    def trials(self) -> list[tuple[Trial, str, Outcome]]:
        return [
            (trial, cell.label, self.outcomes[trial.id])
            for cell in self.plan.cells
            for trial in cell.trials
            if trial.id in self.outcomes
        ]
