"""Counts of swin-tiny with stages as blocks, as when its bundles were measured (decision 14)."""

from __future__ import annotations

import json
from pathlib import Path

from bench.base.strict_json import from_json
from bench.training.models import Counted, Model

FILE = Path(__file__).with_name("swin_tiny_with_stages.json")
MEASURED = {"zoo-h100/zoo-2", "zoo-h200/swin-tiny"}  # bundles of results/


def counts_as_measured(bundle: str, model: Model) -> Counted | None:
    """Return the counts of a bundle's model if its blocks were stages; None for all other models."""
    return counts_with_stages() if model.name == "swin-tiny" and bundle in MEASURED else None


def counts_with_stages() -> Counted:
    """Return the counts; those that ship with bench have the layers of the stages as blocks."""
    return from_json(Counted, json.loads(FILE.read_bytes()))
