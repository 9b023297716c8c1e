"""The training objectives of models: one file for each objective, with one object `OBJECTIVE`.

May import base only. Others use `objective_of` and `known_objectives`, and the types of objective.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import get_args

from bench.training.objectives.objective import Objective as Objective
from bench.training.objectives.objective import ObjectiveName as ObjectiveName


@cache
def known_objectives() -> Mapping[str, Objective]:
    """Return the objectives by name, in the order in which models are listed."""
    return {name: objective_of(name) for name in get_args(ObjectiveName)}


@cache
def objective_of(name: str) -> Objective:
    """Return the objective of this name. Only its file is imported, because most commands need few."""
    if name not in get_args(ObjectiveName):
        raise KeyError(name)
    objective: Objective = import_module(f"{__name__}.{name.replace('-', '_')}").OBJECTIVE
    return objective
