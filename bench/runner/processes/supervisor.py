"""Starts jobs in the fork server, watches them, ends them. Imports no torch.

Every job ends in an outcome: its own, or the supervisor's when it is silent, late, too large or gone.
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
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.base.errors import EnvironmentCannot
from bench.base.linux_processes import ended_for_memory, ended_how, group_bytes, kill_group, oom_kills
from bench.base.strict_json import from_json, to_json, union_from_json
from bench.records.trial import (
    Ceiling,
    Crashed,
    Failure,
    Measured,
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
from bench.runner.processes.awake_clock import AwakeClock
from bench.runner.processes.logs import keep_short
from bench.runner.processes.nodes import LAST, Nodes
from bench.runner.processes.start_forkserver import start_server

TICK_SECONDS = 0.25
START_SECONDS = 300.0  # a cold disk reads torch slowly
SILENCE_SECONDS = 300.0  # between two events of a job: a compile that loops is silent
STARTS = 2  # of the server, where something ends it as it begins
ABANDON_SECONDS = 15.0  # for a job that was killed to end: inside a driver that hangs it never does

SHORT_OF_MEMORY = "is the machine short of memory? --resume goes on with what was measured"
Event = dict[str, Any]
# The last word of a job is one of these.
FINAL = {"outcome", "ceilings", "proof", "facts", "followed", "reading"}


class ServerGoneError(Exception):
    """The fork server ended while a job ran."""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    silence_seconds: float = SILENCE_SECONDS
    host_bytes: int | None = None  # of the job's process group together


class Supervisor:
    """Owns the fork server; one job at a time."""

    def __init__(
        self,
        preload: list[str],
        tick: Callable[[Event | None], None],
        log: Path,
        work: str = "bench.runner.processes.worker:work",
        nodes: Nodes | None = None,
    ) -> None:
        self.command = [sys.executable, "-m", "bench.runner.processes.forkserver"]
        self.arguments = [work, *preload]
        self.tick = tick  # called with every event, and with None a few times a second
        self.log = log
        self.nodes = nodes
        self._server: subprocess.Popen[bytes] | None = None
        self._number = 0  # of the next job, by which several nodes find each other
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._group: int | None = None

    def trial(self, trial: Trial, device: str, scratch: Path, log: Path, limits: Limits) -> Outcome:
        job = {
            "kind": "trial", "trial": to_json(trial), "gpus": trial.gpus, "device": device,
            "scratch": str(scratch),
        }  # fmt: skip
        final = self._run(job, log, limits)
        outcome: Outcome = union_from_json(Outcome, final["outcome"]) if isinstance(final, dict) else final
        return outcome

    def ceilings(
        self, precisions: list[str], device: str, gpus: int, log: Path, limits: Limits
    ) -> tuple[Ceiling, ...]:
        job = {"kind": "ceilings", "precisions": precisions, "device": device, "gpus": gpus}
        final = self._run(job, log, limits)
        return from_json(tuple[Ceiling, ...], _answer(final, "ceilings", log))

    def proof(
        self, trial: Trial, proving: Proving, device: str, scratch: Path, log: Path, limits: Limits
    ) -> ProofOrFailure:
        job = {
            "kind": "proof",
            "trial": to_json(trial),
            "gpus": trial.gpus,
            "device": device,
            "scratch": str(scratch),
            "steps": proving.steps,
            "seconds": proving.minutes * 60,
        }
        final = self._run(job, log, limits)
        if not isinstance(final, dict):
            assert not isinstance(final, Measured)  # a supervisor's verdict is none
            return final
        if "proof" in final:
            return from_json(Proof, final["proof"])
        failure: Failure = union_from_json(Failure, final["outcome"])
        return failure

    def reading(self, job: Event, log: Path, limits: Limits) -> Any:
        """What a check read, or the outcome that says why there is nothing."""
        final = self._run(job, log, limits)
        if isinstance(final, dict) and "reading" in final:
            return final["reading"]
        return union_from_json(Failure, final["outcome"]) if isinstance(final, dict) else final

    def facts(self, device: str, gpus: int, log: Path, seconds: float) -> tuple[NodeFacts, ...]:
        """What each of several nodes is; until all are there, nobody says anything."""
        final = self._run({"kind": "facts", "device": device, "gpus": gpus}, log, Limits(seconds, seconds))
        return from_json(tuple[NodeFacts, ...], _answer(final, "facts", log))

    def follow(self, number: int, device: str, gpus: int, log: Path) -> str | None:
        """This node's part of the leader's job of that number: its kind; None if there was no such job."""
        job = {"kind": "follow", "number": number, "device": device, "gpus": gpus}
        final = self._run(job, log, Limits(inf, inf))
        if isinstance(final, dict) and final.get("why"):
            raise EnvironmentCannot(f"the leader ends the run: {final['why']}")
        return str(final["followed"]) if isinstance(final, dict) and "followed" in final else None

    def dismiss(self, device: str, gpus: int, log: Path, limits: Limits, why: str | None) -> None:
        """Tells the nodes that follow that there is no further job, and what is wrong if something is."""
        self._run(LAST | {"device": device, "gpus": gpus, "why": why}, log, limits)

    def _run(self, job: Event, log: Path, limits: Limits) -> Event | Outcome:
        """The job's final event, or the outcome that the supervisor gives it."""
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.nodes is not None:
            job = {"number": self._number} | job | {"nodes": asdict(self.nodes)}
            self._number += 1
        self._ensure_server()
        assert self._socket is not None
        kills_before = oom_kills()
        try:
            self._socket.sendall(json.dumps({"job": job, "log": str(log)}).encode() + b"\n")
            return require_room(self._watch(limits, kills_before, log))
        except (ServerGoneError, BrokenPipeError):
            self.close()
            return Crashed("the process that starts trials was ended from outside")
        finally:
            self._group = None

    def _watch(self, limits: Limits, kills_before: int, log: Path) -> Event | Outcome:
        clock = AwakeClock()
        started = heard = clock.now()
        phase, final, verdict, killed = "start", None, None, 0.0
        for event in self._events():
            now = clock.now()
            self.tick(event)
            if event is None:
                keep_short(log)
                if verdict is None:
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
                return verdict or final or _died(event["exited"], phase, kills_before)
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
                    "host", f"{used / 2**30:.2f} GiB used, {limits.host_bytes / 2**30:.2f} allowed"
                )
        return None

    def _events(self) -> Iterator[Event | None]:
        """What the server sends, with None now and then; ends when the server does."""
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
                    with suppress(json.JSONDecodeError):  # half a line of a worker that was killed
                        yield json.loads(line)
                yield None

    def _ensure_server(self) -> None:
        if self._server is not None and self._server.poll() is None:
            return
        ended = -1
        for _ in range(STARTS):
            self.close()
            if (code := self._start_server()) is None:
                return
            if (ended := code) >= 0:  # by itself, as it would again
                break
        self.close()
        if ended < 0:
            message = f"the process that starts trials was ended {ended_how(-ended)} as it began"
            raise EnvironmentCannot(message, advice=SHORT_OF_MEMORY)
        raise EnvironmentCannot("torch could not be imported", where=str(self.log), advice="read that log")

    def _start_server(self) -> int | None:
        """None once it is ready, else its exit code; below 0 that is the signal that ended it."""
        self._server, self._socket = start_server(self.command, self.arguments, self.log)
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
        """Ends the job in flight and the server, at once."""
        if self._group is not None:
            kill_group(self._group)
            self._group = None
        if self._socket is not None:
            self._socket.close()  # tells the server to end whatever is left, and itself
            self._socket = None
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(1.0)
            self._server.kill()
            self._server.wait()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _answer(final: Event | Outcome, key: str, log: Path) -> Any:
    """What the job was asked for, or the reason why there is none."""
    if isinstance(final, dict) and key in final:
        return final[key]
    reason = final["outcome"] if isinstance(final, dict) else to_json(final)
    detail = ", ".join(str(value) for name, value in reason.items() if name != "kind")
    raise EnvironmentCannot(f"no {key}: {reason['kind']}: {detail}", where=str(log))


def _died(status: int, phase: str, kills_before: int) -> Outcome:
    """A job that ended without a word of its own."""
    if ended_for_memory(status, kills_before):
        return OutOfMemory("host", f"the kernel ended it for memory during {phase}")
    silent = "" if os.WIFSIGNALED(status) else ", without an outcome"
    return Crashed(f"ended {ended_how(status)} during {phase}{silent}")
