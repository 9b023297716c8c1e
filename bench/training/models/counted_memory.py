"""Bytes that training keeps, counted for any architecture on tensors without contents, without a GPU.

In: a model. Out: footprints, as families with formulas compute them. The model is built without contents,
and one block of each kind runs forward and backward. torch's partitioner says what a compiled block keeps.
Imports torch and transformers only when called, in the process of dry_build.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.base.errors import one_line
from bench.training.lifetimes import SMALL, BlockTensors, to_text
from bench.training.models.cuda_autocast import as_on_cuda, half_of
from bench.training.models.footprint import (
    FP32,
    Block,
    BlockCall,
    CountedFootprint,
    CountedMemory,
    Failing,
    Footprint,
    order_of,
)
from bench.training.models.kept_attention import fused_calls, kept_attention
from bench.training.models.mixed_precisions import mixes_precisions
from bench.training.models.model import Model, empty_batch
from bench.training.models.position_tables import lower_position_tables
from bench.training.models.repeated_blocks import (
    BlockKind,
    LongLoop,
    UnlikeBlocks,
    copied,
    described,
    is_long,
    kind_name,
    limited_calls,
    long_kinds,
    tensors_of,
)
from bench.training.models.stand_in import ends_graph
from bench.training.objectives import Objective
from bench.training.vendor import torch_inside, transformers_inside
from bench.training.vendor.kernel_rules import KernelRefuses, kernel_rules
from bench.training.vendor.known_integers import known_integers

if TYPE_CHECKING:
    from torch import Tensor, nn

# Samples of the counted pass; there may be many, because nothing is computed. The number is a prime that
# divides the size of no weight, so that a storage whose size it divides grows with the samples.
SAMPLES = 1009
FEW = (31, 37, 41, 43, 47, 53, 59, 61)  # samples of which whole numbers have contents
MOST_REASON = 160  # letters
MOST_SECONDS = 60  # of the processor; after them, no further way of computing is counted
NOT_FOLLOWED = (LookupError, LongLoop, UnlikeBlocks)  # which say that bench cannot count, not that code fails
FAILS = {True: "its code fails where weights are in half precision", False: "its code fails under autocast"}
READS = "a block reads what it computed"

Build = Callable[[str], "nn.Module"]  # builds the model with the attention implementation of this name
BlocksOf = Callable[["nn.Module"], "Sequence[nn.Module]"]


class Way(NamedTuple):
    """How a pass is computed whose bytes are counted."""

    kernels: bool
    halved: bool  # weights in half precision
    compiled: bool


def counted_memory(
    model: Model,
    build: Build,
    blocks_of: BlocksOf,
    ways: Sequence[tuple[bool, Sequence[bool]]],
    halves: Sequence[bool] = (False, True),
    *,
    kernels_of_attention: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> CountedMemory:
    """Count a model's footprint for each way of computing it; leave out ways that cannot be followed.

    A way says whether kernels run, and for which of compiled and uncompiled blocks to count. `halves` says
    whether to count for weights in half precision, for others, or for both. `kernels_of_attention` says that
    kernels are attention and nothing else: blocks without attention are then counted once for all ways.
    `tell` is told in a line each which ways were left out, and why.
    """
    counting = _Ways(model, build, blocks_of, kernels_of_attention)
    asked = [
        Way(kernels, halved, compiled)
        for kernels, hows in ways
        for halved in (halves if half_of(model.recipe.precision) else (False,))
        for compiled in hows
    ]
    # What a compiled block keeps takes the compiler's own time: it is counted last. Other kernels than those
    # of attention are chosen for a whole process, when a module is built, and they are counted first: a loop
    # over positions that they replace may take all of the time, and blocks like it are taken for such loops.
    in_order = sorted(asked, key=lambda way: way.compiled if kernels_of_attention else not way.kernels)
    found = {way: counting.footprint(way) for way in in_order}
    failing = counting.failing()
    why = {(one.kernels, one.halved): one.reason for one in failing}
    found = {way: why.get((way.kernels, way.halved), one) for way, one in found.items()}
    for reason in dict.fromkeys(one for one in found.values() if isinstance(one, str)):
        tell(f"its memory is not counted{_which(found, reason)}: {reason}")
    footprints = (
        CountedFootprint(way.kernels, way.compiled, way.halved, footprint)
        for way in asked
        if not isinstance(footprint := found[way], str)
    )
    return CountedMemory(tuple(footprints), tuple(failing))


def _which(found: Mapping[Way, Footprint | str], reason: str) -> str:
    """Say which ways have this reason; an empty text if all have it."""
    without = [way for way, one in found.items() if one == reason]
    if len(without) == len(found):
        return ""
    words = {"kernels": "kernels", "halved": "half weights", "compiled": "compiled blocks"}
    common = [text for field, text in words.items() if all(getattr(way, field) for way in without)]
    if not any(way.halved for way in without) and all(way in without for way in found if not way.halved):
        return " without half weights"
    return f" with {' and '.join(common)}" if common else " in some settings"


@dataclass
class _Ways:
    """The passes of a model that were counted, and what they know of each other."""

    model: Model
    build: Build
    blocks_of: BlocksOf
    shared: bool  # whether ways know of each other's kinds of blocks
    counts: dict[tuple[bool, bool], _Count | str] = field(default_factory=dict)
    errors: dict[tuple[bool, bool], str] = field(default_factory=dict)  # of the model's code

    def __post_init__(self) -> None:
        self.deadline = process_time() + MOST_SECONDS
        self.known = {
            halved: _KnownKinds(torch_inside.fake_tensors(), self.shared) for halved in (False, True)
        }

    def footprint(self, way: Way) -> Footprint | str:
        """Return the footprint of a way, or why it is unknown."""
        if process_time() > self.deadline:
            return f"it takes more than {MOST_SECONDS} s"
        count = self._count(way)
        if isinstance(count, str):
            return count
        if way.compiled and count.loops_long:  # no compiler takes such a loop apart in time
            return "a block loops over positions"
        try:
            return count.footprint(compiled=way.compiled)
        except Exception as error:  # an architecture's code may raise anything; this way stays uncounted
            return READS if torch_inside.needs_contents(error) else _reason(error)

    def _count(self, way: Way) -> _Count | str:
        key = way.kernels, way.halved
        if key not in self.counts:
            count_of = partial(
                _Count.of, build=self.build, blocks_of=self.blocks_of, kernels=way.kernels, halved=way.halved,
                known=self.known[way.halved],
            )  # fmt: skip
            try:
                self.counts[key] = _counted(self.model, count_of)
            except NOT_FOLLOWED as error:
                self.counts[key] = _reason(error)
            except Exception as error:  # an architecture's code may raise anything
                self.counts[key] = _reason(error)
                # The CPU's autocast casts fewer operations than a GPU's, so that its other errors say little.
                if way.halved or isinstance(error, KernelRefuses):
                    self.errors[key] = _reason(error)
        return self.counts[key]

    def failing(self) -> list[Failing]:
        """Return where the code failed with weights in one precision, and computed with the other one."""
        return [
            Failing(kernels, halved, f"{FAILS[halved]}: {reason}")
            for (kernels, halved), reason in self.errors.items()
            if isinstance(self.counts.get((kernels, not halved)), _Count)
        ]


def _reason(error: Exception) -> str:
    own = LookupError, KernelRefuses  # whose texts are sentences of bench
    named = "" if type(error) in own else f"{type(error).__name__}: "
    return one_line(f"{named}{error}")[:MOST_REASON]


def _counted(model: Model, count_of: Callable[..., _Count]) -> _Count:
    """Count a pass; if its code reads what it computed, with whole numbers that have contents."""
    try:
        return _of_any_length(model, count_of)
    except Exception as error:
        if not torch_inside.needs_contents(error):
            raise
    return _of_any_length(model, partial(count_of, reads=True))


def _of_any_length(model: Model, count_of: Callable[..., _Count]) -> _Count:
    """Count a pass; of blocks with a long loop, at short lengths, from which those of the model follow."""
    try:
        return count_of(model)
    except LongLoop:
        return count_of(
            model, long=long_kinds(model, lambda short: count_of(short, short=True).block_kinds())
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Blocks that are built alike: the first of them, its arguments, and the bytes that it kept."""

    first: nn.Module
    description: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any
    inside: int
    calls: int  # of torch's functions
    backward: int | None = None  # of a block that did not run: additional bytes of its backward pass
    name: Hashable = None  # by which other ways know it; None if it depends on the attention

    def entry(self, samples: int) -> int:
        """Bytes for a sample of the block's first input with a gradient; without one, of its first input."""
        tensors = tensors_of((self.arguments, dict(self.keywords)))
        numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
        first = next((tensor for tensor in numbers if tensor.requires_grad), numbers[0])
        return int(first.numel() * first.element_size()) // samples

    def known(self, backward: int) -> BlockKind:
        """Return what other passes need to know of the kind, with the bytes of its backward pass."""
        added: dict[Hashable, int] = {"inside": self.inside, "backward": backward}
        return BlockKind(self.description, added, self.calls, self.result)


