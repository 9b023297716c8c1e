"""Format the results of one run as a table: a row for each setting, the fastest of each model marked."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bench.base.errors import cut, one_line
from bench.base.sizes import bytes_text
from bench.base.terminal import Column, Table, Wrapped, fitted_tables, wrapped
from bench.bundle.verdict import Contents, RunContents, Verdict
from bench.records.busy import waiting_text
from bench.records.estimate import BETWEEN_PROCESSES
from bench.records.fastest import ProcessSpread, fastest, process_spread, runner_up, wrong_settings
from bench.records.gradients import GradientCheck
from bench.records.marks import Mark, mark_lines
from bench.records.mfu import mfu_of
from bench.records.run_results import Fastest, Results, TrialResult
from bench.records.slowdown import Slowed, slowed_lines
from bench.records.switches import in_words
from bench.records.text import (
    FP8_ON_CPU,
    batch_text,
    count_text,
    error_text,
    failure_text,
    failure_word,
    figures,
    first_of,
    floor_text,
    gradients_text,
    interval_text,
    multiplied_text,
    other_precision_text,
    share_text,
    software_line,
)
from bench.records.trial import NodeFacts, OutOfMemory
from bench.training.models import Recipe

COLUMNS = (
    Column("fastest", "", fixed=True),
    Column("setting", "setting", fixed=True),
    Column("batch", "batch", right=True),
    Column("step", "s/step", right=True),
    Column("rate", "per second", right=True),
    Column("limit", "of limit", right=True),
    Column("floor", "of floor", right=True),
    Column("mfu", "MFU", right=True),
    Column("memory", "memory", right=True),
    Column("loss", "loss vs naive", right=True),
    Column("days", "days", right=True),
    Column("real", "real s/step", right=True),
    Column("error", "error", right=True),
    Column("doubt", "", fixed=True),
)
COLUMN_NAMES = tuple(column.name for column in COLUMNS if not column.fixed)
# Left out of a table in which no setting has such a figure.
OFTEN_EMPTY = frozenset({"floor", "mfu", "loss", "real", "error", "doubt"})
STEPS = (
    "loss", "memory", "rate", "mfu", Wrapped("setting", 24), "limit", "floor", Wrapped("setting", 16),
    "batch", "real", "error",
)  # fmt: skip
NOTHING = share_text(None)
MOST_REASON = 200  # letters of a reason below a table; the bundle has all of it
MOST_NAMED = 3  # settings named beside their common reason; more are counted


def results_table(
    results: Results,
    slowed: Mapping[str, Slowed] = MappingProxyType({}),
    marks: Mapping[str, tuple[Mark, ...]] = MappingProxyType({}),
    busy_shares: Mapping[str, float] = MappingProxyType({}),
    chosen: Sequence[str] | None = None,
) -> str:
    """Format a block for each model, then the ceilings, doubts, and what was skipped.

    `chosen` are the names of the columns to show, of those in COLUMNS.
    """
    recipes = {model.name: model.recipe for model in results.models}
    trials = {name: tried for name in recipes if (tried := results.trials_of(name))}
    tables = [_table(tried, recipes[name], results.node, marks) for name, tried in trials.items()]
    found = fitted_tables(tables, STEPS, chosen)
    blocks = [
        "\n".join(filter(None, [name, text, wrapped(_reasons(tried), " " * 4)]))
        for (name, tried), text in zip(trials.items(), found.texts, strict=True)
    ]
    notes = [*_notes(results, slowed, marks, busy_shares), *left_out_line(found.left_out)]
    return "\n\n".join([*blocks, wrapped(notes, " " * 4)])


def left_out_line(
    heads: Sequence[str], place: str = "", advice: str = "--columns names others; docs/running.md"
) -> Iterator[str]:
    """Yield which columns the terminal had no room for, and what shows them, if there are any."""
    if heads:
        yield f"no room {place}for  {', '.join(heads)} ({advice})"


def _table(
    trials: Sequence[TrialResult], recipe: Recipe, node: NodeFacts, marks: Mapping[str, tuple[Mark, ...]]
) -> Table:
    best, wrong = fastest(trials, marks), wrong_settings(trials)
    rows = []
    for trial in trials:
        mfu = mfu_of(trial, node, recipe.precision)
        check = wrong.get((trial.model, trial.setting))
        cells = _cells(trial, recipe.unit, mfu, check, best=trial is best)
        if "days" in cells:
            cells["doubt"] = doubt_text(trial, marks.get(trial.id, ()))
        rows.append(cells)
    filled = {name for row in rows for name, text in row.items() if text not in ("", NOTHING)}
    kept = [column for column in COLUMNS if column.name not in OFTEN_EMPTY - filled]
    return Table(kept, [[row.get(column.name, "") for column in kept] for row in rows])


def _cells(
    trial: TrialResult, unit: str, mfu: float | None, wrong: GradientCheck | None, *, best: bool
) -> dict[str, str]:
    """Format a trial's figures by column; without figures, "step" says how the trial ended."""
    e = trial.estimate
    cells = {
        "fastest": "*" if best else "",
        "setting": trial.label,
        "batch": batch_text(trial.micro_batch, trial.accumulation, trial.gpus),
    }
    if trial.failure is not None or e is None:
        return cells | {"step": failure_word(trial.failure) if trial.failure else "too few samples"}
    if wrong is not None:
        return cells | {"step": "WRONG GRADIENTS"}
    return cells | {
        "step": interval_text(e.step_seconds),
        "rate": f"{figures(e.units_per_second)} {unit}",
        "limit": share_text(e.utilisation),
        "floor": share_text(trial.share_of_floor),
        "mfu": share_text(mfu),
        "memory": bytes_text(e.peak_bytes),
        "loss": "" if trial.loss_difference is None else f"{100 * trial.loss_difference:.2g}%",
        "days": interval_text(e.days),
        "real": _proof(trial),
        "error": error_text(trial),
    }


