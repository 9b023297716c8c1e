"""Counts of the zoo's models, which ship as data: planning and prediction need no torch for them.

`make counts` writes them. They are of one version of transformers, whose code they were counted from, and
hold for the models as they are in the zoo, with any batch and number of steps. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.base.shipped_data import read_data
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json, from_json, to_json
from bench.training.models.footprint import Counted
from bench.training.models.model import Model

FILE = "counts.json"
UNCOUNTED = ("batch_size", "steps", "schedule")  # fields of a recipe that change no count of a sample


def shipped_counts(model: Model) -> Counted | None:
    """Return the counts of a model of the zoo; None for another one, or beside another transformers."""
    data = _data()
    if _installed() not in (None, data["transformers"]):
        return None
    found = data["models"].get(digest_of(model))
    return from_json(Counted, found) if found else None


def digest_of(model: Model) -> str:
    """Return a digest of the fields on which the counts of a model depend."""
    described: Any = to_json(model)
    recipe = {field: value for field, value in described["recipe"].items() if field not in UNCOUNTED}
    counted = described | {"name": "", "recipe": recipe}
    return sha256(canonical_json(counted))[:16]


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_data(FILE)
    return data


@cache
def _installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None
