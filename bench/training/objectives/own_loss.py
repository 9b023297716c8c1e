"""Train a module that computes its own loss, on a batch whose form the manifest states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.base.errors import Mistake, in_json, nearest
from bench.training.objectives.objective import (
    Architecture,
    Draw,
    Objective,
    ObjectiveName,
    Part,
    Sample,
    SampleSize,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH = "batch"  # field of the architecture with the form of a batch
MADE_UP = ("indices", "numbers", "flags")  # what a part of such a batch may hold
MOST_NUMBERS = 1 << 28  # of one part of a sample


class OwnLoss(Objective):
    """A module of one's own whose output has a field `loss`; its architecture describes the batch."""

    name = "own-loss"
    title = "Modules that compute their own loss"
    unit = "samples"
    auto_class = mapping = ""  # transformers has no such models
    sizes = ()

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the parts that the architecture's "batch" lists."""
        return tuple(
            Part(name, tuple(form["shape"]), form["elements"], form.get("below", 2))
            for name, form in architecture[BATCH].items()
        )

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw random contents for each part, by the kind of its elements."""

        def contents(part: Part) -> Any:
            match part.elements:
                case "indices":
                    return draw.random.integers(0, part.below, part.shape)
                case "flags":
                    return draw.random.integers(0, 2, part.shape).astype(bool)
                case _:
                    return draw.numbers(*part.shape)

        return {part.name: contents(part) for part in self.parts(architecture, size)}

    def answer(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss that the module has computed."""
        loss: Tensor = module(**batch).loss
        return loss

    def labels(self, batch: Mapping[str, Tensor], answer: Tensor, module: nn.Module) -> Tensor:
        """Return any part: nothing is compared any more."""
        return next(iter(batch.values()))  # the module has read them already

    def loss(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the answer, which is the loss already, in fp32."""
        return answer.float()

    def form(self, size: SampleSize, samples: int) -> str:
        """Refer to the architecture's description of the batch."""
        return f'what the architecture\'s "batch" in `trial.json` states, for {samples} samples.'


def batch_mistakes(batch: Any, objective: ObjectiveName, path: str) -> Iterator[Mistake]:
    """Yield the mistakes in an architecture's `batch`, which only this objective has."""
    if objective != OBJECTIVE.name:
        if batch is not None:
            yield Mistake(path, f"means nothing for {objective}", f"allowed for {OBJECTIVE.name}")
        return
    if not isinstance(batch, dict) or not batch:
        found = "missing" if batch is None else f"{in_json(batch)} names no tensor"
        yield Mistake(path, found, 'allowed: {"NAME": {"shape": [...], "elements": "numbers"}, ...}')
        return
    for name, form in batch.items():
        yield from _part_mistakes(name, form, f"{path}/{name}")


def _part_mistakes(name: str, form: Any, path: str) -> Iterator[Mistake]:
    if not name.isidentifier():
        yield Mistake(path, f"{in_json(name)} is no name of an argument", "allowed: a name of Python")
    if not isinstance(form, dict):
        yield Mistake(path, f"{in_json(form)} is not an object", "allowed: an object with shape and elements")
        return
    elements, shape = form.get("elements"), form.get("shape")
    if elements not in MADE_UP:
        found = "missing" if elements is None else f"{in_json(elements)} does not fit"
        yield Mistake(f"{path}/elements", found, nearest(str(elements), MADE_UP))
    sizes = shape if isinstance(shape, list) else [None]
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) > MOST_NUMBERS:
        found, allowed = f"{in_json(shape)} is no shape of a sample", "allowed: whole numbers of at least 1"
        yield Mistake(f"{path}/shape", found, f"{allowed}, at most {MOST_NUMBERS:,} elements")
    known = {"shape", "elements"} | ({"below"} if elements == "indices" else set())
    for key in form.keys() - known:
        yield Mistake(f"{path}/{key}", "no such field", f"allowed: {', '.join(sorted(known))}")
    if elements == "indices" and not (type(form.get("below")) is int and 0 < form["below"] < 2**31):
        found = f"{in_json(form.get('below'))} is no limit of indices"
        yield Mistake(f"{path}/below", found, "allowed: a whole number, at least 1")


OBJECTIVE = OwnLoss()
