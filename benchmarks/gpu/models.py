"""The models that scripts of this folder measure: bench's own by name, and those of models.json."""

from __future__ import annotations

import json
from pathlib import Path

from bench.planning.manifest import resolve_models
from bench.training.models import Model

BROUGHT = Path(__file__).with_name("models.json")  # shapes that people bring, as a manifest describes them


def find_model(name: str) -> Model:
    """Return the model of this name; raise SystemExit with the reason if there is none."""
    brought = json.loads(BROUGHT.read_text())
    models, mistakes = resolve_models([brought.get(name, name)])
    if mistakes:
        raise SystemExit("\n".join(f"{name}: {mistake.found}; {mistake.allowed}" for mistake in mistakes))
    return models[0]
