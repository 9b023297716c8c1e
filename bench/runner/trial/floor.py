"""Measure the floor of a trial: the time of its model's products, convolutions, attention and scans alone.

One pass of the trial's micro-batch is recorded (recorded_computations.py). Then the same computations run on
random numbers, forward and backward, one after the other with nothing between them, on a device that is warm.
Imports torch at module level.

What the floor is not:
- Attention is that of full-attention if the setting has it, and otherwise PyTorch's fused one, also if the
  setting has FlexAttention or none.
- Products with sizes that are no multiple of 8, such as a vocabulary of 65,537 words, are timed with the next
  multiple: settings pad them too, because kernels are several times slower on rows that are not aligned.
- Products in TF32 are timed with both factors in the order that tensor cores read, if the setting copies them
  to that order; the time of these copies is left out.
- Layers that read the same tensor are timed one by one, also if the setting joins them to one product.
- Convolutions are torch's own, in the layout of the unchanged model, also if the setting has other kernels.
- Sums that products add to memory in some settings, and products that checkpointing repeats, are left out.
- Products of an optimizer's update, as Muon has them, are left out.
- Kernels so short that starting them takes longer than running them are timed with their start.
- A scan and the convolution before it are timed by the functions that the setting calls, in mixers of Mamba
  alone or beside attention. Kernels of other packages in other models are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bench.records.floor import Floor
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.recorded_computations import (
    GROUPED,
    KINDS,
    Computation,
    Kind,
    Recording,
    TensorForm,
    recorded,
)
from bench.training.methods import FULL_ATTENTION, TRANSPOSED_FACTORS, prepare_all
from bench.training.models.footprint import ROW_MULTIPLE
from bench.training.models.full_attention_operator import attend
from bench.training.setting import Setting

SPREAD = 0.05  # standard deviation of the random numbers: on zeros, a GPU draws less power and is faster
WARM_SECONDS = TIMED_SECONDS = 4.0  # or less, if the trial's own warm-up or measurement is shorter

MATRIX_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

Emit = Callable[[dict[str, Any]], None]
Call = Callable[[], object]


def measure_floor(trial: Trial, device: Device, emit: Emit, most_seconds: float = TIMED_SECONDS) -> Floor:
    """Record the computations of a pass of the trial's micro-batch; time them for at most `most_seconds`."""
    emit({"phase": "record"})
    device.cap_memory(trial.memory_cap_bytes)
    torch.manual_seed(trial.seed)
    prepare_all(trial.setting)
    recording = recorded(trial.model, trial.setting, trial.micro_batch)
    calls = _calls(recording, device, trial.setting)
    emit({"phase": "warm-up"})
    _timed(calls, device, min(WARM_SECONDS, trial.timing.warmup_seconds))
    emit({"phase": "measure"})
    passes, seconds = _timed(calls, device, min(most_seconds, trial.timing.measure_seconds))
    return Floor(passes, *(seconds[kind] / passes for kind in KINDS))


def _timed_as(computation: Computation, setting: Setting) -> Computation:
    """Return the computation that is timed in place of a recorded one in a setting."""
    computation = aligned(computation)
    if TRANSPOSED_FACTORS in setting:
        computation = along_sums(computation)
    return by_full_attention(computation) if FULL_ATTENTION in setting else computation


def _calls(
    recording: Recording, device: Device, setting: Setting
) -> Mapping[Kind, Sequence[tuple[Call, int]]]:
    """Return by kind the recorded calls on random numbers of a device, each with its number in a pass."""
    computations = {key: _timed_as(each, setting) for key, each in recording.computations.items()}
    extents = [form.extent for each in computations.values() for form in each.forms]
    numbers = torch.empty(max(extents, default=0), device=device.torch).normal_(0, SPREAD)
    pools: dict[torch.dtype, Tensor] = {}  # every tensor is a view of the pool of its precision

    def tensor(form: Any) -> Any:
        if not isinstance(form, TensorForm):
            return form
        if form.dtype not in pools:
            pools[form.dtype] = numbers.to(form.dtype)
        view = pools[form.dtype].as_strided(form.shape, form.strides)
        return view.detach().requires_grad_() if form.trained else view

    calls: dict[Kind, list[tuple[Call, int]]] = {kind: [] for kind in KINDS}
    for key, each in computations.items():
        arguments, keywords = tree_map(tensor, (each.arguments, each.keywords))
        if each.function in GROUPED:
            arguments = _with_equal_groups(*arguments)
        made = _both_ways if each.both_ways else partial
        calls[each.kind].append((made(each.function, *arguments, **keywords), recording.counts[key]))
    return calls


def aligned(computation: Computation) -> Computation:
    """Return a product of two matrices with each size rounded up to a multiple of ROW_MULTIPLE."""
    if computation.function not in MATRIX_PRODUCTS:
        return computation

    def widened(form: Any) -> Any:
        if not isinstance(form, TensorForm):
            return form
        shape = tuple(math.ceil(size / ROW_MULTIPLE) * ROW_MULTIPLE for size in form.shape)
        if shape == form.shape:
            return form
        by_columns = len(shape) == 2 and form.strides[0] == 1
        strides = (1, shape[0]) if by_columns else (*shape[1:], 1)
        return replace(form, shape=shape, strides=strides)

    return replace(computation, arguments=tree_map(widened, computation.arguments))


def along_sums(computation: Computation) -> Computation:
    """Return a product of two matrices in fp32 with the numbers that one sum multiplies side by side."""
    if computation.function not in MATRIX_PRODUCTS:
        return computation
    *others, left, right = computation.arguments
    if left.dtype != torch.float32:
        return computation
    left = replace(left, strides=(left.shape[1], 1))
    right = replace(right, strides=(1, right.shape[0]))
    return replace(computation, arguments=(*others, left, right))


def by_full_attention(computation: Computation) -> Computation:
    """Return attention by the kernels of the method full-attention, which takes neither mask nor dropout."""
    if computation.kind != "attention":
        return computation
    scale = computation.keywords.get("scale")
    return replace(computation, function=_full_attention, keywords={"scale": scale})


def _full_attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    return attend(query, key, value, scale).transpose(1, 2)


def _with_equal_groups(left: Tensor, right: Tensor, ends: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Return the arguments of a grouped product with equally many rows for each expert."""
    rows = left.size(0) if right.dim() == 3 else left.size(1)
    each = torch.arange(1, len(ends) + 1, device=ends.device) * (rows // len(ends))
    return left, right, each.int(), *rest


def _both_ways(function: Callable[..., Tensor], *arguments: Any, **keywords: Any) -> Call:
    """Return a call of a function and of its backward pass for every tensor that is trained."""
    tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    gradient = torch.randn_like(function(*arguments, **keywords)) * SPREAD

    def call() -> None:
        torch.autograd.grad(function(*arguments, **keywords), leaves, gradient)

    return call


def _timed(
    calls: Mapping[Kind, Sequence[tuple[Call, int]]], device: Device, seconds: float
) -> tuple[int, Mapping[Kind, float]]:
    """Run whole passes for `seconds`, at least one pass; return their number and each kind's seconds."""
    spent: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    passes, started = 0, time.perf_counter()
    while not passes or time.perf_counter() - started < seconds:
        for kind, of_kind in calls.items():
            if not of_kind:
                continue
            device.synchronise()
            begun = time.perf_counter()
            for call, count in of_kind:
                for _ in range(count):
                    call()
            device.synchronise()
            spent[kind] += time.perf_counter() - begun
        passes += 1
    return passes, spent
