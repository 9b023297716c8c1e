"""The training loop: what a recipe does in one step, and nothing else.

`bench export` writes scripts that use this same loop, so what was measured can be run. Imports torch at
module level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bench.training.models import Recipe
from bench.training.models.biased_gelu import GeluLayers
from bench.training.models.packed_rotary import PackedRotary
from bench.training.models.paired_norms import PairedNorms
from bench.training.objectives import Objective
from bench.training.objectives.objective import Gather, of_one_device
from bench.training.optimizers.updates.block_matrices import block_matrices
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}  # fp8: beside its products
Batch = Mapping[str, Tensor]


class Criterion(nn.Module):
    """The loss as a module, so that it can be compiled on its own."""

    def __init__(self, aim: Objective) -> None:
        super().__init__()
        self.aim = aim

    def forward(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the loss by the objective."""
        return self.aim.loss(answer, labels)


class WithLoss(nn.Module):
    """A model and its loss as one module, which is compiled, replicated or sharded as a whole."""

    # Features to logits, and inputs to features, once a method calls the head apart from the body.
    head: Callable[[Tensor], Tensor] | None = None
    body: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    siblings: Sequence[tuple[nn.Linear, ...]] = ()  # layers that a method joins to one product
    gelu_layers: GeluLayers | None = None  # layers that compute GELU of their output, if a method asks for it
    paired_norms: Sequence[
        PairedNorms
    ] = ()  # blocks that compute both norms at once, if a method asks for it
    packed_rotary: Sequence[PackedRotary] = ()  # attention whose positions a method rotates
    loss_scale: Tensor | float = 1.0  # factor on the loss before its backward pass
    blocks: Sequence[nn.Module] = ()  # the model's repeated ones

    only_answers = False  # return the model's answer: see `answering`

    def __init__(
        self, model: nn.Module, aim: Objective | None = None, gather: Gather = of_one_device
    ) -> None:
        """`aim` is the model's objective; by default, its logits are compared with the batch's labels.

        `gather` returns the rows of all devices, for objectives that compare samples with each other.
        """
        super().__init__()
        self.model = model
        self.aim = aim or Objective()
        self.gather = gather
        self.criterion = Criterion(self.aim)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss, or the answer in `answering`; with a body apart, through the head in `tail`."""
        if self.body is not None:
            features = self.body(self.aim.given(self.model, batch))
            return self.tail(*self.select_positions(features, batch["labels"]))
        answer = self.aim.answer(self.model, batch)
        if self.only_answers:
            return answer
        loss: Tensor = self.criterion(answer, self.labels(batch, answer))
        return loss

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let `forward` return the model's answer, for losses that compare samples of several passes."""
        self.only_answers = True
        try:
            yield
        finally:
            self.only_answers = False

    def labels(self, batch: Batch, answer: Tensor) -> Tensor:
        """Return the labels with which the loss compares the answer."""
        if self.aim.compares_samples and "labels" not in batch:
            return self.targets(answer)
        return self.aim.labels(batch, answer, self.model)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def targets(self, answers: Tensor, passes: int = 1) -> Tensor:
        """Return the labels of a step's passes, from this device's answers of all of them.

        It is not compiled: compiled code would have to wait for the other devices in its middle.
        """
        return self.aim.targets(self.model, answers, self.gather, passes)

    def split_head(self, given: Mapping[str, Tensor]) -> None:
        """Let `forward` call the head apart from the body, if the head can run on its own.

        `given` are tiny inputs of the model.
        """
        from bench.training.models.head import body_and_head_of  # imports transformers

        with suppress(LookupError):
            self.body, self.head = body_and_head_of(self.model, given)

    def select_positions(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Select the positions whose loss counts. Default: all; the method masked-head replaces this."""
        return features, labels

    def tail(self, features: Tensor, labels: Tensor) -> Tensor:
        """Compute the logits of selected positions, and their loss."""
        assert self.head is not None
        loss: Tensor = self.criterion(self.head(features), labels)
        return loss


class Strategy(Protocol):
    """How one model trains on this member's device, together with the team."""

    whole: WithLoss
    optimizer: torch.optim.Optimizer
    even_from: int  # passes; beyond it, each further pass lengthens a step by exactly one pass time

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run one of a step's `passes`; `sync` is true on the last, when gradients must be exchanged.

        Returns this device's share of the step's mean loss, on the device.
        """
        ...

    def update(self, norm_wanted: bool = False) -> float | None:
        """Clip gradients, update weights and learning rate, clear gradients.

        Returns the gradients' norm before clipping if it is wanted, else None.
        """
        ...

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, without keeping activations."""
        ...

    def answers(self, batch: Batch) -> Tensor:
        """Return the model's answers, without keeping activations. The next call may overwrite them."""
        ...


class SingleDevice:
    """Training on a single device: fp32 weights, autocast if the recipe trains in half precision."""

    even_from: int = 1

    def __init__(self, whole: WithLoss, recipe: Recipe, device: torch.device, fused: bool) -> None:
        self.whole = whole
        self.recipe = recipe
        self.device = device
        self.share = torch.ones((), device=device)  # of one pass in a step's mean loss
        self.keeps_gradients = False  # whether gradients keep their memory between steps
        self.weights = self.updated_weights()
        self.optimizer = make_optimizer(self.weights, recipe, fused, whole)
        self.scheduler = make_scheduler(self.optimizer, recipe)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")

    def updated_weights(self) -> list[nn.Parameter]:
        """Return the fp32 weights that the optimizer updates."""
        return trained(self.whole)

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in the recipe's half precision; with fp32 do nothing."""
        half = HALF.get(self.recipe.precision)
        return torch.autocast(self.device.type, dtype=half) if half else nullcontext()

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, of the module that may be compiled."""
        loss: Tensor = self.whole(batch)
        return loss

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run a pass of `passes`; `sync` says that it is the last one, which does not matter here."""
        self.share.fill_(1 / passes)
        return self.run_pass(batch)

    def run_pass(self, batch: Batch) -> Tensor:
        """Compute the loss and its gradients. A method may replace this: it depends on tensors alone."""
        is_first = self.weights[0].grad is None
        with self.autocast():
            loss = self.forward(batch) * self.share
        self.scaler.scale(loss).backward()
        if is_first:
            torch_inside.separate_gradients(self.weights)
        return loss.detach()

    def update(self, norm_wanted: bool = False) -> float | None:
        """Unscale, clip and apply the gradients; returns their norm if it was computed."""
        self.scaler.unscale_(self.optimizer)
        norm = None
        if norm_wanted or self.recipe.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.weights, self.recipe.clip_norm or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.clear()
        return _number(norm) if norm_wanted else None

    def clear(self) -> None:
        """Drop the gradients, or write zeros into them if they have to stay in place."""
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of a batch without gradients."""
        with torch.no_grad(), self.autocast():
            return self.forward(batch)

    def answers(self, batch: Batch) -> Tensor:
        """Return the model's answer instead of its loss, without gradients."""
        with self.whole.answering():
            return self.evaluate(batch)

    def state(self) -> dict[str, Any]:
        """Return this member's part of weights and moments, by the weights' names, to save or load into."""
        from torch.distributed.checkpoint.state_dict import get_state_dict  # measuring does not need it

        make_moments(self.optimizer)
        model, optimizer = get_state_dict(self.whole, self.optimizer, options=self._of_checkpoints())
        return {"model": model, "optimizer": optimizer}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Load weights and optimizer state, in the form that all devices of a run share."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.whole,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=self._of_checkpoints(),
        )

    def _of_checkpoints(self) -> StateDictOptions:
        """Return the weights in checkpoints: all, but with adapters no frozen ones, which never change."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        adapters_only = self.recipe.lora is not None
        return StateDictOptions(ignore_frozen_params=adapters_only, strict=not adapters_only)


class DataParallel(SingleDevice):
    """DDP: every device holds the whole model, and gradients are exchanged once a step."""

    def __init__(
        self, whole: WithLoss, recipe: Recipe, device: torch.device, fused: bool, *, all_used: bool
    ) -> None:
        super().__init__(whole, recipe, device, fused)
        # Gradients as views of the buckets that are sent need no memory of their own.
        self.replica = DistributedDataParallel(
            whole, gradient_as_bucket_view=True, find_unused_parameters=not all_used
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of this device's batch."""
        loss: Tensor = self.replica(batch)
        return loss

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run a pass; gradients are exchanged in the last one only."""
        with nullcontext() if sync else self.replica.no_sync():
            return super().forward_backward(batch, passes, sync)


def lowered(batch: Batch, recipe: Recipe) -> Batch:
    """Return the batch with images in the recipe's precision, for models that compute without autocast.

    Labels stay as they are: the loss is computed in fp32.
    """
    dtype = HALF.get(recipe.precision, torch.float32)
    return {
        name: t.to(dtype) if t.is_floating_point() and name != "labels" else t for name, t in batch.items()
    }


def lengthen_scalars(module: nn.Module) -> None:
    """Turn each parameter that is a single number, such as CLIP's scale of logits, into a list of one number.

    FSDP2 and DeepSpeed take no parameters without a dimension.
    """
    for weight in module.parameters():
        if weight.dim() == 0:
            weight.data = weight.data.view(1)


def _number(norm: Tensor | None) -> float:
    """Return the norm as a number on the host; for a sharded model, the norm over all shards."""
    assert norm is not None
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights that training changes: all but frozen ones."""
    return [weight for weight in module.parameters() if weight.requires_grad]


