"""One job inside its own process group: a trial, a piece of real training, or the ceilings.

torch and transformers are imported at the top here, and nowhere else but beside it.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.codec import from_json, to_json
from bench.methods import in_group
from bench.result import Crashed, Measured, Outcome, OutOfMemory, Trial
from bench.runner import team
from bench.runner.ceilings import measure_ceilings
from bench.runner.device import Device
from bench.runner.nodes import across_nodes
from bench.runner.probe import probe
from bench.runner.ranks import together
from bench.runner.trial import TrialRun

Emit = Callable[[dict[str, Any]], None]


def work(job: dict[str, Any], emit: Emit) -> int:
    """In this process, or in one for each device; each ends with an exit code."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=job.get("scratch")) as folder:
        if "nodes" in job:
            return across_nodes(job, emit, Path(folder))
        member = partial(_member, job, Path(folder))
        return member(emit) if _alone(job) else together(int(job["gpus"]), member, emit, Path(folder))


def _alone(job: dict[str, Any]) -> bool:
    """One device needs no process group, except for a method that shards, into the host's memory say."""
    setting = job["trial"]["setting"] if "trial" in job else ()
    return int(job["gpus"]) == 1 and in_group(tuple(setting), "sharding") is None


def _member(job: dict[str, Any], scratch: Path, emit: Emit) -> int:
    """The process boundary: whatever happens becomes an event, and the log holds the traceback."""
    try:
        device = Device(job["device"], int(os.environ.get("LOCAL_RANK", "0")))
        device.choose(int(job["gpus"]))
        emit(dispatch(job, device, team.join(job["device"], _alone(job)), scratch, emit))
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": to_json(classify(error))})
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


def classify(error: Exception) -> Outcome:
    """Out of memory is an answer about the machine; anything else is a failure with its reason."""
    text = f"{type(error).__name__}: {error}".strip()
    first_line = text.splitlines()[0][:300]
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory("gpu", first_line)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return OutOfMemory("host", first_line)
    return Crashed(first_line)
