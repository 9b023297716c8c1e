"""Count the bytes that autograd keeps, on the CPU as on CUDA, and those that bench predicts for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.runner.trial.training_loop import WithLoss, lowered
from bench.training.models import Counted, Family, Model
from bench.training.models.counted_memory import counted_memory
from bench.training.models.counted_operations import counted_work
from bench.training.models.cuda_autocast import as_on_cuda, half_of
from bench.training.models.generic import TransformersFamily
from bench.training.setting import Setting, halves_weights, in_group


def loss_of(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = WithLoss(module)(batch)
    return loss


def made_up_batch(model: Model, samples: int) -> dict[str, Tensor]:
    recipe, architecture = model.recipe, model.architecture
    if recipe.image_size:
        return {
            "pixel_values": torch.rand(samples, 3, recipe.image_size, recipe.image_size),
            "labels": torch.randint(architecture["num_labels"], (samples,)),
        }
    ids = torch.randint(2, architecture["vocab_size"], (samples, recipe.units_per_sample))
    return {"input_ids": ids, "labels": ids.roll(-1, 1)}


def checkpointed(blocks: list[nn.Module]) -> None:
    for block in blocks:

        def recomputed(*args: Any, plain: Callable[..., Any] = block.forward, **kwargs: Any) -> Any:
            return checkpoint(plain, *args, use_reentrant=False, **kwargs)

        block.forward = recomputed


def halved(module: nn.Module, model: Model) -> nn.Module:
    """Give the weights the recipe's half precision, as half-weights does; buffers stay as they are."""
    for weight in module.parameters():
        weight.data = weight.data.to(half_of(model.recipe.precision))
    return module


def kept_bytes(family: Family, module: nn.Module, model: Model, samples: int) -> int:
    """Sum the storages that the graph of one loss keeps, without parameters.

    A model whose weights have half precision computes without autocast, unless it has adapters.
    """
    known = {p.untyped_storage()._cdata for p in [*module.parameters(), *module.buffers()]}
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            storages[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    batch: Mapping[str, Tensor] = made_up_batch(model, samples)
    half, weights = half_of(model.recipe.precision), next(module.parameters()).dtype
    autocast = half is not None and (weights != half or model.recipe.lora is not None)
    if weights == half and not autocast:
        batch = lowered(batch, model.recipe)
    with ExitStack() as stack:
        if autocast:
            stack.enter_context(torch.autocast("cpu", dtype=half))
        stack.enter_context(as_on_cuda(autocast=autocast))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
        loss_of(module, batch)
    return sum(storages.values())


def kept_bytes_a_sample(family: Family, module: nn.Module, model: Model) -> float:
    """Compute the bytes per sample from two batch sizes; constant bytes (copies of weights) cancel."""
    few, many = (kept_bytes(family, module, model, samples) for samples in (2, 4))
    return (many - few) / 2


def counted_for(model: Model, *settings: Setting, family: TransformersFamily | None = None) -> Counted:
    """Count a model as `counted` does, with the bytes that it keeps in these settings only.

    Every further way of computing takes as long again, and compiled blocks take most of the time.
    """
    family = family or TransformersFamily(model.family)
    compiled: dict[bool, set[bool]] = {}
    for setting in settings:
        compiled.setdefault("kernels" in setting, set()).add(in_group(setting, "compilation") is not None)
    memory = counted_memory(
        model,
        partial(family.build_for_memory, model),
        family.blocks,
        [(kernels, sorted(compiled[kernels])) for kernels in sorted(compiled)],
        sorted({halves_weights(setting) for setting in settings}),
        kernels_of_attention=family.kernels_of_attention,
    )
    return replace(counted_work(model, family), footprints=memory.footprints, failing=memory.failing)
