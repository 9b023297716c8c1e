"""Format the results of one run as a table: a row for each setting, the fastest of each model marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.base.errors import one_line
from bench.bundle.verdict import Contents, RunContents, Verdict
from bench.records.estimate import BETWEEN_PROCESSES
from bench.records.fastest import CERTAIN, ProcessSpread, fastest, process_spread, wrong_settings
from bench.records.gradients import GradientCheck
from bench.records.marks import Mark, mark_lines
from bench.records.run_results import Fastest, Results, TrialResult
from bench.records.slowdown import Slowed, slowed_lines
from bench.records.switches import in_words
from bench.records.text import (
    FP8_ON_CPU,
    batch_text,
    bytes_text,
    count_text,
    error_text,
    failure_text,
    figures,
    floor_text,
    gradients_text,
    interval_text,
    share_text,
    software_line,
    worst_text,
)
from bench.report.text.terminal import table, wrapped

HEADERS = (
    "", "setting", "batch", "s/step", "per second", "of limit", "of floor", "memory", "loss vs naive", "days",
)  # fmt: skip
FLOOR = HEADERS.index("of floor")  # left out of a table without a floor
PROVEN = ("real s/step", "error")
MOST_REASON = 60  # letters of a reason in a table; the bundle has all of it


def results_table(
    results: Results,
    slowed: Mapping[str, Slowed] = MappingProxyType({}),
    marks: Mapping[str, tuple[Mark, ...]] = MappingProxyType({}),
) -> str:
    """Format a block for each model, then the ceilings, doubts, and settings without a figure."""
    units = {model.name: model.recipe.unit for model in results.models}
    trials = {name: [t for t in results.trials if t.model == name] for name in units}
    blocks = [_model_block(name, units[name], tried) for name, tried in trials.items() if tried]
    return "\n\n".join([*blocks, wrapped(_notes(results, slowed, marks), " " * 4)])


def _model_block(name: str, unit: str, trials: list[TrialResult]) -> str:
    best, wrong = fastest(trials), wrong_settings(trials)
    rows: list[tuple[str, ...]] = [
        _row(trial, unit, trial is best, wrong.get((trial.model, trial.setting))) for trial in trials
    ]
    headers: tuple[str, ...] = HEADERS
    if not any(trial.floor for trial in trials):
        headers, *rows = (row[:FLOOR] + row[FLOOR + 1 :] for row in (headers, *rows))
    if any(trial.proof or trial.unproven for trial in trials):
        headers = (*headers, *PROVEN)
        rows = [(*row, *_proof(trial)) for row, trial in zip(rows, trials, strict=True)]
    aligned = ("left", "left", *["right"] * (len(headers) - 2))
    return f"{name}\n{table(rows, headers, aligned)}"


def _proof(trial: TrialResult) -> tuple[str, str]:
    if trial.unproven is not None:
        return _short(failure_text(trial.unproven)), ""
    if trial.proof is None:
        return "", ""
    return f"{figures(trial.proof.step_seconds, 4)} ({trial.proof.steps} steps)", error_text(trial)


def _short(text: str) -> str:
    return text if len(text) <= MOST_REASON else text[: MOST_REASON - 1] + "…"


def _row(trial: TrialResult, unit: str, best: bool, wrong: GradientCheck | None) -> tuple[str, ...]:
    batch = batch_text(trial.micro_batch, trial.accumulation, trial.gpus)
    named = ("*" if best else "", trial.label, batch)
    e = trial.estimate
    if trial.failure is not None or e is None:
        reason = _short(failure_text(trial.failure)) if trial.failure else "too few samples"
        return (*named, reason, *[""] * 6)
    if wrong is not None:
        return (*named, _short(f"WRONG GRADIENTS, {worst_text(wrong)}"), *[""] * 6)
    share = share_text(e.utilisation)
    drift = "" if trial.loss_difference is None else f"{100 * trial.loss_difference:.2g}%"
    return (
        *named,
        interval_text(e.step_seconds),
        f"{figures(e.units_per_second)} {unit}",
        share if e.plausible else f"{share} IMPLAUSIBLE",
        share_text(trial.share_of_floor),
        bytes_text(e.peak_bytes),
        drift,
        interval_text(e.days),
    )


def _notes(
    results: Results, slowed: Mapping[str, Slowed], marks: Mapping[str, tuple[Mark, ...]]
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
    for winner in results.winners:
        yield from _how_sure(winner, results)
    for skip in results.skipped:
        yield f"skipped  {skip.model}  {skip.label}: {one_line(skip.reason)}"
    if results.run.stopped:
        yield f"INCOMPLETE  {one_line(results.run.stopped)}"


def _about_gradients(trial: TrialResult) -> Iterable[str]:
    """Yield what is known of a trial's gradients, compared with those of the unmodified model."""
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


def _how_sure(winner: Fastest, results: Results) -> Iterable[str]:
    """Yield doubts about the fastest setting: others not measured, or nearly as fast."""
    if winner.undecided:
        settings = count_text(winner.undecided, "setting")
        yield f"NOT DECIDED  {winner.model}: {settings} not measured may yet be faster"
    if winner.confidence is not None and winner.confidence < CERTAIN:
        label = next(t.label for t in results.trials if t.id == winner.trial)
        sure = f"with {winner.confidence:.0%} confidence"
        yield f"close  {winner.model}: {label} is within 1% of the fastest measured {sure}"


def section(path: Path, verdict: Verdict[Contents], run: RunContents) -> str:
    """Format a bundle as text: its machine, its signer, and every setting that was tried."""
    node = run.results.node
    device = f"{len(node.gpus)} x {node.gpus[0].name}, driver {node.driver}" if node.gpus else node.cpu
    signed = f"run {verdict.run_id}, level {verdict.level}, signed by {verdict.fingerprint}"
    return f"{path}   {device}\n{signed}\n\n{results_table(run.results, run.slowed, run.marks)}"
