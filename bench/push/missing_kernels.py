"""The compiled kernels that a run on a node will lack, and the losses of its models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import gpu_named
from bench.base.kernel_list import code_runs_on
from bench.base.sizes import size_text
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.images.kernel_layer import LABEL, WITHOUT
from bench.planning.kernel_costs import KernelCost, kernel_costs
from bench.planning.manifest import Manifest
from bench.push.node_findings import PreflightFinding
from bench.push.node_survey import Survey
from bench.records.text import seconds_text
from bench.training.methods import Target


def code_of_kernels(labels: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return for which GPUs the kernels of an image's kernel layer have code; empty without a layer."""
    with suppress(DecodeError):
        return from_json(dict[str, tuple[str, ...]], strict_loads(labels.get(LABEL, "").encode()))
    return {}


def missing_in_image(labels: Mapping[str, str], capabilities: Sequence[str]) -> list[str]:
    """Return the kernels that an image lacks by its labels, and those without code for one of the GPUs."""
    code = code_of_kernels(labels)
    unusable = (
        name
        for name, codes in code.items()
        if codes and not all(any(code_runs_on(one, each) for one in codes) for each in capabilities)
    )
    return [*labels.get(WITHOUT, "").split(), *unusable]


def capabilities_of(survey: Survey) -> list[str]:
    """Return the compute capabilities of those GPUs of a node that bench knows."""
    known = (gpu_named(name) for name in dict.fromkeys(gpu.name for gpu in survey.gpus))
    return [gpu.compute_capability for gpu in known if gpu is not None and gpu.compute_capability]


def cost_findings(
    manifest: object, survey: Survey, missing: Sequence[str], advice: str
) -> list[PreflightFinding]:
    """Return a warning for each loss of a manifest's models on the node's GPUs; none for a node check."""
    return [PreflightFinding("warn", cost.text, advice) for cost in _costs(manifest, survey, missing)]


def who_waits(
    manifest: object, survey: Survey, kernels: Sequence[str], layer_bytes: int, rate: float | None
) -> str | None:
    """Say which models a kernel layer is sent for, if others of the manifest could be measured without it.

    `rate` is that of the line to the node, in bytes per second; None if it is unknown.
    """
    if not isinstance(manifest, Manifest) or not layer_bytes:
        return None
    costs = _costs(manifest, survey, kernels)
    waiting = list(dict.fromkeys(each.model for cost in costs for each in cost.models))
    if len(waiting) == len({request.model.name for request in manifest.requests}):
        return None
    duration = f", {seconds_text(layer_bytes / rate)}," if rate else ""
    what = f"{size_text(layer_bytes)} of it{duration} are the kernel layer"
    if not waiting:
        return f"{what}, which no model here needs: the image without it is enough"
    return f"{what}, for {', '.join(waiting)} alone: the image without it is enough for the others"


def _costs(manifest: object, survey: Survey, kernels: Sequence[str]) -> list[KernelCost]:
    """Return the losses of a manifest's models on the node's GPUs without these kernels."""
    if not isinstance(manifest, Manifest) or not kernels or not survey.gpus:
        return []
    target = Target(
        "cuda",
        manifest.gpus or len(survey.gpus),
        min(each.memory_mib for each in survey.gpus) << 20,
        survey.gpus[0].name,
        min(capabilities_of(survey), key=float, default=None),
        survey.memory_bytes,
        elsewhere=True,
    )
    with suppress(BadInput):  # a batch that cannot be divided among these GPUs: the run itself says so
        return kernel_costs(manifest, target, kernels)
    return []
