"""The family of any architecture that transformers can build and that has no family file.

Parameters and operations are unknown until the module is built: torch's own counter counts them, on tensors
without contents. Without transformers, a plan says "counted when it runs". Imports torch and transformers
only when called, in a worker or in the process of dry_build.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from bench.base.errors import BadInput, Mistake, in_json
from bench.training.models.attention import attends_causally, ends_of, fused_attention
from bench.training.models.experts import grouped_experts
from bench.training.models.footprint import Counted
from bench.training.models.mamba import SCAN_OPERATIONS
from bench.training.models.model import (
    SCORE_BLOCK,
    Family,
    Flops,
    Has,
    Model,
    OperationShapes,
    Parts,
    empty_batch,
    installed,
)
from bench.training.models.operation_shapes import (
    ConvolutionKey,
    ProductKey,
    ShapeCount,
    counted_convolutions,
    counted_products,
)
from bench.training.models.repeated_blocks import (
    BlockKind,
    BlockKinds,
    LongLoop,
    long_kinds,
)
from bench.training.models.stand_in import stand_in
from bench.training.objectives import Objective, ObjectiveName, known_objectives, objective_of
from bench.training.objectives.documents import Documents
from bench.training.objectives.objective import value_at
from bench.training.vendor import torch_inside, transformers_inside, transformers_source
from bench.training.vendor.known_integers import known_integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


Ways = tuple[tuple[bool, tuple[bool, ...]], ...]  # with kernels or without, each compiled or not
COMPILED_OR_NOT = (False, True)
LEAST_PARTS = 4  # modules inside of a repeated block: fewer are a convolution with its norm


class TransformersFamily(Family):
    """A family by transformers' `model_type`, without formulas: its arithmetic raises LookupError."""

    objectives: tuple[ObjectiveName, ...] = tuple(
        aim.name for aim in known_objectives().values() if aim.auto_class
    )
    uses_all_weights = False  # unknown: ESM, for instance, has a head for contacts that predicts no token

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def kernels_of_attention(self) -> bool:
        """Whether code that asks for no attention by its registered name computes alike without kernels."""
        return transformers_source.takes_registered_attention(self.name)

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find what transformers' configuration refuses; the recipe's sizes are checked by the objective."""
        yield from self.architecture_mistakes(model.architecture, model.recipe.objective, path)

    def architecture_mistakes(
        self, given: Mapping[str, Any], objective: ObjectiveName, path: str
    ) -> Iterator[Mistake]:
        """Yield sizes that made-up data needs and that are missing, and sizes given as text.

        transformers judges all other fields when the model is built.
        """
        if self.name == "timm_wrapper":
            found = "timm_wrapper stands for any architecture of timm, and names none"
            allowed = 'allowed: "timm": the name of one, in place of "model_type"'
            yield Mistake(f"{path}/architecture/model_type", found, allowed)
            return
        aim = objective_of(objective)
        if not aim.towers and isinstance(text := given.get("text_config"), Mapping):
            found = f"{self.name} consists of several models, which bench does not train together"
            inner = in_json(text.get("model_type", f"{self.name}_text"))
            allowed = f'allowed: the fields of one of them, with its "model_type" (of this one: {inner})'
            if isinstance(given.get("vision_config"), Mapping):
                found = f'{self.name} consists of several models: "{objective}" trains one'
                allowed += '; or the objective "contrastive"'
            yield Mistake(f"{path}/architecture/text_config", found, allowed)
            return
        yield from fetched_mistakes(given, f"{path}/architecture")
        yield from count_mistakes(given, aim, f"{path}/architecture")
        for key, value in given.items():
            is_size = key.startswith("num_") or key.endswith("_size")
            if is_size and key not in aim.counts and isinstance(value, str):
                found = f"{in_json(value)} is not a whole number"
                yield Mistake(f"{path}/architecture/{key}", found, "allowed: a whole number")

    def why_no_documents(self) -> str | None:
        """Say why not, unless the attention is one that bench can replace and tell where documents end."""
        if transformers_source.takes_registered_attention(self.name):
            return None
        return super().why_no_documents()

    def _count_later(self, *_: Any, **__: Any) -> NoReturn:
        raise LookupError("counted when it runs")

    parameters = forward_flops = head_flops = kept_bytes = activation_bytes = _count_later

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return why transformers has no fused attention for it; none depends on the device."""
        return transformers_source.why_not_fused(self.name)

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build with fused attention and without masks that hide nothing, or with eager attention."""
        if not kernels:
            return self.build_with(model, "eager")
        registered = transformers_source.takes_registered_attention(self.name)
        module = self.build_with(model, fused_attention() if registered else "sdpa")
        transformers_inside.make_no_full_masks(module)
        return module

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build the module with the attention that transformers knows by this name."""
        import torch

        configuration, kind = configured(model), kinds()[model.recipe.objective]
        if model.recipe.half:
            transformers_inside.use_experts(configuration, grouped_experts())
        with _refusals_name(model), transformers_inside.without_hub():
            module: nn.Module = kind.from_config(
                configuration, attn_implementation=attention, trust_remote_code=False
            )
        if model.recipe.objective == "image-classification":
            transformers_inside.drop_mask_tokens(module)
        if model.architecture.get("tie_word_embeddings") is False and "tokens" in model.recipe.aim.data:
            transformers_inside.separate_head(module)
        transformers_inside.hand_no_caches(module, self.blocks(module))
        if torch.get_default_dtype() == torch.float32:  # otherwise weights are wanted in half precision
            module.float()
        return module.train()

    def build_for_memory(self, model: Model, attention: str) -> nn.Module:
        """Build the module with an attention that is registered under this name, or as "kernels" builds it.

        The latter is for code that calls fused attention itself.
        """
        if attention == "eager" or transformers_source.takes_registered_attention(self.name):
            return self.build_with(model, attention)
        return self.build(model, kernels=True)

    def scanned_states(self, module: nn.Module, model: Model) -> int:
        """Return the states of a sample that scans of Mamba 2 compute: for most types none."""
        return 0

    def counted_by(self, scans: ScanCount) -> AbstractContextManager[None]:
        """Return a context in which scans are counted, whose operations torch's counter does not see."""
        return nullcontext()

    def counted_ways(self) -> Ways:
        """Return how a pass can be computed whose bytes are counted.

        Compiled eager attention is left out if it can be fused: the compiler would fuse this attention too.
        """
        if transformers_source.why_not_fused(self.name) is None:
            return (False, (False,)), (True, COMPILED_OR_NOT)
        return ((False, COMPILED_OR_NOT),)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the blocks of every stack of a model, in order; the whole module if it has none.

        A stack is a list outside of other lists: the longest one, and others whose items are compound
        modules, such as the layers of an encoder beside those of a decoder. A list of lists is one stack of
        their items, because a list itself is never called. A list of stages is one stack of their layers.
        """
        from torch import nn

        lists = {name: part for name, part in module.named_modules() if isinstance(part, nn.ModuleList)}
        outer = [
            _items(part)
            for name, part in lists.items()
            if not any(name.startswith(f"{other}.") for other in lists if other != name)
        ]
        longest = max(outer, key=len, default=None)
        stacks = [stack for stack in outer if stack is longest or all(map(is_compound, stack))]
        return [block for stack in stacks for block in _layers_of_stages(stack)] or [module]

    def unused_targets(self, module: nn.Module, model: Model) -> list[str]:
        """Return the targets of adapters that got no gradient in the last pass: the code never calls them."""
        return []


def count_mistakes(given: Mapping[str, Any], aim: Objective, path: str) -> Iterator[Mistake]:
    """Yield the sizes that an objective's made-up data needs, and that are missing or no numbers."""
    for field, unit in aim.counts.items():
        value = value_at(given, field)
        if type(value) is not int or value < 2:
            found = "missing" if value is None else f"{in_json(value)} is not a number of {unit}"
            yield Mistake(f"{path}/{field}", found, "allowed: a whole number, at least 2")


