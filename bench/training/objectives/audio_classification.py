"""Predict the class of a sound."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize
from bench.training.objectives.sound import sound_part


class AudioClassification(Objective):
    name = "audio-classification"
    title = "Models that classify sounds"
    unit = "seconds"
    auto_class = "AutoModelForAudioClassification"
    mapping = "AUDIO_CLASSIFICATION"
    sizes = ("audio_seconds",)
    counts: Mapping[str, str] = {"num_labels": "labels"}

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        return sound_part(architecture, size), Part("labels", (), "indices")

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        sound = sound_part(architecture, size)
        label = int(draw.random.integers(int(architecture["num_labels"])))
        return {sound.name: draw.numbers(*sound.shape), "labels": label}

    def form(self, size: SampleSize, samples: int) -> str:
        return (
            f"the sound of {samples} samples of {size.audio_seconds} s in the form of the model's feature "
            f"extractor, fp32,\nand `labels`, int64 of {samples}, counted from 0."
        )


OBJECTIVE = AudioClassification()
