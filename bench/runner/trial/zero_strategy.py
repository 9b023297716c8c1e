"""ZeRO (DeepSpeed): weights in the recipe's precision, and an fp32 copy that is divided among devices.

Stage 1 exchanges gradients once a step. From stage 2 on gradients are divided, so each pass sends them.
Imports torch at module level, and deepspeed when a strategy is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from bench.base.linux_processes import any_works_in
from bench.runner.trial.training_loop import (
    Batch,
    WithLoss,
    lengthen_scalars,
    lowered,
    make_optimizer,
    make_scheduler,
    trained,
)
from bench.training.models import Recipe
from bench.training.optimizers import Adam
from bench.training.vendor import deepspeed_inside, torch_inside

ALIGNED = 8  # half-precision weights, 16 bytes: as much as a GPU loads at once
STALE_SECONDS = 240.0  # twice the slowest operator's compilation on an idle machine


class ZeroStrategy:
    """DeepSpeed's engine as a `Strategy`."""

    def __init__(
        self,
        whole: WithLoss,
        recipe: Recipe,
        device: torch.device,
        micro_batch: int,
        *,
        stage: int,
        offload: bool,
        fused: bool,
    ) -> None:
        deepspeed_inside.choose_accelerator(device.type)
        drop_stale_locks()
        import deepspeed

        lengthen_scalars(whole)
        optimizer = optimizer_of(whole, recipe, offload=offload, fused=fused)
        # A step of one pass adds nothing up on the host (stage_1_and_2.py, copy_grads_in_partition).
        self.even_from = 2 if offload else 1
        self.whole = whole
        self.recipe = recipe
        self.device = device
        self.engine, *_ = deepspeed.initialize(
            model=whole,
            optimizer=optimizer,
            config=configuration(recipe, micro_batch, stage, offload=offload),
        )
        self.optimizer = optimizer
        self.scheduler = make_scheduler(optimizer, recipe)

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run a pass by DeepSpeed's engine; `sync` tells it that the pass is the last of its step."""
        deepspeed_inside.begin_pass(self.engine, last=sync)
        loss: Tensor = self.engine(lowered(batch, self.recipe)) / passes
        deepspeed_inside.backward(self.engine, loss)
        return loss.detach()

    def update(self, norm_wanted: bool = False) -> float | None:
        """Let DeepSpeed clip and update; returns its norm of the gradients if wanted."""
        self.engine.step()
        self.scheduler.step()
        return deepspeed_inside.gradient_norm(self.engine) if norm_wanted else None

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of a batch without gradients, in half precision without autocast."""
        with torch.no_grad():
            loss: Tensor = self.engine(lowered(batch, self.recipe))
            return loss

    def answers(self, batch: Batch) -> Tensor:
        """Return the model's answer instead of its loss, without gradients."""
        with self.whole.answering():
            return self.evaluate(batch)


def even_first(weights: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Sort the weights so that those of odd size come last.

    An odd-sized parameter misaligns all that follow it in DeepSpeed's flat buffer, RoBERTa's head with 50,265
    biases for instance; kernels read misaligned weights slowly, or fail.
    https://github.com/deepspeedai/DeepSpeed/issues/2700
    """
    return sorted(weights, key=lambda weight: weight.numel() % ALIGNED != 0)


def drop_stale_locks() -> None:
    """Delete locks of processes that were killed while compiling a DeepSpeed operator.

    A process that needs the operator would wait for such a lock forever. A compilation that takes long, on a
    busy machine, has a compiler that works in the lock's folder.
    """
    for lock in torch_inside.extension_locks():
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > STALE_SECONDS and not any_works_in(lock.parent):
                lock.unlink()


def configuration(recipe: Recipe, micro_batch: int, stage: int, *, offload: bool) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize`: deepspeed.ai, "DeepSpeed Configuration JSON"."""
    on_host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True}
    if offload:
        zero["offload_optimizer"] = on_host
        if stage == 3:
            zero["offload_param"] = on_host
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,  # the training loop decides which pass is the last
        "gradient_clipping": recipe.clip_norm or 0.0,
        "zero_optimization": zero,
        "bf16": {"enabled": recipe.half == "bf16"},
        "fp16": {"enabled": recipe.half == "fp16"},
        # Sums of hundreds of passes would lose digits in half precision.
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": 1 << 40,
    }


def optimizer_of(whole: nn.Module, recipe: Recipe, *, offload: bool, fused: bool) -> torch.optim.Optimizer:
    """Return the optimizer that DeepSpeed shards; with `offload` it is DeepSpeed's Adam on the CPU."""
    weights = even_first(trained(whole))
    if not offload:
        return make_optimizer(weights, recipe, fused)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    assert isinstance(recipe.optimizer, Adam)  # planning refuses ZeRO for others
    return DeepSpeedCPUAdam(weights, **recipe.optimizer.options, adamw_mode=True)
