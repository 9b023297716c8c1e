"""Optimizers of recipes: one file each, with its fields, its bytes, what it cannot work with, and its maker.

Pure, except for the folder updates, which only workers import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from bench.training.optimizers.adam import Adam as Adam
from bench.training.optimizers.adamw_8bit import AdamW8bit as AdamW8bit
from bench.training.optimizers.contract import OptimizerContract as OptimizerContract
from bench.training.optimizers.muon import Muon as Muon

# The optimizer of a recipe. Its field "name" tells which one a JSON object is.
Optimizer = Adam | AdamW8bit | Muon
# Every optimizer by each of its names, in the order in which people read them.
OPTIMIZERS: Mapping[str, type[Any]] = {
    name: kind for kind in get_args(Optimizer) for name in get_args(get_type_hints(kind)["name"])
}
