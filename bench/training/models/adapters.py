"""Low-rank adapters (LoRA, arXiv:2106.09685) beside the linear layers of any family's model, by peft.

Every weight of the model is frozen and has the recipe's half precision, as when people load published weights
in bf16; adapters have fp32 weights, which autocast lowers for products. In classifiers the head is
trained too, because a new set of classes needs a new head. Imports torch, transformers and peft only when
called, in a worker or in the process of dry_build.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.base.errors import BadInput, Mistake, in_json, nearest
from bench.training.models.cuda_autocast import half_of
from bench.training.models.generic import TARGETS, TransformersFamily, Ways
from bench.training.models.model import Family, Has, Lora, Model, installed
from bench.training.models.operation_counters import ScanCount
from bench.training.models.timm_family import NAME as TIMM
from bench.training.objectives import ObjectiveName
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    import torch
    from torch import nn

CLASSIFY: tuple[ObjectiveName, ...] = ("image-classification", "audio-classification")
ADAPTER, FILE = "default", "adapter_model.safetensors"  # peft's names of an adapter and of its file
NAMED = 12  # layers that a message lists


class FamilyWithAdapters(TransformersFamily):
    """A family whose models have adapters. Formulas do not fit these, so everything is counted."""

    def __init__(self, family: Family) -> None:
        super().__init__(family.name)
        self.plain = family
        # Counts the model without adapters, also if it has formulas.
        self.counting = family if isinstance(family, TransformersFamily) else TransformersFamily(family.name)
        self.objectives = family.objectives
        self.defaults = family.defaults
        self.kernels = family.kernels
        self.keeps_fp32_weights = family.keeps_fp32_weights
        self.breaks_graph = family.breaks_graph
        self.uses_all_weights = family.uses_all_weights

    @property
    def kernels_of_attention(self) -> bool:
        """Ask the family beneath: adapters ask for no attention."""
        return self.counting.kernels_of_attention

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find what adapters rule out: fp8, optimizers of matrices, and families without adapters."""
        if self.plain.no_adapters:
            yield Mistake(
                f"{path}/recipe/lora", self.plain.no_adapters, "allowed: null, to train every weight"
            )
        if model.recipe.precision == "fp8":
            found = "fp8 multiplies with gradients of every weight, and most are frozen beside adapters"
            yield Mistake(f"{path}/recipe/precision", found, "allowed with lora: fp32, bf16, fp16")
        if model.recipe.optimizer.updates_matrices:
            found = (
                f"{model.recipe.optimizer.name} updates matrices of blocks, which are frozen beside adapters"
            )
            yield Mistake(f"{path}/recipe/optimizer", found, "allowed with lora: adam, adamw, adamw-8bit")
        yield from self.plain.mistakes(model, path)

    def why_no_documents(self) -> str | None:
        """Ask the family beneath: adapters change nothing about attention."""
        return self.plain.why_no_documents()

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Ask the family beneath: adapters need no packages of their own here."""
        return self.plain.missing_kernels(device, has)

    def why_no_kernels(self, model: Model) -> str | None:
        """Ask the family beneath, which knows the layers that its kernels do not call."""
        return self.plain.why_no_kernels(model)

    def counted_by(self, scans: ScanCount) -> AbstractContextManager[None]:
        """Ask the family that counts: adapters change nothing about scans."""
        return self.counting.counted_by(scans)

    def counted_ways(self) -> Ways:
        """Ask the family that counts: adapters change nothing about kernels."""
        return self.counting.counted_ways()

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build the module with weights in half precision, if the recipe has one, then add adapters."""
        with _weights_in_half(model):
            module = self.plain.build(without_adapters(model), kernels=kernels)
        return _with_adapters(module, model, self.plain)

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build the module with one of transformers' implementations of attention, then add adapters."""
        return _with_adapters(self.build_plain(model, attention), model, self.plain)

    def build_plain(self, model: Model, attention: str) -> nn.Module:
        """Build the model without adapters; the arguments are those of `build_with`."""
        with _weights_in_half(model):
            return self.counting.build_with(without_adapters(model), attention)

    def build_for_memory(self, model: Model, attention: str) -> nn.Module:
        """Build the module as the family beneath does, then add adapters."""
        with _weights_in_half(model):
            module = self.counting.build_for_memory(without_adapters(model), attention)
        return _with_adapters(module, model, self.plain)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the blocks of the family beneath; their adapters are inside them."""
        return self.plain.blocks(module)

    def unused_targets(self, module: nn.Module, model: Model) -> list[str]:
        """Return the targets without any layer whose adapter has a gradient.

        One layer of a target is enough: which experts of a mixture are called depends on the data.
        """
        assert model.recipe.lora is not None
        used = [name for name, weight in module.named_parameters() if weight.grad is not None]
        layers = [name.rpartition(".lora_")[0] for name in used if ".lora_" in name]
        if model.recipe.lora.targets == "all-linear":
            return [] if layers else ["all-linear"]
        return [
            target
            for target in model.recipe.lora.targets
            if not any(_matches(name, target) for name in layers)
        ]


def without_adapters(model: Model) -> Model:
    """Return the model whose every weight is trained, with the recipe otherwise unchanged."""
    return replace(model, recipe=replace(model.recipe, lora=None))


def adapter_mistakes(model: Model, family: FamilyWithAdapters, path: str) -> Iterator[Mistake]:
    """Yield targets that name no linear layer, and a rank that is larger than a layer's matrix."""
    import torch

    assert model.recipe.lora is not None
    lora, place = model.recipe.lora, f"{path}/targets"
    with torch.device("meta"):
        module = family.build_plain(model, "eager")
    layers = _linear_layers(module)
    able = _able(layers, module, model, family.plain)
    if not able:
        yield Mistake(place, f"{model.family} has no linear layers", "allowed: no lora")
        return
    names = sorted({name.rpartition(".")[2] for name in able})
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    wanted = _wanted(lora, able)
    for i, target in enumerate(lora.targets if lora.targets != "all-linear" else ()):
        if not any(_matches(name, target) for name in able):
            is_head = any(_matches(name, target) for name in layers)
            what = "is the head, which is trained whole" if is_head else "names no linear layer"
            hint = nearest(target, names) if len(names) > NAMED else f"allowed: {listed}"
            yield Mistake(f"{place}/{i}", f"{in_json(target)} {what}", hint)
    for name in wanted:
        rows, columns = layers[name].weight.shape
        if lora.rank > min(rows, columns):
            found = f"{lora.rank} is more than {name} has, a matrix of {rows} x {columns}"
            least = min(min(layers[each].weight.shape) for each in wanted)
            yield Mistake(f"{path}/rank", found, f"allowed: at most {least}")
            return


