"""Show the progress of a run on stderr: a live line on a terminal, otherwise a plain line now and then.

In:  events of workers, readings of telemetry, and results of trials. Writes to stderr only. All of it happens
in the process that supervises; the process that is timed only emits its events, between two steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.base.live_line import LinePart, LiveLine, joined
from bench.planning.plan import Plan
from bench.planning.search.next_trial import tally
from bench.records.estimate import Interval
from bench.records.marks import MEANING, Cpus, Mark
from bench.records.run_results import TrialResult
from bench.records.text import count_text, outcome_line
from bench.records.trial import Ceiling, Outcome, ProofOrFailure, Proving, Skipped, Trial
from bench.runner.processes.jobs import WorkerEvent
from bench.runner.run.job_so_far import JobSoFar
from bench.runner.run.time_left import about_text, seconds_left

PLAIN_EVERY_SECONDS = 60.0
DRAWN_EVERY_SECONDS = 0.25
MOST_SHARE = 0.01  # of a core's time, to compute the figures so far and draw them


def skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """Yield a line for each model with skipped settings; the table at the end of a run gives every reason."""
    models = dict.fromkeys(skip.model for skip in skipped)
    for model in models:
        skips = [skip for skip in skipped if skip.model == model]
        what = skips[0].label if len(skips) == 1 else f"{len(skips)} settings"
        others = len({skip.reason for skip in skips}) - 1
        more = f" (and {count_text(others, 'other reason')})" if others else ""
        yield f"skipped  {model}  {what}: {skips[0].reason}{more}"


@dataclass(slots=True)
class Throttle:
    """Does some work at most once in `every` seconds, and with at most MOST_SHARE of a core's time."""

    every: float
    clock: Callable[[], float] = time.monotonic
    cost: Callable[[], float] = time.thread_time
    next_at: float = 0.0

    def do(self, work: Callable[[], object]) -> None:
        """Do the work, or nothing if it was done too recently."""
        if self.clock() < self.next_at:
            return
        before = self.cost()
        work()
        self.next_at = self.clock() + max(self.every, (self.cost() - before) / MOST_SHARE)


@dataclass(frozen=True, slots=True)
class Course:
    """The parts of a run that the progress shows: its plan, its records so far, and its devices."""

    plan: Plan
    outcomes: Mapping[str, Outcome]
    proofs: Mapping[str, ProofOrFailure]
    proving: Proving | None
    deadline: float | None  # on the monotonic clock
    cpus: Cpus
    gpus: int  # of this node that train

    @property
    def proof_seconds(self) -> float:
        """The least time of the proofs that are still open, one for each model."""
        models = {cell.model.name for cell in self.plan.cells}
        return max(0, len(models) - len(self.proofs)) * 60 * self.proving.minutes if self.proving else 0.0


class Progress:
    """Shows one run. `current` is what is being measured: a trial's id, or for instance "ceilings"."""

    def __init__(self, line: LiveLine | None = None) -> None:
        self.line = line or LiveLine(sys.stderr)
        self.current: str | None = None
        self._course: Course | None = None
        self._job = JobSoFar(("start",), time.monotonic())
        self._told: set[str] = set()  # kinds of marks
        self._started = time.monotonic()
        self._decided = self._decided_before = 0
        self._total, self._what = 0, ""
        self._plain_at = 0.0
        self._drawing = Throttle(DRAWN_EVERY_SECONDS)

    def start(self, run_id: str, course: Course) -> None:
        """Print what the run will measure and what it skips; called before all others but `say`."""
        plan = course.plan
        self._course = course
        self._started = time.monotonic()
        self._decided = self._decided_before = self._count()
        planned = count_text(self._total, self._what.removesuffix("s"))
        self.line.print(f"run {run_id}   {planned}   {plan.target.name}")
        for line in skipped_lines(plan.skipped):
            self.line.print(line, dim=True)

    def begin(
        self, key: str, title: Sequence[str], trial: Trial | None = None, ceilings: tuple[Ceiling, ...] = ()
    ) -> None:
        """Show that the next job has begun; one that times the steps of a trial comes with that trial."""
        self.current = key
        self._job = JobSoFar(tuple(title), time.monotonic(), trial, ceilings)
        self._plain_at = time.monotonic() + PLAIN_EVERY_SECONDS
        self._drawing.do(self._look)

    def event(self, event: WorkerEvent | None) -> None:
        """Take a worker's event; for None, show only the time that has passed."""
        if event is not None:
            self._job.add(event, time.time())
        if self.current is not None:
            self._drawing.do(self._look)

    def reading(self, line: bytes) -> None:
        """Take a line of telemetry, for the marks of the job that runs now."""
        if self._course is not None:
            self._job.add_reading(line, self._course.cpus)

    def end(self, trial: Trial, result: TrialResult, marks: Sequence[Mark], *, again: bool) -> None:
        """Print the trial's result; `again`: it replaces an earlier, shorter measurement."""
        self._decided = self._count()
        line = outcome_line(result, trial.model.recipe.unit)
        warning = "".join(f"   {mark.kind}: {mark.text}" for mark in marks)
        self.say(line + "   measured again, longer" * again + warning)

    def say(self, text: str) -> None:
        """Print a line that stays, above the live line."""
        self.line.print(text)

    def stop(self) -> None:
        """Take the live line away: nothing is measured any more."""
        self.current = None
        self.line.clear()

    def _count(self) -> int:
        """Count the models or settings decided; called after each outcome, too slow for each drawing."""
        assert self._course is not None
        decided, self._total, self._what = tally(self._course.plan, self._course.outcomes)
        return decided

    def _look(self) -> None:
        """Print new marks, and draw the line, or print it now and then where it cannot be drawn."""
        step = self._job.step
        marks = self._marks(step)
        for mark in marks:
            self._tell(mark)
        parts = [*self._job.parts(time.monotonic(), step, marks), *self._run_parts()]
        if self.line.drawn:
            self.line.draw(parts)
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_EVERY_SECONDS
            self.line.print(joined(parts))

    def _marks(self, step: Interval | None) -> tuple[Mark, ...]:
        if self._course is None:
            return ()
        return self._job.marks(step, self._course.cpus, self._course.gpus)

    def _tell(self, mark: Mark) -> None:
        """Print what a kind of mark means, once in a run; the results name the mark at each trial."""
        if mark.kind not in self._told:
            self._told.add(mark.kind)
            self.say(f"{mark.kind} so far  {' '.join(self._job.title)}: {mark.text}: {MEANING[mark.kind]}")

    def _run_parts(self) -> list[LinePart]:
        """Return the parts of the live line about the run: models or settings decided, and the time left."""
        if self._course is None:
            return []
        now, course = time.monotonic(), self._course
        left = seconds_left(
            now - self._started,
            self._decided - self._decided_before,
            self._total - self._decided,
            course.proof_seconds,
            None if course.deadline is None else max(0.0, course.deadline - now),
        )
        count = LinePart(f"{self._decided} of {self._total} {self._what}", 35)
        return [count] if left is None else [count, LinePart(about_text(left), 85)]
