"""Show one run at a glance: every model with its settings as bars, and the course of its machine. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from bench.base.sizes import bytes_text
from bench.base.terminal import Column, FittedTables, Table, Wrapped, fitted_tables, wrapped
from bench.records.fastest import fastest, wrong_settings
from bench.records.marks import Mark
from bench.records.mfu import mfu_of
from bench.records.run_results import Results, TrialResult
from bench.records.text import (
    batch_text,
    count_text,
    failure_word,
    figures,
    interval_text,
    seconds_text,
    share_text,
)
from bench.report.compare.compared_rows import ComparedRun
from bench.report.compare.energy import TelemetryCourse
from bench.report.text.run_table import doubt_text, multiplied, waiting
from bench.report.text.sparklines import Glyphs, bar, sparkline
from bench.training.setting import Setting

LONGEST_BARS = (40, 30, 24, 20, 16, 12, 10, 8)  # characters; the first that costs no column
USUAL_ROOM = 100  # columns where there is no terminal
LEGEND = "*  fastest of its model, without marks if possible    speed  longer is faster, within its model"
MOST_SETTINGS = 12  # of a model, unless all are wanted
COLUMNS = (
    Column("fastest", "", fixed=True),
    Column("setting", "setting", fixed=True),
    Column("bar", "speed", fixed=True),
    Column("days", "days", right=True, fixed=True),
    Column("rate", "per second", right=True),
    Column("limit", "of limit", right=True),
    Column("memory", "memory", right=True),
    Column("batch", "batch", right=True),
    Column("mfu", "MFU", right=True),
    Column("doubt", ""),
)
STEPS = (
    "mfu", "memory", "rate", Wrapped("setting", 24), "batch", Wrapped("setting", 14), "limit",
    Wrapped("doubt", 10), Wrapped("days", 10), Wrapped("setting", 10),
)  # fmt: skip
Amount = Callable[[float], str]
COURSES: tuple[tuple[str, str, Amount], ...] = (
    ("sm_mhz", "clock", lambda mhz: f"{mhz:,.0f} MHz"),
    ("watts", "power", lambda watts: f"{watts:,.0f} W"),
    ("celsius", "temperature", lambda celsius: f"{celsius:.0f} °C"),
    ("used_bytes", "memory", bytes_text),
    ("load", "load of CPUs", lambda load: figures(load, 2)),
)
NAME_WIDTH = max(len(name) for _, name, _ in COURSES) + 2
RANGE_WIDTH = 26  # for "105.2 GiB to 122.9 GiB"


def run_view(run: ComparedRun, glyphs: Glyphs, room: int | None, *, every: bool) -> str:
    """Format the models of a run and the course of its machine; with `every`, no setting is left out."""
    results = run.results
    tried = {model.name: results.trials_of(model.name) for model in results.models}
    tried = {name: _by_speed(trials, run.marks) for name, trials in tried.items() if trials}
    kept = {name: trials if every else trials[:MOST_SETTINGS] for name, trials in tried.items()}
    found, left_out = _tables(run, kept, glyphs, room or USUAL_ROOM)
    blocks = [
        "\n".join([name, text, *_others(tried[name], len(kept[name]))])
        for name, text in zip(kept, found, strict=True)
    ]
    course = "\n".join(_course(run, glyphs, room or USUAL_ROOM))
    lines = [*multiplied(results, run.marks), *waiting(results, run.marks, run.busy_shares)]
    notes = [LEGEND, *lines, *left_out]
    return "\n\n".join([*blocks, course, wrapped(notes, " " * 4)])


def _by_speed(trials: Sequence[TrialResult], marks: Mapping[str, tuple[Mark, ...]]) -> list[TrialResult]:
    """Order trials: the fastest one, others by days, those that are never ranked, those without a figure."""
    best, wrong = fastest(trials, marks), wrong_settings(trials)

    def order(trial: TrialResult) -> tuple[bool, bool, bool, float]:
        days = trial.estimate.days.value if trial.estimate else 0.0
        return trial is not best, trial.estimate is None, not _ranked(trial, wrong), days

    return sorted(trials, key=order)


def _ranked(trial: TrialResult, wrong: Container[tuple[str, Setting]]) -> bool:
    """Whether a trial's figure is plausible, and its gradients are not known to be wrong."""
    e = trial.estimate
    return e is not None and e.plausible and (trial.model, trial.setting) not in wrong


def _tables(
    run: ComparedRun, tried: Mapping[str, Sequence[TrialResult]], glyphs: Glyphs, room: int
) -> tuple[list[str], list[str]]:
    """Format tables with the longest bars that cost no column and no line; return the left-out columns."""
    shortest = _fitted(run, tried, glyphs, min(LONGEST_BARS), room)
    heights = [text.count("\n") for text in shortest.texts]
    for longest in LONGEST_BARS:
        fitted = _fitted(run, tried, glyphs, longest, room)
        fits = all(len(line) <= room for text in fitted.texts for line in text.split("\n"))
        whole = all(glyphs.full * longest in text or glyphs.full not in text for text in fitted.texts)
        as_high = [text.count("\n") for text in fitted.texts] == heights
        if fits and whole and as_high and fitted.left_out == shortest.left_out:
            break
    heads = fitted.left_out
    return fitted.texts, [f"no room for  {', '.join(heads)}"] if heads else []


