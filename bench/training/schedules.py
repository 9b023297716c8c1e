"""Schedules of recipes: the factor on the peak learning rate at each step. Pure."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_type_hints

from bench.base.frozen import dataclass

DECAY_SHARE = 0.2  # of the steps; more gains little: Hägele et al. (arxiv.org/abs/2405.18392)


@dataclass(frozen=True, slots=True)
class DecaySchedule:
    """Linear warm-up, then the named decay over all other steps down to `final_ratio` of the peak."""

    name: Literal["cosine", "linear", "constant"]
    warmup_steps: int
    final_ratio: float = 0.0

    def factor(self, step: int, steps: int) -> float:
        """Return the factor for the step that follows `step` updates."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        match self.name:
            case "constant":
                return 1.0
            case "linear":
                left = 1.0 - progress
            case "cosine":
                left = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.final_ratio + (1.0 - self.final_ratio) * left


@dataclass(frozen=True, slots=True)
class WarmupStableDecay:
    """Linear warm-up, the peak for most of the training, then the named decay in the last steps.

    Hu et al., MiniCPM (arxiv.org/abs/2404.06395), named it; the decays are those of Hägele et al.
    """

    name: Literal["wsd"]
    warmup_steps: int
    final_ratio: float = 0.0
    decay: Literal["1-sqrt", "linear"] = "1-sqrt"
    decay_share: float | None = None  # of all steps; None, with `decay_steps` None as well: DECAY_SHARE
    decay_steps: int | None = None

    def decaying_steps(self, steps: int) -> int:
        """Return the number of last steps that decay."""
        if self.decay_steps is not None:
            return self.decay_steps
        return round(steps * (DECAY_SHARE if self.decay_share is None else self.decay_share))

    def factor(self, step: int, steps: int) -> float:
        """Return the factor for the step that follows `step` updates."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        decaying = self.decaying_steps(steps)
        progress = min(1.0, max(0.0, (step - (steps - decaying)) / max(1, decaying)))
        left = 1.0 - (math.sqrt(progress) if self.decay == "1-sqrt" else progress)
        return self.final_ratio + (1.0 - self.final_ratio) * left


# The schedule of a recipe. Its field "name" tells which one a JSON object is.
Schedule = DecaySchedule | WarmupStableDecay
SCHEDULES: dict[str, type[Any]] = {
    name: kind for kind in get_args(Schedule) for name in get_args(get_type_hints(kind)["name"])
}
