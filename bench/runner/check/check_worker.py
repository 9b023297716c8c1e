"""One check inside its own process group, or a look at the GPUs through NVML. Imports torch when it must."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.base.strict_json import from_json
from bench.node_check.all_checks import known_checks
from bench.node_check.checks import CheckBudget
from bench.runner.machine import nvml
from bench.runner.processes.ranks import together

Emit = Callable[[dict[str, Any]], None]


def work(job: dict[str, Any], emit: Emit) -> int:
    """The fork server's door. Every job ends with a reading, or with the reason why there is none."""
    with TemporaryDirectory(prefix="bench-check-") as folder:
        member = partial(_member, job)
        if job.get("team", 1) > 1:
            return together(job["team"], member, emit, Path(folder))
        return member(emit)


def _member(job: dict[str, Any], emit: Emit) -> int:
    def say(phase: str) -> None:
        emit({"phase": phase})

    try:
        emit({"reading": _read(job, say)})
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": {"kind": "crashed", "reason": _words(error)}})
        return 1
    return 0


def _words(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0][:200]
    return f"{type(error).__name__}: {first}"


def _read(job: dict[str, Any], say: Callable[[str], None]) -> Any:
    match job["kind"]:
        case "inventory":
            return nvml.read_inventory(say)
        case "idle":
            return nvml.watch_idle(say)
    check = known_checks()[job["check"]]
    assert check.measure is not None
    effort = from_json(CheckBudget, job["effort"])
    if nvml.is_fake() and check.workers != "host":
        from bench.runner.machine.fake_nvml import FakeNvml

        return FakeNvml.from_environment().measure(check.name, job["gpus"], effort)
    return check.measure(_rig(job, effort, say), effort)


def _rig(job: dict[str, Any], effort: CheckBudget, say: Callable[[str], None]) -> Any:
    if not job["torch"]:
        return None  # a check that needs none of it
    os.environ.update(job["environment"])
    from bench.runner.check.torch_rig import TorchRig
    from bench.runner.trial import team
    from bench.runner.trial.device import Device

    device = Device.own(job["device"])
    members = int(job.get("team", 1))
    if job["device"] == "cuda" or members > 1:
        device.choose()
    say("joining")
    # What the members tell each other lies on the host; only a collective of the GPUs needs NCCL.
    joined = team.join(device.kind if job["collective"] else "cpu", members == 1)
    return TorchRig(device, joined, job["gpus"], effort, say)
