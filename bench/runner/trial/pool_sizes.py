"""How much made-up data a trial has, and how its pixels become floats. Pure, without torch."""

from __future__ import annotations

from bench.training.models import Recipe

POOL_TOKENS = 1 << 22
POOL_IMAGES = 256
POOL_PIXELS = 1 << 26  # of all images together, as bytes
LEAST_IMAGES = 8
POOL_NUMBERS = 1 << 20
PIXEL_MEAN, PIXEL_DEVIATION = 0.5, 0.25


def tokens_of_pool(recipe: Recipe) -> int:
    """Return the number of tokens: at least two samples and most of a third.

    Each sample then begins a token later than the last but one.
    """
    length = (recipe.sequence_length or 0) + (recipe.target_length or 0)
    return max(POOL_TOKENS, 3 * (length + 1) - 1)


def images_of_pool(side: int) -> int:
    """Return the number of images of `side` by `side` pixels."""
    return max(LEAST_IMAGES, min(POOL_IMAGES, POOL_PIXELS // (3 * side * side)))
