"""Methods: changes of speed and memory that leave the mathematics alone.

A method is a value in `METHODS` of the file for its kind; `Method` (method.py) is the contract and the guide
for new ones. A setting is the tuple of its methods' names in the order of `known_methods()`; () is naive.
Pure, except for `prepare_all` and `apply_all`, which a worker calls and which import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING

from bench.base.distribution import pip_install
from bench.base.errors import BadInput, in_json
from bench.training.methods import (
    checkpointing,
    chunked_loss,
    cuda_graphs,
    full_attention,
    joined_products,
    library_kernels,
    masked_head,
    padded_head,
    sharding,
    triton_kernels,
    weight_updates,
)
from bench.training.methods import compile as torch_compile
from bench.training.methods.cuda_graphs import RECORDED as RECORDED
from bench.training.methods.cuda_graphs import UNRECORDABLE as UNRECORDABLE
from bench.training.methods.cuda_graphs import why_not_recorded
from bench.training.methods.full_attention import FULL_ATTENTION as FULL_ATTENTION
from bench.training.methods.method import Method as Method
from bench.training.methods.method import Target as Target
from bench.training.methods.method import older_than
from bench.training.methods.triton_kernels import TRANSPOSED_FACTORS as TRANSPOSED_FACTORS
from bench.training.models import LEAST_CAPABILITY, Counted, Flops, Model
from bench.training.models.footprint import lowers_weights
from bench.training.models.model import ADAPTERS
from bench.training.models.position_tables import lower_position_tables
from bench.training.models.probe import tiny_input
from bench.training.objectives.documents import ENDS
from bench.training.setting import GROUPS, NAIVE, SETTINGS_KEPT, Setting, in_group, sharded_by

if TYPE_CHECKING:
    from torch import nn

# All methods in the order in which they act on a model, which is also their order in a setting.
_METHODS: tuple[Method, ...] = (
    *library_kernels.METHODS,
    *full_attention.METHODS,
    *triton_kernels.METHODS,
    *masked_head.METHODS,
    *joined_products.METHODS,
    *weight_updates.METHODS,
    *torch_compile.METHODS,
    *chunked_loss.METHODS,
    *padded_head.METHODS,
    *cuda_graphs.METHODS,
    *checkpointing.METHODS,
    *sharding.METHODS,
)


@cache
def known_methods() -> Mapping[str, Method]:
    """Return all methods by name, in the order in which they act on a model."""
    return {method.name: method for method in _METHODS}


class UnknownMethod(BadInput, LookupError):
    """A setting, such as one of a bundle by a later version, has a method that this version lacks."""


def method_named(name: str) -> Method:
    """Return a method by its name; UnknownMethod if this version has none of that name."""
    if (method := known_methods().get(name)) is not None:
        return method
    raise UnknownMethod(f"this version of bench has no method {in_json(name)}")


def ordered(names: Iterable[str]) -> Setting:
    """Return the setting that holds these methods, spelt in the order of `known_methods()`."""
    chosen = set(names)
    return tuple(name for name in known_methods() if name in chosen)


@lru_cache(SETTINGS_KEPT)
def conflict(setting: Setting) -> str | None:
    """Return why these methods exclude each other; None if they can be combined."""
    groups: dict[str, str] = {}
    for name in setting:
        if group := GROUPS.get(name):
            if group in groups:
                return f"{groups[group]} and {name} are both {group}: choose one"
            groups[group] = name
    by_role = {name: name for name in setting} | groups  # methods and groups of the setting
    for name in setting:
        method = method_named(name)
        for other, reason in method.requires.items():
            if other not in by_role:
                return reason
        for other, reason in method.excludes.items():
            if other in by_role:
                return reason.format(other=by_role[other])
    return None


def not_exported(framework: str, setting: Setting, model: Model) -> str | None:
    """Return the first reason why an exported framework cannot train a model so; None if it can."""
    refusing = (model.recipe.optimizer, *(method_named(name) for name in setting))
    reasons = (method.not_exported_to.get(framework) for method in refusing)
    return next((reason for reason in reasons if reason), None)


def refusal(setting: Setting, model: Model, target: Target, counts: Counted | None = None) -> str | None:
    """Return the first reason why a setting cannot train the model on the target; None if it can.

    `counts` of a model tell what its code was found to be unable to do.
    """
    optimizer = model.recipe.optimizer
    if optimizer.computes_in_bf16 and older_than(target, 8.0):
        needs = f"{optimizer.name} computes in bf16, which needs compute capability 8.0"
        return f"{needs}, this GPU has {target.compute_capability}"
    least = LEAST_CAPABILITY.get(model.recipe.precision)
    if least and older_than(target, least):
        precision, found = model.recipe.precision, target.compute_capability
        return f"trains in {precision}, which needs compute capability {least}, this GPU has {found}"
    if model.recipe.lora and not target.has(ADAPTERS):
        return f"{ADAPTERS} is not installed: {pip_install('lora')}"
    if shards := in_group(setting, "sharding"):
        sharder = sharded_by(setting)
        if sharder and (reason := optimizer.not_sharded_by.get(sharder)):
            return reason
        offloads = "offload" in setting
        if target.gpus == 1 and not offloads:
            return f"{shards} shards nothing on one GPU unless it offloads"
        if target.device == "cpu" and offloads and sharded_by(setting) == "fsdp":
            return "FSDP2 offloads from a GPU to the host: on a CPU there is nothing to offload from"
    reasons = (
        why_not_recorded(setting, target.gpus),
        *(method_named(name).why_not(model, target) for name in setting),
        counts.why_not(model, setting) if counts else None,
    )
    return conflict(setting) or next((reason for reason in reasons if reason), None)


def free_lunch(model: Model, target: Target, beside: Setting = NAIVE, *, compiled: bool = True) -> Setting:
    """Return `beside` with every method that costs nothing and that the model can take on the target.

    With `compiled` False, methods that need a compiler on the target are left out.
    """
    chosen = [*(_compilation(model, target, beside) if compiled else ()), *beside]
    for name, method in known_methods().items():
        if not method.free_lunch or GROUPS.get(name) == "compilation" or method.why_not(model, target):
            continue
        if _needs_compiler(method, model, target) and not compiled:
            continue
        # A method may need a compiled model, or a method that was chosen before it.
        taken = ordered([name, *chosen])
        if not (conflict(taken) or why_not_recorded(taken, target.gpus)):
            chosen.append(name)
    if "offload" in beside:  # the host updates offloaded weights
        chosen.remove("fused-optimizer")
    return ordered(chosen)


def _needs_compiler(method: Method, model: Model, target: Target) -> bool:
    """Whether a C compiler of the target builds the method's kernels in the first step."""
    compiled_update = model.recipe.optimizer.compiled_if_fused and target.device == "cuda"
    return method.compiled_on_first_use or (method.name == "fused-optimizer" and compiled_update)


