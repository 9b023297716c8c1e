"""Hand-written kernels in place of plain modules: fused attention, fused selective scan.

The kernel depends on the family, which therefore builds it (`Family.build`).
"""

from __future__ import annotations

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of


def _refuse(model: Model, target: Target) -> str | None:
    return family_of(model).missing_kernels(target.device, target.has)


METHODS = (
    Method(
        name="kernels",
        summary="hand-written kernels where the family has them",
        free_lunch=True,
        refuse=_refuse,
    ),
)
