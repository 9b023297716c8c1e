"""Fixtures of tests of commands."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from bench.library.plan import PlannedRun, plan


@cache
def _planned(manifest: Path, _content: bytes, gpus: int | None, gpu: str) -> PlannedRun:
    return plan(manifest, gpus=gpus, gpu=gpu)


def _plan(manifest: Path, *, gpus: int | None, gpu: str | None) -> PlannedRun:
    """Return a plan, which is computed once for a named GPU. This machine may differ from test to test."""
    if gpu is None:
        return plan(manifest, gpus=gpus)
    return _planned(manifest, manifest.read_bytes(), gpus, gpu)


@pytest.fixture
def plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `bench plan` compute a plan once for all tests, which take it as a table, as JSON and in full."""
    monkeypatch.setattr("bench.cli.plan.plan_run", _plan)
