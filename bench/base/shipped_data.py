"""Read the JSON files that the package ships in bench/data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from bench.base.strict_json import strict_loads

DATA = Path(__file__).parents[1] / "data"


@cache
def read_data(name: str) -> Any:
    return strict_loads((DATA / name).read_bytes())
