"""How much longer a run takes whose machine fails or is taken away now and then. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.base.gpu_catalogue import GPUS_A_NODE
from bench.planning.prediction.predicted_machines import Predicted


@dataclass(frozen=True, slots=True)
class Interruptions:
    """The rate at which one machine of up to eight GPUs is interrupted, and the cost of an interruption."""

    every_seconds: float  # the mean time between them
    restart_seconds: float  # until training goes on
    save_seconds: float  # between checkpoints; what was trained since the last one is lost

    def factor(self, machines: int) -> float:
        """Return the factor by which a run takes longer if each of `machines` machines can stop it.

        Interruptions come independently of each other (J. T. Daly, "A higher order estimate of the optimum
        checkpoint interval for restart dumps", 2006), and writing a checkpoint takes no time.
        """
        mean = self.every_seconds / machines
        try:
            return (
                mean
                / self.save_seconds
                * math.exp(self.restart_seconds / mean)
                * math.expm1(self.save_seconds / mean)
            )
        except OverflowError:
            return math.inf


def interrupted(found: Predicted, by: Interruptions) -> Predicted:
    """Return the prediction with the days and the energy that interruptions add."""
    longer = by.factor(math.ceil(found.gpus / GPUS_A_NODE))
    return replace(
        found,
        days=found.days * longer,
        least_days=found.least_days * longer,
        most_days=found.most_days * longer,
        kwh=None if found.kwh is None else found.kwh * longer,
    )
