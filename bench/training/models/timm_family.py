"""The family of all image models of timm, by timm's names.

`{"timm": "resnet50"}` is an architecture; further fields are options of timm.create_model. Parameters and
operations are counted on tensors without contents, as for transformers' architectures. Imports torch and timm
only when called, in a worker or in the process of dry_build.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.base.errors import BadInput, Mistake, in_json, nearest, raised
from bench.training.models.generic import is_compound
from bench.training.models.model import Model
from bench.training.models.module_family import Answer, ModuleFamily
from bench.training.objectives import ObjectiveName

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "timm"  # the family's, and the field with the model's name
CLASSES = 1000  # timm's default
_NAME = re.compile(r"[\w.-]+", re.ASCII)  # "hf-hub:..." and "local-dir:..." would name files elsewhere
# Options of timm.create_model that say which weights to load and from where: all models here begin at random.
_LOADING = re.compile("pretrained.*|checkpoint_path|cache_dir")


class TimmFamily(ModuleFamily):
    """An image model of timm, which the architecture names; its keywords go to timm.create_model."""

    objectives = ("image-classification",)
    package = NAME
    kernels = "timm's attention by scaled_dot_product_attention, where a model has attention"

    def __init__(self) -> None:
        super().__init__(NAME)

    def describes(self, given: Mapping[str, Any]) -> bool:
        """Whether the architecture names a model of timm."""
        return NAME in given

    def kept_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all fields, with the number of classes under the name that all image models have here."""
        return {**given, "num_labels": given.get("num_classes", CLASSES)}

    def architecture_mistakes(
        self, given: Mapping[str, Any], objective: ObjectiveName, path: str
    ) -> Iterator[Mistake]:
        """Find a missing name, a checkpoint to load, and fewer than two labels; imports no timm."""
        if not (isinstance(name := given.get(NAME), str) and _NAME.fullmatch(name)):
            found = f"{in_json(name)} is not the name of an architecture"
            yield Mistake(f"{path}/architecture/{NAME}", found, "allowed: a name of timm.list_models()")
        for option in filter(_LOADING.fullmatch, given):
            yield Mistake(f"{path}/architecture/{option}", "would load weights", "allowed: leave it out")
        classes = given.get("num_labels")
        if type(classes) is not int or classes < 2:
            found = f"{in_json(classes)} is not a number of classes"
            yield Mistake(f"{path}/architecture/num_classes", found, "allowed: a whole number, at least 2")

    def mistakes_by_package(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find a name that the installed timm does not know; imports timm."""
        import timm

        name = model.architecture[NAME]
        if not timm.is_model(name):
            found = f"{in_json(name)} is not a model of timm {timm.__version__}"
            yield Mistake(f"{path}/architecture/{NAME}", found, nearest(name, timm.list_models()))

    def build_module(self, model: Model, *, fused: bool) -> nn.Module:
        """Build a model of timm as a module that is called as transformers' image models are."""
        import timm
        from timm.layers import set_fused_attn
        from torch import nn

        class Classifier(nn.Module):
            def __init__(self, body: nn.Module) -> None:
                super().__init__()
                self.body = body

            def forward(self, pixel_values: Tensor) -> Answer:
                return Answer(self.body(pixel_values))

        ours = (NAME, "num_classes", "num_labels")
        options = {key: value for key, value in model.architecture.items() if key not in ours}
        set_fused_attn(fused)
        name, classes = model.architecture[NAME], model.architecture["num_labels"]
        try:
            body = timm.create_model(name, pretrained=False, num_classes=classes, **options)
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"timm refuses this architecture: {raised(error)}", where=model.name) from error
        return Classifier(body).float().train()

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the repeated blocks of all stages; the whole module if it has none.

        Blocks are modules of a class that stands repeatedly in the module's lists, the innermost such class.
        """
        from torch import nn

        lists = [part for part in module.modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
        counts = Counter(type(child) for one in lists for child in one if is_compound(child))
        repeated = {kind for kind, count in counts.items() if count > 1} - {nn.ModuleList, nn.Sequential}
        blocks = [part for part in module.modules() if type(part) in repeated]
        inside = [(block, part) for block in blocks for part in block.modules() if part is not block]
        outer = {type(block) for block, part in inside if type(part) in repeated}
        return [block for block in blocks if type(block) not in outer] or [module]


FAMILY = TimmFamily()
