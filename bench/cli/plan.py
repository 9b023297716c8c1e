"""`bench plan`: what `bench run` would measure, what it would skip and why, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from tabulate import tabulate

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import find_gpu_model, gpu_named, near_gpus
from bench.base.kernel_list import MODULES
from bench.base.strict_json import pretty_json, to_json
from bench.cli.model_list import print_models
from bench.cli.this_machine import probed
from bench.planning.kernel_costs import KernelCost, kernel_costs
from bench.planning.manifest import Manifest, load_manifest
from bench.planning.plan import Plan, SettingPlan, make_plan, target_of
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.records.text import FP8_ON_CPU, batch_text, bytes_text, figures
from bench.runner.run.check_data import remarks_about_data
from bench.training.methods import Target
from bench.training.models import Counted
from bench.training.models.dry_build import rehearse

WIDTH = 80  # columns of a plan
SETTING_WIDTH = 44  # columns of a setting; a longer one has several lines


@dataclass(frozen=True, slots=True)
class PlanArguments:
    manifest: Path | None
    gpus: int | None
    gpu: str | None
    list_models: list[str] | None  # words; None: list no models
    as_json: bool


def plan(request: PlanArguments) -> int:
    if request.list_models is not None:
        if any(given is not None for given in (request.manifest, request.gpu, request.gpus)):
            raise BadInput("--list-models lists all models", advice="leave out everything but --json")
        print_models(request.list_models, request.as_json)
        return 0
    if request.manifest is None:
        raise BadInput("plan needs a manifest", advice="bench plan MANIFEST, or bench plan --list-models")
    manifest = load_manifest(request.manifest)
    rehearsal = rehearse(manifest.models, str(request.manifest))
    gpus = manifest.gpus if request.gpus is None else request.gpus
    made = make_plan(manifest, _target(gpus, request.gpu), rehearsal.counted)
    remarks = (*manifest.remarks, *rehearsal.remarks, *remarks_about_data(manifest))
    costs = kernel_costs(manifest, made.target, _missing_kernels(made.target), rehearsal.counted)
    if request.as_json:
        sys.stdout.write(pretty_json(_plan_json(made, remarks, costs)).decode())
    else:
        print(_plan_text(made, remarks, _predictions(manifest, made, rehearsal.counted), costs))
    return 0


def _missing_kernels(target: Target) -> list[str]:
    """Return the compiled kernels that the target lacks; all, if what another machine has is unknown."""
    if target.elsewhere:
        return [*MODULES]
    return [wheel for wheel, modules in MODULES.items() if not all(map(target.has, modules))]


def _predictions(
    manifest: Manifest, made: Plan, counted: Mapping[str, Counted]
) -> Mapping[str, Predicted | Unpredicted]:
    """Return by model what `bench predict` says of the planned machine; empty if it is unknown there."""
    gpu = gpu_named(made.target.name)
    if gpu is None or made.target.device == "cpu" or not gpu.runs_bench:
        return {}
    predictor = Predictor(manifest.models, counted, shipped_fit(), manifest.memory_cap_bytes)
    return {found.model: found for found in predictor.predict(gpu, made.target.gpus)}


def _target(gpus: int | None, gpu: str | None) -> Target:
    """Return the machine to plan for: this machine, or a machine with GPUs of the named kind."""
    if gpus is not None and gpus < 1:
        raise BadInput(f"--gpus {gpus} is not at least 1")
    if gpu is not None:
        model = find_gpu_model(gpu)
        if model is None:
            advice = f"{near_gpus(gpu)}; for any other, run bench plan on a machine that has it"
            raise BadInput(f"--gpu {gpu}: unknown GPU", advice=advice)
        if not model.runs_bench:
            advice = f"bench compare --estimate 8x{gpu} extrapolates from other machines"
            raise BadInput(f"--gpu {gpu}: bench does not run on {model.name}", advice=advice)
        memory = int(model.memory_gib * 2**30)
        return Target("cuda", gpus or 1, memory, model.name, model.compute_capability, elsewhere=True)
    node = probed("bench plan MANIFEST --gpu NAME plans for another machine")
    if gpus is not None and not node.gpus and gpus > 1:
        raise BadInput(
            f"--gpus {gpus} without --gpu, and this machine has no GPU", advice="--gpu NAME names the kind"
        )
    return target_of(node, gpus)


def _plan_json(made: Plan, remarks: Sequence[str], costs: Sequence[KernelCost]) -> object:
    cells = [
        {
            "model": cell.model.name,
            "setting": list(cell.setting),
            "label": cell.label,
            "trials": [
                {"id": t.id, "micro_batch": t.micro_batch, "accumulation": t.accumulation}
                for t in cell.trials
            ],
            "predicted_bytes": cell.predicted_bytes,
            "least_bytes": cell.least_bytes,
            "host_bytes": cell.host_bytes,
            "floor_days": cell.floor_days,
        }
        for cell in made.cells
    ]
    return {
        "schema": "bench/plan/v1",
        "manifest": made.manifest_digest,
        "target": to_json(made.target),
        "cells": cells,
        "skipped": to_json(made.skipped),
        "remarks": list(remarks),
        "without_kernels": to_json(tuple(costs)),
        "searched": sorted(made.guided),
    }


def _memory_text(cell: SettingPlan, available_bytes: int) -> str:
    if cell.predicted_bytes is not None:
        # Such a setting is still tried, with the fewest samples: the prediction may be wrong.
        hardly = "hardly fits: " if cell.predicted_bytes > available_bytes else ""
        return hardly + bytes_text(cell.predicted_bytes)
    return "when it runs" if cell.least_bytes is None else f"over {bytes_text(cell.least_bytes)}"


def _host_memory_lines(made: Plan) -> Iterator[str]:
    """Yield the host memory that offloading needs, if the planned machine's host memory is unknown."""
    if made.target.host_bytes is not None:
        return  # the plan skips settings that need more host memory than this
    for model in dict.fromkeys(cell.model.name for cell in made.cells):
        needs = sorted({c.host_bytes for c in made.cells if c.model.name == model and c.host_bytes})
        if needs:
            least, most = (f"{need / 2**30:.0f}" for need in (needs[0], needs[-1]))
            between = least if least == most else f"{least} to {most}"
            yield f"offload  {model}: about {between} GiB of the host's memory (whose size is unknown)"


