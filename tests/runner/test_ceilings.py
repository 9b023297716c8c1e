"""The limits of a CPU: products as large as its cores need, and memory that was written."""

from __future__ import annotations

import pytest
import torch

from bench.runner.trial import ceilings
from bench.runner.trial.device import Device
from bench.runner.trial.team import Team

CPU = Device("cpu")


@pytest.mark.parametrize(("cores", "work"), [(1, 2 * 512**3), (2, 2 * 1024**3), (64, 2 * 1024**3)])
def test_one_core_multiplies_smaller_matrices(cores: int, work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    shapes = ceilings._cpu_shapes(CPU, torch.float32)
    assert {2 * m * n * k for m, n, k in shapes} == {work}


@pytest.mark.parametrize(("seconds", "edge"), [(0.0011, 192), (0.001, 512), (0.0001, 512)])
def test_half_precision_without_matrix_units_multiplies_smaller_matrices(
    seconds: float, edge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest of three calls decides: another process may delay one."""
    calls = iter([9.0, seconds, 9.0])
    monkeypatch.setattr(ceilings, "_call_seconds", lambda *_: next(calls))
    assert ceilings._cpu_shapes(CPU, torch.bfloat16) == ((edge, edge, edge),)


def test_each_shape_is_a_ceiling_with_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_ONE_CORE_SHAPES", ((2, 3, 4), (5, 6, 7)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = ceilings.measure_ceilings(CPU, Team(), ["fp32"])
    assert [ceiling.work for ceiling in found if ceiling.name == "matmul-fp32"] == [48, 420]
    assert all(len(ceiling.samples) == ceilings.TIMED_CALLS for ceiling in found)


def test_memory_that_a_cpu_copies_was_written() -> None:
    """The kernel has one page of zeros for all memory that was never written, and copies it from a cache."""
    assert ceilings._bytes(64, torch.device("cpu")).tolist() == [1] * 64
