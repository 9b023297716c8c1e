"""Compare the gradients of a trial's setting with those of the unmodified model, on the same samples.

The unmodified model computes one sample a pass, in two phases if samples are compared with each other. The
trial's setting computes its whole micro-batch in one pass, so that compiled code has the shapes of the trial.
Both begin with the weights of the trial's seed, scaled down where a layer would amplify, and nothing in a
pass is random. Imports torch at module level.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.records.gradients import (
    REFERENCES,
    GradientCheck,
    ParameterNorms,
    compare,
    undecided,
)
from bench.records.trial import Trial
from bench.runner.trial.compared_passes import compared_passes
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import batches_of
from bench.runner.trial.run_trial import Emit, TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import Batch, SingleDevice
from bench.training.models import Model, family_of
from bench.training.models.adapters import randomise
from bench.training.setting import Setting

# Parts of the names of fields that say how much of a pass is random: dropout, drop_path, router_jitter_noise.
RANDOM_FIELDS = ("drop", "jitter")
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
PASSES = 4
MOST_GAIN = 1.0  # of a linear layer's weights: their root mean square times the root of the inputs' number
NUDGE = 1 + 2**-20  # changes weights by less than the rounding of half precision
MOST_OVERFLOWS = 16  # in fp16: the scaler halves its scale after each, from 65,536 down to 1


class RoundingDecides(Exception):
    """Gradients that differ by no more than those of right settings may; the text says by how much."""


def check_gradients(trial: Trial, device: Device, scratch: Path, emit: Emit) -> GradientCheck:
    """Compute the gradients of one micro-batch in both ways, and compare them parameter by parameter.

    Raises RoundingDecides if the model's gradients depend so much on rounding that a right setting could
    differ as much as this one does.
    """
    # Each GPU of several computes the same, and then exchanges gradients; one is enough.
    steady = replace(trial, gpus=1, model=_without_chance(trial.model))
    run = _SteadyRun(steady, device, Team(), scratch, emit)
    device.cap_memory(trial.memory_cap_bytes)
    batch = run.micro_batch()
    reference, expected = _reference(run, batch)
    _free_memory()
    emit({"phase": "compare"})  # includes compilation
    # A second pass also shows that gradients are added up; a recorded pass is replayed from the third on.
    passes = min(PASSES, run.trial.accumulation)
    check = _compared(reference, expected, run.gradients([batch], passes))
    if check.agrees:
        return check
    _free_memory()
    emit({"phase": "rounding"})
    if why := undecided(check, _nudged(run.in_setting(reference), expected, batch)):
        raise RoundingDecides(why)
    return check


def _compared(
    reference: Setting, expected: Mapping[str, Tensor], found: Iterable[tuple[str, Tensor]]
) -> GradientCheck:
    """Compare gradients with the expected ones; ValueError if they are those of other parameters."""
    gradients = dict(found)
    if gradients.keys() != expected.keys():
        names = ", ".join(sorted(gradients.keys() ^ expected.keys()))
        raise ValueError(f"the setting changes the names of parameters: {names}")
    norms = [_norms(name, expected[name], gradient) for name, gradient in gradients.items()]
    return compare(reference, norms)


def _nudged(run: _SteadyRun, expected: Mapping[str, Tensor], batch: Batch) -> GradientCheck:
    """Compare the unmodified model's gradients with its own after all weights changed by a millionth."""
    run.factor = NUDGE
    with _sums_in_fp32():
        return _compared(run.trial.setting, expected, run.gradients(run.samples_of(batch)))


def _reference(run: _SteadyRun, batch: Batch) -> tuple[Setting, Mapping[str, Tensor]]:
    """Return the unmodified model's gradients, in the host's memory, and the setting that computed them."""
    samples = run.samples_of(batch)
    run.emit({"phase": "reference"})
    *smaller, smallest = _references(run.trial)
    with _sums_in_fp32():
        for setting in smaller:
            with suppress(torch.OutOfMemoryError):
                return setting, run.in_setting(setting).gradients_on_host(samples)
            _free_memory()
        return smallest, run.in_setting(smallest).gradients_on_host(samples)


def _references(trial: Trial) -> Sequence[Setting]:
    """Return how to compute the unmodified model, one way after the other until one fits into memory."""
    slow = family_of(trial.model).slow_without_kernels and "kernels" in trial.setting
    return REFERENCES[-1:] if slow else REFERENCES


@contextmanager
def _sums_in_fp32() -> Iterator[None]:
    """Let cuBLAS add up products of half-precision numbers in fp32 within the context.

    By default it may add up parts of a long sum in half precision, and does so for a single sample: on an
    H100, GPT-2's gradients were 6.0% from those in fp32, and 0.9% with sums in fp32.
    """
    products = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction
    products.allow_bf16_reduced_precision_reduction = False
    products.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        (
            products.allow_bf16_reduced_precision_reduction,
            products.allow_fp16_reduced_precision_reduction,
        ) = before