def _fitted(
    run: ComparedRun, tried: Mapping[str, Sequence[TrialResult]], glyphs: Glyphs, longest: int, room: int
) -> FittedTables:
    return fitted_tables(
        [_table(run, trials, glyphs, longest) for trials in tried.values()], STEPS, room=room
    )


def _table(run: ComparedRun, trials: Sequence[TrialResult], glyphs: Glyphs, longest: int) -> Table:
    best, wrong = fastest(trials, run.marks), wrong_settings(trials)
    rates = (t.estimate.units_per_second for t in trials if t.estimate and _ranked(t, wrong))
    top = max(rates, default=1.0)
    model = next(model for model in run.results.models if model.name == trials[0].model)
    rows = []
    for trial in trials:
        cells = _cells(trial, model.recipe.unit, run.marks.get(trial.id, ()))
        cells["fastest"] = "*" if trial is best else ""
        if trial.estimate is not None and (trial.model, trial.setting) in wrong:
            rows.append({name: cells[name] for name in ("setting", "batch")} | {"days": "WRONG GRADIENTS"})
            continue
        if trial.estimate is not None and _ranked(trial, wrong):
            cells["bar"] = bar(trial.estimate.units_per_second / top, longest, glyphs)
        if (mfu := mfu_of(trial, run.results.node, model.recipe.precision)) is not None:
            cells["mfu"] = share_text(mfu)
        rows.append(cells)
    filled = {name for cells in rows for name, text in cells.items() if text}
    kept = [column for column in COLUMNS if column.name in filled or column.fixed]
    return Table(kept, [[cells.get(column.name, "") for column in kept] for cells in rows])


def _cells(trial: TrialResult, unit: str, marks: Sequence[Mark]) -> dict[str, str]:
    e = trial.estimate
    cells = {
        "setting": trial.label,
        "batch": batch_text(trial.micro_batch, trial.accumulation, trial.gpus),
        "doubt": doubt_text(trial, marks),
    }
    if e is None:
        return cells | {"days": failure_word(trial.failure) if trial.failure else "too few samples"}
    return cells | {
        "days": interval_text(e.days),
        "rate": f"{figures(e.units_per_second)} {unit}",
        "limit": "" if e.utilisation is None else share_text(e.utilisation),
        "memory": bytes_text(e.peak_bytes),
    }


def _others(tried: Sequence[TrialResult], shown: int) -> Iterator[str]:
    """Yield how many of a model's trials are not shown, by how they ended."""
    left, wrong = tried[shown:], wrong_settings(tried)
    if left:
        words = Counter(_ending(trial, wrong) for trial in left)
        counts = ", ".join(f"{count} {word}" for word, count in words.items())
        yield wrapped([f"and {count_text(len(left), 'trial')} more ({counts}): --all"], " " * 4)


def _ending(trial: TrialResult, wrong: Container[tuple[str, Setting]]) -> str:
    """Say in two words how a trial ended that is not shown."""
    if trial.failure is not None:
        return failure_word(trial.failure)
    if trial.estimate is None:
        return "too few samples"
    if (trial.model, trial.setting) in wrong:
        return "with wrong gradients"
    return "slower" if trial.estimate.plausible else "implausible"


def _course(run: ComparedRun, glyphs: Glyphs, room: int) -> Iterator[str]:
    course = run.course
    if course is None:
        yield "course  the bundle has no telemetry"
        return
    gpus = len(run.results.node.gpus)
    whose = f", mean of {gpus} GPUs" if gpus > 1 else ""
    yield wrapped([f"course of the run, {seconds_text(course.seconds[-1])}{whose}"], " " * 4)
    for name, words, amount in COURSES:
        yield from _line(course, name, words, amount, glyphs, room)


def _line(
    course: TelemetryCourse, name: str, words: str, amount: Amount, glyphs: Glyphs, room: int
) -> Iterator[str]:
    """Yield a course with its lowest and highest value; nothing if the bundle lacks it."""
    values: tuple[float, ...] = getattr(course, name)
    if not values:
        return
    low, high = amount(min(values)), amount(max(values))
    ends = low if low == high else f"{low} to {high}"
    width = max(8, room - NAME_WIDTH - 2 - max(len(ends), RANGE_WIDTH))
    drawn = sparkline(values, width, glyphs)
    whole = f"{words:<{NAME_WIDTH}}{drawn}  {ends}"
    yield whole if len(whole) <= room else f"{words}: {ends}\n    {sparkline(values, room - 4, glyphs)}"


def missing_models(results: Results) -> list[str]:
    """Return the names of models of which no trial was run."""
    tried = {trial.model for trial in results.trials}
    return [model.name for model in results.models if model.name not in tried]
