"""Predict a text from another text: an encoder reads the source, a decoder predicts the target."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize


class SequenceToSequence(Objective):
    """An encoder reads a source text, and a decoder predicts the target token by token."""

    name = "sequence-to-sequence"
    title = "Encoders with decoders that predict a text from a text"
    unit = "tokens"
    auto_class = "AutoModelForSeq2SeqLM"
    mapping = "SEQ_TO_SEQ_CAUSAL_LM"
    sizes = ("sequence_length", "target_length")
    data = ("tokens",)
    counts: Mapping[str, str] = {"vocab_size": "tokens"}
    has_text_head = True

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the source, the target as the decoder's input, and the labels."""
        source, target = (size.sequence_length or 1,), (size.target_length or 1,)
        return (
            Part("input_ids", source, "indices"),
            Part("decoder_input_ids", target, "indices"),
            Part("labels", target, "indices"),
        )

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Cut source and target from consecutive tokens; labels are shifted by one."""
        source, target = size.sequence_length or 1, size.target_length or 1
        tokens = draw.tokens(source + target + 1)
        before = tokens[source:]
        return {"input_ids": tokens[:source], "decoder_input_ids": before[:-1], "labels": before[1:]}

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe the three parts, and how the target is shifted."""
        return (
            f"`input_ids`, int64 of {samples} x {size.sequence_length}, the source; `decoder_input_ids` and\n"
            f"`labels`, int64 of {samples} x {size.target_length}. The label of a position of the target is "
            "the token\nthat follows it: the decoder's input is the target, shifted by one. A label of -100 "
            "is ignored.\nEvery sample must have the same number of other labels."
        )


OBJECTIVE = SequenceToSequence()
