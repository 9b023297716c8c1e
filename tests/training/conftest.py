"""Fixtures for tests of models, methods and objectives."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def without_compiled_footprints() -> Iterator[None]:
    """Leave out the bytes that compiled blocks keep: the compiler's own partitioner takes most of the time.

    For a file that asks whether models of many kinds are counted, and not how many bytes there are.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bench.training.models.generic.COMPILED_OR_NOT", (False,))
        yield
