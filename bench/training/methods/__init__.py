"""Methods: what may change speed and memory, and must leave the mathematics alone.

A method is one file here with `METHODS`, a tuple of values; tests/methods runs over all of them.
A setting is the tuple of its methods' names in the order of `known_methods()`; () is naive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Literal

from bench.training.models import Flops, Model, installed
from bench.training.models.own_models import family_of
from bench.training.setting import GROUPS, NAIVE, Setting, in_group, sharded_by

if TYPE_CHECKING:
    from torch import nn

# In the order in which they act on a model; names within a file follow.
_METHOD_FILES = (
    "tf32",
    "hand_written_kernels",
    "flex_attention",
    "rotary",
    "gelu",
    "norms",
    "depthwise",
    "masked_head",
    "half_weights",
    "fused_optimizer",
    "compile",
    "checkpointing",
    "zero",
    "fsdp",
    "offload",
)


@dataclass(frozen=True, slots=True)
class Target:
    """The devices that a setting is meant for, as far as planning needs to know them."""

    device: Literal["cpu", "cuda"]
    gpus: int  # devices that train together; a machine without a GPU counts as one
    memory_bytes: int  # of one device
    name: str = ""  # of the device, for people
    compute_capability: str | None = None  # "9.0"; None without a GPU, or where it is not known
    host_bytes: int | None = None  # of a node's own memory; None where it is not known
    nodes: int = 1  # that have these devices, each as many
    elsewhere: bool = False  # not this machine: what is installed here says nothing of it

    def has(self, package: str) -> bool:
        """Whether it can be imported there; elsewhere as in the CUDA 13 image, which has all."""
        return self.elsewhere or installed(package)


@dataclass(frozen=True, slots=True)
class Method:
    """The contract. Methods below `refuse` import torch when called, in the worker alone."""

    name: str
    summary: str
    free_lunch: ClassVar[bool] = False  # costs nothing where it works: part of "free-lunch"
    built_there: ClassVar[bool] = False  # its kernels, by a C compiler of the machine, when they first run

    def refuse(self, model: Model, target: Target) -> str | None:
        """Why this cannot work for this model there; None if it can. Must not import torch."""
        return None

    def prepare(self) -> None:
        """Before the model is built: global switches of the back-ends."""

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        """Change the model with its loss (the training loop's `WithLoss`) and its blocks, in place."""

    def left_out(self, model: Model) -> Flops:
        """Arithmetic of one forward pass over a sample that is not done with this method."""
        return Flops(0)


@cache
def known_methods() -> Mapping[str, Method]:
    files = [import_module(f"bench.training.methods.{name}") for name in _METHOD_FILES]
    return {method.name: method for file in files for method in file.METHODS}


def ordered(names: Iterable[str]) -> Setting:
    """The one spelling of a setting."""
    chosen = set(names)
    return tuple(name for name in known_methods() if name in chosen)


def older_than(target: Target, capability: float) -> bool:
    return target.compute_capability is not None and float(target.compute_capability) < capability


def conflict(setting: Setting) -> str | None:
    """Why these methods cannot stand together; None if they can."""
    groups: dict[str, str] = {}
    for name in setting:
        group = GROUPS.get(name)
        if group is None:
            continue
        if group in groups:
            return f"{groups[group]} and {name} are both {group}: choose one"
        groups[group] = name
    if "offload" in setting and "sharding" not in groups:
        return "offload needs a sharding method beside it"
    if "flex-attention" in setting and "compilation" not in groups:
        return "flex-attention is slow unless it is compiled: add compile or compile-blocks"
    if "rotary" in setting and "kernels" not in setting:
        return "rotary hands over to the attention of kernels: add kernels"
    if "norms" in setting and "half-weights" not in setting:
        return "norms is for blocks in half precision throughout: add half-weights"
    if "half-weights" in setting and "sharding" in groups:
        return f"half-weights and {groups['sharding']} both say how weights are held: choose one"
    return None


def refusal(setting: Setting, model: Model, target: Target) -> str | None:
    """The first reason why a setting cannot work; None if nothing speaks against it."""
    if model.recipe.precision == "bf16" and older_than(target, 8.0):
        return f"trains in bf16, which needs compute capability 8.0, this GPU has {target.compute_capability}"
    if sharding := in_group(setting, "sharding"):
        offloads = "offload" in setting
        if target.gpus == 1 and not offloads:
            return f"{sharding} shards nothing on one GPU unless it offloads"
        if target.device == "cpu" and offloads and sharded_by(setting) == "fsdp":
            return "FSDP2 offloads from a GPU to the host: on a CPU there is nothing to offload from"
    reasons = (known_methods()[name].refuse(model, target) for name in setting)
    return conflict(setting) or next((reason for reason in reasons if reason), None)


def free_lunch(model: Model, target: Target, beside: Setting = NAIVE, compiled: bool = True) -> Setting:
    """All that costs nothing and that this model can take there, together with `beside`.

    Not `compiled`: nothing that a compiler makes on that machine.
    """
    given = [*(_compilation(model, target, beside) if compiled else ()), *beside]
    for name, method in known_methods().items():
        if not method.free_lunch or GROUPS.get(name) == "compilation" or method.refuse(model, target):
            continue
        if method.built_there and not compiled:
            continue
        # One may need a compiler, another what was chosen before it.
        if not conflict(ordered([name, *given])):
            given.append(name)
    if "offload" in beside:  # the update is the host's there
        given.remove("fused-optimizer")
    return ordered(given)


def _compilation(model: Model, target: Target, beside: Setting) -> list[str]:
    """The whole model at once where that can be, else block by block; or so where nothing is lost by it."""
    sharding = in_group(beside, "sharding")
    if sharding == "zero-3":  # its hooks gather inside of each block; those of the others stand outside
        return []
    by_blocks = sharding or family_of(model).by_blocks
    candidates = ["compile-blocks"] if by_blocks else ["compile", "compile-blocks"]
    return [name for name in candidates if known_methods()[name].refuse(model, target) is None][:1]


def memory_saving_settings(gpus: int) -> tuple[Setting, ...]:
    """The paper's search space, appendix F: 12 settings on one GPU, 22 on more."""
    shardings = [name for name, method in known_methods().items() if GROUPS.get(name) == "sharding"]
    pairs: list[tuple[str, ...]] = [()]
    for sharding in shardings:
        # Sharding does nothing on one GPU, unless it offloads.
        pairs += [(sharding, "offload")] if gpus == 1 else [(sharding,), (sharding, "offload")]
    return tuple(
        ordered([*checkpointing, *pair]) for pair, checkpointing in product(pairs, ((), ("checkpointing",)))
    )


def label(setting: Setting, model: Model, target: Target) -> str:
    """What people read: "naive", "free-lunch + checkpointing", "compile + kernels"."""
    if not setting:
        return "naive"
    for compiled in ("compile-blocks", ""):  # a free lunch where it stands in for "compile"
        rest = [name for name in setting if not known_methods()[name].free_lunch and name != compiled]
        if len(rest) < len(setting) and setting == free_lunch(model, target, ordered(rest)):
            return " + ".join(["free-lunch", *rest])
    return " + ".join(setting)


def prepare_all(setting: Setting) -> None:
    """A process, before a model is built in it. Convolutions in TF32 are torch's default, not ours."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in setting:
        known_methods()[name].prepare()


def apply_all(setting: Setting, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
    for name in setting:
        known_methods()[name].apply(model, whole, blocks)


def arithmetic(setting: Setting, model: Model, naive: Flops) -> Flops:
    """What a setting computes of what the naive one does; recomputation does not count."""
    for name in setting:
        naive = naive.less(known_methods()[name].left_out(model))
    return naive
