"""One pass over a model in which blocks that are built alike run once, and a tally that is as if all had run.

Counting a pass without contents takes as long as the model's code has operators. Blocks of one kind, with
arguments of the same forms, add the same to every count, so that the first and the last of them run, and the
others repeat the first one's result. A block whose code loops over positions does not run at its full length:
the number that it adds is a polynomial in the length, which short lengths determine.
Imports torch only when called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model

if TYPE_CHECKING:
    from torch import Tensor, nn

Tally = Mapping[Hashable, int]  # what was counted, by name
MOST_CALLS = 2000  # of torch's functions in one block; more are a loop over positions
# Between the short lengths at which such blocks are counted; the full length is whole steps longer,
# so that code which cuts samples into chunks of STEP positions fills the last chunk as much at each length.
STEP = 64
LEAST_LENGTHS, MOST_LENGTHS = 3, 4  # two determine a polynomial of degree 1, and one more confirms it
PLAIN = (bool, int, float, str, type(None))
PLACES = ("layer_idx", "layer_id")  # attributes that say where a block is, and not how it is built
PASSED_PLACES = ("index",)  # arguments that do; WavLM passes it to its layers
# In place of a share: the probability with which a block is skipped often rises from block to block.
SOME_SHARE = "between 0 and 1"


class LongLoop(Exception):
    """A block calls more than MOST_CALLS functions of torch."""


class UnlikeBlocks(Exception):
    """Blocks add something else than was assumed of them, so that each of them has to run."""


@dataclass(frozen=True, slots=True)
class BlockKind:
    """The counts that a block of one kind adds to the tally, and the tensors that it returns."""

    description: str
    added: Tally
    calls: int  # of torch's functions
    result: Any


@dataclass
class BlockKinds:
    """The kinds of blocks in a pass: each runs once, and what it added is repeated for the others."""

    blocks: Sequence[nn.Module]
    tally: Callable[[], Tally]
    long: Mapping[int, BlockKind] = field(default_factory=dict)  # kinds that do not run, by their order
    kinds: dict[str, BlockKind] = field(default_factory=dict)
    repeated: Counter[Hashable] = field(default_factory=Counter)  # added by blocks that did not run
    short: bool = False  # samples of a few steps: no loop is too long, and the last block need not run too

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, let blocks of known kinds repeat results. LongLoop and UnlikeBlocks end it."""
        with forwards_replaced(self.blocks, self._instead_of):
            yield

    def total(self) -> Counter[Hashable]:
        """Return the tally of the pass as if every block had run."""
        return Counter(self.tally()) + self.repeated

    def _instead_of(self, block: nn.Module, description: str, is_last: bool) -> Callable[..., Any]:
        forward, checked = block.forward, is_last and not self.short

        def call(*arguments: Any, **keywords: Any) -> Any:
            name = kind_name(description, arguments, keywords)
            number = len(self.kinds)
            if name not in self.kinds and number not in self.long:
                self.kinds[name] = self._run(description, forward, arguments, keywords)
                return self.kinds[name].result
            if name not in self.kinds:
                self.kinds[name] = self.long[number]
                if self.long[number].description != description:
                    raise UnlikeBlocks("another kind of block comes first in a shorter sample")
            kind = self.kinds[name]
            if checked and kind not in self.long.values():
                again = self._run(description, forward, arguments, keywords)
                if again.added != kind.added:
                    raise UnlikeBlocks("blocks that are built alike do not compute alike")
                return again.result
            self.repeated.update(kind.added)
            return copied(kind.result)

        return call

    def _run(self, description: str, forward: Callable[..., Any], given: Any, named: Any) -> BlockKind:
        before = Counter(self.tally())
        with limited_calls(limited=not self.short) as calls:
            result = forward(*given, **named)
        added = Counter(self.tally())
        added.subtract(before)
        return BlockKind(description, {name: n for name, n in added.items() if n}, calls.number, result)


@contextmanager
def forwards_replaced(
    blocks: Sequence[nn.Module], instead_of: Callable[[nn.Module, str, bool], Callable[..., Any]]
) -> Iterator[None]:
    """Within the context, blocks have the forwards that `instead_of` returns.

    It is given a block, the description of its kind, and whether the block is the last one of its kind.
    """
    descriptions = {block: described(block) for block in blocks}
    last = {name: block for block, name in descriptions.items()}
    for block, name in descriptions.items():
        block.forward = instead_of(block, name, last[name] is block)
    try:
        yield
    finally:
        for block in descriptions:
            del block.forward


@dataclass
class Calls:
    """Calls of torch's functions."""

    limited: bool
    number: int = 0


@contextmanager
def limited_calls(*, limited: bool = True) -> Iterator[Calls]:
    """Count the calls of torch's functions; if `limited`, raise LongLoop at more than MOST_CALLS."""
    calls = Calls(limited)
    with _limit()(calls):
        yield calls


@cache
def _limit() -> Callable[[Calls], Any]:
    from torch.overrides import TorchFunctionMode

    class LimitCalls(TorchFunctionMode):
        def __init__(self, calls: Calls) -> None:
            super().__init__()
            self.calls = calls

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls.number += 1
            if self.calls.limited and self.calls.number > MOST_CALLS:
                raise LongLoop
            return func(*args, **(kwargs or {}))

    return LimitCalls


