"""Run one job of a node check inside its own process group. Imports torch only for a check that needs it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.base.strict_json import to_json, union_from_json
from bench.node_check.all_checks import known_checks
from bench.records.trial import Crashed
from bench.runner.check.request import AnyCheckJob, CheckJob, IdleJob, InventoryJob, NodesJob, TelemetryJob
from bench.runner.machine import nvml, watch
from bench.runner.processes.jobs import Emit
from bench.runner.processes.ranks import together


def work(message: dict[str, Any], emit: Emit) -> int:
    """Run a job in this process, or in one process for each member of its team. Returns an exit code.

    Emits a reading, or the reason why there is none.
    """
    job: AnyCheckJob = union_from_json(AnyCheckJob, message)
    member = partial(_member, job)
    if isinstance(job, CheckJob) and job.team > 1:
        with TemporaryDirectory(prefix="bench-check-") as folder:
            return together(job.team, member, emit, Path(folder))
    return member(emit)


def _member(job: AnyCheckJob, emit: Emit) -> int:
    def say(phase: str) -> None:
        emit({"phase": phase})

    try:
        emit({"reading": _read(job, say)})
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": to_json(Crashed(_error_text(error)))})
        return 1
    return 0


def _error_text(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0][:200]
    return f"{type(error).__name__}: {first}"


def _read(job: AnyCheckJob, say: Callable[[str], None]) -> Any:
    match job:
        case InventoryJob():
            return nvml.read_inventory(say)
        case IdleJob():
            return nvml.watch_idle(say)
        case TelemetryJob():
            return watch.watch_until(Path(job.file), ended=lambda: True)
        case CheckJob():
            return _measure(job, say)
        case NodesJob():
            from bench.runner.check import between_nodes

            return between_nodes.take_part(job, say)


def _measure(job: CheckJob, say: Callable[[str], None]) -> Any:
    check = known_checks()[job.check]
    assert check.measure is not None
    if nvml.is_fake() and check.workers != "host":
        return nvml.load().measure(check.name, list(job.gpus), job.budget)
    rig: Any = _rig(job, say) if job.torch else None
    return check.measure(rig, job.budget)


def _rig(job: CheckJob, say: Callable[[str], None]) -> Any:
    os.environ.update(job.environment)
    from bench.runner.check.torch_rig import TorchRig
    from bench.runner.trial import team
    from bench.runner.trial.device import Device

    device = Device.own(job.device)
    if job.device == "cuda" or job.team > 1:
        device.choose()
    say("joining")
    # Members exchange values that lie on the host; only a collective of the GPUs needs NCCL.
    members = team.join(device.kind if job.collective else "cpu", alone=job.team == 1)
    return TorchRig(device, members, list(job.gpus), job.budget, say)