class _SteadyRun(TrialRun):
    """A run whose model drops no units, as two settings would drop different ones, and uses its adapters."""

    factor = 1.0  # of all weights

    def in_setting(self, setting: Setting) -> _SteadyRun:
        trial = replace(self.trial, setting=setting)
        return _SteadyRun(trial, self.device, self.team, self.scratch, self.emit)

    def build_model(self) -> nn.Module:
        model = super().build_model()
        leave_nothing_to_chance(model)
        scale_down(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(self.factor)
        if self.trial.model.recipe.lora:
            randomise(model)
        return model

    def micro_batch(self) -> Batch:
        """Return the trial's first micro-batch, on the device."""
        trial = self.trial
        return next(batches_of(trial, self.scratch / "rank-0", self.device.torch, self.team, workers=0))

    def samples_of(self, batch: Batch) -> list[Batch]:
        """Divide a micro-batch into batches of one sample."""
        numbers = range(self.trial.micro_batch)
        return [{name: part[i : i + 1] for name, part in batch.items()} for i in numbers]

    def comparable(self, strategy: SingleDevice, batches: Sequence[Batch]) -> Iterable[Batch]:
        """Return the batches; if the objective compares samples of several passes, with labels for that."""
        several = len(batches) > 1 or self.trial.accumulation > 1
        if not (self.trial.model.recipe.aim.compares_samples and several):
            return batches
        count, device = len(batches), self.device.torch
        return compared_passes(self.whole, strategy, iter(batches), device, count, count)

    def gradients_on_host(self, batches: Sequence[Batch]) -> Mapping[str, Tensor]:
        return {name: gradient.cpu() for name, gradient in self.gradients(batches)}

    def gradients(self, batches: Sequence[Batch], times: int = 1) -> Iterator[tuple[str, Tensor]]:
        """Yield the fp32 gradient of each parameter for a step of these passes, by the parameter's name.

        The passes are repeated: an objective that compares samples with each other compares
        those of the batches, and not those of their repetitions.
        """
        strategy = self.build()
        assert isinstance(strategy, SingleDevice)
        batches = [*self.comparable(strategy, batches)] * times
        for _ in range(MOST_OVERFLOWS):
            for number, batch in enumerate(batches, 1):
                strategy.forward_backward(batch, len(batches), sync=number == len(batches))
                self.emit({"step": 1})
            strategy.scaler.unscale_(strategy.optimizer)
            overflowed = strategy.scaler.is_enabled() and not _all_finite(strategy.weights)
            if not overflowed:
                break
            strategy.scaler.update()
            strategy.clear()
        # Sums of half-precision weights are those of their fp32 copies, which are in the same order.
        names = [name for name, weight in strategy.whole.named_parameters() if weight.requires_grad]
        for name, weight in zip(names, strategy.weights, strict=True):
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            yield name.removeprefix("model."), gradient


def _without_chance(model: Model) -> Model:
    """Set the given fields of an architecture to zero: a family may build such parts in its own way."""
    fields = {name: 0.0 if _is_chance(name, value) else value for name, value in model.architecture.items()}
    return replace(model, architecture=fields)


def _is_chance(name: str, value: object) -> bool:
    return type(value) is float and any(part in name for part in RANDOM_FIELDS)


def leave_nothing_to_chance(model: nn.Module) -> None:
    """Set every probability of dropping units, layers or paths to zero, in modules and configurations.

    The architecture may leave such fields out, so that they have a default. Some modules read their
    configuration in each pass, others keep a number of their own.
    """
    for module in model.modules():
        if isinstance(module, DROPOUT):
            module.p = 0.0
        for holder in filter(None, (module, getattr(module, "config", None))):
            for name, value in list(vars(holder).items()):
                if _is_chance(name, value):
                    setattr(holder, name, 0.0)


def scale_down(model: nn.Module) -> None:
    """Divide weights of linear layers that amplify their inputs, so that no layer amplifies rounding.

    The first weights of some architectures are large: mamba-2.8b's have a deviation of 0.1. A change of one
    millionth in them changes all its gradients in bf16 by 139%, so that they could be compared with nothing.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.numel():
            with torch.no_grad():
                gain = float(layer.weight.float().square().mean()) ** 0.5 * layer.in_features**0.5
                layer.weight.div_(max(1.0, gain / MOST_GAIN))


def _all_finite(weights: Sequence[nn.Parameter]) -> bool:
    return all(bool(weight.grad.isfinite().all()) for weight in weights if weight.grad is not None)


def _norms(name: str, expected: Tensor, found: Tensor) -> ParameterNorms:
    expected = expected.to(found.device)
    return ParameterNorms(name, found.numel(), float(expected.norm()), float(torch.dist(found, expected)))


def _free_memory() -> None:
    """Free the memory of a model that is no longer used, also on a GPU: a model refers to itself."""
    gc.collect()
    torch.cuda.empty_cache()
