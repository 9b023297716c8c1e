"""The job that runs now, by its events: its phase, steps and figures so far, and the marks it would get.

In:  events of the worker that times the steps, and readings of telemetry. Out: parts of the live line, and
marks by the rules that mark the trial once it has ended (bench.records.marks). Pure.

A worker emits its events between two timed steps, over the socket to its fork server. Nothing here asks the
worker, or waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.base.live_line import LinePart
from bench.base.sizes import bytes_text
from bench.records.estimate import Interval, ceiling_of, mean, step_interval
from bench.records.marks import Cpus, Mark, all_marks, marks_of_other_work, top_load
from bench.records.slowdown import has_bad_reason, slowed_trials
from bench.records.text import count_text, figures, interval_text, share_text
from bench.records.trial import Ceiling, StepSample, Trial
from bench.runner.trial.stopping_rules import MIN_ROUNDS, WINDOW

TIMED = "measure"  # the phase whose steps the figures come from
FEW_STEPS = Interval(1.0, 0.0)  # in place of the interval of a trial with too few steps to call it unsteady


@dataclass(slots=True)
class JobSoFar:
    """The state of one job. A job without a trial, such as that of the ceilings, only has a phase."""

    title: tuple[str, ...]  # model, setting, batch; or the name of the job alone
    begun: float  # on the clock of the `now` that `parts` gets
    trial: Trial | None = None
    ceilings: tuple[Ceiling, ...] = ()
    phase: str = "start"
    compiling: bool = False  # no event has come since compilers were seen at work
    steps: int = 0
    samples: list[StepSample] = field(default_factory=list)  # of the phase
    losses: list[float] = field(default_factory=list)
    peak_bytes: int | None = None  # after the first steps
    flops: float | None = None  # of a sample's training
    timed_since: float | None = None  # unix time
    readings: list[bytes] = field(default_factory=list)
    _suspicious: bool = False  # a reading may be a reason for a mark

    def add(self, event: Mapping[str, Any], unix_seconds: float) -> None:
        """Take an event of the job's worker, which came at this time."""
        self.compiling = "compiling" in event
        if "phase" in event:
            self.phase, self.samples = event["phase"], []
            if self.phase == TIMED:
                self.timed_since = unix_seconds
        if "step" in event:
            self.steps += 1
        if "seconds" in event:
            self.samples.append(StepSample(event["step"], event["seconds"]))
        if "loss" in event:
            self.losses.append(event["loss"])
        self.peak_bytes = event.get("peak_bytes", self.peak_bytes)
        self.flops = event.get("flops", self.flops)

    def add_reading(self, line: bytes, cpus: Cpus) -> None:
        """Keep a line of telemetry; searching it for a reason takes microseconds, decoding it does not."""
        self.readings.append(line)
        self._suspicious |= has_bad_reason(line) or top_load(line) > cpus.most_total

    @property
    def step(self) -> Interval | None:
        """The recipe's step, by the timed steps so far."""
        if self.trial is None or self.phase != TIMED:
            return None
        return step_interval(self.samples, self.trial.accumulation)

    def marks(self, step: Interval | None, cpus: Cpus, gpus: int) -> tuple[Mark, ...]:
        """Return the marks that the trial would have if it ended now."""
        if self.trial is None or self.timed_since is None:
            return ()
        rounds = len(self.samples) // max(1, len({sample.accumulation for sample in self.samples}))
        judged = step if step is not None and rounds >= MIN_ROUNDS else FEW_STEPS
        spans = {self.trial.id: (self.timed_since, math.inf)}
        lines = self.readings if self._suspicious else []
        slowed = slowed_trials(lambda: lines, spans, gpus)
        other_work = marks_of_other_work(lambda: lines, spans, cpus)
        return all_marks(slowed, other_work, {self.trial.id: judged}).get(self.trial.id, ())

    def parts(self, now: float, step: Interval | None, marks: Sequence[Mark]) -> list[LinePart]:
        """Return the parts of the live line about the job, in their order."""
        model, *rest = self.title
        words = [LinePart(model, 97), LinePart(" ".join(mark.kind for mark in marks), 98)]
        words += [LinePart(text, weight) for text, weight in zip(rest, (60, 20), strict=False)]
        phase = f"{self.phase}, compiling" if self.compiling else self.phase
        words += [LinePart(f"{phase} {now - self.begun:.0f} s", 30 if step else 90)]
        words += [LinePart(self._pass_text(), 65), *self._figures(step)]
        if self.peak_bytes is not None:
            words.append(LinePart(bytes_text(self.peak_bytes), 50))
        if self.losses:
            words.append(LinePart(f"loss {figures(self.losses[-1], 4)}", 40))
        return words

    def _figures(self, step: Interval | None) -> list[LinePart]:
        if step is None or self.trial is None or step.value <= 0:
            return []
        recipe = self.trial.model.recipe
        rate = recipe.batch_size * recipe.units_per_sample / step.value
        found = [
            LinePart(f"{interval_text(step)} s/step", 99),
            LinePart(f"{figures(rate)} {recipe.unit}/s", 80),
        ]
        ceiling = ceiling_of(self.trial, self.ceilings)
        if ceiling and self.flops:
            share = self.flops * recipe.batch_size / step.value / ceiling
            found.append(LinePart(f"{share_text(share)} of limit", 70))
        return found

    def _pass_text(self) -> str:
        """Format the number of steps so far, or the time of a pass while the machine warms up."""
        if self.phase == TIMED or not self.samples:
            return count_text(self.steps, "step") if self.steps else ""
        last = [sample.seconds for sample in self.samples if sample.accumulation == 1][-WINDOW:]
        return f"{figures(mean(last), 2)} s/pass" if last else ""