def long_kinds(model: Model, kinds_of: Callable[[Model], Sequence[BlockKind]]) -> dict[int, BlockKind]:
    """Return the kinds with a long loop, by their order, as they would be at the model's full length.

    `kinds_of` returns the kinds of a model with short samples. UnlikeBlocks if what they add follows no
    polynomial in the length: one of degree 1 or 2, which a further length confirms.
    """
    length, found = model.recipe.sequence_length or 0, list[Sequence[BlockKind]]()
    lengths = [STEP + length % STEP + STEP * step for step in range(MOST_LENGTHS)]
    if length <= lengths[-1]:
        raise UnlikeBlocks("the samples are short")
    for short in lengths:
        found.append(kinds_of(replace(model, recipe=replace(model.recipe, sequence_length=short))))
        if len({tuple(kind.description for kind in kinds) for kinds in found}) > 1:
            break
        if len(found) >= LEAST_LENGTHS:
            with suppress(NoPolynomial):
                return _at_full_length(found, length // STEP - 1)
    raise UnlikeBlocks("what a block adds follows no polynomial in the length")


def _at_full_length(found: Sequence[Sequence[BlockKind]], steps: int) -> dict[int, BlockKind]:
    """Return the kinds with a long loop at a length that is `steps` steps longer than the first one."""
    longer = {}
    for number, kinds in enumerate(zip(*found, strict=True)):
        calls = extrapolated([kind.calls for kind in kinds], steps)
        if is_long(calls):
            names = dict.fromkeys(name for kind in kinds for name in kind.added)
            added = {name: extrapolated([kind.added.get(name, 0) for kind in kinds], steps) for name in names}
            result = _longer([kind.result for kind in kinds], steps)
            longer[number] = BlockKind(kinds[0].description, added, calls, result)
    return longer


class NoPolynomial(Exception):
    """Values at equal steps follow no polynomial of the degree that they could determine."""


def extrapolated(values: Sequence[int], steps: int) -> int:
    """Return the value `steps` steps after the first, of the polynomial that all but one value determine.

    NoPolynomial if the last value is not on it.
    """
    result, factor, differences = 0, 1, [*values]
    for order in range(len(values) - 1):
        result += differences[0] * factor
        factor = factor * (steps - order) // (order + 1)
        differences = [after - before for before, after in pairwise(differences)]
    if any(differences):
        raise NoPolynomial
    return result


def _longer(results: Sequence[Any], steps: int) -> Any:
    """Return tensors without contents in the forms that follow from those of shorter samples."""
    import torch
    from torch.utils._pytree import tree_map

    def longer(*found: Any) -> Any:
        if not isinstance(found[0], torch.Tensor):
            return found[0]
        sizes = zip(*(tensor.shape for tensor in found), strict=True)
        shape = [extrapolated(size, steps) for size in sizes]
        made = found[0].new_empty(shape)  # in its own context without contents
        return made.requires_grad_(found[0].requires_grad) if found[0].is_floating_point() else made

    return tree_map(longer, *results)


def is_long(calls: int) -> bool:
    """Whether a block with this number of calls of torch's functions loops over positions."""
    return calls > MOST_CALLS


def kind_name(description: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Name a kind of blocks by its description and the forms of its arguments."""
    kept = [value for name, value in keywords.items() if name not in PASSED_PLACES]
    return f"{description} {forms((arguments, kept))}"


def described(block: nn.Module) -> str:
    """Describe a block's kind: its modules' classes and settings, and the shapes of its weights."""
    weights = [(name, tuple(weight.shape)) for name, weight in block.named_parameters()]
    return repr([(type(part).__name__, _settings(part)) for part in block.modules()] + weights)


def _settings(part: nn.Module) -> list[tuple[str, Any]]:
    def plain(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return all(map(plain, value))
        return isinstance(value, PLAIN)

    def kept(value: Any) -> Any:
        return SOME_SHARE if isinstance(value, float) and 0 < value < 1 else value

    return [(name, kept(value)) for name, value in vars(part).items() if plain(value) and name not in PLACES]


def forms(values: Any) -> list[Any]:
    """Return the shapes of the tensors in a structure, and whether each needs a gradient; its plain values.

    Before the first adapter no tensor needs one, so that the first block of a model with adapters keeps less.
    """
    from torch.utils._pytree import tree_leaves

    return [
        (tuple(value.shape), value.dtype, value.requires_grad) if hasattr(value, "shape") else value
        for value in tree_leaves(values)
        if hasattr(value, "shape") or isinstance(value, PLAIN)
    ]


def copied(values: Any) -> Any:
    """Copy a structure of tensors: the copies have no history, and require gradients if the originals do.

    Whole numbers are copied with their contents.
    """
    import torch
    from torch.utils._pytree import tree_map

    def new(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.clone()
        made = torch.empty_like(value, requires_grad=False)
        return made.requires_grad_() if value.requires_grad else made

    return tree_map(new, values)


def tensors_of(values: Any) -> list[Tensor]:
    """Return the tensors in a structure."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
