"""Predict the class of a sound."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize
from bench.training.objectives.sound import FORMS, sound_part


class AudioClassification(Objective):
    """Sounds of equal length, each with one label; a unit is a second of sound."""

    name = "audio-classification"
    title = "Models that classify sounds"
    unit = "seconds"
    auto_class = "AutoModelForAudioClassification"
    mapping = "AUDIO_CLASSIFICATION"
    sizes = ("audio_seconds",)
    counts: Mapping[str, str] = {"num_labels": "labels"}
    defaults_of_types = FORMS

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the sound in the form of the model's feature extractor, and one label."""
        return sound_part(architecture, size), Part("labels", (), "indices")

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw a label at random; it says nothing about the sound."""
        sound = sound_part(architecture, size)
        label = int(draw.random.integers(int(architecture["num_labels"])))
        return {sound.name: draw.numbers(*sound.shape), "labels": label}

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe the sound and the labels."""
        return (
            f"the sound of {samples} samples of {size.audio_seconds} s in the form of the model's feature "
            f"extractor, fp32,\nand `labels`, int64 of {samples}, counted from 0."
        )


OBJECTIVE = AudioClassification()
