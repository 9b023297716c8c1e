"""One step of a check between nodes: the processes of this node join the step's group and exchange data.

A lane is a GPU, or a process of the CPU. For each lane a process joins a group of torch.distributed that
exists for this step alone, so that a process that hangs or dies affects no other step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.base.errors import EnvironmentCannot
from bench.base.linux_processes import die_with_parent, ended_how
from bench.base.strict_json import from_json, to_json
from bench.node_check.checks.exchange import ALL_REDUCE, bytes_out
from bench.node_check.judging.round_robin import Pair
from bench.runner.check.request import NodesJob
from bench.runner.processes import nodes as several

if TYPE_CHECKING:
    import torch.distributed as dist

    from bench.runner.trial.device import Device
    from bench.runner.trial.team import Team

START_SECONDS = {"cpu": 20.0, "cuda": 60.0}  # for the processes of a step to start and to meet
SLOWNESS = 10  # how many times longer than planned an exchange may take
LEADER_SECONDS = 900.0  # for the leader's next step
MESSAGE_BYTES = {"cpu": 1 << 18, "cuda": 64 << 20}  # between two nodes
TENSOR_BYTES = {"cpu": 1 << 18, "cuda": 256 << 20}  # of each lane in an exchange of many
SAMPLE_SECONDS = 0.05
MOST_CALLS, MOST_SAMPLES = 1000, 5
ANSWER_SECONDS = 5.0  # for an answer to arrive after the step's time

StepKind = Literal["pairs", "exchange", "end"]


@dataclass(frozen=True, slots=True)
class Step:
    """The next step of the nodes: "pairs" meet in twos; in an "exchange" all nodes of `group` take part."""

    number: int
    kind: StepKind
    pairs: tuple[Pair, ...] = ()
    group: tuple[int, ...] = ()
    algorithm: str = ""


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The measurement of one lane in one step: the seconds of each piece, in one or in both directions."""

    piece_bytes: float = 0.0
    seconds: tuple[tuple[float, ...], ...] = ()
    why: str = ""


def meet(job: NodesJob, seconds: float, group: str = "") -> dist.Store:
    """Open the store of the meeting, or of one of its groups; give up after `seconds`.

    The leader's proxy may open later than this node's, and it lets in a limited number at a time.
    """
    deadline = time.monotonic() + seconds
    patience = timedelta(seconds=seconds if group else LEADER_SECONDS)
    while True:
        try:
            return several.meeting(job.nodes.store, f"{job.nodes.identity}{group}", patience)
        except Exception as error:  # torch has several types for a connection that fails
            if time.monotonic() > deadline:
                raise EnvironmentCannot(
                    f"no leader at {job.nodes.meet}: {error}".splitlines()[0],
                    advice="start the same command with --node 0 there",
                ) from None
        time.sleep(random.uniform(0.2, 1.0))


def do_step(job: NodesJob, step: Step, group: tuple[int, ...], folder: Path) -> tuple[LaneResult, ...]:
    """Fork a process for each lane, and return the result that each has written to its file in `folder`."""
    paths = [folder / f"{step.number}-{lane}.json" for lane in range(job.lanes)]

    def member(lane: int) -> None:
        paths[lane].write_text(json.dumps(to_json(_in_lane(job, step, group, lane))))

    statuses = in_processes(job.lanes, member, step_seconds(job))
    return tuple(map(_lane_result, paths, statuses))


def _lane_result(path: Path, status: int | None) -> LaneResult:
    """Read the result of a lane, or say how its process ended."""
    with suppress(OSError, ValueError):
        return from_json(LaneResult, json.loads(path.read_text()))
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGKILL)):
        return LaneResult(why="nothing came through in time")
    return LaneResult(why=f"its process ended {ended_how(status)}")


def step_seconds(job: NodesJob) -> float:
    """Return how long the processes of a step may take."""
    return START_SECONDS[job.device] + SLOWNESS * 2 * (job.warm_seconds + job.seconds)