def make_optimizer(
    weights: Iterable[nn.Parameter], recipe: Recipe, fused: bool, whole: nn.Module | None = None
) -> torch.optim.Optimizer:
    """Return the recipe's optimizer of these weights.

    `whole` is the `WithLoss` whose parameters the weights are, or copy, in the same order; without it, no
    weight counts as a matrix of the repeated blocks.
    """
    weights = list(weights)
    matrices = [0] * len(weights)
    if recipe.optimizer.updates_matrices and isinstance(whole, WithLoss):
        matrices = block_matrices(whole, whole.blocks)
    return recipe.optimizer.make(weights, matrices, fused=fused)


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Create zero moments, between steps, for weights that have had no update yet.

    Loading a checkpoint needs the moments of all weights, including those that no pass uses.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    bare = {weight for weight in weights if weight.requires_grad and weight not in optimizer.state}
    if not bare:
        return
    gradients = [weight.grad for weight in weights]  # no gradient, or zero
    for weight in weights:
        if weight not in bare:
            weight.grad = None  # keeps its moments unchanged
        elif weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # otherwise weights would decay
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    for weight in bare:
        torch_inside.forget_updates(optimizer, weight)


def make_scheduler(optimizer: torch.optim.Optimizer, recipe: Recipe) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the scheduler of the recipe's learning rates."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: recipe.schedule.factor(step, recipe.steps)
    )
