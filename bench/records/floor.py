"""The floor of a model: the time of what a pass must at least compute, measured alone. Pure, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.base.frozen import dataclass
from bench.records.estimate import Estimate

# Largest floor, as a multiple of the step that it belongs to. Floor and step are measured by two processes:
# a card's clock falls by up to a third when it gets hot, and a setting may have faster kernels than torch.
MAX_SHARE_OF_STEP = 1.5


@dataclass(frozen=True, slots=True)
class Floor:
    """The seconds that one pass of a trial's micro-batch takes on one device if nothing else is computed.

    Each figure is the mean over `passes`: products, convolutions, attention and scans, forward and backward.
    """

    passes: int
    products_seconds: float
    convolutions_seconds: float
    attention_seconds: float
    scans_seconds: float

    @property
    def parts(self) -> Mapping[str, float]:
        """The seconds of each kind of computation that the model has."""
        every = {
            "products": self.products_seconds,
            "convolutions": self.convolutions_seconds,
            "attention": self.attention_seconds,
            "scans": self.scans_seconds,
        }
        return {kind: seconds for kind, seconds in every.items() if seconds}

    @property
    def pass_seconds(self) -> float:
        """The seconds of one pass: all kinds of computation together."""
        return math.fsum(self.parts.values())

    @property
    def measured_seconds(self) -> float:
        """The seconds of all passes that the floor is the mean of."""
        return self.passes * self.pass_seconds


FloorOrReason = Floor | str  # a floor, or why it was not measured


def share_of_floor(floor: Floor, accumulation: int, estimate: Estimate) -> float:
    """Return the floor of all passes of a step as a share of the step: 1 if there is nothing left to win.

    An update computes no products, so all of its time could be won.
    """
    return accumulation * floor.pass_seconds / estimate.step_seconds.value


def why_no_floor(floor: Floor, accumulation: int, estimate: Estimate | None) -> str | None:
    """Return why a trial cannot have this floor; None if it can. The runner and the verifier both ask."""
    every = (floor.products_seconds, floor.convolutions_seconds, floor.attention_seconds, floor.scans_seconds)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in every):
        return "its floor has a time that no computation takes"
    if floor.passes < 1 or floor.pass_seconds <= 0:
        return "its floor has no passes or no time"
    if estimate is None:
        return "it has a floor, but no figure to compare the floor with"
    share = share_of_floor(floor, accumulation, estimate)
    if not share <= MAX_SHARE_OF_STEP:
        return f"its floor takes {100 * share:,.0f}% of the time of its step"
    return None
