"""GELU of a linear layer with a bias, found by running a model once on a tiny input.

A layer that is taken over returns GELU of its output, and the activation after it returns its input. The
arithmetic is an argument, so that models are searched and compared on any device. Imports torch and
transformers only when called, in a worker or in the process of dry_build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model
from bench.training.models.probe import close, model_call, on_tiny_input, taken_over
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

Answer = Callable[[], "Tensor"]  # calls a model on a tiny input
BiasedGelu = Callable[["Tensor", "Tensor"], "Tensor"]  # a product without its bias, and the bias
# Functions that give a tensor another shape. GELU treats each number alone, so it may come before or after.
RESHAPES = frozenset(
    ("contiguous", "flatten", "movedim", "permute", "reshape", "squeeze", "swapaxes", "transpose",
     "unflatten", "unsqueeze", "view")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GeluLayers:
    """Linear layers whose every output goes to GELU alone, and the activations that compute it.

    An activation may serve several layers, and a layer may be called several times.
    """

    layers: tuple[nn.Linear, ...]
    activations: tuple[nn.Module, ...]


def gelu_layers_of(module: nn.Module, model: Model) -> GeluLayers:
    """Return the layers of a model whose GELU can be computed together with their bias.

    Raises LookupError if there are none, if the model cannot run on a tiny input, or if it gives another
    output when these layers compute GELU.
    """
    with on_tiny_input(module, model) as answer:
        with model_call():
            gelus, outputs, expected = search(module, answer)
        if not gelus.layers:
            raise LookupError("no linear layer with a bias has an output that only exact GELU reads")
        if not _same_with(gelus, answer, outputs, expected):
            raise LookupError("the model gives another output if layers with a bias compute GELU themselves")
    return gelus


def take_over(gelus: GeluLayers, biased_gelu: BiasedGelu) -> None:
    """Let the layers return GELU of their output, and the activations return their input.

    GELU needs the whole bias, and a sharded bias is whole only during the forward pass of its layer.
    """
    for layer in gelus.layers:
        layer.forward = _with_gelu(layer, biased_gelu)
    for activation in gelus.activations:
        activation.forward = lambda hidden: hidden


def _with_gelu(layer: nn.Linear, biased_gelu: BiasedGelu) -> Callable[[Tensor], Tensor]:
    import torch.nn.functional as F

    def forward(entry: Tensor) -> Tensor:
        product = getattr(layer, "product", F.linear)  # set by bench/runner/trial/fused_gradient_sums.py
        return biased_gelu(product(entry, layer.weight), layer.bias)

    return forward


def gelu_by_pytorch(product: Tensor, bias: Tensor) -> Tensor:
    """Compute GELU of a product and its bias as PyTorch does it, on any device."""
    import torch.nn.functional as F

    return F.gelu(product + bias)


# eq=False: compared by identity.
@dataclass(eq=False, slots=True)
class _LayerCall:
    """One call of a linear layer in the watched pass: its output, and who reads it."""

    layer: Any  # nn.Linear
    version: int  # of the output's contents, when the layer returned it
    readers: list[nn.Module | None] = field(default_factory=list)  # an activation, or None for anything else


@dataclass(slots=True)
class _Watched:
    """One watched pass: calls of linear layers, inputs and outputs of activations."""

    calls: list[_LayerCall] = field(default_factory=list)
    by_tensor: dict[int, _LayerCall] = field(default_factory=dict)  # by the id of an output or of its reshape
    alive: list[Tensor] = field(default_factory=list)  # a freed tensor's id could be taken by another one
    entries: dict[nn.Module, list[_LayerCall | None]] = field(default_factory=dict)  # of each activation
    outputs: list[tuple[nn.Module, Tensor]] = field(default_factory=list)  # of activations, in order
    inside: int = 0  # activations that are running

    def made(self, tensor: Tensor, call: _LayerCall) -> None:
        self.by_tensor[id(tensor)] = call
        self.alive.append(tensor)

    def called(self, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        call = _LayerCall(layer, output._version, [] if len(given) == 1 else [None])
        self.calls.append(call)
        self.made(output, call)

    def enter(self, activation: nn.Module, given: tuple[Any, ...]) -> None:
        self.inside += 1
        call = self.by_tensor.get(id(given[0])) if len(given) == 1 else None
        if call and call.version != given[0]._version:  # changed in place since
            call = None
        self.entries.setdefault(activation, []).append(call)
        if call:
            call.readers.append(activation)

    def leave(self, activation: nn.Module, _given: Any, output: Tensor) -> None:
        self.inside -= 1
        self.outputs.append((activation, output.clone()))

    def ran(self, name: str, given: Sequence[Any], result: Any) -> None:
        """Note that a function of torch ran: it reshaped a layer's output, or read it, or neither."""
        if self.inside:
            return
        read = [call for value in given if (call := self.by_tensor.get(id(value)))]
        if not read:
            return
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        if name in RESHAPES and isinstance(result, Tensor):
            self.made(result, read[0])
        elif any(isinstance(value, Tensor) for value in tree_leaves(result)):
            for call in read:
                call.readers.append(None)


