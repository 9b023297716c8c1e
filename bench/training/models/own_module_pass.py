"""Try one pass of a module that people bring, before anything is measured.

In: a model. Out: what would make a measurement of it mean nothing, as mistakes in the manifest. A small
module runs on real numbers, a large one on tensors without contents, which cannot show whether a loss is
finite. Imports torch only when called, in the process of dry_build.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from bench.base.errors import Mistake, listed
from bench.training.models.footprint import Counted
from bench.training.models.model import Model
from bench.training.models.own_module import MODULE, build_own
from bench.training.models.probe import SAMPLES, tiny_batch
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_FLOPS = 10**12  # of a pass on real numbers: a few seconds of a CPU
SHOWN = 3  # names of parameters


def pass_mistakes(model: Model, counts: Counted, path: str) -> Iterator[Mistake]:
    """Yield mistakes that a forward and backward pass of the module shows."""
    import torch

    path = f"{path}/architecture/{MODULE}"
    real = counts.flops.training * SAMPLES <= MOST_FLOPS
    torch.manual_seed(0)
    with torch.device("cpu" if real else "meta"):
        module = build_own(model)
    with nullcontext() if real else torch_inside.fake_tensors():
        if not real:
            torch_inside.make_fake(module, None)
        batch = tiny_batch(module, model)
        before = {name: (part._version, part.clone()) for name, part in batch.items()}
        aim = model.recipe.aim
        answer = aim.answer(module, batch)
        loss = aim.loss(answer, aim.labels(batch, answer, module))
        if loss.numel() != 1 or not loss.is_floating_point() or not loss.requires_grad:
            shape = f"{str(loss.dtype).removeprefix('torch.')} of shape {tuple(loss.shape)}"
            found = f"its loss is {shape}{'' if loss.requires_grad else ', without a gradient'}"
            yield Mistake(path, found, "allowed: one number with a gradient, the mean over the samples")
            return
        loss.sum().backward()
        if real and not bool(loss.isfinite().all()):
            yield Mistake(
                path, f"its loss is {float(loss.detach())} on random data", "allowed: a finite loss"
            )
        yield from _changed_inputs(batch, before, path, real=real)
        yield from _untrained(module, path)


def _changed_inputs(
    batch: Mapping[str, Tensor], before: Mapping[str, tuple[int, Tensor]], path: str, *, real: bool
) -> Iterator[Mistake]:
    for name, part in batch.items():
        version, contents = before[name]
        if part._version != version or (real and not part.equal(contents)):
            yield Mistake(
                path, f"it changes its input {name} in place", "allowed: a module that copies first"
            )


def _untrained(module: nn.Module, path: str) -> Iterator[Mistake]:
    weights = {name.removeprefix("body."): p for name, p in module.named_parameters() if p.requires_grad}
    if not weights:
        yield Mistake(path, "it has no parameters to train", "allowed: at least one")
        return
    if without := [name for name, weight in weights.items() if weight.grad is None]:
        names = listed(without[:SHOWN]) + (", ..." if len(without) > SHOWN else "")
        found = f"{len(without)} of {len(weights)} parameters get no gradient: {names}"
        yield Mistake(path, found, "allowed: requires_grad_(False) where nothing is to be trained")
