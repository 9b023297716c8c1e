"""One job inside its own process group: a trial, a piece of real training, or the ceilings.

torch and transformers are imported at the top here, and nowhere else but beside it.
"""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistBackendError

from bench.base.strict_json import from_json, to_json
from bench.records.trial import Crashed, Measured, Outcome, OutOfMemory, Trial
from bench.runner.machine.disk_room import no_room, with_causes
from bench.runner.machine.probe import probe
from bench.runner.processes.nodes import across_nodes
from bench.runner.processes.ranks import together
from bench.runner.trial import team
from bench.runner.trial.ceilings import measure_ceilings
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.training.setting import in_group

Emit = Callable[[dict[str, Any]], None]
# Beside torch's own allocator: CUDA itself, Triton and NCCL, each after "CUDA"; cuBLAS, cuDNN and their like.
GPU_IS_FULL = re.compile(r"CUDA.*out of memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)
HOST_IS_FULL = re.compile("DefaultCPUAllocator: can't allocate memory")


def work(job: dict[str, Any], emit: Emit) -> int:
    """In this process, or in one for each device; each ends with an exit code."""
    place = job.get("scratch") or tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as folder:
            if "nodes" in job:
                return across_nodes(job, emit, Path(folder))
            member = partial(_member, job, Path(folder))
            return member(emit) if _alone(job) else together(int(job["gpus"]), member, emit, Path(folder))
    except OSError as error:  # not even for the folder
        if (full := no_room(error, Path(place))) is None:
            raise
        emit({"outcome": to_json(full)})
        return 1


def _alone(job: dict[str, Any]) -> bool:
    """One device needs no process group, except for a method that shards, into the host's memory say."""
    setting = job["trial"]["setting"] if "trial" in job else ()
    return int(job["gpus"]) == 1 and in_group(tuple(setting), "sharding") is None


def _member(job: dict[str, Any], scratch: Path, emit: Emit) -> int:
    """The process boundary: whatever happens becomes an event, and the log holds the traceback."""
    try:
        device = Device.own(job["device"])
        device.choose()
        emit(dispatch(job, device, team.join(job["device"], _alone(job)), scratch, emit))
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": to_json(no_room(error, scratch) or classify(error))})
        return 1
    return 0


def dispatch(
    job: dict[str, Any], device: Device, members: team.Team, scratch: Path, emit: Emit
) -> dict[str, Any]:
    """The job's final event."""
    if job["kind"] == "facts":
        return {"facts": to_json(members.one_of_each_node(probe(gpus_too=device.kind == "cuda")))}
    if job["kind"] == "ceilings":
        return {"ceilings": to_json(measure_ceilings(device, members, job["precisions"]))}
    run = TrialRun(from_json(Trial, job["trial"]), device, members, scratch, emit)
    if job["kind"] == "proof":
        return {"proof": to_json(run.prove(job["steps"], job["seconds"]))}
    return {"outcome": to_json(Measured(run.run()))}


def classify(error: BaseException) -> Outcome:
    """Out of memory is an answer about the machine; anything else is a failure with its reason."""
    for one in with_causes(error):
        text = str(one)
        if isinstance(one, MemoryError) or HOST_IS_FULL.search(text):
            return OutOfMemory("host", _in_a_line(one, HOST_IS_FULL))
        if isinstance(one, torch.OutOfMemoryError) or GPU_IS_FULL.search(text):
            return OutOfMemory("gpu", _in_a_line(one, GPU_IS_FULL))
    return Crashed(_in_a_line(error))


def _in_a_line(error: BaseException, telling: re.Pattern[str] | None = None) -> str:
    """The line that tells it, where there is one, else the first; NCCL's reason is its last."""
    lines = str(error).strip().splitlines() or [""]
    first = lines[-1 if isinstance(error, DistBackendError) and lines[-1] != "Last error:" else 0]
    told = next((line for line in lines if telling and telling.search(line)), first)
    return f"{type(error).__name__}: {told}".strip()[:300]
