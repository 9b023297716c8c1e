"""The training objectives of models: one file for each objective, with one object `OBJECTIVE`.

May import base only. Others use `objective_of` and `known_objectives`, and the types of objective.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from bench.training.objectives.objective import Objective as Objective
from bench.training.objectives.objective import ObjectiveName as ObjectiveName


@cache
def known_objectives() -> Mapping[str, Objective]:
    """Return the objectives by name, in the order in which models are listed."""
    from bench.training.objectives import (
        audio_classification,
        causal_lm,
        contrastive,
        denoising,
        image_classification,
        masked_image,
        masked_lm,
        own_loss,
        sequence_to_sequence,
        speech_recognition,
    )

    files = (
        causal_lm,
        masked_lm,
        image_classification,
        sequence_to_sequence,
        speech_recognition,
        audio_classification,
        masked_image,
        contrastive,
        own_loss,
        denoising,
    )
    return {file.OBJECTIVE.name: file.OBJECTIVE for file in files}


def objective_of(name: str) -> Objective:
    """Return the objective of this name."""
    return known_objectives()[name]
