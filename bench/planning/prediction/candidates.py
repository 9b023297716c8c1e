"""The settings that may be a model's fastest on machines of a kind, with their work and memory. Pure.

They depend on the number of GPUs and on their compute capability, but not on rates and memory, so machines
that are alike in this share them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.base.sizes import bytes_text
from bench.planning.memory_prediction import predict_bytes
from bench.planning.plan import USABLE, divisors, guided_settings, thinned
from bench.planning.prediction.step_time import OFFLOADING, StepPart, Work, why_unpredicted, work_of
from bench.training.methods import Target, refusal
from bench.training.models import Counted, Model
from bench.training.setting import Setting

NOT_COUNTED = "the memory that its blocks read and write is not counted"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting of a model, its work, and the memory that one device needs by micro-batch."""

    setting: Setting
    work: Work
    needs: Mapping[int, int]  # bytes, the largest micro-batch first

    def batches_in(self, memory_bytes: int, samples: int) -> list[StepPart]:
        """Return the micro-batches that fit into a device's memory, for its `samples` of a step."""
        fitting = [size for size, need in self.needs.items() if need <= USABLE * memory_bytes]
        return [StepPart(size, samples // size) for size in thinned(fitting)]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every candidate of a model, and why other settings are not candidates."""

    settings: tuple[Candidate, ...]
    reasons: tuple[str, ...]

    def why_none(self) -> str:
        """Return why none of the settings is predicted on a device into which none fits."""
        if not self.settings:
            return "; ".join(self.reasons)
        least = min(need for candidate in self.settings for need in candidate.needs.values())
        return f"needs {bytes_text(math.ceil(least / USABLE))} or more; {OFFLOADING}"


def candidates_of(model: Model, counts: Counted, target: Target) -> Candidates:
    """Return the settings of the guided search that can be predicted; the target's memory does not matter."""
    found, reasons = [], []
    sizes = divisors(model.recipe.batch_size // target.gpus)
    for setting in guided_settings(model, target):
        if reason := why_unpredicted(model, setting) or refusal(setting, model, target, counts):
            reasons.append(reason)
            continue
        needs = {size: predict_bytes(model, setting, size, target.gpus, counts) for size in sizes}
        known = {size: need for size, need in needs.items() if need is not None}
        work = work_of(model, setting, target.gpus, counts)
        if work is None or not known:
            reasons.append(NOT_COUNTED)
            continue
        found.append(Candidate(setting, work, known))
    return Candidates(tuple(found), tuple(dict.fromkeys(reasons)))
