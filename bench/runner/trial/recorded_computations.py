"""Record what one pass of a model multiplies: products, convolutions, attention and scans, with their shapes.

The pass runs forward and backward on tensors without contents, with the rules of CUDA's autocast, in the
precision in which the setting keeps its weights. Attention is PyTorch's fused one, also if the setting has
FlexAttention or none. Imports torch at module level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bench.base.errors import BadInput
from bench.runner.trial.recorded_blocks import RecordedBlocks
from bench.runner.trial.training_loop import HALF
from bench.training.models import Model, family_of, module_families
from bench.training.models.attention import fused_attention
from bench.training.models.cuda_autocast import as_on_cuda
from bench.training.models.experts import grouped_in_fp16
from bench.training.models.footprint import autocasts, lowers_weights
from bench.training.models.fp8 import multiply_blocks_in_fp8
from bench.training.models.head import unchecked_head
from bench.training.models.model import empty_batch
from bench.training.models.position_tables import lower_position_tables
from bench.training.models.stand_in import stand_in
from bench.training.setting import Setting, halves_weights
from bench.training.vendor import torch_inside, transformers_inside, transformers_source
from bench.training.vendor.known_integers import known_integers

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
GROUPED_OPERATOR, GROUPED_FUNCTION = torch_inside.grouped_products()
GROUPED = (GROUPED_OPERATOR, GROUPED_FUNCTION, grouped_in_fp16())


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
    backward: bool = False  # an operator of the backward pass

    @property
    def forms(self) -> list[TensorForm]:
        """Return the shapes and types of all tensors among the arguments."""
        leaves = tree_leaves((self.arguments, self.keywords))
        return [leaf for leaf in leaves if isinstance(leaf, TensorForm)]


class Recording:
    """The different computations of one pass, and how often the pass does each of them."""

    backward = False  # whether the backward pass runs

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline  # of the processor's time
        self.counts: Counter[str] = Counter()
        self.computations: dict[str, Computation] = {}

    def add(
        self, kind: Kind, function: Callable[..., Any], arguments: Any, keywords: Any, *, both_ways: bool
    ) -> None:
        """Count one more call of a function with arguments of these forms."""
        forms, named = tree_map(
            lambda value: _form(value, both_ways=both_ways), (tuple(arguments), dict(keywords))
        )
        computation = Computation(kind, function, forms, named, both_ways, self.backward)
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

    def grouped(
        self,
        function: Callable[..., Any],
        rows: Tensor,
        experts: Tensor,
        offs: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        """Record a grouped product of rows with the matrix of each expert; return a tensor of its shape."""
        self.add("products", function, (rows, experts, offs), {}, both_ways=True)
        return stand_in((rows.size(0), experts.size(-1)), rows, experts)

    def replaced(self, kind: Kind, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Tensor:
        """Record a call of a function; return a tensor of its first argument's shape."""
        self.add(kind, function, arguments, keywords, both_ways=True)
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        return stand_in(tensors[0].shape, *tensors)


class _RecordCalls(TorchFunctionMode):
    """Within the context, attention and grouped products of other precisions than bf16 are not computed."""

    def __init__(self, recording: Recording, half: torch.dtype | None) -> None:
        super().__init__()
        self.recording = recording
        self.half = half  # the precision in which autocast computes attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Raised here and not by a recorded operator, out of which torch lets no exception pass.
        if process_time() > self.recording.deadline:
            raise TimeoutError("it takes too long")
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            args, kwargs = tree_map(self._lowered, (args, kwargs))
            return self.recording.attention(*args, **kwargs)
        if func in GROUPED and args[0].dtype != torch.bfloat16:
            return self.recording.grouped(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.half) if floats and self.half else value


def recorded(model: Model, setting: Setting, micro_batch: int, deadline: float = math.inf) -> Recording:
    """Run one pass on tensors without contents; return its computations.

    Of blocks that are built alike, one runs. TimeoutError if the processor's time of this process passes the
    deadline in the forward pass.
    """
    way = partial(_recorded, model, setting, micro_batch, deadline)
    try:
        try:
            return way(each=False)
        except Exception as error:
            if not torch_inside.needs_contents(error):
                raise
            way = partial(way, known=True)
            return way(each=False)
    except (BadInput, TimeoutError):
        raise
    except Exception:  # an architecture's code may need all of its blocks to have run, or raise anything
        return way(each=True)


def _recorded(
    model: Model, setting: Setting, micro_batch: int, deadline: float, *, each: bool, known: bool = False
) -> Recording:
    """Record a pass in which each block runs, or one of each kind; `known` whole numbers have contents."""
    recording = Recording(deadline)
    half = HALF.get(model.recipe.precision)
    halved, autocast_on = half is not None and halves_weights(setting), autocasts(model, setting)
    family, own = family_of(model), module_families().get(model.family)
    with torch.device("meta"):
        module = family.build(model, kernels=own is not None or "kernels" in setting)
        if not own and transformers_source.takes_registered_attention(model.family):
            module.set_attn_implementation(fused_attention())
        transformers_inside.keep_frequencies(module)
    with (
        torch_inside.fake_tensors(),
        known_integers() if known else nullcontext(),
        transformers_inside.mamba_in_parts(recording.replaced),
        torch_inside.windows_attended_by(partial(recording.replaced, "attention")),
    ):
        torch_inside.make_fake(module, half if halved else None)
        if lowers_weights(model, setting):
            lower_position_tables(module, model.recipe.precision)
        if model.recipe.precision == "fp8":
            multiply_blocks_in_fp8(module, family_of(model).blocks(module), model.name)
        batch = empty_batch(model, micro_batch, half if half is not None and halved else torch.float32)
        autocast = torch.autocast("cpu", dtype=half) if autocast_on else nullcontext()
        blocks = [] if each else family.blocks(module)
        with torch_inside.each_operator(recording.operator), RecordedBlocks(recording, blocks).running():
            calls = _RecordCalls(recording, half if autocast_on else None)
            with autocast, as_on_cuda(autocast=autocast_on), calls:
                loss = model.recipe.aim.loss(*_answer_and_labels(module, batch, model, setting))
            recording.backward = True
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


def _form(value: Any, *, both_ways: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return TensorForm(
        tuple(value.shape), value.stride(), value.dtype, trained=both_ways and value.requires_grad
    )