def doubt_text(trial: TrialResult, marks: Sequence[Mark]) -> str:
    """Say in a word each why the figures of a trial are to be read with care; empty if there is no reason."""
    implausible = trial.estimate is not None and not trial.estimate.plausible
    return ", ".join([*(["IMPLAUSIBLE"] if implausible else []), *(mark.kind for mark in marks)])


def _proof(trial: TrialResult) -> str:
    if trial.unproven is not None:
        return failure_word(trial.unproven)
    if trial.proof is None:
        return ""
    return f"{figures(trial.proof.step_seconds, 4)} ({count_text(trial.proof.steps, 'step')})"


def _reasons(trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield why trials have no figure, those of one reason together; being out of memory needs no reason."""
    by_reason: dict[str, list[str]] = {}
    for trial in trials:
        for failure in (trial.failure, trial.unproven):
            if failure is not None and not isinstance(failure, OutOfMemory):
                batch = batch_text(trial.micro_batch, trial.accumulation, trial.gpus)
                by_reason.setdefault(cut(failure_text(failure), MOST_REASON), []).append(
                    f"{trial.label} {batch}"
                )
    for reason, settings in by_reason.items():
        yield f"{first_of(settings, MOST_NAMED)}: {reason}"


def _notes(
    results: Results,
    slowed: Mapping[str, Slowed],
    marks: Mapping[str, tuple[Mark, ...]],
    busy_shares: Mapping[str, float],
) -> Iterable[str]:
    yield "*  fastest of its model    batch  micro-batch x accumulation (x GPUs)    ±  95% interval"
    best: dict[tuple[str, str], float] = {}
    for ceiling in results.ceilings:
        key = (ceiling.name, ceiling.unit)
        best[key] = max(best.get(key, 0.0), ceiling.rate)
    limits = [f"{name} {figures(rate / 1e9)} G{unit}" for (name, unit), rate in sorted(best.items())]
    yield f"limit  measured here: {', '.join(limits)}"
    for trial in results.trials:
        if trial.floor:
            floor = f"{floor_text(trial.floor)} at micro-batch {trial.micro_batch}"
            yield f"floor  {trial.model}: {floor}; at most the rest of the step can be won"
        if trial.no_floor:
            yield f"no floor  {trial.model}: {trial.no_floor}"
        yield from _about_gradients(trial)
    yield from multiplied(results, marks)
    yield from waiting(results, marks, busy_shares)
    if not results.node.gpus and any(model.recipe.precision == "fp8" for model in results.models):
        yield f"fp8    {FP8_ON_CPU}"
    kind, software = software_line(results.node)
    yield f"{kind}  {software}"
    if results.node.switches:
        yield f"set    {in_words(results.node.switches)}"
    yield from (f"SLOWED  {line}" for line in slowed_lines(slowed))
    yield from (f"{kind}  {line}" for kind, line in mark_lines(marks))
    if results.memory_cap_bytes is not None:
        yield f"memory capped at {bytes_text(results.memory_cap_bytes)}"
    if (spread := process_spread(results.trials)).trials:
        yield f"twice  {_measured_twice(spread)}"
    yield from _undecided(results.winners)
    yield from _close(results, marks)
    for skip in results.skipped:
        yield f"skipped  {skip.model}  {skip.label}: {one_line(skip.reason)}"
    if results.run.stopped:
        yield f"INCOMPLETE  {one_line(results.run.stopped)}"


def multiplied(results: Results, marks: Mapping[str, tuple[Mark, ...]]) -> Iterator[str]:
    """Yield what each model's fastest trial multiplies, and the trials that do so in another precision."""
    for model in results.models:
        trials = results.trials_of(model.name)
        best = fastest(trials, marks)
        if best is not None and (text := multiplied_text(best.products, best.no_products)):
            yield f"multiplies  {model.name}, {best.label}: {text}"
        others: dict[str, list[str]] = {}
        for trial in trials:
            if text := other_precision_text(trial.products, model, trial.setting):
                others.setdefault(text, []).append(trial.label)
        for text, labels in others.items():
            named = first_of(list(dict.fromkeys(labels)), MOST_NAMED)
            yield f"OTHER PRECISION  {model.name}, {named}: {text}"


def waiting(
    results: Results, marks: Mapping[str, tuple[Mark, ...]], busy_shares: Mapping[str, float]
) -> Iterator[str]:
    """Yield a line for each model in whose fastest trial the GPUs waited for the host."""
    for model in results.models:
        best = fastest(results.trials_of(model.name), marks)
        if best is not None and (text := waiting_text(busy_shares.get(best.id), best.setting)):
            yield f"waits  {model.name}, {best.label} at micro-batch {best.micro_batch}: {text}"


def _about_gradients(trial: TrialResult) -> Iterable[str]:
    """Yield the result of a trial's gradient check against the unmodified model."""
    which = f"{trial.model}: {trial.label}"
    if trial.no_gradient_check:
        yield f"gradients not checked  {which}: {trial.no_gradient_check}"
    if (check := trial.gradient_check) is None:
        return
    differ = f"differ from the unmodified model's by {gradients_text(check)}"
    if check.agrees:
        yield f"gradients  {which} at micro-batch {trial.micro_batch}: they {differ}"
    else:
        yield f"WRONG GRADIENTS  {which}: they {differ}; this setting is never ranked"


def _measured_twice(spread: ProcessSpread) -> str:
    largest = f"up to {100 * spread.largest:.2g}%"
    text = f"{count_text(spread.trials, 'trial')} measured by two processes, which differ by {largest}"
    if spread.spread <= BETWEEN_PROCESSES:
        return text
    return f"{text}: more than usual, so confidence is computed with {100 * spread.spread:.2g}%"


def _undecided(winners: Sequence[Fastest]) -> Iterator[str]:
    """Yield a line that names the models whose fastest setting is not certain yet."""
    open_ = [f"{winner.model} ({winner.undecided:,})" for winner in winners if winner.undecided]
    if open_:
        yield f"NOT DECIDED  settings that were not measured may yet be faster: {', '.join(open_)}"


def _close(results: Results, marked: Container[str]) -> Iterator[str]:
    """Yield in one line the fastest settings that are nearly as fast as another."""
    doubts = []
    for model in results.models:
        best = fastest(results.trials_of(model.name), marked)
        if best and (doubt := runner_up(model.name, results.trials, marked)):
            certainty, _ = doubt
            doubts.append(f"{model.name}: {best.label} with {certainty:.0%} confidence")
    if doubts:
        yield f"close  within 1% of the fastest measured: {'; '.join(doubts)}"


def section(
    path: Path, verdict: Verdict[Contents], run: RunContents, chosen: Sequence[str] | None = None
) -> str:
    """Format a bundle as text: its machine, its signer, and every setting that was tried."""
    node = run.results.node
    device = f"{len(node.gpus)} x {node.gpus[0].name}, driver {node.driver}" if node.gpus else node.cpu
    signed = f"run {verdict.run_id}, level {verdict.level}, signed by {verdict.fingerprint}"
    head = wrapped([f"{path}   {device}", signed], " " * 4)
    return f"{head}\n\n{results_table(run.results, run.slowed, run.marks, run.busy_shares, chosen)}"
