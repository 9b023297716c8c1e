"""Measure the floor of a trial: the time of its model's products, convolutions, attention and scans alone.

One pass of the trial's micro-batch runs on tensors without contents, and every such computation is recorded
with its shapes. Then the same computations run on random numbers, forward and backward, one after the other
with nothing between them, on a device that is warm. Imports torch at module level.

What the floor is not:
- Attention is PyTorch's fused one, also if the setting has FlexAttention or none.
- Layers that read the same tensor are timed one by one, also if the setting joins them to one product.
- Convolutions are torch's own, in the layout of the unchanged model, also if the setting has other kernels.
- Sums that products add to memory in some settings, and products that checkpointing repeats, are left out.
- Products of an optimizer's update, as Muon has them, are left out.
- Kernels so short that starting them takes longer than running them are timed with their start.
- A scan and the convolution before it are timed by the functions that the setting calls, for Mamba only.
  Kernels of other packages in other models are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bench.records.floor import Floor
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.training_loop import HALF
from bench.training.methods import prepare_all
from bench.training.models import Model, family_of, module_families
from bench.training.models.attention import fused_attention
from bench.training.models.cuda_autocast import as_on_cuda
from bench.training.models.fp8 import multiply_blocks_in_fp8
from bench.training.models.head import unchecked_head
from bench.training.models.model import empty_batch
from bench.training.models.stand_in import stand_in
from bench.training.setting import Setting
from bench.training.vendor import torch_inside, transformers_inside, transformers_source

Kind = Literal["products", "convolutions", "attention", "scans"]
KINDS: tuple[Kind, ...] = ("products", "convolutions", "attention", "scans")
OPERATORS: Mapping[str, Kind] = {
    "mm": "products",
    "addmm": "products",
    "bmm": "products",
    "baddbmm": "products",
    "_grouped_mm": "products",
    "_scaled_mm": "products",
    "convolution": "convolutions",
    "convolution_backward": "convolutions",
}
SPREAD = 0.05  # standard deviation of the random numbers: on zeros, a GPU draws less power and is faster
WARM_SECONDS = TIMED_SECONDS = 4.0  # or less, if the trial's own warm-up or measurement is shorter

Emit = Callable[[dict[str, Any]], None]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor without its contents."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # the computation includes its gradient

    @property
    def extent(self) -> int:
        """The number of elements from the first to the last one in memory."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Computation:
    """A call of a function, with forms in place of tensors."""

    kind: Kind
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    both_ways: bool  # with its backward pass; False for an operator, whose backward pass is other operators

    @property
    def forms(self) -> list[TensorForm]:
        leaves = tree_leaves((self.arguments, self.keywords))
        return [leaf for leaf in leaves if isinstance(leaf, TensorForm)]


