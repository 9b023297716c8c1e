"""`bench plan`: what `bench run` would measure, what it would skip and why, as a table or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.terminal import print_json
from bench.cli.model_list import print_models
from bench.cli.stdio import show
from bench.library.plan import plan as plan_run
from bench.report.text.plan_text import plan_text


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """The options of `bench plan`; `gpu` None: plan for this machine."""

    manifest: Path | None
    gpus: int | None
    gpu: str | None
    list_models: list[str] | None  # words; None: list no models
    every: bool
    as_json: bool


def plan(request: PlanArguments) -> int:
    """Print the plan, or the list of models; BadInput for options that one of them would ignore."""
    if request.list_models is not None:
        if request.every or any(g is not None for g in (request.manifest, request.gpu, request.gpus)):
            raise BadInput("--list-models lists all models", advice="leave out everything but --json")
        print_models(request.list_models, as_json=request.as_json)
        return 0
    if request.manifest is None:
        raise BadInput("plan needs a manifest", advice="bench plan MANIFEST, or bench plan --list-models")
    planned = plan_run(request.manifest, gpus=request.gpus, gpu=request.gpu)
    if request.as_json:
        print_json(planned.to_json())
    else:
        costs = planned.without_kernels
        show(plan_text(planned.plan, planned.remarks, planned.likely, costs, every=request.every))
    return 0
