"""What no run can say, whatever it was asked: refused.

A node signs what it likes. What it says is shown as lines of reports, copied into files and divided by.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bench.codec import line_breaks
from bench.errors import VerificationFailed
from bench.result import Measurement

if TYPE_CHECKING:
    from bench.summary import Results

# What went wrong, in the words of whatever did. Where that is shown, it is shown in one line.
_TOLD_BY_OTHERS = re.compile(
    r"/trials/\d+/(failure|unproven)/(reason|detail|phase)|/skipped/\d+/reason|/run/stopped"
)


def require_lines(document: Any, where: str) -> None:
    """No text of several lines: the second one would pass for a line of ours."""
    for place in line_breaks(document):
        if not _TOLD_BY_OTHERS.fullmatch(place):
            raise VerificationFailed(f"{place or '/'} is a text of several lines", where=where)


def require_possible(results: Results) -> None:
    """ValueError where the results hold what nothing can have taken, done or held."""
    for ceiling in results.ceilings:
        if min(ceiling.samples, default=0.0) <= 0 or ceiling.work < 1:
            raise ValueError(f"a ceiling of no time or no work: {ceiling.name}")
    for trial in results.trials:
        if trial.proof and (trial.proof.steps < 1 or trial.proof.seconds <= 0 or trial.proof.peak_bytes < 0):
            raise ValueError(f"a proof without a step, or of no time, in the trial {trial.id}")


def require_measured(name: str, measured: Measurement) -> None:
    """The same for a line of the samples."""
    for step in (*measured.warmup, *measured.steps):
        if step.seconds <= 0 or step.accumulation < 1:
            raise ValueError(f"a step of no time in the trial {name}")
    others = {
        "log_seconds": measured.log_seconds,
        "save_seconds": measured.save_seconds,
        "eval_seconds_per_sample": measured.eval_seconds_per_sample,
        "peak_bytes": measured.peak_bytes,
        "parameters": measured.parameters,
        "samples_per_loss": measured.samples_per_loss,
        **measured.phase_seconds,
    }
    for what, value in others.items():
        if value is not None and value < 0:
            raise ValueError(f"less than nothing as {what} in the trial {name}")
