"""`bench.plan`: what a run would measure, here or on another machine, and what it would skip and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import find_gpu_model, gpu_named, near_gpus
from bench.base.kernel_list import MODULES
from bench.base.strict_json import to_json
from bench.library.given_manifest import GivenManifest, manifest_of
from bench.library.this_machine import probed
from bench.planning.kernel_costs import KernelCost, kernel_costs
from bench.planning.manifest import Manifest
from bench.planning.plan import Plan, SettingPlan, make_plan, never_counted, target_of
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.planning.search.next_trial import settings_in_order
from bench.runner.run.check_data import remarks_about_data
from bench.training.methods import Target
from bench.training.models import Counted
from bench.training.models.dry_build import rehearse


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The plan of a run, with predictions about its models. Nothing was measured."""

    plan: Plan
    remarks: tuple[str, ...]  # about fields that do not matter, and data that is not here
    likely: Mapping[str, Predicted | Unpredicted]  # by model; empty for a machine that cannot be predicted
    without_kernels: tuple[KernelCost, ...]  # what it costs to lack compiled kernels

    @property
    def tried_first(self) -> Mapping[str, str]:
        """The trial that a run begins with, by model."""
        models = dict.fromkeys(cell.model.name for cell in self.plan.cells)
        return {name: settings_in_order(self.plan, name)[0].trials[0].id for name in models}

    def to_json(self) -> dict[str, object]:
        """Return the document of `bench plan --json`."""
        return {
            "schema": "bench/plan/v1",
            "manifest": self.plan.manifest_digest,
            "target": to_json(self.plan.target),
            "cells": [_cell_json(cell) for cell in self.plan.cells],
            "skipped": to_json(self.plan.skipped),
            "remarks": list(self.remarks),
            "without_kernels": to_json(self.without_kernels),
            "searched": sorted(self.plan.guided),
            "tried_first": dict(self.tried_first),
            "likely": [_likely_json(found) for found in self.likely.values()],
        }


def plan(manifest: GivenManifest, *, gpus: int | None = None, gpu: str | None = None) -> PlannedRun:
    """Plan the run of a manifest, which is a file or a dictionary, and measure nothing.

    `gpus`  plan for this number of GPUs (default: the manifest's, or those of this machine)
    `gpu`   plan for another machine, with this kind of GPU: "h100", "a100 80gb"

    Raises BadInput for a manifest with mistakes or an unknown GPU, and EnvironmentCannot without `gpu` on a
    machine that is none to measure.

    >>> planned = bench.plan("manifests/hour.json", gpu="h100")
    >>> planned.plan.target.name, planned.plan.target.gpus
    ('NVIDIA H100 80GB HBM3', 1)
    >>> print(f"pythia-160m takes about {planned.likely['pythia-160m'].days:.0f} days")
    pythia-160m takes about 8 days
    """
    loaded, where = manifest_of(manifest)
    rehearsal = rehearse(loaded.models, where)
    target = _target(loaded.gpus if gpus is None else gpus, gpu)
    made = make_plan(loaded, target, rehearsal.counted)
    return PlannedRun(
        plan=made,
        remarks=(*loaded.remarks, *rehearsal.remarks, *never_counted(made), *remarks_about_data(loaded)),
        likely=_predictions(loaded, made, rehearsal.counted),
        without_kernels=tuple(kernel_costs(loaded, target, _missing_kernels(target), rehearsal.counted)),
    )


def _missing_kernels(target: Target) -> list[str]:
    """Return the compiled kernels that the target lacks; all, if those of another machine are unknown."""
    if target.elsewhere:
        return [*MODULES]
    return [wheel for wheel, modules in MODULES.items() if not all(map(target.has, modules))]


def _predictions(
    manifest: Manifest, made: Plan, counted: Mapping[str, Counted]
) -> Mapping[str, Predicted | Unpredicted]:
    """Return by model the prediction for the planned machine; empty if `bench predict` does not know it."""
    gpu = gpu_named(made.target.name)
    if gpu is None or not gpu.runs_bench:
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


def _cell_json(cell: SettingPlan) -> object:
    return {
        "model": cell.model.name,
        "setting": list(cell.setting),
        "label": cell.label,
        "trials": [
            {"id": t.id, "micro_batch": t.micro_batch, "accumulation": t.accumulation} for t in cell.trials
        ],
        "predicted_bytes": cell.predicted_bytes,
        "least_bytes": cell.least_bytes,
        "host_bytes": cell.host_bytes,
        "floor_days": cell.floor_days,
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
