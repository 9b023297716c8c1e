"""`bench plan`: what `bench run` would measure, what it would skip and why, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import find_gpu_model, gpu_named, near_gpus
from bench.base.kernel_list import MODULES
from bench.base.strict_json import pretty_json, to_json
from bench.cli.model_list import print_models
from bench.cli.stdio import show
from bench.cli.this_machine import probed
from bench.planning.kernel_costs import KernelCost, kernel_costs
from bench.planning.manifest import Manifest, load_manifest
from bench.planning.plan import Plan, make_plan, target_of
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.planning.search.next_trial import settings_in_order
from bench.report.text.plan_text import plan_text
from bench.runner.run.check_data import remarks_about_data
from bench.training.methods import Target
from bench.training.models import Counted
from bench.training.models.dry_build import rehearse


@dataclass(frozen=True, slots=True)
class PlanArguments:
    manifest: Path | None
    gpus: int | None
    gpu: str | None
    list_models: list[str] | None  # words; None: list no models
    every: bool
    as_json: bool


def plan(request: PlanArguments) -> int:
    if request.list_models is not None:
        if request.every or any(g is not None for g in (request.manifest, request.gpu, request.gpus)):
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
    predicted = _predictions(manifest, made, rehearsal.counted)
    if request.as_json:
        sys.stdout.write(pretty_json(_plan_json(made, remarks, predicted, costs)).decode())
    else:
        show(plan_text(made, remarks, predicted, costs, every=request.every))
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


def _plan_json(
    made: Plan,
    remarks: Sequence[str],
    predicted: Mapping[str, Predicted | Unpredicted],
    costs: Sequence[KernelCost],
) -> object:
    models = dict.fromkeys(cell.model.name for cell in made.cells)
    first = {name: settings_in_order(made, name)[0].trials[0].id for name in models}
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
        "tried_first": first,
        "likely": [_likely_json(found) for found in predicted.values()],
    }


def _likely_json(found: Predicted | Unpredicted) -> object:
    if isinstance(found, Unpredicted):
        return {"model": found.model, "days": None, "reason": found.reason}
    return {
        "model": found.model,
        "days": found.days,
        "least_days": found.least_days,
        "most_days": found.most_days,
        "setting": list(found.setting),
        "micro_batch": found.micro_batch,
        "accumulation": found.accumulation,
    }
