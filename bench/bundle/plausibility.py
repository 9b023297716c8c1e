"""Refuse results that no run of any manifest can have. Pure.

In: results.json and samples.jsonl as decoded. Out: notes on claims that an honest run may make too,
or VerificationFailed; ValueError for numbers that no run can give. A node can sign anything, and its texts
and numbers end up in reports, in files and in divisors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.base.errors import VerificationFailed
from bench.base.form_mistakes import line_breaks
from bench.base.stamps import utc
from bench.bundle.handshake import DRIFT_SECONDS
from bench.bundle.physical_limits import require_names, unknown_models
from bench.bundle.statement import identity_of
from bench.bundle.verdict import Note
from bench.records.estimate import Estimate
from bench.records.fastest import fastest
from bench.records.floor import why_no_floor
from bench.records.genuine_gpus import false_gpus
from bench.records.gradients import why_no_check
from bench.records.products import why_no_products
from bench.records.trial import Gpu, Measurement, NodeFacts, Trial
from bench.training.models import Flops

if TYPE_CHECKING:
    from bench.bundle.statement import Predicate
    from bench.records.run_results import Results, RunFacts, TrialResult

# Paths of messages from torch and drivers, which may have several lines; reports show them on one line.
_MULTI_LINE_ALLOWED = re.compile(
    r"/trials/\d+/(failure|unproven)/(reason|detail|phase)|/skipped/\d+/reason|/run/stopped"
)


def require_one_line_texts(document: Any, where: str) -> None:
    """Refuse a text of several lines: in a report, the second would look like a line that bench wrote."""
    for place in line_breaks(document):
        if not _MULTI_LINE_ALLOWED.fullmatch(place):
            raise VerificationFailed(f"{place or '/'} is a text of several lines", where=where)


def require_plain(results: Any, manifest: Any) -> None:
    """Refuse multi-line texts in results.json and manifest.json."""
    require_one_line_texts(results, "results.json")
    require_one_line_texts(manifest, "manifest.json")


def require_consistent(results: Results) -> None:
    """Refuse results that contradict themselves; ValueError for a time or work that is not positive."""
    if results.run.complete != (results.run.stopped is None):
        raise VerificationFailed("the run is marked complete and stopped, or neither")
    models, fastest_of = [m.name for m in results.models], [winner.model for winner in results.winners]
    if len(set(fastest_of)) != len(fastest_of) or not set(fastest_of) <= set(models):
        raise VerificationFailed("a model has a fastest trial twice, or a model without results has one")
    for ceiling in results.ceilings:
        if min(ceiling.samples, default=0.0) <= 0 or ceiling.work < 1:
            raise ValueError(f"the ceiling {ceiling.name} has no time or no work")
    for trial in results.trials:
        _require_label(trial)
        if trial.proof and (trial.proof.steps < 1 or trial.proof.seconds <= 0 or trial.proof.peak_bytes < 0):
            raise ValueError(f"the proof of trial {trial.id} has no steps, no time or negative memory")
        if trial.floor and (why := why_no_floor(trial.floor, trial.accumulation, trial.estimate)):
            raise ValueError(f"trial {trial.id}: {why}")
        check = trial.gradient_check
        if check and (why := why_no_check(check, trial.setting, trial.estimate)):
            raise ValueError(f"trial {trial.id}: {why}")


def require_measured(trial: Trial, measurement: Measurement) -> None:
    """Refuse a measurement that no run can have taken, by ValueError.

    A run times steps of at most as many passes as the recipe's. The line through two such counts is therefore
    only ever continued upwards, so that a step takes at least as long as the longest measured one.
    """
    most = trial.accumulation
    for step in (*measurement.warmup, *measurement.steps):
        if step.seconds <= 0 or step.accumulation < 1:
            raise ValueError(f"a step of trial {trial.id} takes no time")
        if step.accumulation > most:
            passes = f"{step.accumulation} passes, a step of its recipe has {most}"
            raise ValueError(f"a step of trial {trial.id} was timed over {passes}")
    values = {
        "log_seconds": measurement.log_seconds,
        "save_seconds": measurement.save_seconds,
        "eval_seconds_per_sample": measurement.eval_seconds_per_sample,
        "peak_bytes": measurement.peak_bytes,
        "parameters": measurement.parameters,
        "samples_per_loss": measurement.samples_per_loss,
        **measurement.phase_seconds,
    }
    for name, value in values.items():
        if value is not None and value < 0:
            raise ValueError(f"{name} of trial {trial.id} is negative")


def require_positive(trial: Trial, estimate: Estimate | None) -> None:
    """Refuse an estimate of no or negative time, days or rates, by ValueError: it would be ranked first."""
    if estimate is not None and not estimate.positive:
        raise ValueError(f"the step, the days or a rate of trial {trial.id} is not above zero")


def require_operations(trial: Trial, flops: Flops) -> None:
    """Refuse operations that no training of the recipe has, by ValueError.

    A backward pass takes twice the operations of a forward pass, and less only if weights are frozen.
    """
    parts = (flops.matmul, flops.attention, flops.convolution, flops.scan)
    if min(parts) < 0 or flops.total < 1:
        raise ValueError(f"a pass of trial {trial.id} has no operations, or fewer than none of one kind")
    if (flops.backward is None) != (trial.model.recipe.lora is None):
        raise ValueError(f"the backward pass of trial {trial.id} is counted for another recipe")
    if flops.backward is not None and not 0 < flops.backward <= 2 * flops.total:
        raise ValueError(f"the backward pass of trial {trial.id} has more operations than any has, or none")


def require_products(trial: Trial, measurement: Measurement) -> None:
    """Refuse products that a pass of these operations cannot have, by ValueError. Older bundles have none."""
    products, flops = measurement.products, measurement.flops
    if products and (why := why_no_products(products, flops, trial.model, trial.setting)):
        raise ValueError(f"trial {trial.id}: {why}")


def _require_label(trial: TrialResult) -> None:
    """Refuse a label that does not name the trial's setting: reports show the label.

    "free-lunch" in a label stands for methods that cost nothing. Versions of bench differ in which these are,
    so any method that this version knows to be free, or does not know, may be one of them.
    """
    from bench.training.methods import known_methods  # imports every method

    known, setting = known_methods(), trial.setting
    if not setting:
        fits = trial.label == "naive"
    else:
        parts = trial.label.split(" + ")
        named = [part for part in parts if part != "free-lunch"]
        unnamed = [name for name in setting if name not in named]
        costly = [n for n in unnamed if n in known and not known[n].free_lunch and n != "compile-blocks"]
        in_order = named == [name for name in setting if name in named]
        fits = in_order and not costly and (parts[0] == "free-lunch" or not unnamed)
    if not fits:
        actual = " + ".join(setting) or "naive"
        raise VerificationFailed(f"trial {trial.id} is labelled {trial.label!r:.60}, its setting is {actual}")


def require_same_run(results_run: RunFacts, node: NodeFacts, signed: Predicate) -> None:
    """Refuse results of another run or another machine than the statement is about."""
    started_at, ended_at = utc(results_run.started_at), utc(results_run.ended_at)
    of_results = (results_run.id, results_run.complete, started_at, ended_at)
    if of_results != (signed.run_id, signed.complete, signed.started_at, signed.ended_at):
        raise VerificationFailed("the results are of another run than the statement")
    require_same_node(node, signed.node)
    require_names(node)


def require_same_node(node: NodeFacts, signed: Mapping[str, Any]) -> None:
    """Refuse results from a machine that the statement does not name."""
    ours = identity_of(node)
    gpus = signed.get("gpus")
    same = all(signed.get(part) == ours.get(part) for part in ("driver", "cpu", "image", "environment"))
    if not same or not isinstance(gpus, list) or not all(uuid in gpus for uuid in ours["gpus"]):
        raise VerificationFailed("the results are of another machine than the statement")


def doubts(
    results: Results, trained: Sequence[Gpu], measurements: Iterable[Measurement], spent_seconds: float
) -> Iterator[Note]:
    """Yield notes on claims that an honest run may make too: its clock was set, or a limit is missing."""
    run = results.run
    lasted = run.ended_at - run.started_at
    if spent_seconds > lasted + DRIFT_SECONDS:
        samples = f"its samples take {spent_seconds:,.0f} s, and by its own clock it took {lasted:,.0f} s"
        yield Note(None, f"{samples}: taken on trust")
    first, last = run.started_at - DRIFT_SECONDS, run.ended_at + DRIFT_SECONDS
    if not all(first <= m.started_at <= m.ended_at <= last for m in measurements):
        yield Note(None, "by its own clock it measured at other times than it ran: taken on trust")
    estimates = ((t.model, t.estimate) for t in results.trials if t.estimate is not None)
    for model in dict.fromkeys(m for m, e in estimates if e.ceiling_flops_per_second is None):
        yield Note(model, "no limit of its machine was measured: its speed is taken on trust")
    yield from unknown_gpus(trained)
    for fault in false_gpus(results.node, results.ceilings):
        yield Note(None, f"{fault}: its GPUs are taken on trust")
    if results.node.kernel_gpus and (why := results.node.kernel_gpus.unseen):
        yield Note(None, f"{why}: that its GPUs are cards of their own is taken on trust")


def without_telemetry(results: Results, silent: Collection[str], marked: Container[str]) -> Iterator[Note]:
    """Yield a note for each model during whose ranked trial a GPU reported nothing."""
    for model in results.models:
        best = fastest(results.trials_of(model.name), marked)
        if best is not None and best.id in silent:
            yield Note(
                model.name,
                "a GPU reported neither clock nor power while it was timed: its speed is taken on trust",
            )


def unknown_gpus(gpus: Sequence[Gpu]) -> Iterator[Note]:
    """Yield a note for each model of GPU that this version has no vendor's peak of."""
    for name in unknown_models(gpus):
        yield Note(None, f'no vendor\'s peak is known of "{name}": its speed is taken on trust')
