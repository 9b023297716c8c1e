"""What no run can say, whatever it was asked: refused, or told where an honest one may say it too.

A node signs what it likes. What it says is shown as lines of reports, copied into files and divided by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.base.errors import VerificationFailed
from bench.base.form_mistakes import line_breaks
from bench.base.gpu_catalogue import gpu_named
from bench.base.strict_json import strict_loads
from bench.bundle.handshake import DRIFT_SECONDS
from bench.bundle.statement import identity_of
from bench.bundle.verdict import Note
from bench.records.trial import Measurement, NodeFacts
from bench.training.methods import known_methods

if TYPE_CHECKING:
    from bench.bundle.verify import Files
    from bench.records.run_results import Results, TrialResult

# What went wrong, in the words of whatever did. Where that is shown, it is shown in one line.
_TOLD_BY_OTHERS = re.compile(
    r"/trials/\d+/(failure|unproven)/(reason|detail|phase)|/skipped/\d+/reason|/run/stopped"
)

# The vendor's peak is of one clock, and some cards are sold to run at more; none at half as much again.
MOST_OF_PEAK = 1.5


def require_lines(document: Any, where: str) -> None:
    """No text of several lines: the second one would pass for a line of ours."""
    for place in line_breaks(document):
        if not _TOLD_BY_OTHERS.fullmatch(place):
            raise VerificationFailed(f"{place or '/'} is a text of several lines", where=where)


def require_plain(results: Any, files: Files) -> None:
    """The same of all that reports are made of."""
    require_lines(results, "results.json")
    require_lines(strict_loads(files.read("manifest.json")), "manifest.json")


def require_consistent(results: Results) -> None:
    """No contradiction within the results; ValueError where they hold what nothing can have taken or done."""
    if results.run.complete != (results.run.stopped is None):
        raise VerificationFailed("the run is said to be complete and to have been stopped, or neither")
    names, won = [model.name for model in results.models], [winner.model for winner in results.winners]
    if len(set(won)) != len(won) or not set(won) <= set(names):
        raise VerificationFailed("a model has a fastest twice, or one that is none of theirs has it")
    for ceiling in results.ceilings:
        if min(ceiling.samples, default=0.0) <= 0 or ceiling.work < 1:
            raise ValueError(f"a ceiling of no time or no work: {ceiling.name}")
    for trial in results.trials:
        _require_label(trial)
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


def require_limits(results: Results) -> None:
    """No matrix product beyond the chip: whatever an estimate says is below that limit, or never ranked."""
    gpus = [gpu_named(gpu.name) for gpu in results.node.gpus]
    known = [gpu for gpu in gpus if gpu is not None]
    if not known or len(known) < len(gpus):
        return
    for ceiling in results.ceilings:
        kind, _, precision = ceiling.name.partition("-")
        peak, name = max((gpu.peak_flops(precision, tf32=precision == "tf32"), gpu.name) for gpu in known)
        if kind == "matmul" and ceiling.rate > MOST_OF_PEAK * peak:
            told = f"its limit {ceiling.name} is {ceiling.rate / 1e12:,.0f} TFLOP/s"
            raise VerificationFailed(f"{told}; the vendor's peak of an {name} is {peak / 1e12:,.0f}")
    for trial in results.trials:
        if trial.estimate is not None and trial.estimate.ceiling_flops_per_second is None:
            most = max(max(gpu.bf16_tflops, gpu.tf32_tflops, gpu.fp32_tflops) for gpu in known) * 1e12
            if trial.estimate.flops_per_second > MOST_OF_PEAK * most * trial.gpus:
                raise VerificationFailed(f"trial {trial.id} is faster than the vendor's peak of its GPUs")


def _require_label(trial: TrialResult) -> None:
    """What people read is the setting. Which methods cost nothing, and so go unnamed, versions differ in."""
    known, setting = known_methods(), trial.setting
    if not setting:
        fits = trial.label == "naive"
    else:
        named = [part for part in trial.label.split(" + ") if part != "free-lunch"]
        free = trial.label.split(" + ")[0] == "free-lunch"
        unnamed = [name for name in setting if name not in named]
        costly = [n for n in unnamed if n in known and not known[n].free_lunch and n != "compile-blocks"]
        in_order = named == [name for name in setting if name in named]
        fits = in_order and not costly and (free or not unnamed)
    if not fits:
        told = " + ".join(setting) or "naive"
        raise VerificationFailed(f"trial {trial.id} is labelled {trial.label!r:.60}, its setting is {told}")


def require_same_node(node: NodeFacts, signed: Mapping[str, Any]) -> None:
    """The machine of the results is one of the statement's."""
    ours = identity_of(node)
    gpus = signed.get("gpus")
    same = all(signed.get(part) == ours[part] for part in ("driver", "cpu", "image"))
    if not same or not isinstance(gpus, list) or not all(uuid in gpus for uuid in ours["gpus"]):
        raise VerificationFailed("the results are of another machine than the statement")


def doubts(results: Results, measured: Iterable[Measurement], spent_seconds: float) -> Iterator[Note]:
    """What is told, since an honest run may say it too: whose clock was set, whose limits failed."""
    run = results.run
    lasted = run.ended_at - run.started_at
    if spent_seconds > lasted + DRIFT_SECONDS:
        told = f"its samples take {spent_seconds:,.0f} s, and by its own clock it took {lasted:,.0f} s"
        yield Note(None, f"{told}: taken on trust")
    first, last = run.started_at - DRIFT_SECONDS, run.ended_at + DRIFT_SECONDS
    if not all(first <= one.started_at <= one.ended_at <= last for one in measured):
        yield Note(None, "by its own clock it measured at other times than it ran: taken on trust")
    estimates = ((t.model, t.estimate) for t in results.trials if t.estimate is not None)
    for model in dict.fromkeys(m for m, e in estimates if e.ceiling_flops_per_second is None):
        yield Note(model, "no limit of its machine was measured: taken on trust that it can do as much")
