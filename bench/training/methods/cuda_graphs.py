"""A pass recorded once and replayed from then on: the host launches one graph instead of each kernel.

A model of many short kernels waits for the host between them. bench/runner/trial/recorded_pass.py records.
"""

from __future__ import annotations

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of
from bench.training.setting import Setting
from bench.training.vendor import transformers_source

RECORDED = "cuda-graphs"
UNRECORDABLE = "this pass cannot be recorded as a CUDA graph"  # the search looks for it in a failure's reason
ALONE = "cuda-graphs on several GPUs needs half-weights: DDP exchanges gradients within a pass"


def _refuse(model: Model, target: Target) -> str | None:
    if model.recipe.aim.compares_samples and target.gpus > 1:
        return "a pass waits for the samples of other GPUs, which cannot be recorded"
    if target.device == "cpu":
        return "it records what an NVIDIA GPU computes"
    if model.recipe.half != "bf16" and transformers_source.has_experts(model.family):
        precision = model.recipe.precision
        return f"the experts of {model.family} wait for the device at every product in {precision}"
    return transformers_source.why_not_recorded(model.family, family_of(model).complete(model))


def why_not_recorded(setting: Setting, gpus: int) -> str | None:
    """Return why passes of this setting cannot be recorded on `gpus` GPUs; None if they can."""
    return ALONE if RECORDED in setting and gpus > 1 and "half-weights" not in setting else None


METHODS = (
    Method(
        name=RECORDED,
        summary="a pass recorded once as a CUDA graph and replayed: no kernel waits for the host",
        not_exported_to={
            "standalone": (
                "cuda-graphs is code of bench: without it short kernels wait for the host, and a step "
                "takes longer than measured"
            ),
        },
        only_faster=True,
        free_lunch=True,
        requires={"compile-blocks": "cuda-graphs records compiled code: add compile-blocks"},
        excludes={
            "checkpointing": "checkpointing reads the state of random numbers in each pass: choose one",
            "sharding": "{other} waits for other GPUs within a pass, which cannot be recorded: choose one",
        },
        least_time_with=0.3,  # roberta-large at micro-batch 16: 44 ms a pass in place of 138
        chooses_kernels=False,
        changes_activations=False,
        refuse=_refuse,
    ),
)