def _compilation(model: Model, target: Target, beside: Setting) -> list[str]:
    """Return the compiling method of a free lunch, block by block; [] if it does not work.

    Compiled by blocks, a model trains as fast as in one graph, and starts sooner: docs/measurements.md.
    """
    if in_group(beside, "sharding") == "zero-3":  # its hooks gather weights inside of each block
        return []
    return [] if method_named("compile-blocks").why_not(model, target) else ["compile-blocks"]


def memory_saving_settings(gpus: int) -> tuple[Setting, ...]:
    """Return the paper's search space, appendix F: 12 settings on one GPU, 22 on more."""
    pairs: list[tuple[str, ...]] = [()]
    for name in known_methods():
        if GROUPS.get(name) == "sharding":  # on one GPU sharding does nothing, unless it offloads
            pairs += [(name, "offload")] if gpus == 1 else [(name,), (name, "offload")]
    return tuple(
        ordered([*checkpointing_too, *pair])
        for pair, checkpointing_too in product(pairs, ((), ("checkpointing",)))
    )


def label(setting: Setting, model: Model, target: Target) -> str:
    """Return the setting for people: "naive", "free-lunch + checkpointing", "compile + kernels"."""
    if not setting:
        return "naive"
    for compiled in ("compile-blocks", ""):  # a free lunch may use compile-blocks in place of compile
        rest = [name for name in setting if not method_named(name).free_lunch and name != compiled]
        if len(rest) < len(setting) and setting == free_lunch(model, target, ordered(rest)):
            return " + ".join(["free-lunch", *rest])
    return " + ".join(setting)


def prepare_all(setting: Setting) -> None:
    """Set torch's global options for this process, before a model is built.

    TF32 is turned off first, also for convolutions, for which torch turns it on by default.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in setting:
        method_named(name).prepare()


def apply_all(setting: Setting, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
    """Apply the setting's methods, in order, to the model with its loss and to its blocks.

    Products in fp8 belong to the recipe and not to a method: every setting of such a recipe has them. Tables
    of positions are lowered here for every strategy that lowers weights, DeepSpeed's too.
    """
    methods = [method_named(name) for name in setting]
    whole.blocks = tuple(blocks)
    if model.recipe.aim.has_text_head and any(method.head for method in methods):
        # Before methods replace parts, because it runs the model.
        given = tiny_input(whole.model, model)
        whole.split_head({name: part for name, part in given.items() if name != ENDS})
    for method in methods:
        method.find(model, whole)
    for method in methods:
        if method.head == "needed" and whole.head is None:
            reason = f"{method.name}: the head of this architecture cannot run on its own"
            raise BadInput(reason, where=model.name)
        method.apply(model, whole, blocks)
    if lowers_weights(model, setting):
        lower_position_tables(whole, model.recipe.precision)
    if model.recipe.precision == "fp8":  # last, so that methods find plain layers
        from bench.training.models.fp8 import multiply_blocks_in_fp8  # imports torch

        multiply_blocks_in_fp8(whole.model, blocks, model.name)


def arithmetic(setting: Setting, model: Model, counts: Counted) -> Flops:
    """Return the arithmetic of a forward pass in this setting; recomputation does not count."""
    flops = counts.flops
    for name in setting:
        flops = flops.less(method_named(name).left_out(model, counts))
    return flops
