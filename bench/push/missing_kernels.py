"""Which compiled kernels a run on a node will lack, and what that costs its models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import gpu_named
from bench.base.kernel_list import code_runs_on
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.images.kernel_layer import LABEL, WITHOUT
from bench.planning.kernel_costs import kernel_costs
from bench.planning.manifest import Manifest
from bench.push.node_findings import PreflightFinding
from bench.push.node_survey import Survey
from bench.training.methods import Target


def missing_in_image(labels: Mapping[str, str], capabilities: Sequence[str]) -> list[str]:
    """Return the kernels that an image lacks by its labels, and those without code for one of the GPUs."""
    code: Mapping[str, tuple[str, ...]] = {}
    with suppress(DecodeError):  # no kernel layer
        code = from_json(dict[str, tuple[str, ...]], strict_loads(labels.get(LABEL, "").encode()))
    unusable = (
        name
        for name, codes in code.items()
        if codes and not all(any(code_runs_on(one, each) for one in codes) for each in capabilities)
    )
    return [*labels.get(WITHOUT, "").split(), *unusable]


def capabilities_of(survey: Survey) -> list[str]:
    """Return the compute capabilities of a node's GPUs, as far as bench knows the GPUs."""
    known = (gpu_named(name) for name in dict.fromkeys(gpu.name for gpu in survey.gpus))
    return [gpu.compute_capability for gpu in known if gpu is not None and gpu.compute_capability]


def cost_findings(
    manifest: object, survey: Survey, missing: Sequence[str], advice: str
) -> list[PreflightFinding]:
    """Return a warning for each loss of a manifest's models on the node's GPUs; none for a node check."""
    if not isinstance(manifest, Manifest) or not missing or not survey.gpus:
        return []
    gpu = survey.gpus[0]
    target = Target(
        "cuda",
        manifest.gpus or len(survey.gpus),
        min(each.memory_mib for each in survey.gpus) << 20,
        gpu.name,
        min(capabilities_of(survey), key=float, default=None),
        survey.memory_bytes,
        elsewhere=True,
    )
    with suppress(BadInput):  # a batch that cannot be divided among these GPUs: the run itself says so
        return [
            PreflightFinding("warn", cost.text, advice) for cost in kernel_costs(manifest, target, missing)
        ]
    return []
