"""The parameters and operations of any model, counted by torch's own counter on tensors without contents.

Attention and scans, which that does not see, count themselves (operation_counters.py). Kept bytes are counted
by counted_memory.py. Imports torch and transformers only when called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.base.errors import BadInput
from bench.training.models.footprint import Counted
from bench.training.models.generic import TARGETS, TransformersFamily
from bench.training.models.model import Flops, Model, OperationShapes, Parts, empty_batch
from bench.training.models.operation_counters import AttentionCount, ScanCount
from bench.training.models.operation_shapes import (
    ConvolutionKey,
    ProductKey,
    ShapeCount,
    counted_convolutions,
    counted_products,
)
from bench.training.models.repeated_blocks import BlockKind, BlockKinds, LongLoop, long_kinds
from bench.training.objectives import Objective
from bench.training.vendor import torch_inside, transformers_inside
from bench.training.vendor.known_integers import known_integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


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