def randomise(module: nn.Module) -> None:
    """Give adapters random second matrices, which start at zero: the first ones then have gradients too."""
    import torch

    for number, (name, weight) in enumerate(module.named_parameters()):
        if ".lora_B." in name:
            generator = torch.Generator(weight.device).manual_seed(number)
            with torch.no_grad():
                weight.normal_(0, 0.02, generator=generator)


def save_adapters(state: Mapping[str, torch.Tensor], model: Model, module: nn.Module, folder: Path) -> None:
    """Write adapters as files that `PeftModel.from_pretrained` loads; `state` has trained weights by name."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    inside = "body." if model.family == TIMM else ""  # peft will load into timm's own model
    tensors = {
        f"base_model.model.{name.removeprefix(inside)}".replace(f".{ADAPTER}.weight", ".weight"): tensor
        for name, tensor in state.items()
    }
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / FILE)
    adapted = {name.rpartition(".lora_")[0].removeprefix(inside) for name in state if ".lora_" in name}
    heads = [name.removeprefix(inside) for name in _heads(module, model)]
    _configuration(model, sorted(adapted), heads).save_pretrained(str(folder))


def _with_adapters(module: nn.Module, model: Model, family: Family) -> nn.Module:
    """Freeze every weight of a model, and add adapters; in classifiers, leave the head trained."""
    import peft
    import torch

    assert model.recipe.lora is not None
    heads = [module.get_submodule(name) for name in _heads(module, model)]
    half = half_of(model.recipe.precision) or torch.float32
    exact = torch_inside.batch_norm_weights(module)
    module.requires_grad_(False)
    for weight in module.parameters():
        if weight.is_floating_point() and weight not in exact:
            weight.data = weight.data.to(half)
    targets = _wanted(model.recipe.lora, _able(_linear_layers(module), module, model, family))
    if not targets:
        raise BadInput("its adapters are beside no linear layer", where=model.name, advice=TARGETS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft corrects its option for transposed layers, and says so
            peft.inject_adapter_in_model(_configuration(model, targets, ()), module)
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"peft refuses these adapters: {reason}", where=model.name) from error
    for head in heads:
        head.requires_grad_()
    for weight in module.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return module.train()


def _configuration(model: Model, targets: Iterable[str], heads: Iterable[str]) -> Any:
    import peft

    lora = model.recipe.lora
    assert lora is not None
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(targets),
        modules_to_save=list(heads) or None,
    )


def _linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    from bench.training.optimizers.updates.block_matrices import is_linear  # imports torch

    return {name: part for name, part in module.named_modules() if is_linear(part)}


def _wanted(lora: Lora, able: Mapping[str, nn.Module]) -> list[str]:
    if lora.targets == "all-linear":
        return list(able)
    return [name for name in able if any(_matches(name, target) for target in lora.targets)]


def _matches(name: str, target: str) -> bool:
    """Whether a target means the layer of this full name, by peft's rule."""
    return name == target or name.endswith(f".{target}")


def _able(
    layers: Mapping[str, nn.Module], module: nn.Module, model: Model, family: Family
) -> dict[str, nn.Module]:
    """Return the layers that may have adapters.

    "all-linear" leaves out the layer of the logits, as peft does, and layers that nothing calls; a
    classifier's is trained whole.
    """
    assert model.recipe.lora is not None
    leaves_out = model.recipe.lora.targets == "all-linear" or model.recipe.objective in CLASSIFY
    last = _logits_layer(module) if leaves_out else None
    uncalled = family.read_past if model.recipe.lora.targets == "all-linear" else ()
    return {
        name: part
        for name, part in layers.items()
        if not (last and f"{name}.".startswith(f"{last}.")) and name.rpartition(".")[2] not in uncalled
    }


def _logits_layer(module: nn.Module) -> str | None:
    """Return the name of the layer or the part of a model that computes the logits; None if it is unknown."""
    output = getattr(module, "get_output_embeddings", lambda: None)()
    if output is None and hasattr(module, "body"):  # of timm
        output = module.body.get_classifier()
    if output is not None:
        return next((name for name, part in module.named_modules() if part is output), None)
    names = dict(module.named_children())
    return next((name for name in ("classifier", "score", "head") if name in names), None)


def _heads(module: nn.Module, model: Model) -> list[str]:
    """Return the names of the parts that are trained whole: the head of a classifier."""
    if model.recipe.objective not in CLASSIFY:
        return []
    head = _logits_layer(module)
    return [head] if head else []


@contextmanager
def _weights_in_half(model: Model) -> Iterator[None]:
    """Create weights in the recipe's half precision, so that fp32 weights never take memory.

    timm's models draw random numbers that exist in fp32 only; they are small, and lowered afterwards.
    """
    import torch

    half = half_of(model.recipe.precision)
    if half is None or model.family == TIMM:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(half)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