class Recording:
    """The different computations of one pass, and how often the pass does each of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.computations: dict[str, Computation] = {}

    def add(
        self, kind: Kind, function: Callable[..., Any], arguments: Any, keywords: Any, *, both_ways: bool
    ) -> None:
        forms, named = tree_map(lambda value: _form(value, both_ways), (tuple(arguments), dict(keywords)))
        computation = Computation(kind, function, forms, named, both_ways)
        key = repr(computation)
        self.computations[key] = computation
        self.counts[key] += 1

    def operator(self, operator: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Record an operator of torch if it is one of those that make up a floor."""
        name = operator.overloadpacket.__name__
        if name == "bmm" and arguments[0].size(-1) == 1:
            return  # an outer product, of positions and frequencies for instance, sums nothing
        if operator.namespace == "aten" and name in OPERATORS:
            self.add(OPERATORS[name], operator, arguments, keywords, both_ways=False)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, *options: Any, **more: Any) -> Tensor:
        """Record a call of `scaled_dot_product_attention`; return a tensor in place of its result."""
        function = F.scaled_dot_product_attention
        self.add("attention", function, (query, key, value, *options), more, both_ways=True)
        shape = (*query.shape[:-1], value.size(-1))
        return stand_in(shape, query, key, value)

    def replaced(self, kind: Kind, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Tensor:
        """Record a call of a function; return a tensor of its first argument's shape."""
        self.add(kind, function, arguments, keywords, both_ways=True)
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        return stand_in(tensors[0].shape, *tensors)


class _RecordAttention(TorchFunctionMode):
    """Within the context, calls of `scaled_dot_product_attention` are recorded and not computed."""

    def __init__(self, recording: Recording, half: torch.dtype | None) -> None:
        super().__init__()
        self.recording = recording
        self.half = half  # the precision in which autocast computes attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(self._lowered, (args, kwargs or {}))
        return self.recording.attention(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.half) if floats and self.half else value


def recorded(model: Model, setting: Setting, micro_batch: int) -> Recording:
    """Run one pass on tensors without contents; return its computations."""
    recording = Recording()
    half = HALF.get(model.recipe.precision)
    halved = half is not None and "half-weights" in setting
    autocasts = half is not None and not halved
    family, own = family_of(model), module_families().get(model.family)
    with torch.device("meta"):
        module = family.build(model, kernels=own is not None or "kernels" in setting)
        if not own and transformers_source.takes_registered_attention(model.family):
            module.set_attn_implementation(fused_attention())
    with (
        torch_inside.fake_tensors(),
        transformers_inside.mamba_in_parts(recording.replaced),
        torch_inside.windows_attended_by(partial(recording.replaced, "attention")),
    ):
        torch_inside.make_fake(module, half if halved else None)
        if model.recipe.precision == "fp8":
            multiply_blocks_in_fp8(module, family_of(model).blocks(module), model.name)
        batch = empty_batch(model, micro_batch, half if half is not None and halved else torch.float32)
        autocast = torch.autocast("cpu", dtype=half) if autocasts else nullcontext()
        with torch_inside.each_operator(recording.operator):
            attention = _RecordAttention(recording, half if autocasts else None)
            with autocast, as_on_cuda(autocast=autocasts), attention:
                loss = model.recipe.aim.loss(*_answer_and_labels(module, batch, model, setting))
            loss.backward()
    return recording


def _answer_and_labels(
    module: nn.Module, batch: Mapping[str, Tensor], model: Model, setting: Setting
) -> tuple[Tensor, Tensor]:
    """Return the answer of the model and the labels; with masked-head, of as many positions as are masked."""
    if "masked-head" not in setting:
        answer = model.recipe.aim.answer(module, batch)
        return answer, model.recipe.aim.labels(batch, answer, module)
    count = model.recipe.asked_per_sample
    features = module.base_model(input_ids=batch["input_ids"]).last_hidden_state
    return unchecked_head(module)(features[:, :count].contiguous()), batch["labels"][:, :count]


def _form(value: Any, both_ways: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return TensorForm(
        tuple(value.shape), value.stride(), value.dtype, trained=both_ways and value.requires_grad
    )


def measure_floor(trial: Trial, device: Device, emit: Emit, most_seconds: float = TIMED_SECONDS) -> Floor:
    """Record the computations of a pass of the trial's micro-batch; time them for at most `most_seconds`."""
    emit({"phase": "record"})
    device.cap_memory(trial.memory_cap_bytes)
    torch.manual_seed(trial.seed)
    prepare_all(trial.setting)
    calls = _calls(recorded(trial.model, trial.setting, trial.micro_batch), device)
    emit({"phase": "warm-up"})
    _timed(calls, device, min(WARM_SECONDS, trial.timing.warmup_seconds))
    emit({"phase": "measure"})
    passes, seconds = _timed(calls, device, min(most_seconds, trial.timing.measure_seconds))
    return Floor(passes, *(seconds[kind] / passes for kind in KINDS))


def _calls(recording: Recording, device: Device) -> Mapping[Kind, Sequence[tuple[Call, int]]]:
    """Return by kind the recorded calls on random numbers of a device, each with its number in a pass."""
    extents = [form.extent for each in recording.computations.values() for form in each.forms]
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
    for key, each in recording.computations.items():
        arguments, keywords = tree_map(tensor, (each.arguments, each.keywords))
        if each.function is torch.ops.aten._grouped_mm.default:
            arguments = _with_equal_groups(*arguments)
        made = _both_ways if each.both_ways else partial
        calls[each.kind].append((made(each.function, *arguments, **keywords), recording.counts[key]))
    return calls


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