@cache
def _watching() -> Callable[[_Watched], Any]:
    """Return the class of contexts in which a `_Watched` sees every call of a function of torch."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_leaves

    class Watching(TorchFunctionMode):
        def __init__(self, watched: _Watched) -> None:
            super().__init__()
            self.watched = watched

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.watched.ran(getattr(func, "__name__", ""), tree_leaves((args, kwargs)), result)
            return result

    return Watching


def search(module: nn.Module, answer: Answer) -> tuple[GeluLayers, list[Any], Tensor]:
    """Run a model once, without gradients; return its layers before GELU, and what it computed.

    The second value holds each activation with its output, in the order of calls; the third is the model's
    output. The layers may be none.
    """
    from torch import nn

    watched = _Watched()
    plain = [part for part in module.modules() if type(part) is nn.Linear and part.bias is not None]
    exact = [part for part in module.modules() if transformers_inside.is_exact_gelu(part)]
    with ExitStack() as stack:
        for layer in filter(_untouched, plain):
            stack.callback(layer.register_forward_hook(watched.called).remove)
        for activation in filter(_untouched, exact):
            stack.callback(activation.register_forward_pre_hook(watched.enter).remove)
            stack.callback(activation.register_forward_hook(watched.leave).remove)
        with _watching()(watched):
            expected = answer()
    gelus = _agreed(watched, _reach_uncalled(module, watched))
    outputs = [(activation, out) for activation, out in watched.outputs if activation in gelus.activations]
    return gelus, outputs, expected


def _untouched(part: nn.Module) -> bool:
    """Whether nothing replaced a module's forward pass or listens to it."""
    return not ("forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks)


def _reach_uncalled(module: nn.Module, watched: _Watched) -> set[nn.Module]:
    """Return activations that may serve linear layers which this pass did not call.

    An expert that no token visits, for instance, may share its activation with those that were visited. Such
    a layer has the shape of one that was called, and lies in the module that holds the activation.
    """
    from torch import nn

    called = {call.layer for call in watched.calls}

    def served(activation: nn.Module) -> set[Any]:
        return {call.layer.weight.shape for call in watched.entries[activation] if call}

    return {
        activation
        for owner in module.modules()
        for activation in owner.children()
        if activation in watched.entries
        for part in owner.modules()
        if type(part) is nn.Linear and part not in called and part.weight.shape in served(activation)
    }


def _agreed(watched: _Watched, left_out: set[nn.Module]) -> GeluLayers:
    """Return the layers and activations whose calls all belong to a call of the other kind."""
    layers = {call.layer for call in watched.calls}
    activations = watched.entries.keys() - left_out
    while True:
        fit = layers - {
            call.layer
            for call in watched.calls
            if len(call.readers) != 1 or call.readers[0] not in activations
        }
        used = {
            activation
            for activation in activations
            if all(call and call.layer in fit for call in watched.entries[activation])
        }
        if (fit, used) == (layers, activations):
            break
        layers, activations = fit, used
    in_order: dict[Any, None] = dict.fromkeys(call.layer for call in watched.calls if call.layer in layers)
    return GeluLayers(tuple(in_order), tuple(entry for entry in watched.entries if entry in activations))


def _same_with(
    gelus: GeluLayers,
    answer: Answer,
    outputs: Sequence[tuple[nn.Module, Tensor]],
    expected: Tensor,
) -> bool:
    """Whether the model and its activations give the same output if the layers compute GELU.

    Each activation is compared, because some architectures scale what a block adds by a millionth at first.
    """
    seen: list[tuple[nn.Module, Tensor]] = []
    parts = (*gelus.layers, *gelus.activations)
    with taken_over(lambda: take_over(gelus, gelu_by_pytorch), parts), ExitStack() as stack:
        for activation in gelus.activations:
            hook = activation.register_forward_hook(lambda part, _, out: seen.append((part, out.clone())))
            stack.callback(hook.remove)
        again = answer()
    return (
        [activation for activation, _ in seen] == [activation for activation, _ in outputs]
        and all(close(one, other) for (_, one), (_, other) in zip(seen, outputs, strict=True))
        and close(again, expected)
    )