def _plan_text(
    made: Plan,
    remarks: Sequence[str],
    predicted: Mapping[str, Predicted | Unpredicted],
    costs: Sequence[KernelCost],
) -> str:
    """Format a block for each model, then what applies to the whole plan; fits 80 columns."""
    target = made.target
    device = f"{target.gpus} x {target.name}, {bytes_text(target.memory_bytes)} each"
    if made.memory_bytes < target.memory_bytes:
        device += f", capped at {bytes_text(made.memory_bytes)}"
    at_most = " at most (a search measures those that may be the fastest)" if made.guided else ""
    models = dict.fromkeys(cell.model.name for cell in made.cells)
    blocks = [_model_block(made, name, predicted.get(name)) for name in models]
    skipped = [f"skipped  {s.model}  {s.label}: {s.reason}" for s in made.skipped]
    said = [f"remark   {remark}" for remark in remarks]
    if target.device == "cpu" and any(cell.model.recipe.precision == "fp8" for cell in made.cells):
        said.append(f"remark   {FP8_ON_CPU}")
    counts = f"{len(made.cells)} settings to measure{at_most}, {len(made.skipped)} skipped"
    kernels = [f"kernels  {cost.text}" for cost in costs]
    if kernels and target.elsewhere:
        kernels.insert(0, "kernels  assumed here, from a kernel layer or compiled")
    rest = "\n".join(map(_filled, [*_host_memory_lines(made), *skipped, *kernels, *said]))
    return "\n\n".join(filter(None, [f"{_filled(device)}\n{_filled(counts)}", *blocks, rest]))


def _filled(line: str) -> str:
    return fill(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _model_block(made: Plan, model: str, predicted: Predicted | Unpredicted | None) -> str:
    """Format a model's settings, below its likely days and the bound that no setting is faster than."""
    cells = [cell for cell in made.cells if cell.model.name == model]
    rows = [
        (
            fill(cell.label, SETTING_WIDTH, break_on_hyphens=False),
            batch_text(cell.trials[0].micro_batch, cell.trials[0].accumulation, made.target.gpus),
            _memory_text(cell, made.memory_bytes),
        )
        for cell in cells
    ]
    headers, align = ("setting", "batch", "predicted memory"), ("left", "right", "right")
    table = tabulate(rows, headers, disable_numparse=True, colalign=align)
    return "\n".join([model, *map(_filled, _days_lines(cells, predicted)), table])


def _days_lines(cells: Sequence[SettingPlan], predicted: Predicted | Unpredicted | None) -> Iterator[str]:
    if isinstance(predicted, Predicted):
        within = f"90%: {figures(predicted.least_days)} to {figures(predicted.most_days)}"
        batch = f"at micro-batch {predicted.micro_batch} x {predicted.accumulation}"
        yield f"likely {figures(predicted.days)} days ({within}), with {predicted.label} {batch}"
    elif predicted is not None:
        yield f"likely days are not predicted: {predicted.reason}"
    if floors := [cell.floor_days for cell in cells if cell.floor_days is not None]:
        yield f"a bound, no estimate: {figures(min(floors))} days if all of it ran at the GPU's peak"
