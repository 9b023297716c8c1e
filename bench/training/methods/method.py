"""The contract of a method, and the machine that a setting is meant for.

Pure: torch is imported only by the functions of a method that a worker calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from bench.base.errors import BadInput
from bench.base.frozen import dataclass
from bench.training.models import Counted, Flops, Model, installed

if TYPE_CHECKING:
    from torch import nn

HOPPER = "9.0"  # compute capability


@dataclass(frozen=True, slots=True)
class Target:
    """The devices that a setting is meant for, as far as planning needs to know them."""

    device: Literal["cpu", "cuda"]
    gpus: int  # devices that train together; a machine without a GPU counts as one
    memory_bytes: int  # of one device
    name: str = ""  # of the device, for people
    compute_capability: str | None = None  # "9.0"; None without a GPU, or if it is unknown
    host_bytes: int | None = None  # a node's own memory; None if it is unknown
    nodes: int = 1  # nodes that share these devices equally
    elsewhere: bool = False  # not this machine, so that its installed packages are unknown
    lacks: tuple[str, ...] = ()  # packages that are not there, or have no code for its GPUs

    def has(self, package: str) -> bool:
        """Whether the target can import the package and use it.

        Another machine is assumed to have the CUDA 13 image with its kernel layer, without `lacks`.
        """
        return package not in self.lacks and (self.elsewhere or installed(package))


@dataclass(frozen=True, slots=True)
class Method:
    """A change of how a model trains that affects speed or memory, but not the mathematics.

    A method states its own effects: planning, search and export read these fields and know no method by
    name. A method of a known kind (sharding.py, triton_kernels.py, ...) is one value in that kind's file in
    bench/training/methods; a new kind is a new file:

        def _refuse(model: Model, target: Target) -> str | None:
            # Planning calls this on machines without torch: import neither torch nor transformers.
            if target.device == "cpu":
                return "its kernels are for NVIDIA GPUs"
            return None

        def _apply(model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
            from bench.training.triton.example import forward_of  # torch and Triton: import them here

            for block in blocks:
                block.forward = forward_of(block)

        METHODS = (
            Method(
                name="example",  # appears in manifests and bundles: it never changes
                summary="what it does, in one line",
                free_lunch=True,  # saves time and costs nothing wherever it is not refused
                compiled_on_first_use=True,  # Triton kernels need a C compiler on the machine
                requires={"kernels": "example replaces what kernels builds: add kernels"},
                refuse=_refuse,
                apply=_apply,
            ),
        )

    Add the METHODS of a new file to `_METHODS` in bench/training/methods/__init__.py, at the place where they
    act on a model. tests/training/methods runs over all methods; tests/training/test_equivalence.py trains
    with each and compares the losses. A method that saves memory needs a formula in
    bench/planning/memory_prediction.py, and one that excludes others a group in bench/training/setting.py.
    """

    name: str
    summary: str
    free_lunch: bool = False  # costs nothing where it is not refused: part of "free-lunch"
    compiled_on_first_use: bool = False  # a C compiler of the machine builds its kernels in the first step
    # Methods or groups that a setting must hold as well, or must not, each with the reason that people read.
    requires: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str] = field(default_factory=dict)  # "{other}" is replaced by the excluded method
    # What the guided search assumes.
    prior_time: float = 1.0  # believed factor on the time of a step; only orders trials
    least_time_with: float = 1.0  # a pass takes at least this share of the time without the method ...
    least_time_without: float = 1.0  # ... and without it at least this share of the time with it
    chooses_kernels: bool = True  # decides which kernels run, so timings with and without say little
    # Calls a language model's head apart from its body: wherever it can run on its own, or nowhere else.
    head: Literal["if possible", "needed"] | None = None
    changes_activations: bool = True  # may change the bytes kept for the backward pass
    # Frameworks of `bench export`: those whose configuration turns the method on, so that an exported script
    # must not apply it, and those that cannot train with it, each with the reason.
    configured_by: tuple[str, ...] = ()
    not_exported_to: Mapping[str, str] = field(default_factory=dict)
    # Changes the time of a step, but neither losses nor memory: `bench export --plain` leaves the method out
    # of a script that cannot have it.
    only_faster: bool = False
    # Why the method cannot train low-rank adapters beside frozen weights; None if it can.
    no_adapters: str | None = None
    # Why the method cannot work for a model on a target; None if it can. Must not import torch.
    refuse: Callable[[Model, Target], str | None] = lambda _model, _target: None
    # The following are called by a worker, and may import torch.
    prepare: Callable[[], None] = lambda: None  # sets global options of torch, before the model is built
    # Looks for parts of the model with its loss, before any method changes the model.
    find: Callable[[Model, nn.Module], None] = lambda _model, _whole: None
    # Changes the model with its loss (`WithLoss` of the training loop) and its blocks, in place.
    apply: Callable[[Model, nn.Module, list[nn.Module]], None] = lambda _model, _whole, _blocks: None
    # Arithmetic of one forward pass over a sample that the method saves.
    left_out: Callable[[Model, Counted], Flops] = lambda _model, _counts: Flops(0)

    def why_not(self, model: Model, target: Target) -> str | None:
        """Return why the method cannot work for a model, with or without adapters, on a target."""
        without = self.no_adapters if model.recipe.lora else None
        return without or self.refuse(model, target)


def older_than(target: Target, capability: float) -> bool:
    """Whether the target's GPU is known to have a lower compute capability."""
    return target.compute_capability is not None and float(target.compute_capability) < capability


def refuse_cpu(target: Target) -> str | None:
    """Return why a method with kernels in Triton is not for the target; None if it is."""
    return "its kernels are for NVIDIA GPUs" if target.device == "cpu" else None


def why_not_hopper(target: Target) -> str | None:
    """Return why kernels that were measured on Hopper GPUs alone are not for the target; None if they are."""
    found = target.compute_capability
    if found in (None, HOPPER):
        return refuse_cpu(target)
    return f"it was measured on GPUs of compute capability {HOPPER} alone, and this one has {found}"


def unfit(method: str, model: Model, reason: object) -> BadInput:
    """Return the error for a method that does not fit a model once it is built."""
    return BadInput(f"{method}: {reason}", where=model.name, advice="leave this method out")


@contextmanager
def looking_for(method: str, model: Model) -> Iterator[None]:
    """Raise the error of an unfit method for a LookupError, which says what the built model lacks."""
    try:
        yield
    except LookupError as error:
        raise unfit(method, model, error) from error
