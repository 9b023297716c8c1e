"""Predict the next token."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize


class CausalLm(Objective):
    name = "causal-lm"
    title = "Language models that predict the next token"
    unit = "tokens"
    auto_class = "AutoModelForCausalLM"
    mapping = "CAUSAL_LM"
    sizes = ("sequence_length",)
    data = ("tokens",)
    counts: Mapping[str, str] = {"vocab_size": "tokens"}
    has_text_head = True

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        shape = (self.units_per_sample(size),)
        return Part("input_ids", shape, "indices"), Part("labels", shape, "indices")

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        tokens = draw.tokens(self.units_per_sample(size) + 1)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}  # labels are shifted already

    def form(self, size: SampleSize, samples: int) -> str:
        return (
            f"`input_ids` and `labels`, int64 of {samples} x {size.sequence_length}.\n"
            "The label of a position is the token that follows it. Hugging Face's models "
            "shift labels themselves;\nthis script does not, and with labels equal to the inputs a model "
            "learns to copy.\nA label of -100 is ignored. Every sample must have the same number of "
            "other labels: the loss\nof a step is the mean of its passes' means."
        )


OBJECTIVE = CausalLm()
