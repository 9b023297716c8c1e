"""Run one job inside its own process group: a trial, a floor or the facts of a node, for instance.

In:  a job as JSON. Out: events, of which the last one is the job's result or its failure. Imports torch at
module level; of all processes only workers may import this module.
"""

from __future__ import annotations

import re
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistBackendError

from bench.base.strict_json import to_json, union_from_json
from bench.records.trial import Crashed, Measured, Outcome, OutOfMemory, Unsupported
from bench.runner.machine.disk_room import no_room, with_causes
from bench.runner.machine.probe import probe
from bench.runner.processes import jobs
from bench.runner.processes.jobs import AnyRunJob, Emit, WorkerEvent
from bench.runner.processes.nodes import across_nodes
from bench.runner.processes.ranks import together
from bench.runner.trial import team
from bench.runner.trial.ceilings import measure_ceilings
from bench.runner.trial.device import Device
from bench.runner.trial.floor import measure_floor
from bench.runner.trial.gradients import RoundingDecides, check_gradients
from bench.runner.trial.run_trial import TrialRun
from bench.training.setting import in_group

# Beside torch.OutOfMemoryError: texts of CUDA, Triton and NCCL, then of cuBLAS, cuDNN and the like.
GPU_IS_FULL = re.compile(r"CUDA.*out of memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)
HOST_IS_FULL = re.compile("DefaultCPUAllocator: can't allocate memory")


def work(message: dict[str, Any], emit: Emit) -> int:
    """Run a job in this process, or in one process for each device. Returns an exit code."""
    job: AnyRunJob = union_from_json(AnyRunJob, message)
    scratch = Path(job.scratch or tempfile.gettempdir())
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name:
            folder = Path(name)
            if job.nodes is not None:
                return across_nodes(job, emit, folder)
            member = partial(_member, job, folder)
            return member(emit) if _is_alone(job) else together(job.gpus, member, emit, folder)
    except OSError as error:  # the disk may be too full even for the folder
        full = no_room(error, scratch)
        if full is None:
            raise
        emit({"outcome": to_json(full)})
        return 1


def _is_alone(job: AnyRunJob) -> bool:
    """True if the job needs no process group: it has one device, and its setting does not shard."""
    setting = job.trial.setting if isinstance(job, jobs.TrialJob | jobs.ProofJob) else ()
    return job.gpus == 1 and in_group(setting, "sharding") is None


def _member(job: AnyRunJob, scratch: Path, emit: Emit) -> int:
    """Run one rank's part of the job. Any exception becomes an event; its traceback goes to the log."""
    try:
        device = Device.own(job.device)
        device.choose()
        emit(dispatch(job, device, team.join(job.device, alone=_is_alone(job)), scratch, emit))
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": to_json(no_room(error, scratch) or classify(error))})
        return 1
    return 0


def dispatch(job: AnyRunJob, device: Device, members: team.Team, scratch: Path, emit: Emit) -> WorkerEvent:
    """Do the job and return its final event."""
    match job:
        case jobs.FactsJob():
            return {"facts": to_json(members.one_of_each_node(probe(gpus_too=device.kind == "cuda")))}
        case jobs.CeilingsJob():
            return {"ceilings": to_json(measure_ceilings(device, members, list(job.precisions)))}
        case jobs.FloorJob():
            return {"floor": to_json(measure_floor(job.trial, device, emit))}
        case jobs.GradientCheckJob():
            try:
                return {"gradient_check": to_json(check_gradients(job.trial, device, scratch, emit))}
            except RoundingDecides as why:
                return {"outcome": to_json(Unsupported(str(why)))}
        case jobs.ProofJob():
            run = TrialRun(job.trial, device, members, scratch, emit)
            return {"proof": to_json(run.prove(job.steps, job.seconds))}
        case jobs.TrialJob():
            run = TrialRun(job.trial, device, members, scratch, emit)
            return {"outcome": to_json(Measured(run.run()))}
        case _:
            raise TypeError(f"no worker does a job of kind {job.kind}")


def classify(error: BaseException) -> Outcome:
    """Return the outcome of a trial that raised `error`: out of memory, or crashed with the error's text."""
    for cause in with_causes(error):
        text = str(cause)
        if isinstance(cause, MemoryError) or HOST_IS_FULL.search(text):
            return OutOfMemory("host", _in_a_line(cause, HOST_IS_FULL))
        if isinstance(cause, torch.OutOfMemoryError) or GPU_IS_FULL.search(text):
            return OutOfMemory("gpu", _in_a_line(cause, GPU_IS_FULL))
    return Crashed(_in_a_line(error))


def _in_a_line(error: BaseException, reason: re.Pattern[str] | None = None) -> str:
    """Return the error's type and the line that matches `reason`, else its first (NCCL: last) line."""
    lines = str(error).strip().splitlines() or [""]
    default = lines[-1 if isinstance(error, DistBackendError) and lines[-1] != "Last error:" else 0]
    line = next((line for line in lines if reason and reason.search(line)), default)
    return f"{type(error).__name__}: {line}".strip()[:300]