def in_processes(size: int, member: Callable[[int], None], limit_seconds: float) -> list[int | None]:
    """Run `member` in `size` processes; return their wait statuses, None for a process that does not end.

    A timer of the kernel ends a process that takes too long, also inside of a library that waits.
    """
    parent, started = os.getpid(), {}
    for number in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(parent)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, limit_seconds)
                member(number)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        started[pid] = number
    statuses: list[int | None] = [None] * size
    deadline = time.monotonic() + limit_seconds + ANSWER_SECONDS / 2
    while started and time.monotonic() < deadline:
        for pid in [*started]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[started.pop(pid)] = status
        time.sleep(0.01)
    return statuses


def _in_lane(job: NodesJob, step: Step, group: tuple[int, ...], lane: int) -> LaneResult:
    """Join the group of this step and measure, in the process of one lane."""
    from bench.runner.trial import team
    from bench.runner.trial.device import Device

    place = group.index(job.nodes.node)
    if step.kind == "pairs":  # GPUs of equal numbers meet
        rank, size, name = place, 2, f"{step.number}/{group[0]}/{lane}"
    else:
        rank, size, name = place * job.lanes + lane, len(group) * job.lanes, f"{step.number}"
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(lane)}
    try:
        store = meet(job, step_seconds(job), f"/{name}")
        device = Device.own(job.device)
        device.choose()
        members = team.join(device.kind, alone=False, store=store)
        if step.kind == "pairs":
            return _both_ways(members, device, job)
        return _exchange(members, device, job, step)
    except Exception as error:
        traceback.print_exc()
        return LaneResult(why=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200])


def _both_ways(members: Team, device: Device, job: NodesJob) -> LaneResult:
    """Send from the first member to the second, then back."""
    import torch
    import torch.distributed as dist

    size = MESSAGE_BYTES[job.device]
    message = torch.ones(size, dtype=torch.uint8, device=device.torch)
    times = []
    for sender in (0, 1):
        sends = members.rank == sender
        move = (lambda: dist.send(message, 1)) if sender == 0 else (lambda: dist.send(message, 0))
        take = (lambda: dist.recv(message, 0)) if sender == 0 else (lambda: dist.recv(message, 1))
        calls, seconds = _timed(members, device, job, move if sends else take)
        times.append(tuple(each / calls for each in seconds))
    return LaneResult(float(size), tuple(times))


def _exchange(members: Team, device: Device, job: NodesJob, step: Step) -> LaneResult:
    """Exchange data among all members by the step's algorithm."""
    import torch
    import torch.distributed as dist

    size = TENSOR_BYTES[job.device] // members.size * members.size
    tensor = torch.ones(size, dtype=torch.uint8, device=device.torch)
    other = torch.empty_like(tensor)

    def reduce() -> None:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def to_all() -> None:
        dist.all_to_all_single(other, tensor)

    calls, seconds = _timed(members, device, job, reduce if step.algorithm == ALL_REDUCE else to_all)
    piece = bytes_out(step.algorithm, len(step.group), job.lanes, size)
    return LaneResult(piece, (tuple(each / calls for each in seconds),))


def _timed(
    members: Team, device: Device, job: NodesJob, call: Callable[[], object]
) -> tuple[int, list[float]]:
    """Time a call that all members make; return how many calls a sample has, and the samples' seconds.

    Every member must make it equally often, so the slowest member's time decides how often. A sample ends
    when all members are done.
    """

    def once(calls: int) -> float:
        members.wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        device.synchronise()
        members.wait()
        return time.perf_counter() - started

    once(1)
    each = members.slowest(once(1))
    calls = max(1, min(MOST_CALLS, round(SAMPLE_SECONDS / each)))
    for _ in range(min(MOST_SAMPLES, round(job.warm_seconds / (calls * each)))):
        once(calls)
    each = members.slowest(once(calls)) / calls
    samples = max(1, min(MOST_SAMPLES, round(job.seconds / (calls * each))))
    calls = max(calls, min(MOST_CALLS, round(job.seconds / (samples * each))))
    return calls, [once(calls) for _ in range(samples)]
