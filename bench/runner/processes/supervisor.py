"""Start jobs in the fork server, watch them, end them.

In:  a job and its limits. Out: the job's result, or the outcome that the supervisor gives to a job that is
silent, late, too large or gone: every job ends in bounded time. Imports no torch.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Self, TypeVar

from bench.base.errors import EnvironmentCannot
from bench.base.linux_processes import (
    ended_for_memory,
    ended_how,
    group_bytes,
    kill_group,
    oom_kills,
    programs_ticks,
)
from bench.base.sizes import bytes_text
from bench.base.strict_json import from_json, to_json, union_from_json, whole_texts
from bench.records.floor import Floor
from bench.records.gradients import GradientCheck
from bench.records.trial import (
    Ceiling,
    Crashed,
    Failure,
    NodeFacts,
    Outcome,
    OutOfMemory,
    Proof,
    ProofOrFailure,
    Proving,
    TimedOut,
    Trial,
)
from bench.runner.machine.disk_room import require_room
from bench.runner.processes import jobs
from bench.runner.processes.compiler_cache import VARIABLE, CompilerCache, take_cache
from bench.runner.processes.jobs import DeviceKind, Nodes, RunJob, WorkerEvent
from bench.runner.processes.logs import keep_short

TICK_SECONDS = 0.25
START_SECONDS = 300.0  # for the server to import torch, which takes long from a cold disk
SILENCE_SECONDS = 300.0  # without a sign of life: an event, or the work of a compiler that the job started
LOOKS = 10  # at the programs of a silent job, before its silence is too long
START_ATTEMPTS = 2  # attempts to start the server, if a signal ends it as it starts
ABANDON_SECONDS = 15.0  # for a killed job to end; a job inside a driver that hangs never ends
ASLEEP_SECONDS = 10.0  # a longer time between readings of AwakeClock, normally TICK_SECONDS, is sleep

SHORT_OF_MEMORY = "is the machine short of memory? --resume goes on with what was measured"
Found = TypeVar("Found")
# The last event of a job has one of these keys.
FINAL = {"outcome", "ceilings", "floor", "gradient_check", "proof", "facts", "followed", "reading"}


class ServerGoneError(Exception):
    """The fork server ended while a job ran."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a job may take, how long it may be silent, and how much memory it may use."""

    seconds: float
    silence_seconds: float = SILENCE_SECONDS
    host_bytes: int | None = None  # of the job's process group together


