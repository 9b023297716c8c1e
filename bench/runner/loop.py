"""The training loop: what a recipe does in one step, and nothing else.

`bench export` will write this same loop down, so what was measured can be run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from bench.models import Family, Recipe, Schedule

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Strategy(Protocol):
    """How one model trains on the devices at hand."""

    def forward_backward(self, batch: Mapping[str, Tensor], passes: int, sync: bool) -> Tensor:
        """One pass of `passes`; `sync` on the last: gradients are exchanged then, and only then."""
        ...

    def update(self) -> Tensor:
        """Clip, step, schedule, zero. Returns the norm of the gradients before clipping."""
        ...


class SingleDevice:
    """One device, fp32 weights, autocast where the recipe trains in half precision."""

    def __init__(self, family: Family, module: nn.Module, recipe: Recipe, device: torch.device) -> None:
        self.family = family
        self.module = module
        self.recipe = recipe
        self.device = device
        self.optimizer = make_optimizer(module, recipe)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate_factor(recipe.schedule, step, recipe.steps)
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        half = _HALF.get(self.recipe.precision)
        return torch.autocast(self.device.type, dtype=half) if half else nullcontext()

    def forward_backward(self, batch: Mapping[str, Tensor], passes: int, sync: bool) -> Tensor:
        with self.autocast():
            loss = self.family.loss(self.module, batch) / passes
        self.scaler.scale(loss).backward()
        return loss.detach()

    def update(self) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        # Without clipping the norm is still taken where it is asked for: see `gradient_norm`.
        norm = torch.zeros((), device=self.device)
        if self.recipe.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def gradient_norm(module: nn.Module) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])


def make_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    o = recipe.optimizer
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.name]
    return kind(
        module.parameters(),
        lr=o.learning_rate,
        betas=(o.beta1, o.beta2),
        eps=o.epsilon,
        weight_decay=o.weight_decay,
    )


def learning_rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Of the peak learning rate, for the step that follows `step` updates."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    progress = min(1.0, (step - schedule.warmup_steps) / max(1, steps - schedule.warmup_steps))
    match schedule.name:
        case "constant":
            return 1.0
        case "linear":
            decay = 1.0 - progress
        case "cosine":
            decay = 0.5 * (1.0 + math.cos(math.pi * progress))
    return schedule.final_ratio + (1.0 - schedule.final_ratio) * decay
