"""Read the JSON files that the package ships in bench/data."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from bench.base.strict_json import strict_loads


@cache
def read_data(name: str) -> Any:
    return strict_loads((files("bench.data") / name).read_bytes())
