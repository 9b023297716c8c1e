"""Predict the words of speech: an encoder hears the sound, a decoder predicts the text."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize
from bench.training.objectives.sound import FORMS, sound_part


class SpeechRecognition(Objective):
    """An encoder reads a sound, and a decoder predicts its words token by token; a unit is a second."""

    name = "speech-recognition"
    title = "Encoders with decoders that predict the words of speech"
    unit = "seconds"
    auto_class = "AutoModelForSpeechSeq2Seq"
    mapping = "SPEECH_SEQ_2_SEQ"
    sizes = ("audio_seconds", "target_length")
    data = ("tokens",)
    counts: Mapping[str, str] = {"vocab_size": "tokens"}
    defaults_of_types = FORMS
    has_text_head = True

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the sound, the text as the decoder's input, and the labels."""
        target = (size.target_length or 1,)
        return (
            sound_part(architecture, size),
            Part("decoder_input_ids", target, "indices"),
            Part("labels", target, "indices"),
        )

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw a sound and an unrelated text; labels are shifted by one."""
        sound = sound_part(architecture, size)
        tokens = draw.tokens((size.target_length or 1) + 1)
        return {
            sound.name: draw.numbers(*sound.shape),
            "decoder_input_ids": tokens[:-1],
            "labels": tokens[1:],
        }

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe the three parts, and how the text is shifted."""
        return (
            f"the sound of {samples} samples of {size.audio_seconds} s in the form of the model's feature "
            f"extractor, fp32;\n`decoder_input_ids` and `labels`, int64 of {samples} x "
            f"{size.target_length}. The label of a position is the\ntoken that follows it. A label of -100 "
            "is ignored. Every sample must have the same number of\nother labels."
        )


OBJECTIVE = SpeechRecognition()
