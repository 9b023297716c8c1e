"""Format a plan: a block for each model with its likely days, what fits, and what is tried first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.base.sizes import bytes_text
from bench.base.terminal import Column, Table, Wrapped, fitted_tables, wrapped
from bench.base.terminal_width import columns
from bench.planning.kernel_costs import KernelCost
from bench.planning.plan import Plan, SettingPlan
from bench.planning.prediction.predicted_machines import Predicted, Unpredicted
from bench.planning.search.next_trial import settings_in_order
from bench.records.text import FP8_ON_CPU, batch_text, count_text, figures
from bench.records.trial import Skipped

WIDTH = 80  # columns of a plan where no terminal has another width
MOST_SHOWN = 3  # settings of a model that are shown unless all are asked for
COLUMNS = (
    Column("first", "", fixed=True),
    Column("setting", "setting", fixed=True),
    Column("batch", "batch", right=True),
    Column("memory", "predicted memory", right=True),
)
STEPS = (Wrapped("setting", 24), Wrapped("memory", 12), "batch")


def plan_text(
    made: Plan,
    remarks: Sequence[str],
    predicted: Mapping[str, Predicted | Unpredicted],
    costs: Sequence[KernelCost],
    *,
    every: bool,
) -> str:
    """Format the target, a block for each model, and remarks; `every` shows all settings and refusals.

    `costs` says what each compiled kernel is needed for.
    """
    target = made.target
    device = f"{target.gpus} x {target.name}, {bytes_text(target.memory_bytes)} each"
    if made.memory_bytes < target.memory_bytes:
        device += f", capped at {bytes_text(made.memory_bytes)}"
    at_most = " at most (a search measures those that may be the fastest)" if made.guided else ""
    counts = f"{count_text(len(made.cells), 'setting')} to measure{at_most}, {len(made.skipped)} skipped"
    legend = ">  tried first" + ("" if every else "    --all shows every setting, and why others are skipped")
    said = [f"remark   {remark}" for remark in remarks]
    if target.device == "cpu" and any(cell.model.recipe.precision == "fp8" for cell in made.cells):
        said.append(f"remark   {FP8_ON_CPU}")
    kernels = [f"kernels  {cost.text}" for cost in costs]
    if kernels and target.elsewhere:
        kernels.insert(0, "kernels  assumed here, from a kernel layer or compiled")
    said = [*kernels, *said]
    if every:
        said = [*(f"skipped  {s.model}  {s.label}: {s.reason}" for s in made.skipped), *said]
    blocks = _blocks(made, predicted, every=every)
    return "\n\n".join(filter(None, [_filled([device, counts, legend]), *blocks, _filled(said)]))


def _filled(lines: Sequence[str]) -> str:
    return wrapped(lines, " " * 4, WIDTH)


def _blocks(made: Plan, predicted: Mapping[str, Predicted | Unpredicted], *, every: bool) -> Iterator[str]:
    skipped = Counter(skip.model for skip in made.skipped)
    models = dict.fromkeys([*(cell.model.name for cell in made.cells), *skipped])
    shown = {name: _shown(made, name, every=every) for name in models}
    some = [_table(made, cells) for cells in shown.values() if cells]
    tables = iter(fitted_tables(some, STEPS, room=columns() or WIDTH).texts)
    for name, cells in shown.items():
        below = [*_host_memory_lines(made, cells), *_counts(made, name, len(cells), skipped[name])]
        if not cells:
            yield "\n".join([name, _filled(list(_why_nothing(made.skipped, name)))])
            continue
        lead = _filled([*_days_lines(made, name, predicted.get(name))])
        yield "\n".join(filter(None, [name, lead, next(tables), _filled(below)]))


def _shown(made: Plan, model: str, *, every: bool) -> list[SettingPlan]:
    """Return the settings to show, the one that is tried first at the top."""
    ordered = settings_in_order(made, model)
    return ordered if every else ordered[:MOST_SHOWN]


def _table(made: Plan, cells: Sequence[SettingPlan]) -> Table:
    rows = [
        (
            "" if place else ">",
            cell.label,
            batch_text(cell.trials[0].micro_batch, cell.trials[0].accumulation, made.target.gpus),
            _memory_text(cell, made.memory_bytes),
        )
        for place, cell in enumerate(cells)
    ]
    return Table(COLUMNS, rows)


def _hardly_fits(cell: SettingPlan, available_bytes: int) -> bool:
    """Whether more memory is predicted than there is: it is still tried, with the fewest samples."""
    return cell.predicted_bytes is not None and cell.predicted_bytes > available_bytes


def _doubt(cell: SettingPlan, available_bytes: int) -> str:
    if _hardly_fits(cell, available_bytes):
        return "hardly fits: "
    return "may not fit: " if cell.may_not_fit(cell.trials[0], available_bytes) else ""


def _memory_text(cell: SettingPlan, available_bytes: int) -> str:
    if cell.predicted_bytes is not None:
        return _doubt(cell, available_bytes) + bytes_text(cell.predicted_bytes)
    return "when it runs" if cell.least_bytes is None else f"over {bytes_text(cell.least_bytes)}"


def _counts(made: Plan, model: str, shown: int, skipped: int) -> Iterator[str]:
    """Count the settings that fit, hardly fit and are skipped, unless the block shows all of them."""
    cells = [cell for cell in made.cells if cell.model.name == model]
    hardly = sum(_hardly_fits(cell, made.memory_bytes) for cell in cells)
    if shown < len(cells) or skipped:
        parts = [f"{count_text(len(cells) - hardly, 'setting')} to try"]
        parts += [f"{hardly} that hardly fit"] if hardly else []
        parts += [f"{skipped} skipped"] if skipped else []
        yield ", ".join(parts)


def _why_nothing(skipped: Sequence[Skipped], model: str) -> Iterator[str]:
    """Say why no setting of a model can run: the reason of most of them."""
    reasons = Counter(skip.reason for skip in skipped if skip.model == model)
    ((reason, count),) = reasons.most_common(1)
    yield f"nothing to measure: {reason} ({count} of {count_text(reasons.total(), 'setting')})"


def _days_lines(made: Plan, model: str, predicted: Predicted | Unpredicted | None) -> Iterator[str]:
    """Yield the likely days, and the days below which no setting can be."""
    if isinstance(predicted, Predicted):
        within = f"90%: {figures(predicted.least_days)} to {figures(predicted.most_days)}"
        batch = f"at micro-batch {predicted.micro_batch} x {predicted.accumulation}"
        yield f"likely {figures(predicted.days)} days ({within}), with {predicted.label} {batch}"
    elif predicted is not None:
        yield f"likely days are not predicted: {predicted.reason}"
    floors = [c.floor_days for c in made.cells if c.model.name == model and c.floor_days is not None]
    if floors:
        yield f"a bound, no estimate: {figures(min(floors))} days if all of it ran at the GPU's peak"


def _host_memory_lines(made: Plan, cells: Sequence[SettingPlan]) -> Iterator[str]:
    """Yield the host memory that offloading needs, if a setting offloads and the host's size is unknown."""
    if made.target.host_bytes is not None or not any(cell.host_bytes for cell in cells):
        return  # the plan skips settings that need more host memory than is known
    model = cells[0].model.name
    needs = sorted({c.host_bytes for c in made.cells if c.model.name == model and c.host_bytes})
    least, most = map(bytes_text, (needs[0], needs[-1]))
    between = least if least == most else f"{least} to {most}"
    yield f"offload  {model}: about {between} of the host's memory (whose size is unknown)"
