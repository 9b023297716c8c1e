"""Benchmarks are started by hand: what they import from the code must exist at every commit."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_a_benchmark_imports(name: str) -> None:
    import_module(f"benchmarks.{name}")
