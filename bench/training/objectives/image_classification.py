"""Predict the class of an image."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize


class ImageClassification(Objective):
    """Images of equal side, each with one label."""

    name = "image-classification"
    title = "Models that classify images"
    unit = "images"
    auto_class = "AutoModelForImageClassification"
    mapping = "IMAGE_CLASSIFICATION"
    sizes = ("image_size",)
    data = ("images",)
    counts: Mapping[str, str] = {"num_labels": "labels"}

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return three channels of pixels, and one label."""
        assert size.image_size is not None
        pixels = Part("pixel_values", (3, size.image_size, size.image_size), "pixels")
        return pixels, Part("labels", (), "indices")

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw a label at random; it says nothing about the image."""
        label = int(draw.random.integers(int(architecture["num_labels"])))
        return {"pixel_values": draw.image(), "labels": label}

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe pixels and labels, and how pixels are scaled."""
        side = size.image_size
        return (
            f"`pixel_values`, fp32 of {samples} x 3 x {side} x {side},\nwith a mean of about 0 and a "
            f"standard deviation of about 1, and `labels`, int64 of {samples}, counted from 0."
        )


OBJECTIVE = ImageClassification()
