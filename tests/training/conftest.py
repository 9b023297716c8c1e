"""Fixtures for tests of models, methods and objectives."""

from __future__ import annotations

import pytest

from bench.training.models.footprint import CountedMemory


@pytest.fixture
def without_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the bytes that models keep, which take most of the time of counting.

    A test that asks for mistakes, remarks, parameters or operations needs none. A way whose bytes cannot be
    counted is no mistake. test_counted_memory.py asks for the bytes.
    """
    nothing = CountedMemory(())
    monkeypatch.setattr("bench.training.models.counted_memory.counted_memory", lambda *_, **__: nothing)
