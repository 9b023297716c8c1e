"""Choose how many samples and passes each step of a loss curve, the first steps of a trial, has. Pure."""

from __future__ import annotations

from bench.training.models import Recipe

# Samples in a step of the loss curve, alike for all micro-batches that divide them. Fewer if they need more
# arithmetic than a slow GPU does in half a minute, or the trial would time out before it is measured.
LOSS_SAMPLES, LOSS_FLOPS = 64, 1e15


def loss_samples(parameters: int, recipe: Recipe) -> int:
    """Return the samples in a step of the loss curve: a power of two, which most micro-batches divide.

    The number depends on the model only, so that loss curves of different runs can be compared.
    """
    sample_flops = 6 * parameters * recipe.units_per_sample  # 2 a weight forward, 4 backward
    return 1 << (max(1, min(LOSS_SAMPLES, int(LOSS_FLOPS / sample_flops))).bit_length() - 1)


def loss_passes(parameters: int, recipe: Recipe, at_once: int, accumulation: int) -> int:
    """Return the passes of a step of the loss curve, of `at_once` samples on all devices."""
    return max(1, min(loss_samples(parameters, recipe) // at_once, accumulation))
