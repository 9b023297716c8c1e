"""The family of any architecture that transformers can build and that has no family file.

Parameters and operations are unknown until the module is built: counted_operations.py counts them. Without
transformers, a plan says "counted when it runs". Imports torch and transformers only when called, in a worker
or in the process of dry_build.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from bench.base.errors import BadInput, Mistake, in_json
from bench.training.models.attention import fused_attention
from bench.training.models.experts import grouped_experts
from bench.training.models.mixed_precisions import autocast_half_weights, mixes_precisions
from bench.training.models.model import (
    Family,
    Has,
    Model,
    installed,
)
from bench.training.models.operation_counters import ScanCount
from bench.training.objectives import Objective, ObjectiveName, known_objectives, objective_of
from bench.training.objectives.objective import value_at
from bench.training.vendor import transformers_inside, transformers_source

if TYPE_CHECKING:
    from torch import nn


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
        transformers_inside.keep_no_results_without_contents()
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
        if mixes_precisions(model):
            autocast_half_weights(module)
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
