"""Hand-written kernels in place of plain modules: fused attention, fused selective scan.

Which kernel that is depends on the family, which therefore builds it (`Family.build`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model
from bench.training.models.own_models import family_of


@dataclass(frozen=True, slots=True)
class Kernels(Method):
    name: str = "kernels"
    summary: str = "hand-written kernels where the family has them"
    free_lunch: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        family = family_of(model)
        if family.kernels is None:
            return f"no kernels exist for {family.name}"
        return family.missing_kernels(target.device, target.has)


METHODS = (Kernels(),)
