"""Predict the pixels of hidden patches of an image, as in SimMIM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.training.objectives.objective import (
    Architecture,
    Draw,
    Objective,
    Part,
    Sample,
    SampleSize,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

FRACTION = 0.6  # of the patches that are hidden, as in SimMIM


class MaskedImage(Objective):
    """Patches of an image are hidden, and the model predicts their pixels."""

    name = "masked-image"
    title = "Models that predict hidden parts of images"
    unit = "images"
    auto_class = "AutoModelForMaskedImageModeling"
    mapping = "MASKED_IMAGE_MODELING"
    sizes = ("image_size", "masked_fraction")
    defaults: Mapping[str, float] = {"masked_fraction": FRACTION}
    data = ("images",)
    counts: Mapping[str, str] = {"patch_size": "pixels"}

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return pixels, and a flag for each patch that says whether it is hidden."""
        assert size.image_size is not None
        return (
            Part("pixel_values", (3, size.image_size, size.image_size), "pixels"),
            Part("bool_masked_pos", (self._patches(architecture, size) ** 2,), "flags"),
        )

    def _patches(self, architecture: Architecture, size: SampleSize) -> int:
        """Return the patches along a side of an image."""
        return (size.image_size or 0) // int(architecture["patch_size"])

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Hide equally many patches of each image, at random."""
        import numpy as np

        count = self._patches(architecture, size) ** 2
        hidden = np.zeros(count, dtype=bool)
        masked = max(1, round(count * (size.masked_fraction or FRACTION)))
        hidden[draw.random.permutation(count)[:masked]] = True
        return {"pixel_values": draw.image(), "bool_masked_pos": hidden}

    def answer(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the error of each pixel of the hidden patches, and zero elsewhere."""
        found = module(**batch).reconstruction
        pixels, hidden = batch["pixel_values"], batch["bool_masked_pos"]
        side = round(hidden.size(1) ** 0.5)
        patch = pixels.size(-1) // side
        mask = hidden.view(-1, 1, side, side).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        errors: Tensor = (found.float() - pixels.float()) * mask
        return errors

    def labels(self, batch: Mapping[str, Tensor], answer: Tensor, module: nn.Module) -> Tensor:
        """Return the flags, of which the loss needs nothing: the answer holds the errors already."""
        return batch["bool_masked_pos"]

    def loss(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the mean absolute error of a pixel."""
        return answer.abs().mean()

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe pixels and flags, and that all samples hide equally many patches."""
        side = size.image_size
        return (
            f"`pixel_values`, fp32 of {samples} x 3 x {side} x {side},\nwith a mean of about 0 and a "
            "standard deviation of about 1, and `bool_masked_pos`, the patches to\npredict, bool of "
            f"{samples} x patches. Every sample must hide equally many patches."
        )


OBJECTIVE = MaskedImage()
