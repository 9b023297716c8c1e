"""Show the progress of a run on stderr: a live line on a terminal, otherwise a plain line now and then.

In:  events of workers and results of trials. Writes to stderr only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from bench.planning.plan import Plan
from bench.planning.search.next_trial import tally
from bench.records.marks import Mark
from bench.records.run_results import TrialResult
from bench.records.text import floor_line, gradients_line, outcome_line, proof_line, seconds_text
from bench.records.trial import Outcome, Skipped, Trial
from bench.runner.processes.jobs import WorkerEvent

PLAIN_EVERY_SECONDS = 60.0


def skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """Yield a line for each model with skipped settings; the table at the end of a run gives every reason."""
    models = dict.fromkeys(skip.model for skip in skipped)
    for model in models:
        skips = [skip for skip in skipped if skip.model == model]
        what = skips[0].label if len(skips) == 1 else f"{len(skips)} settings"
        others = len({skip.reason for skip in skips}) - 1
        more = f" (and {others} other reason{'s' * (others > 1)})" if others else ""
        yield f"skipped  {model}  {what}: {skips[0].reason}{more}"


class Progress:
    """Shows one run. `current` is what is being measured: a trial's id, or for instance "ceilings"."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False, markup=False)
        self.current: str | None = None
        self._live: Live | None = None
        self._title = ""
        self._phase = ""
        self._steps = 0
        self._plan: Plan | None = None
        self._outcomes: Mapping[str, Outcome] = {}
        self._deadline: float | None = None
        self._begun = self._started = time.monotonic()
        self._decided = self._decided_before = 0
        self._total, self._what = 0, ""
        self._next_plain = 0.0

    def start(self, run_id: str, plan: Plan, outcomes: Mapping[str, Outcome], deadline: float | None) -> None:
        self._plan, self._outcomes, self._deadline = plan, outcomes, deadline
        self._started = time.monotonic()
        self._decided = self._decided_before = self._count()
        what = f"{self._total} {self._what}"
        self.console.print(f"run {run_id}   {what}   {plan.target.name}", soft_wrap=True)
        for line in skipped_lines(plan.skipped):
            self.console.print(line, style="dim", soft_wrap=True)
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def begin(self, key: str, title: str) -> None:
        """Show that the next job has begun."""
        self.current, self._title = key, title
        self._phase, self._steps, self._begun = "start", 0, time.monotonic()
        self._next_plain = time.monotonic() + PLAIN_EVERY_SECONDS
        self._draw()

    def event(self, event: WorkerEvent | None) -> None:
        """Show a worker's event; for None, show only the time that has passed."""
        if event is not None:
            self._phase = event.get("phase", self._phase)
            self._steps += "step" in event
        if self._live is not None:
            self._draw()
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY_SECONDS
            self.console.print(self._status(), soft_wrap=True)

    def end(
        self,
        trial: Trial,
        results: Sequence[TrialResult],
        again: bool = False,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Print the trial's result; `again`: it replaces an earlier, shorter measurement."""
        self._decided = self._count()
        result = next(r for r in results if r.id == trial.id)
        line = outcome_line(result, trial.model.recipe.unit)
        warning = "".join(f"   {mark.kind}: {mark.text}" for mark in marks)
        self.console.print(line + "   measured again, longer" * again + warning, soft_wrap=True)

    def proven(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        result = next(r for r in results if r.id == trial.id)
        self.console.print(proof_line(result), soft_wrap=True)

    def floor(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        result = next(r for r in results if r.id == trial.id)
        self.console.print(floor_line(result), soft_wrap=True)

    def gradients(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        result = next(r for r in results if r.id == trial.id)
        self.console.print(gradients_line(result), soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def stop(self) -> None:
        self.current = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _count(self) -> int:
        """Count the models or settings decided; called after each outcome, too slow for each redraw."""
        assert self._plan is not None
        decided, self._total, self._what = tally(self._plan, self._outcomes)
        return decided

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(Group(Text(self._status())), refresh=True)

    def _status(self) -> str:
        seconds = time.monotonic() - self._begun
        steps = f", {self._steps} steps" if self._steps else ""
        return f"{self._title}   {self._phase}{steps}, {seconds:.0f} s   {self._left()}"

    def _left(self) -> str:
        """Return how many are decided, and the time left: extrapolated, at most until the budget is spent."""
        decided, total = self._decided, self._total
        decided_now = decided - self._decided_before
        text = f"{decided} of {total} {self._what} decided"
        seconds = None
        if decided_now:
            seconds = (time.monotonic() - self._started) / decided_now * (total - decided)
        if self._deadline is not None:
            until = max(0.0, self._deadline - time.monotonic())
            seconds = until if seconds is None else min(seconds, until)
        return text if seconds is None else f"{text}, about {seconds_text(seconds)} left"
