"""Fixtures of tests of environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.environment import store


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for environments."""
    environments = tmp_path / "environments"
    environments.mkdir()
    yield environments
    for path in environments.iterdir():
        store.remove(path)  # pytest could not delete folders that are read-only
