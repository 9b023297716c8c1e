"""Whether a setting computes the gradients of the unmodified model. Pure, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.base.frozen import dataclass
from bench.records.estimate import Estimate
from bench.training.setting import NAIVE, Setting, in_group

# Both limits are wide on purpose. Products in half precision round each number by up to 0.4%, those in fp8 by
# up to 6%, and such errors add up over dozens of layers: two right settings differ by a few percent, in a
# single parameter by more, and rounding sends a few tokens of a mixture to other experts. Gradients that are
# wrong are far beyond: a factor that is forgotten is at least 100%, and garbage of a compiler was
# 20,000,000%.
MOST_OF_WHOLE = 0.2
MOST_OF_A_PARAMETER = 0.5

# A parameter is compared with at least this share of an average gradient. Some parameters, such as the bias
# of keys, have a true gradient of zero: what is computed for them is the noise of rounding.
LEAST_SHARE = 0.03

# Settings whose gradients may be the reference: the first that fits into memory.
REFERENCES: tuple[Setting, ...] = (NAIVE, ("checkpointing",), ("kernels", "checkpointing"))

# A setting may differ from the reference by this multiple of the effect of changing weights by a millionth.
# Kernels round every number of a pass differently; such a change only rounds some weights differently.
MOST_OF_ROUNDING = 4.0

MOST_WRONG = 3  # settings of a model that are found wrong; after these, no more are checked
SLACK = 1.001  # factor for rounding: sums of the same numbers in another order differ in their last digits


@dataclass(frozen=True, slots=True)
class ParameterNorms:
    """Euclidean norms of a parameter's gradient by the reference, and of the setting's difference from it."""

    name: str
    elements: int
    reference: float
    difference: float


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The distance of a setting's gradients from those of the unmodified model, on the same samples.

    Differences are shares of the reference: 0.5 is 50%. None: a gradient is infinite or not a number.
    """

    reference: Setting  # how the unmodified model was computed: one of REFERENCES
    parameters: int  # tensors that were compared
    whole_difference: float | None  # of all gradients together
    worst: str  # the name of the parameter that differs most
    worst_difference: float | None

    @property
    def agrees(self) -> bool:
        """Whether all gradients together, and the worst parameter's, differ by less than the limits."""
        whole, worst = self.whole_difference, self.worst_difference
        if whole is None or worst is None:
            return False
        return whole <= MOST_OF_WHOLE and worst <= MOST_OF_A_PARAMETER


CheckOrReason = GradientCheck | str  # a check, or why there is none


def compare(reference: Setting, norms: Sequence[ParameterNorms]) -> GradientCheck:
    """Compare gradients by their norms. ValueError if those of the reference are zero or not finite."""
    whole = math.hypot(*(each.reference for each in norms))
    if not 0 < whole < math.inf:
        raise ValueError(f"the gradients of the unmodified model have the norm {whole}")
    elements = sum(each.elements for each in norms)

    def share(each: ParameterNorms) -> float:
        least = LEAST_SHARE * whole * math.sqrt(each.elements / elements)
        ratio = each.difference / max(each.reference, least) if each.elements else 0.0
        return math.inf if math.isnan(ratio) else ratio

    worst = max(norms, key=share)
    whole_difference = math.hypot(*(each.difference for each in norms)) / whole
    return GradientCheck(reference, len(norms), _finite(whole_difference), worst.name, _finite(share(worst)))


def undecided(check: GradientCheck, nudged: GradientCheck) -> str | None:
    """Return why the setting is not to blame for a check that disagrees; None if the setting is wrong.

    `nudged` compares the unmodified model's gradients with its own after a change of its weights that is
    smaller than rounding. If that changes them as much, then right settings differ as much.
    """
    whole, worst = check.whole_difference, check.worst_difference
    if nudged.agrees or whole is None or worst is None:
        return None
    rounded = nudged.whole_difference or math.inf
    if whole > MOST_OF_ROUNDING * rounded or worst > MOST_OF_ROUNDING * (nudged.worst_difference or math.inf):
        return None
    change = f"by {rounded:.0%}" if math.isfinite(rounded) else "without limit"
    return f"rounding decides them: the unmodified model's change {change} if its weights do by a millionth"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def why_not_checked(setting: Setting) -> str | None:
    """Return why gradients of a setting cannot be compared on one device; None if they can."""
    if sharding := in_group(setting, "sharding"):
        return f"gradients are compared on one device, and {sharding} divides them"
    return None


def why_no_check(check: GradientCheck, setting: Setting, estimate: Estimate | None) -> str | None:
    """Return why a trial cannot have this gradient check; None if it can. The runner and the verifier ask."""
    if estimate is None:
        return "it has a gradient check, but no figure"
    if why := why_not_checked(setting):
        return f"it has a gradient check, but {why}"
    if check.reference not in REFERENCES or check.parameters < 1:
        return "its gradients were compared with nothing"
    whole, worst = check.whole_difference, check.worst_difference
    if not all(math.isfinite(number) and number >= 0 for number in (whole, worst) if number is not None):
        return "its gradients have a difference that no gradients have"
    # The whole is a mean of the parameters, so that it cannot differ more than the worst of them.
    if worst is not None and (whole is None or whole > SLACK * worst):
        return "its gradients differ by more than the worst of them"
    return None
