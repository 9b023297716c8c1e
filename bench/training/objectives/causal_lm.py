"""Predict the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.training.objectives.documents import ENDS, document_inputs
from bench.training.objectives.objective import Architecture, Draw, Objective, Part, Sample, SampleSize

if TYPE_CHECKING:
    from torch import Tensor, nn


class CausalLm(Objective):
    """Each token is predicted from those before it; a sample may hold several documents."""

    name = "causal-lm"
    title = "Language models that predict the next token"
    unit = "tokens"
    auto_class = "AutoModelForCausalLM"
    mapping = "CAUSAL_LM"
    sizes = ("sequence_length",)
    data = ("tokens",)
    counts: Mapping[str, str] = {"vocab_size": "tokens"}
    has_text_head = True
    packs_documents = True

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return tokens and labels, and the ends of documents if the recipe has documents."""
        length = self.units_per_sample(size)
        parts = Part("input_ids", (length,), "indices"), Part("labels", (length,), "indices")
        if size.documents is None:
            return parts
        return *parts, Part(ENDS, (size.documents.most(length),), "ends", below=length + 1)

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Cut one token more than the length: labels are the tokens, shifted by one."""
        tokens = draw.tokens(self.units_per_sample(size) + 1)
        sample = {"input_ids": tokens[:-1], "labels": tokens[1:]}  # labels are shifted already
        if size.documents:
            sample[ENDS] = size.documents.ends(tokens[:-1], draw.random, own=draw.pool.own)
        return sample

    def given(self, module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the ends of documents into the inputs that keep the model's attention within each."""
        tokens = batch["input_ids"]
        ends = document_inputs(module, batch[ENDS], tokens.size(1)) if ENDS in batch else {}
        return {"input_ids": tokens, **ends}

    def form(self, size: SampleSize, samples: int) -> str:
        """Warn that labels are shifted already, unlike those of Hugging Face's models."""
        form = (
            f"`input_ids` and `labels`, int64 of {samples} x {size.sequence_length}.\n"
            "The label of a position is the token that follows it. Hugging Face's models "
            "shift labels themselves;\nthis script does not, and with labels equal to the inputs a model "
            "learns to copy.\nA label of -100 is ignored. Every sample must have the same number of "
            "other labels: the loss\nof a step is the mean of its passes' means."
        )
        if size.documents is None:
            return form
        return f"{form}\n`{ENDS}`, int64: where the documents of a sample end, padded with its length."


OBJECTIVE = CausalLm()