class AwakeClock:
    """A clock that stands still while Ctrl-Z, a blocked terminal or a closed lid stops this process."""

    def __init__(self) -> None:
        self._last, self._asleep = time.monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds of a monotonic clock, less the time that this process stood still."""
        now = time.monotonic()
        if now - self._last > ASLEEP_SECONDS:
            self._asleep += now - self._last
        self._last = now
        return now - self._asleep


class Compilers:
    """The programs that a job started: while they compute, a silent job compiles, and does not hang.

    DeepSpeed compiles its optimizers by ninja and c++ without a word, which takes minutes on a busy machine.
    """

    def __init__(self, silence_seconds: float) -> None:
        self._every = silence_seconds / LOOKS
        self._looked, self._ticks = 0.0, dict[int, int]()

    def have_worked(self, group: int | None, now: float, heard: float) -> bool:
        """Whether programs of the group computed since the last look; False if it is too soon to look."""
        if group is None or now - max(heard, self._looked) < self._every:
            return False
        before, self._ticks, self._looked = self._ticks, programs_ticks(group), now
        return any(ticks != before.get(pid) for pid, ticks in self._ticks.items())


class Supervisor:
    """Owns the fork server; runs one job at a time."""

    def __init__(
        self,
        preload: list[str],
        tick: Callable[[WorkerEvent | None], None],
        log: Path,
        work: str = "bench.runner.processes.worker:work",
        nodes: Nodes | None = None,
    ) -> None:
        """`tick` is called with every event of a job, and with None a few times a second."""
        self.command = [sys.executable, "-m", "bench.runner.processes.forkserver"]
        self.arguments = [work, *preload]
        self.tick = tick
        self.log = log
        self.nodes = nodes
        self._server: subprocess.Popen[bytes] | None = None
        self._next_number = 0
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._group: int | None = None
        self._cache: CompilerCache | None = None

    def trial(self, trial: Trial, device: DeviceKind, scratch: Path, log: Path, limits: Limits) -> Outcome:
        """Measure a trial; return its outcome."""
        job = jobs.TrialJob(trial=trial, gpus=trial.gpus, device=device, scratch=str(scratch))
        outcome: Outcome = union_from_json(Outcome, self._run(job, log, limits)["outcome"])
        return outcome

    def ceilings(
        self, precisions: list[str], device: DeviceKind, gpus: int, log: Path, limits: Limits
    ) -> tuple[Ceiling, ...]:
        """Measure the ceilings of the devices; EnvironmentCannot, with the log's path, if that fails."""
        job = jobs.CeilingsJob(precisions=tuple(precisions), device=device, gpus=gpus)
        return from_json(tuple[Ceiling, ...], _require(self._run(job, log, limits), "ceilings", log))

    def floor(
        self, trial: Trial, device: DeviceKind, scratch: Path, log: Path, limits: Limits
    ) -> Floor | Failure:
        """Return the floor of a trial, or the failure that says why there is none."""
        job = jobs.FloorJob(trial=trial, gpus=1, device=device, scratch=str(scratch))
        return self._result_of(job, log, limits, "floor", Floor)

    def gradient_check(
        self, trial: Trial, device: DeviceKind, scratch: Path, log: Path, limits: Limits
    ) -> GradientCheck | Failure:
        """Return the gradient check of a trial, or the failure that says why there is none."""
        job = jobs.GradientCheckJob(trial=trial, gpus=1, device=device, scratch=str(scratch))
        return self._result_of(job, log, limits, "gradient_check", GradientCheck)

    def _result_of(
        self, job: object, log: Path, limits: Limits, key: str, kind: type[Found]
    ) -> Found | Failure:
        """Run a job and return its result, or the failure that says why it has none."""
        final = self._run(job, log, limits)
        if key in final:
            return from_json(kind, final[key])
        failure: Failure = union_from_json(Failure, final["outcome"])
        return failure

    def proof(
        self, trial: Trial, proving: Proving, device: DeviceKind, scratch: Path, log: Path, limits: Limits
    ) -> ProofOrFailure:
        """Train a trial as its recipe says; return the proof, or why the training failed."""
        job = jobs.ProofJob(
            trial=trial,
            steps=proving.steps,
            seconds=proving.minutes * 60,
            gpus=trial.gpus,
            device=device,
            scratch=str(scratch),
        )
        return self._result_of(job, log, limits, "proof", Proof)

    def reading(self, job: object, log: Path, limits: Limits) -> Any:
        """Return the reading of a node check's job, or the failure that says why there is no reading."""
        final = self._run(job, log, limits)
        return final["reading"] if "reading" in final else union_from_json(Failure, final["outcome"])

    def facts(self, device: DeviceKind, gpus: int, log: Path, seconds: float) -> tuple[NodeFacts, ...]:
        """Return a description of each node; the job is silent until all nodes have come to the meeting."""
        final = self._run(jobs.FactsJob(device=device, gpus=gpus), log, Limits(seconds, seconds))
        return from_json(tuple[NodeFacts, ...], _require(final, "facts", log))

    def follow(self, number: int, device: DeviceKind, gpus: int, log: Path) -> str | None:
        """Do this node's part of the leader's job `number`.

        Returns the kind of that job; None if no such job came. EnvironmentCannot if the leader ends the run.
        """
        final = self._run(jobs.FollowJob(number=number, device=device, gpus=gpus), log, Limits(inf, inf))
        if why := final.get("why"):
            raise EnvironmentCannot(f"the leader ends the run: {why}")
        return final.get("followed")

    def dismiss(self, device: DeviceKind, gpus: int, log: Path, limits: Limits, why: str | None) -> None:
        """Tell the nodes that follow the leader that the run is over, and `why` if an error ended it."""
        self._run(jobs.LastJob(device=device, gpus=gpus, why=why), log, limits)

    def _run(self, job: object, log: Path, limits: Limits) -> WorkerEvent:
        """Run the job; return its final event, or an event with the outcome that the supervisor gives it."""
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.nodes is not None and isinstance(job, RunJob):
            number = job.number if isinstance(job, jobs.FollowJob) else self._next_number
            job = replace(job, nodes=self.nodes, number=number)
            self._next_number += 1
        self._ensure_server()
        assert self._socket is not None
        kills_before = oom_kills()
        if self._cache is not None:
            self._cache.begin()
        try:
            self._socket.sendall(json.dumps({"job": to_json(job), "log": str(log)}).encode() + b"\n")
            final = self._watch(limits, kills_before, log)
            if self._cache is not None:
                self._cache.end(whole=_has_result(final))
            return require_room(final if isinstance(final, dict) else {"outcome": to_json(final)})
        except (ServerGoneError, BrokenPipeError):
            self.close()
            return {"outcome": to_json(Crashed("the process that starts trials was ended from outside"))}
        finally:
            self._group = None

    def _watch(self, limits: Limits, kills_before: int, log: Path) -> WorkerEvent | Outcome:
        """Wait for the job in flight to end; kill it when it oversteps its limits."""
        clock, compilers = AwakeClock(), Compilers(limits.silence_seconds)
        started = heard = clock.now()
        phase, final, verdict, killed = "start", None, None, 0.0
        for event in self._events():
            now = clock.now()
            self.tick(event)
            if event is None:
                keep_short(log)
                if verdict is None:
                    if compilers.have_worked(self._group, now, heard):
                        heard = now
                        self.tick({"compiling": True})
                    verdict, killed = self._overstepped(limits, now - started, now - heard, phase), now
                    if verdict is not None and self._group is not None:
                        kill_group(self._group)
                elif now - killed > ABANDON_SECONDS:
                    self.close()  # the next job gets a new server
                    return verdict
                continue
            heard = now
            phase = event.get("phase", phase)
            self._group = event.get("pid", self._group)
            if event.keys() & FINAL:
                final = event
            if "exited" in event:
                return verdict or final or _outcome_of_exit(event["exited"], phase, kills_before)
        raise ServerGoneError

    def _overstepped(self, limits: Limits, seconds: float, silence: float, phase: str) -> Outcome | None:
        if seconds > limits.seconds:
            return TimedOut(limits.seconds, phase)
        if silence > limits.silence_seconds:
            return TimedOut(limits.silence_seconds, f"{phase}: no sign of life")
        if limits.host_bytes is not None and self._group is not None:
            used = group_bytes(self._group)
            if used > limits.host_bytes:
                return OutOfMemory(
                    "host", f"{bytes_text(used)} used, {bytes_text(limits.host_bytes)} allowed"
                )
        return None

    def _events(self) -> Iterator[WorkerEvent | None]:
        """Yield events from the server, and None at least every TICK_SECONDS; end when the server ends."""
        assert self._socket is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                if not selector.select(TICK_SECONDS):
                    yield None
                    continue
                try:
                    data = self._socket.recv(1 << 16)
                except ConnectionError:
                    return
                if not data:
                    return
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in filter(None, lines):
                    with suppress(json.JSONDecodeError):  # a killed worker may have written half a line
                        yield whole_texts(line)
                yield None

    def _ensure_server(self) -> None:
        """Start the server unless it runs. EnvironmentCannot if it does not get ready."""
        if self._server is not None and self._server.poll() is None:
            return
        for _ in range(START_ATTEMPTS):
            self.close()
            code = self._start_server()
            if code is None:
                return
            if code >= 0:  # no signal ended the server: it would end the same way again
                break
        self.close()
        if code is not None and code < 0:
            message = f"the process that starts trials was ended {ended_how(-code)} as it began"
            raise EnvironmentCannot(message, advice=SHORT_OF_MEMORY)
        raise EnvironmentCannot("torch could not be imported", where=str(self.log), advice="read that log")

    def _start_server(self) -> int | None:
        """Start the server. Returns None once it is ready, else its exit code, negative for a signal."""
        self._cache = take_cache()
        folder = {} if self._cache is None else {VARIABLE: str(self._cache.folder)}
        self._server, self._socket = _start_forkserver(self.command, self.arguments, self.log, folder)
        self._buffer = b""
        deadline = time.monotonic() + START_SECONDS
        for event in self._events():
            self.tick(event)
            if event is not None and "ready" in event:
                return None
            if time.monotonic() > deadline:
                return 1
        return self._server.wait()

    def close(self) -> None:
        """End the job in flight and the server, at once."""
        if self._group is not None:
            kill_group(self._group)
            self._group = None
        if self._socket is not None:
            self._socket.close()  # tells the server to end its children and itself
            self._socket = None
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(1.0)
            self._server.kill()
            self._server.wait()
            self._server = None
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_forkserver(
    command: list[str], arguments: list[str], log: Path, variables: dict[str, str]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the fork server in the environment of all jobs; return its process and our end of its socket."""
    ours, theirs = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    with theirs, log.open("ab") as file:
        # GNU OpenMP: threads that spin for long at barriers block each other on a machine that has other
        # work; threads that do not spin at all take twice as long on an idle one.
        # OpenBLAS would start threads when numpy is imported, and threads do not survive a fork.
        environment = {"GOMP_SPINCOUNT": "10000"} | os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        # CUDA counts GPUs in NVML's order, or figures would be attributed to the wrong card.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | variables
        server = subprocess.Popen(
            [*command, str(theirs.fileno()), *arguments],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return server, ours


def _has_result(final: WorkerEvent | Outcome) -> bool:
    """Whether a job ended by itself, with what it was asked for: then none of its processes was cut off."""
    if not isinstance(final, dict):
        return False
    return final.get("outcome", {}).get("kind", "measured") in ("measured", "unsupported")


def _require(final: WorkerEvent, key: str, log: Path) -> Any:
    """Return the value of `key` in a final event; raise EnvironmentCannot, with the reason, without it."""
    if key in final:
        return final[key]
    reason = final["outcome"]
    detail = ", ".join(str(value) for name, value in reason.items() if name != "kind")
    raise EnvironmentCannot(f"no {key}: {reason['kind']}: {detail}", where=str(log))


def _outcome_of_exit(status: int, phase: str, kills_before: int) -> Outcome:
    """Return the outcome of a job that ended without a final event, from its wait status."""
    if ended_for_memory(status, kills_before):
        return OutOfMemory("host", f"the kernel ended it for memory during {phase}")
    silent = "" if os.WIFSIGNALED(status) else ", without an outcome"
    return Crashed(f"ended {ended_how(status)} during {phase}{silent}")
