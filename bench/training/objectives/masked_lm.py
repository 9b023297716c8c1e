"""Predict tokens that are hidden or replaced, from the tokens on both sides."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import (
    IGNORED,
    Architecture,
    Draw,
    Objective,
    Part,
    Sample,
    SampleSize,
)

FRACTION = 0.15  # of the tokens that are predicted, as in BERT
MASK_TOKEN_SHARE, RANDOM_TOKEN_SHARE = 0.8, 0.1  # of chosen tokens; the rest keep their token (BERT, RoBERTa)


class MaskedLm(Objective):
    """Tokens are hidden at random places, and the model predicts them from both sides."""

    name = "masked-lm"
    title = "Language models that predict hidden tokens"
    unit = "tokens"
    auto_class = "AutoModelForMaskedLM"
    mapping = "MASKED_LM"
    sizes = ("sequence_length", "masked_fraction")
    defaults: Mapping[str, float] = {"masked_fraction": FRACTION}
    data = ("tokens",)
    counts: Mapping[str, str] = {"vocab_size": "tokens"}
    has_text_head = True

    def asked_per_sample(self, size: SampleSize) -> int:
        """Return how many tokens of each sample are predicted: the same number in all samples, at least 1."""
        return max(1, round(self.units_per_sample(size) * (size.masked_fraction or FRACTION)))

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return tokens and labels; labels of tokens that are not asked for are -100."""
        shape = (self.units_per_sample(size),)
        return Part("input_ids", shape, "indices"), Part("labels", shape, "indices")

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Hide most chosen tokens, replace some at random, and leave the rest, as BERT does."""
        import numpy as np

        tokens = draw.tokens(self.units_per_sample(size))
        # All samples choose equally many tokens: then the mean over micro-batches is the mean over the batch.
        chosen = draw.random.permutation(len(tokens))[: self.asked_per_sample(size)]
        labels = np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        vocabulary = int(architecture["vocab_size"])
        masked = round(len(chosen) * MASK_TOKEN_SHARE)
        replaced = masked + round(len(chosen) * RANDOM_TOKEN_SHARE)
        tokens[chosen[:masked]] = vocabulary - 1
        tokens[chosen[masked:replaced]] = draw.random.integers(0, vocabulary, replaced - masked)
        return {"input_ids": tokens, "labels": labels}

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe both, and that all samples have equally many labelled tokens."""
        return (
            f"`input_ids` and `labels`, int64 of {samples} x {size.sequence_length}.\n"
            "The label of a masked position is its token; all other labels are -100.\n"
            f"Every sample must have {self.asked_per_sample(size)} labelled tokens: the loss of a step is "
            "the mean of its\npasses' means, and `masked-head` computes no more positions than that."
        )


OBJECTIVE = MaskedLm()
