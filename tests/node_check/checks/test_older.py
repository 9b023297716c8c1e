"""Cards before Ampere (T4, V100) have no bf16 and no TF32; emulated products would not load them fully."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.base.strict_json import to_json
from bench.node_check.all_checks import known_checks
from bench.node_check.checks import CheckBudget, TimedWork

EFFORT = CheckBudget("quick", 0.0, 0.0, 0.001, "/nowhere", True)


class OnTheHost:
    """A rig that claims to be a GPU and records the precisions of the requested products."""

    kind, rank, size, gpus, gpu = "cuda", 0, 1, (0,), 0
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.dtypes: list[torch.dtype] = []

    def timed(self, call: Callable[[], Any], work: float, **_: Any) -> TimedWork:
        self.dtypes.append(call().dtype)
        return TimedWork(work, (0.01,))

    def say(self, _: str) -> None: ...

    def wait(self) -> None: ...

    def gather(self, value: Any) -> list[Any]:
        return [to_json(value)]


@pytest.mark.parametrize(
    ("capability", "matmul", "soak"),
    [
        ((7, 5), ["matmul-fp16", "matmul-fp32"], torch.float16),
        ((8, 0), ["matmul-bf16", "matmul-fp16", "matmul-tf32", "matmul-fp32"], torch.bfloat16),
    ],
)
def test_a_card_is_tested_in_the_precisions_of_its_matrix_units(
    capability: tuple[int, int], matmul: list[str], soak: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    # Without CUDA there is no such setting to change.
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace())
    rig: Any = OnTheHost()
    figures = _measure("matmul", rig)["figures"]
    assert [figure["name"] for figure in figures] == matmul
    rig = OnTheHost()
    _measure("soak", rig)
    assert set(rig.dtypes) == {soak}


def _measure(check: str, rig: Any) -> Any:
    measure = known_checks()[check].measure
    assert measure is not None
    return measure(rig, EFFORT)
