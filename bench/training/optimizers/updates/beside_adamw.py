"""The base of optimizers with an update of their own for some weights, and AdamW for the rest.

Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

OWN = "own_update"  # entry of a parameter group: whether its weights have the update of the subclass


class BesideAdamW(torch.optim.Optimizer):
    """An optimizer with an own update for some weights and AdamW for the rest.

    Schedulers, scalers and checkpoints see it as one optimizer, whose weights are in one or two groups.
    """

    def __init__(
        self,
        own: Sequence[nn.Parameter],
        own_options: Mapping[str, Any],
        rest: Sequence[nn.Parameter],
        adamw_options: Mapping[str, Any],
        fused: bool,
    ) -> None:
        self.adamw = torch.optim.AdamW([{"params": list(rest)}], **adamw_options, fused=fused or None)
        groups: list[dict[str, Any]] = []
        if own:
            groups.append({"params": list(own), **own_options, OWN: True})
        if rest:
            groups += [{**group, OWN: False} for group in self.adamw.param_groups]
        super().__init__(groups, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the own weights, then the others by AdamW; takes no closure."""
        assert closure is None
        with torch.no_grad():
            for group in self.param_groups:
                if group[OWN]:
                    self.update_own(group)
        # Loading a checkpoint replaces groups and moments, so AdamW is given the present ones.
        self.adamw.param_groups = [group for group in self.param_groups if not group[OWN]]
        self.adamw.state = self.state
        self.adamw.step()

    def update_own(self, group: Mapping[str, Any]) -> None:
        """Update the weights of a group that have a gradient."""
        raise NotImplementedError
