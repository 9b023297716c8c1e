"""Two layer norms of a block that read the block's input, found by running a model once on a tiny input.

A block that is taken over computes both norms before anything else, and hands its input on to the residual
connection from there, so that one function has all gradients of the input. The arithmetic is an argument, so
that models are searched and compared on any device. Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model
from bench.training.models.probe import close, model_call, on_tiny_input, taken_over

if TYPE_CHECKING:
    from torch import Tensor, nn

# Computes both norms of a tensor from their weights, biases and epsilon; returns them and the tensor itself.
BothNorms = Callable[
    ["Tensor", "Tensor", "Tensor", "Tensor", "Tensor", float], tuple["Tensor", "Tensor", "Tensor"]
]


@dataclass(frozen=True, slots=True)
class PairedNorms:
    """A block whose first argument is read by two layer norms of equal epsilon, once each."""

    block: nn.Module
    first: nn.Module
    second: nn.Module
    epsilon: float


def paired_norms_of(module: nn.Module, blocks: Sequence[nn.Module], model: Model) -> tuple[PairedNorms, ...]:
    """Return the blocks of a model whose two norms can be computed together.

    Raises LookupError if there are none, if the model cannot run on a tiny input, or if it gives another
    output when their norms are computed together.
    """
    with on_tiny_input(module, model) as answer:
        with model_call():
            pairs, expected = _search(blocks, answer)
        if not pairs:
            raise LookupError("no block has two layer norms that read its input")
        if not _same_with(pairs, answer, expected):
            raise LookupError("the model gives another output if both norms of a block are computed together")
    return pairs


def take_over(pairs: Sequence[PairedNorms], both: BothNorms) -> None:
    """Let each block compute both norms at once, and its norms return what was computed."""
    for pair in pairs:
        _take_over(pair, both)


def _take_over(pair: PairedNorms, both: BothNorms) -> None:
    first, second, plain = pair.first, pair.second, pair.block.forward
    computed: list[Tensor] = []  # both norms and the block's input, while the block runs

    def forward(hidden: Tensor, *rest: Any, **named: Any) -> Any:
        weights = (first.weight, first.bias, second.weight, second.bias)
        computed[:] = both(hidden, *weights, pair.epsilon)
        try:
            return plain(computed[2], *rest, **named)
        finally:
            computed.clear()  # so that nothing lives longer than without the method

    def result(place: int, entry: Tensor) -> Tensor:
        if entry is not computed[2]:
            raise RuntimeError("a norm that is computed with another one reads another tensor than before")
        return computed[place]

    pair.block.forward = forward
    first.forward, second.forward = partial(result, 0), partial(result, 1)
    for part in _idle(pair.block):  # the compiler would make it a copy
        part.forward = lambda hidden: hidden


def _idle(block: nn.Module) -> list[nn.Module]:
    """Return the parts of a block that may drop units, and drop none."""
    from torch import nn

    return [part for part in block.children() if type(part) is nn.Dropout and part.p == 0]


def norms_by_pytorch(
    hidden: Tensor, weight: Tensor, bias: Tensor, weight_2: Tensor, bias_2: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute both norms as PyTorch does it, on any device."""
    import torch.nn.functional as F

    width = (hidden.size(-1),)
    norms = (F.layer_norm(hidden, width, *one, epsilon) for one in ((weight, bias), (weight_2, bias_2)))
    return (*norms, hidden.view_as(hidden))


def layer_norm_epsilon(part: nn.Module) -> float | None:
    """Return the epsilon with which a module computes torch's layer norm; None if it computes anything else.

    The module is called once on random numbers with random weights, so that its class does not matter.
    """
    import torch
    import torch.nn.functional as F

    weights = dict(part.named_parameters())
    epsilon = getattr(part, "eps", getattr(part, "variance_epsilon", None))
    if weights.keys() != {"weight", "bias"} or not isinstance(epsilon, float):
        return None
    weight, bias = weights["weight"], weights["bias"]
    if weight.dim() != 1 or weight.shape != bias.shape:
        return None
    random = torch.Generator("cpu").manual_seed(0)
    entry, scales, shifts = (
        (torch.randn(shape, generator=random, device="cpu") + 0.5).to(weight)
        for shape in ((3, len(weight)), weight.shape, weight.shape)
    )
    try:
        norm = torch.func.functional_call(part, {"weight": scales, "bias": shifts}, (entry,))
    except Exception:  # a module of this form may do anything
        return None
    expected = F.layer_norm(entry, (len(weight),), scales, shifts, epsilon)
    return epsilon if isinstance(norm, torch.Tensor) and close(norm, expected) else None


# eq=False: compared by identity.
@dataclass(eq=False, slots=True)
class _BlockCall:
    """The calls of one block and of the norms in it, as recorded while the model ran once."""

    block: nn.Module
    entries: list[Any] = field(default_factory=list)  # the block's first argument in each call
    readings: list[tuple[nn.Module, Any]] = field(default_factory=list)  # norms, and the tensors they read


def _search(blocks: Sequence[nn.Module], answer: Callable[[], Tensor]) -> tuple[tuple[PairedNorms, ...], Any]:
    """Run a model once; return the blocks whose two norms read their input, and the model's output."""
    epsilons: dict[nn.Module, float] = {}
    calls = [_BlockCall(block) for block in blocks]
    with ExitStack() as stack:
        for call in calls:

            def enter(_: Any, given: tuple[Any, ...], call: _BlockCall = call) -> None:
                call.entries.append(given[0] if given else None)

            def read(norm: nn.Module, given: tuple[Any, ...], call: _BlockCall = call) -> None:
                call.readings.append((norm, given[0] if len(given) == 1 else None))

            for part in call.block.modules():
                if "forward" not in vars(part) and (epsilon := layer_norm_epsilon(part)) is not None:
                    epsilons[part] = epsilon
                    stack.callback(part.register_forward_pre_hook(read).remove)
            stack.callback(call.block.register_forward_pre_hook(enter).remove)
        expected = answer()
    return tuple(pair for call in calls if (pair := _pair_of(call, epsilons))), expected


def _pair_of(call: _BlockCall, epsilons: dict[nn.Module, float]) -> PairedNorms | None:
    if len(call.entries) != 1 or call.entries[0] is None:
        return None
    of_entry = [norm for norm, entry in call.readings if entry is call.entries[0]]
    both = [norm for norm, _ in call.readings if norm in of_entry]
    if len(both) != 2 or len({*both}) != 2 or len({epsilons[norm] for norm in both}) != 1:
        return None
    first, second = both
    return PairedNorms(call.block, first, second, epsilons[first])


def _same_with(pairs: Sequence[PairedNorms], answer: Callable[[], Tensor], expected: Tensor) -> bool:
    parts = [part for p in pairs for part in (p.block, p.first, p.second, *_idle(p.block))]
    with taken_over(lambda: take_over(pairs, norms_by_pytorch), parts):
        try:
            return close(answer(), expected)
        except RuntimeError:
            return False