@dataclass
class _KnownKinds:
    """Kinds of blocks whose code asks for no attention, as counted by ways with equal weights."""

    fake: Any  # the context of tensors without contents
    shared: bool  # whether ways know of each other's kinds
    kinds: dict[Hashable, BlockKind] = field(default_factory=dict)
    long: set[str] = field(default_factory=set)  # descriptions of kinds with a long loop


@dataclass
class _Count:
    """One pass over a model without contents, of which only the first block of each kind runs."""

    module: nn.Module
    parts: Sequence[nn.Module]
    half: Any  # the precision in which autocast computes; None without autocast
    known: _KnownKinds
    samples: int
    reads: bool  # whether whole numbers have contents, for code that reads what it computed
    outside: int = 0  # bytes of a sample that are kept outside of the blocks and of the loss
    logits: int = 0  # of a sample
    kinds: dict[str, _Kind] = field(default_factory=dict)
    calls: list[BlockCall] = field(default_factory=list)  # in their order; blocks may be called repeatedly
    long: Mapping[int, BlockKind] = field(default_factory=dict)  # kinds that do not run, by their order
    short: bool = False  # samples of a few steps, or without: no loop over them is too long

    @staticmethod
    def of(
        model: Model,
        build: Build,
        blocks_of: BlocksOf,
        *,
        kernels: bool,
        halved: bool,
        known: _KnownKinds,
        long: Mapping[int, BlockKind] | None = None,
        short: bool = False,
        reads: bool = False,
    ) -> _Count:
        import torch

        half = half_of(model.recipe.precision)
        with torch.device("meta"):
            transformers_inside.expect_no_packed_samples()  # passes of an earlier model may have had them
            module = build(kept_attention() if kernels else "eager")
            transformers_inside.keep_frequencies(module)
        if reads:
            _require_no_capacity(module)
        samples = _samples_with_contents(module) if reads else SAMPLES
        autocast = None if halved and not mixes_precisions(model) else half
        short = short or model.recipe.sequence_length is None
        count = _Count(
            module, blocks_of(module), autocast, known, samples, reads, long=long or {}, short=short
        )
        with known.fake, known_integers() if reads else nullcontext():
            lowered = half if halved else None
            torch_inside.make_fake(module, lowered)
            if lowered:
                lower_position_tables(module, model.recipe.precision)
            batch = empty_batch(model, samples, lowered or torch.float32)
            count._run(batch, model.recipe.aim)
        return count

    def _run(self, batch: Mapping[str, Tensor], aim: Objective) -> None:
        with self._rules(), kernel_rules(), _keeping(self.samples) as kept:
            for block in self.parts:
                block.forward = self._instead_of(block, block.forward, kept)
            found = aim.answer(self.module, batch)
            aim.loss(found, aim.labels(batch, found, self.module))
        self.logits = found.numel() // self.samples
        self.outside = kept.bytes - self._ran() - FP32 * self.logits

    def _ran(self) -> int:
        """Return the bytes of a sample that the blocks which ran have kept."""
        return sum(kind.inside for kind in self.kinds.values() if kind.backward is None)

    @property
    def loops_long(self) -> bool:
        """Whether a block was counted at short lengths, because it loops over positions."""
        return not self.short and any(is_long(kind.calls) for kind in self.kinds.values())

    def footprint(self, *, compiled: bool) -> Footprint:
        """Return the footprint of the model, for compiled blocks or for others."""
        with self.known.fake:
            blocks = self._compiled(self.plain) if compiled else self.plain
        return Footprint(
            self.outside,
            tuple(blocks),
            self.logits,
            weights=self._weights_outside(),
            before=self.calls[0].ends_before if self.calls else 0,
            order=order_of(self.calls) if len(blocks) > 1 else "",
        )

    @cached_property
    def plain(self) -> Sequence[Block]:
        """The blocks of each kind as PyTorch runs them, operation by operation."""
        number = Counter(call.kind for call in self.calls)
        return [
            Block(number[place], kind.entry(self.samples), kind.inside, self._backward(kind))
            for place, kind in enumerate(self.kinds.values())
        ]

    def block_kinds(self) -> list[BlockKind]:
        """Return the bytes of each kind of block, in the order in which they are called."""
        with self.known.fake:
            return [kind.known(self._backward(kind)) for kind in self.kinds.values()]

    def _weights_outside(self) -> tuple[int, ...]:
        """Return the numbers of parameters of the larger trained weights outside of the blocks."""
        inside = {weight for block in self.parts for weight in block.parameters()}
        trained = (weight for weight in self.module.parameters() if weight.requires_grad)
        sizes = (weight.numel() for weight in trained if weight not in inside)
        return tuple(sorted((size for size in sizes if FP32 * size > SMALL), reverse=True))

    def _compiled(self, plain: Sequence[Block]) -> list[Block]:
        """Return the blocks of each kind with the bytes that they keep if they are compiled."""
        found = []
        for block, kind in zip(plain, self.kinds.values(), strict=True):
            inside, tensors = self._when_compiled(kind)
            found.append(replace(block, inside=inside, tensors=to_text(tensors)))
        return found

    def _instead_of(self, block: nn.Module, forward: Callable[..., Any], kept: _Kept) -> Callable[..., Any]:
        """Return a forward that runs the first block of a kind only, and reuses its result for the others."""
        description = described(block)

        def call(*arguments: Any, **keywords: Any) -> Any:
            name = kind_name(description, arguments, keywords)
            ends_before = kept.bytes - self._ran()
            if name not in self.kinds:
                self.kinds[name] = self._kind(block, description, name, forward, arguments, keywords, kept)
            self.calls.append(BlockCall([*self.kinds].index(name), ends_before))
            return copied(self.kinds[name].result)

        call.__wrapped__ = forward  # type: ignore[attr-defined]
        return call

    def _kind(
        self,
        block: nn.Module,
        description: str,
        form: str,
        forward: Callable[..., Any],
        given: Any,
        named: Any,
        kept: _Kept,
    ) -> _Kind:
        """Run the first block of a kind, unless short samples or another way tell its bytes."""
        if known := self.long.get(len(self.kinds)):
            if known.description != description:
                raise UnlikeBlocks("another kind of block comes first in a shorter sample")
            return _kind_that_did_not_run(block, given, named, known)
        # A block keeps no bytes again that were kept before it.
        name = form, tuple(map(kept.has, tensors_of((given, named))))
        if other := self.known.kinds.get(name):
            return _kind_that_did_not_run(block, given, named, other)
        if not self.short and description in self.known.long:
            raise LongLoop
        before = kept.bytes
        with limited_calls(limited=not self.short) as calls, transformers_inside.asked_attention() as asked:
            try:
                result = forward(*given, **named)
            except LongLoop:
                self.known.long.add(description)
                raise
        shared = self.known.shared and not asked.often
        inside = kept.bytes - before
        return _Kind(
            block, description, given, named, result, inside, calls.number, name=name if shared else None
        )

    def _call(self, kind: _Kind, arguments: Any, keywords: Any) -> Tensor:
        """Call the first block of a kind; return the first tensor of its result."""
        with self._rules():
            return tensors_of(kind.first.forward.__wrapped__(*arguments, **keywords))[0]

    def _backward(self, kind: _Kind) -> int:
        """Count the peak bytes of a block's backward pass for each sample, without the block's kept bytes."""
        if kind.backward is not None:
            return kind.backward
        arguments, keywords = copied((kind.arguments, dict(kind.keywords)))
        with known_integers() if self.reads else nullcontext():
            found, peak = self._call(kind, arguments, keywords), 0
        if found.requires_grad:  # otherwise every weight up to here is frozen
            gradient = found.detach().clone()
            with torch_inside.live_bytes(self.samples) as live:
                found.backward(gradient)
            peak = live.peak // self.samples
        if kind.name is not None:
            self.known.kinds[kind.name] = kind.known(peak)
        return peak

    def _when_compiled(self, kind: _Kind) -> tuple[int, BlockTensors]:
        """Count the bytes that a compiled block keeps for each sample, including its first input.

        Returns the lifetimes of its tensors, too.
        """
        given = copied((kind.arguments, dict(kind.keywords)))
        call = partial(self._call, kind)
        saved, tensors = torch_inside.tensors_when_compiled(kind.first, call, given, self.samples, ends_graph)
        return sum(size for size in saved if size % self.samples == 0) // self.samples, tensors

    @contextmanager
    def _rules(self) -> Iterator[None]:
        import torch

        autocast = torch.autocast("cpu", dtype=self.half) if self.half else nullcontext()
        with autocast, as_on_cuda(autocast=self.half is not None), fused_calls()(self.half):
            yield