def _items(stack: nn.Module) -> list[nn.Module]:
    """Return the items of a list of modules, those of lists inside of it too."""
    from torch import nn

    parts = (_items(part) if isinstance(part, nn.ModuleList) else [part] for part in stack.children())
    return [item for part in parts for item in part]


def _layers_of_stages(stack: list[nn.Module]) -> list[nn.Module]:
    """Return the layers of a stack of stages in order; any other stack as it is.

    A stage runs layers of one class, which have most of its weights, and its last layer is of another size
    than those of other stages. Experts are modules of one class in a block, too, but of one size in all.
    """
    layers = [_layers(stage) for stage in stack]
    sizes = {tuple(weight.shape for weight in of_stage[-1].parameters()) for of_stage in layers if of_stage}
    if len(stack) < 2 or len(sizes) < len(stack):
        return stack
    return [layer for of_stage in layers for layer in of_stage]


def _layers(stage: nn.Module) -> list[nn.Module]:
    """Return the layers of a stage: the items, all of one class, of the list with most of its weights."""
    from torch import nn

    lists = [part for part in stage.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    layers = max(map(_items, lists), key=_weights, default=[])
    alike = len({type(layer) for layer in layers}) == 1 and all(map(is_compound, layers))
    return layers if alike and _weights(layers) > _weights([stage]) / 2 else []


def _weights(parts: Sequence[nn.Module]) -> int:
    return sum(weight.numel() for part in parts for weight in part.parameters())


def is_compound(module: nn.Module) -> bool:
    """Whether a module can be a repeated block, by the number of modules inside of it."""
    return sum(1 for _ in module.modules()) > LEAST_PARTS


def counted(
    model: Model,
    family: TransformersFamily | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Counted:
    """Count trainable parameters, and operations and kept bytes of a forward pass over one sample.

    `family` builds the model; by default, transformers builds it by the name of its type. `tell` is told in a
    line each of which settings the bytes are not counted, and why.
    Counting the bytes takes seconds, so a trial calls `counted_work` instead.
    """
    from bench.training.models.counted_memory import counted_memory

    family = family or TransformersFamily(model.family)
    work = counted_work(model, family)
    build = partial(family.build_for_memory, model)
    memory = counted_memory(
        model, build, family.blocks, family.counted_ways(),
        kernels_of_attention=family.kernels_of_attention, tell=tell,
    )  # fmt: skip
    return replace(work, footprints=memory.footprints, failing=memory.failing)


def counted_work(model: Model, family: TransformersFamily | None = None) -> Counted:
    """Count trainable parameters, and operations of a forward pass over one sample."""
    import torch

    family = family or TransformersFamily(model.family)
    try:
        return _counted(model, _Way(family, registered=True))
    except BadInput:
        raise
    except Exception as error:  # its code may raise anything, where it reads a mask that it did not get
        if model.recipe.documents:
            found = f"documents: the code of {model.family} computes with its mask, and takes no ends for it"
            raise BadInput(found, where=model.name) from error
        # The architecture has attention code of its own, whose products torch's counter sees.
    failed: list[Exception] = []
    for known in (False, True):
        for precision in (torch.bfloat16, torch.float32):  # a Fourier transform, for instance, takes no bf16
            try:
                return _counted(model, _Way(family, precision, known=known))
            except BadInput:
                raise
            except Exception as error:
                failed.append(error)
        if not any(map(torch_inside.needs_contents, failed)):
            break
    raise failed[0]


def built_parts(model: Model, family: TransformersFamily) -> Sequence[tuple[str, str, tuple[int, ...]]]:
    """Return the name, the class and the number of parameters of each of a model's modules."""
    import torch

    with torch.device("meta"):
        module = family.build_with(model, "eager")
    return [
        (name, type(part).__name__, tuple(p.numel() for p in part.parameters(recurse=False)))
        for name, part in module.named_modules()
    ]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a pass is computed whose operations are counted."""

    family: TransformersFamily
    # bf16 by default, because mixtures of experts multiply only in bf16 without contents.
    precision: torch.dtype | None = None
    registered: bool = False  # with the attention of AttentionCount; otherwise with the model's eager one
    known: bool = False  # whole numbers have contents, for code that reads what it computed


def _counted(model: Model, way: _Way) -> Counted:
    """Count a pass over tensors without contents, in which each kind of block runs once if that is enough."""
    try:
        try:
            return _OperationCount(model, way).counted()
        except LongLoop:
            long = long_kinds(model, lambda short: _OperationCount(short, way).kinds())
            return _OperationCount(model, way).counted(long)
    except BadInput:
        raise
    except Exception as error:  # code may need all of its blocks to have run, or raise anything
        if torch_inside.needs_contents(error):
            raise
        return _OperationCount(model, way, each=True).counted()


class _OperationCount:
    """A model without contents, and the operations of passes over one sample."""

    def __init__(self, model: Model, way: _Way, *, each: bool = False) -> None:
        import torch

        self.model, self.way = model, way
        self.precision = way.precision or torch.bfloat16
        self.attending = AttentionCount(model.recipe.documents if way.registered else None)
        self.counted_shapes, self.scans = ShapeCount(), ScanCount()
        attention = self.attending.registered() if way.registered else "eager"
        self.module, self.parts = _built(model, way.family, attention, self.precision)
        self.blocks = [] if each else way.family.blocks(self.module)
        self.trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.module.requires_grad_(False)  # the counter would look for gradients of views of weights

    def kinds(self) -> list[BlockKind]:
        """Return the kinds of blocks, in the order in which a pass calls them."""
        with self._without_contents() as batch:
            compute = partial(_compute_loss, self.model.recipe.aim, self.module, batch)
            return [*self._run(compute, {}, short=True)[1]]

    def counted(self, long: Mapping[int, BlockKind] | None = None) -> Counted:
        """Count parameters and operations; kinds of blocks in `long` do not run."""
        model, run = self.model, partial(self._run, long=long or {})
        with self._without_contents() as batch:
            tally, _ = run(partial(_compute_loss, model.recipe.aim, self.module, batch))
            operations, head = _operations(tally), 0
            if model.recipe.objective == "masked-lm":  # the method masked-head saves operations of the head
                # Perceiver calls it "inputs"
                body, _ = run(lambda: self.module.base_model(batch["input_ids"]))
                head = sum(operations.values()) - sum(_operations(body).values())
            flops = _sorted_by_kind(operations, tally["attention"], model, tally["scans"])
            self.attending.require_documents(model)
            shapes = OperationShapes(
                query_elements=tally["query_elements"],
                biased_scores=tally["biased_scores"],
                depthwise_elements=tally["depthwise_elements"],
                depthwise_operations=tally["depthwise_operations"],
                scanned_states=self.way.family.scanned_states(self.module, model),
                products=counted_products(tally),
                convolutions=counted_convolutions(tally),
                biased_blocks=tally["biased_blocks"],
            )
            counts = Counted(self.parts, flops, head, shapes=shapes)
            if model.recipe.lora is None:
                return counts
            for weight in self.trained:
                weight.requires_grad_()
            return _with_backward(
                counts, self.module, batch, model, self.way.family, self.attending, self.scans
            )

    @contextmanager
    def _without_contents(self) -> Iterator[dict[str, Tensor]]:
        import torch

        counting = self.way.family.counted_by(self.scans)
        if not self.way.known:
            with torch.device("meta"), torch_inside.fake_tensors(), torch.no_grad(), counting:
                yield empty_batch(self.model, 1, self.precision)
            return
        with torch_inside.fake_tensors(), known_integers(), torch.no_grad(), counting:
            torch_inside.make_fake(self.module)
            yield empty_batch(self.model, 1, self.precision)

    def _run(
        self, compute: Callable[[], object], long: Mapping[int, BlockKind], *, short: bool = False
    ) -> tuple[Counter[Hashable], Collection[BlockKind]]:
        """Compute something; return what was counted, and the kinds of blocks that were called."""
        attending, shapes = self.attending, self.counted_shapes
        counter = shapes.flop_counter()

        def tally() -> dict[Hashable, int]:
            return {
                **counter.flop_counts["Global"],
                **shapes.tally,
                "attention": attending.flops,
                "scans": self.scans.flops,
                "query_elements": attending.query_elements,
                "biased_scores": attending.biased_scores,
                "biased_blocks": attending.biased_blocks,
                "depthwise_elements": shapes.elements,
                "depthwise_operations": shapes.operations,
            }

        before = tally()
        kinds = BlockKinds(self.blocks, tally, long, short=short)
        with counter, kinds.running():
            compute()
        total = kinds.total()
        total.subtract(before)
        return total, kinds.kinds.values()


def _operations(tally: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """Return the operations that torch's counter counted, by operator."""
    other = str | ProductKey | ConvolutionKey
    return {name: number for name, number in tally.items() if not isinstance(name, other)}


def _built(
    model: Model, family: TransformersFamily, attention: str, precision: torch.dtype
) -> tuple[nn.Module, Parts]:
    """Build a model without contents; return it and its parts.

    The model is in evaluation mode, because in training mode some architectures skip layers at random.
    """
    import torch

    with torch.device("meta"):
        module = family.build_with(model, attention).eval()
        parts = _parts(module, family.blocks(module))
        module.to(precision)
    transformers_inside.keep_frequencies(module)
    return module, parts


def _with_backward(
    counts: Counted,
    module: nn.Module,
    batch: Mapping[str, Tensor],
    model: Model,
    family: TransformersFamily,
    attending: AttentionCount,
    scans: ScanCount,
) -> Counted:
    """Add the operations of a backward pass in which only some weights have gradients, by running it.

    Raises BadInput for adapters that the model's code passes by.
    """
    import torch

    whole, body = (ShapeCount().flop_counter() for _ in range(2))
    with torch.enable_grad():
        aim = model.recipe.aim
        answer = aim.answer(module, batch)
        loss = aim.loss(answer, aim.labels(batch, answer, module))
        if not loss.requires_grad:
            raise BadInput("its code calls no layer with an adapter", where=model.name, advice=TARGETS)
        with whole:
            loss.backward()
    if unused := family.unused_targets(module, model):
        raise BadInput(f"its code never calls the layers {', '.join(unused)}", where=model.name)
    found = _sorted_by_kind(
        whole.get_flop_counts().get("Global", {}), attending.backward_flops, model, scans.backward_flops
    )
    counts = replace(counts, flops=replace(counts.flops, backward=found.total))
    if model.recipe.objective != "masked-lm":
        return counts
    with torch.enable_grad():
        features = module.base_model(batch["input_ids"]).last_hidden_state
        with body:
            if features.requires_grad:
                features.sum().backward()
    return replace(counts, head_backward=whole.get_total_flops() - body.get_total_flops())


def _compute_loss(aim: Objective, module: nn.Module, batch: Mapping[str, Tensor]) -> None:
    """Compute the loss of a batch; raise BadInput if the module gives no logits, or too many or too few."""
    name = type(module).__name__
    try:
        answer = aim.answer(module, batch)
    except AttributeError as error:
        if error.name != "logits":
            raise
        raise BadInput(f"{name} returns no logits") from error
    labels = aim.labels(batch, answer, module)
    if type(aim).loss is Objective.loss:  # which compares each label with one prediction
        predictions = answer.numel() // answer.shape[-1]
        if predictions != labels.numel():
            raise BadInput(f"{name} returns {predictions} predictions for {labels.numel()} labels")
    aim.loss(answer, labels)


def _parts(module: nn.Module, blocks: Sequence[nn.Module]) -> Parts:
    from bench.training.optimizers.updates.block_matrices import block_matrices  # imports torch

    def trained(part: nn.Module) -> list[nn.Parameter]:
        return [p for p in part.parameters() if p.requires_grad]

    def elements(part: nn.Module) -> int:
        return sum(p.numel() for p in trained(part))

    def frozen_bytes(part: nn.Module) -> int:
        return sum(p.numel() * p.element_size() for p in part.parameters() if not p.requires_grad)

    inside, frozen = tuple(map(elements, blocks)), tuple(map(frozen_bytes, blocks))
    counts = zip(trained(module), block_matrices(module, blocks), strict=True)
    matrices = sum(p.numel() for p, count in counts if count)
    outside, frozen_outside = elements(module) - sum(inside), frozen_bytes(module) - sum(frozen)
    return Parts(outside, inside, matrices, frozen_outside, frozen if any(frozen) else ())


class AttentionCount:
    """Attention for transformers that computes nothing, and counts the operations of its mathematics."""

    flops = 0
    backward_flops = 0
    query_elements = 0
    biased_scores = 0
    biased_blocks = 0

    def __init__(self, documents: Documents | None = None) -> None:
        self.documents = documents
        self.calls_with_ends: set[bool] = set()  # whether calls were told where documents end

    def require_documents(self, model: Model) -> None:
        """Raise BadInput if a recipe packs documents and the model's attention is not told where they end."""
        if self.documents and self.calls_with_ends != {True}:
            raise BadInput(
                f"documents: the code of {model.family} does not tell all of its attention where they end",
                where=model.name,
                advice="leave documents out of its recipe",
            )

    def registered(self) -> str:
        """Register this object with transformers; return the name for `attn_implementation`."""
        from transformers import AttentionInterface

        AttentionInterface.register("bench_counted", self._attend)
        return "bench_counted"

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *_: Any,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        self.calls_with_ends.add(ends_of(attention_mask) is not None)
        samples, heads, length, width = query.shape
        self.query_elements += samples * heads * length * width
        if heads % key.shape[1]:
            reason = f"{key.shape[1]} heads of keys and values do not divide {heads} of queries"
            raise BadInput(reason)
        causal = attends_causally(module, is_causal)
        pairs = _pairs(length, key.shape[2], sliding_window, causal=causal)
        if self.documents:
            pairs = self.documents.pairs(length, sliding_window)
        if has_bias_of_heads(more.get("position_bias")) or has_bias_of_heads(attention_mask):
            self.biased_scores += samples * heads * pairs
            rows, columns = (math.ceil(positions / SCORE_BLOCK) for positions in (length, key.shape[2]))
            self.biased_blocks += samples * heads * _pairs(rows, columns, None, causal=causal)
        flops = 2 * samples * heads * pairs * (width + value.shape[-1])
        self.flops += flops

        def count() -> None:
            self.backward_flops += 2 * flops

        shape = samples, length, heads, value.shape[-1]
        return stand_in(shape, query, key, value, in_backward=count), None


def has_bias_of_heads(mask: Tensor | None) -> bool:
    """Whether attention adds to its scores a bias that differs between heads, which no mask does."""
    return mask is not None and mask.dim() == 4 and mask.size(0) > 0 and mask.size(1) > 1


class ScanCount:
    """A selective scan that computes nothing, and counts the operations of its mathematics (mamba.py)."""

    flops = 0
    backward_flops = 0

    def scan(self, entry: Tensor, time_step: Tensor, decay: Tensor, *given: Tensor, **more: Any) -> Tensor:
        """Count a scan; return a tensor in place of its result."""
        import torch

        flops = SCAN_OPERATIONS * entry.numel() * decay.shape[-1]
        self.flops += flops

        def count() -> None:
            self.backward_flops += 2 * flops

        tensors = [part for part in (*given, *more.values()) if isinstance(part, torch.Tensor)]
        return stand_in(entry.shape, entry, time_step, decay, *tensors, in_backward=count)


def _pairs(length: int, keys: int, window: int | None, *, causal: bool) -> int:
    """Count the pairs of positions that attend: all, or the lower triangle, limited to a window."""
    if length != keys:
        return length * keys
    apart = min(window or length, length)
    triangle = apart * length - apart * (apart - 1) // 2
    return triangle if causal else 2 * triangle - length


def _sorted_by_kind(counts: Mapping[Any, int], attending: int, model: Model, scans: int = 0) -> Flops:
    """Sort the counter's operations by kind, with those of attention and of scans counted separately.

    If `attending` is 0, attention ran eagerly, and batched products are counted as attention, unless the
    model scans in place of attention.
    """
    matmul = attention = convolution = 0
    for operation, flops in counts.items():
        name = str(operation)
        if "conv" in name:
            convolution += flops
        elif "attention" in name or ("bmm" in name and not attending and not scans):
            attention += flops
        else:
            matmul += flops
    if model.recipe.objective == "causal-lm":  # torch's counter includes the upper triangle
        length = model.recipe.units_per_sample
        attention = attention * (length + 1) // (2 * length)
    return Flops(matmul, attention + attending, convolution, scans)


def kinds() -> Mapping[ObjectiveName, Any]:
    """Return transformers' Auto class for each objective that it has one for."""
    import transformers

    aims = known_objectives().values()
    return {aim.name: getattr(transformers, aim.auto_class) for aim in aims if aim.auto_class}


TARGETS = 'name other layers in recipe.lora.targets, or "all-linear"'
REPOSITORY_CODE = "auto_map"  # field of a configuration
REPOSITORY = "backbone"  # field of a configuration, also of one inside of it
BY_TIMM = ("timm_backbone", "timm_wrapper")  # types whose configuration names timm's model, or a repository


def fetched_mistakes(given: Any, path: str) -> Iterator[Mistake]:
    """Yield the parts of a configuration that libraries would fetch from a repository that it names."""
    if isinstance(given, list):
        for number, item in enumerate(given):
            yield from fetched_mistakes(item, f"{path}/{number}")
    if not isinstance(given, Mapping):
        return
    if isinstance(name := given.get(REPOSITORY), str):
        found = f"{in_json(name)} would be looked up on the Hugging Face Hub"
        yield Mistake(
            f"{path}/{REPOSITORY}", found, 'allowed: the fields of the backbone, in "backbone_config"'
        )
    for key, value in given.items():
        if isinstance(value, Mapping) and value.get("model_type") in BY_TIMM:
            found = f"{value['model_type']} names a model of timm, which may be in a repository"
            yield Mistake(
                f"{path}/{key}/model_type", found, "allowed: a type whose fields describe the model"
            )
        else:
            yield from fetched_mistakes(value, f"{path}/{key}")


def without_repository_code(value: Any) -> Any:
    """Leave out the field that names code in a repository, also in configurations inside of this one.

    transformers would ask on the terminal whether to fetch and to run that code.
    """
    if isinstance(value, Mapping):
        return {key: without_repository_code(item) for key, item in value.items() if key != REPOSITORY_CODE}
    return [without_repository_code(item) for item in value] if isinstance(value, list | tuple) else value


def configured(model: Model) -> Any:
    """Return transformers' configuration of a model; raise BadInput if transformers refuses it."""
    with _refusals_name(model):
        from transformers import AutoConfig

        given = without_repository_code(model.architecture)
        fields = {key: transformers_inside.untagged(value) for key, value in given.items()}
        if "tokens" in model.recipe.aim.data and not model.recipe.aim.towers:
            fields["use_cache"] = False
        with transformers_inside.without_hub():
            configuration = AutoConfig.for_model(model.family, **fields)
        transformers_inside.build_first_class(configuration)
        return configuration


@contextmanager
def _refusals_name(model: Model) -> Iterator[None]:
    """Turn transformers' refusal of an architecture into BadInput with the model's name."""
    try:
        yield
    except transformers_inside.refusals() as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"transformers refuses this architecture: {reason}", where=model.name) from error