def _samples_with_contents(module: nn.Module) -> int:
    """Return a number of samples that divides the size of no weight, small enough to compute with."""
    sizes = {weight.numel() for weight in module.parameters()}
    return next((prime for prime in FEW if all(size % prime for size in sizes)), FEW[-1])


def _require_no_capacity(module: nn.Module) -> None:
    """Raise LookupError for experts that drop tokens: how many they keep depends on trained weights."""
    if any(hasattr(part, "expert_capacity") for part in module.modules()):
        raise LookupError("its experts drop tokens, and how many depends on what they learn")


def _kind_that_did_not_run(block: nn.Module, given: Any, named: Any, known: BlockKind) -> _Kind:
    inside, backward = known.added["inside"], known.added["backward"]
    return _Kind(block, known.description, given, named, known.result, inside, known.calls, backward)


@dataclass
class _Kept:
    bytes: int = 0  # of a sample
    seen: set[int] = field(default_factory=set)  # addresses of storages

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor's storage is kept already."""
        return tensor.untyped_storage()._cdata in self.seen


@contextmanager
def _keeping(samples: int) -> Iterator[_Kept]:
    """Add up the storages that autograd saves and that grow with the number of samples, each once."""
    import torch

    kept, alive = _Kept(), []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in kept.seen and storage.nbytes() % samples == 0:
            kept.bytes += storage.nbytes() // samples
            alive.append(storage)  # a freed storage's address could be taken by another one
            kept.seen.add(storage._cdata)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept
