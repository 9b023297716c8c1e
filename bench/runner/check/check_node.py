"""A node check from manifest to signed bundle: looks, measures, judges.

This process touches no driver and imports no torch: whatever may hang does so in a process group of its own,
with a limit, and what it was asked is then not-run.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from bench.base.errors import BadInput
from bench.base.paths import making_folders
from bench.base.strict_json import to_json
from bench.node_check.all_checks import known_checks
from bench.node_check.check_manifest import DepthBudget
from bench.node_check.check_results import CheckResults
from bench.node_check.checks import Check, CheckBudget
from bench.node_check.judging.evidence import AFTER, BEFORE, IDLE, Answers, Evidence, Reading
from bench.records.text import failure_text
from bench.records.trial import Gpu
from bench.runner.check.check_bundle import finish
from bench.runner.check.request import CheckRequest, NodeReadings
from bench.runner.machine import nvml, probe, telemetry
from bench.runner.machine.exclusive_use import alone
from bench.runner.machine.gpus import in_parts, not_here, seen, visible
from bench.runner.processes.logs import head_and_tail
from bench.runner.processes.supervisor import Limits, Supervisor
from bench.runner.run.execute import interruptible, uninterruptible
from bench.runner.run.seal import Seal, Sealer

LOOK_SECONDS = 30.0  # for NVML to answer; a healthy driver takes one
WATCH_SECONDS = 1.0
WATCH_PATIENCE_SECONDS = 10.0
SOAK_START_SECONDS = 20.0  # for its processes to begin and to end
LEAST_SECONDS = 5.0  # left, or a check is not begun


@dataclass(frozen=True, slots=True)
class CheckedNode:
    results: CheckResults
    evidence: Evidence
    bundle: Path
    seal: Seal


class CheckView(Protocol):
    """What a person sees meanwhile."""

    def begin(self, name: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def end(self, reading: Reading) -> None: ...

    def say(self, text: str) -> None: ...


def check_node(asked: CheckRequest, sealer: Sealer, talk: CheckView) -> CheckedNode:
    folder = asked.out / (sealer.run_id or secrets.token_hex(6))
    with making_folders(asked.out):
        if folder.exists():
            raise BadInput("this run was begun before", where=str(folder))
        folder.mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / telemetry.FILE_NAME).touch()
    nvml.begin()
    started = time.time()
    with interruptible():
        sealer.begin(folder, talk.say)
        work = CheckRun(asked, folder, talk)
        stopped = work.run()
        seal = sealer.seal(folder, talk.say, patient=stopped is None)
        with uninterruptible():
            results, evidence, bundle = finish(
                asked, folder, NodeReadings(work.gpus, work.driver, work.readings), seal, started, stopped
            )
            return CheckedNode(results, evidence, bundle, seal)


class CheckRun:
    """Readings, one after the other; each is kept as soon as it is there."""

    def __init__(self, asked: CheckRequest, folder: Path, talk: CheckView) -> None:
        self.asked = asked
        self.folder = folder
        self.talk = talk
        self.pains: DepthBudget = asked.manifest.budget(asked.level)
        self.readings: dict[str, Reading] = {}
        self.gpus: tuple[Gpu, ...] = ()
        self.driver: str | None = None
        self._divided: str | None = None  # why nothing can be measured on a GPU that is there
        self._deadline = time.monotonic() + 60 * self.pains.minutes
        self._torch = bool(probe.packages(("torch",)))

    def run(self) -> str | None:
        """Until all was asked. Returns why it stopped early, or None."""
        preload = ["torch", "torch.distributed"] if self._torch and not nvml.is_fake() else []
        try:
            with Supervisor(
                preload,
                self._tick,
                self.folder / "logs" / "forkserver.txt",
                "bench.runner.check.check_worker:work",
            ) as supervisor:
                self._supervisor = supervisor
                if self.asked.device == "cuda":
                    self._look(BEFORE, {"kind": "inventory"})
                    self._find_gpus()
                    self._look(IDLE, {"kind": "idle"})
                with alone(self._devices(), self.talk.say), self._watched():
                    for check in known_checks().values():
                        self._check(check)
                if self.asked.device == "cuda":
                    self._look(AFTER, {"kind": "inventory"})
        except KeyboardInterrupt:
            for check in known_checks().values():
                if check.measure is not None and check.name not in self.readings:
                    self.readings[check.name] = Reading(check.name, reason="interrupted before it was run")
            return "interrupted"
        return None

    def _tick(self, event: dict[str, Any] | None) -> None:
        if event is not None and "phase" in event:
            self.talk.phase(str(event["phase"]))

    def _look(self, name: str, job: dict[str, Any]) -> None:
        """At the GPUs, through NVML. One driver that does not answer is not asked a second time."""
        hung = next((r.reason for r in self.readings.values() if r.name in (BEFORE, IDLE) and r.reason), None)
        if hung is not None:
            self.readings[name] = Reading(name, reason=hung)
            return
        self._read(name, job, LOOK_SECONDS)

    def _find_gpus(self) -> None:
        data = self.readings[BEFORE].data
        answers = [Answers(index, raw) for index, raw in enumerate(data.get("gpus", ()))]
        ours = [seen(gpu) for gpu in answers if not gpu.forbidden]
        shown = visible(ours)
        if ours and (missing := not_here(ours)):
            before = self.readings[BEFORE]
            self.readings[BEFORE] = replace(before, data={**before.data, "not_here": missing})
        count = self.asked.manifest.gpus
        self.gpus = shown[:count] if count else shown
        self._divided = in_parts([answers[gpu.index] for gpu in self.gpus])
        self.driver = data.get("driver") if isinstance(data.get("driver"), str) else None

    def _devices(self) -> list[str]:
        """What is measured; others who measure on made-up GPUs disturb nobody."""
        if self.asked.device == "cpu":
            return ["cpu"]
        return [] if nvml.is_fake() else [gpu.uuid for gpu in self.gpus]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """NVML once a second meanwhile, in a process that is not waited for."""
        if not self.gpus:
            yield
            return
        every = 0.05 if nvml.is_fake() else WATCH_SECONDS
        file = self.folder / telemetry.FILE_NAME
        with (self.folder / "logs" / "watch.txt").open("ab") as log:
            watch = subprocess.Popen(
                [sys.executable, "-m", "bench.runner.machine.watch", str(file), str(every)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_first_look(watch)
        try:
            yield
        finally:
            assert watch.stdin is not None
            watch.stdin.close()
            try:
                watch.wait(5.0)
            except subprocess.TimeoutExpired:
                watch.kill()
                with suppress(subprocess.TimeoutExpired):
                    watch.wait(1.0)

    def _await_first_look(self, watch: subprocess.Popen[bytes]) -> None:
        """So that not even the first check goes on unseen; but not for ever."""
        deadline = time.monotonic() + WATCH_PATIENCE_SECONDS
        path = self.folder / telemetry.FILE_NAME
        while not path.stat().st_size and watch.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _check(self, check: Check) -> None:
        if (left_out := self._left_out(check)) is not None:
            self.readings[check.name] = left_out
            self.talk.end(left_out)
            return
        if check.measure is None:
            return  # it judges what the looks brought
        limit = check.limit_seconds + (2 * self.pains.soak_seconds if check.soaks else 0)
        left = self._deadline - time.monotonic()
        if left < LEAST_SECONDS:
            late = Reading(check.name, reason=f"the {self.pains.minutes:g} minutes of this level were over")
            self.readings[check.name] = late
            self.talk.end(late)
            return
        count = len(self._places()) if check.workers == "team" else 1
        self._read(check.name, self._job(check, count), min(limit, left))

    def _left_out(self, check: Check) -> Reading | None:
        name = check.name
        if name in self.asked.skip or name in self.asked.manifest.skip:
            return Reading(name, reason="left out on purpose", counts=False)
        if (why := check.refuse(self.asked.device, self.gpus, len(self._places()) or 1)) is not None:
            return Reading(name, reason=why, counts=False)
        if check.measure is None:
            return None
        if check.workers != "host" and not self._places():
            return Reading(name, reason="no GPU answers")
        if check.workers != "host" and self._divided:
            return Reading(name, reason=self._divided)
        if "torch" in check.needs and not self._torch and not nvml.is_fake():
            return Reading(
                name, reason="torch is not installed here: pip install 'bench[run]', or use the image"
            )
        return None

    def _places(self) -> list[int]:
        """The GPUs that work, by their index; on a CPU as many processes as were asked for."""
        if self.asked.device == "cpu":
            return list(range(self.asked.manifest.gpus or 1))
        return [gpu.index for gpu in self.gpus if gpu.memory_bytes]

    def _job(self, check: Check, count: int) -> dict[str, Any]:
        pains, tiny = self.pains, self.asked.device == "cpu"
        # Many GPUs take longer over the other checks: the soak has what is left of the level's time.
        soak = max(
            LEAST_SECONDS, min(pains.soak_seconds, self._deadline - time.monotonic() - SOAK_START_SECONDS)
        )
        effort = CheckBudget(
            self.asked.level, 0.05 if tiny else pains.warm_seconds, 0.2 if tiny else pains.seconds,
            min(soak, 2.0) if tiny else soak,
            str(self.asked.scratch or self.folder), tiny,
        )  # fmt: skip
        environment = {k: v.format(logs=self.folder / "logs") for k, v in check.environment.items()}
        return {
            "kind": "check",
            "check": check.name,
            "team": count,
            "gpus": self._places(),
            "effort": to_json(effort),
            "torch": "torch" in check.needs,
            "collective": check.collective,
            "environment": environment,
            "device": self.asked.device if check.workers != "host" else "cpu",
        }

    def _read(self, name: str, job: dict[str, Any], limit_seconds: float) -> None:
        self.talk.begin(name)
        started = time.time()
        log = self.folder / "logs" / f"{name}.txt"
        found = self._supervisor.reading(job, log, Limits(limit_seconds, limit_seconds))
        if isinstance(found, dict):
            reading = Reading(name, found, None, True, started, time.time())
        else:
            why = failure_text(found).removeprefix("crashed: ")
            reading = Reading(name, {}, _reason(job, why), True, started, time.time())
        self.readings[name] = reading
        _shorten_logs(self.folder / "logs")
        self.talk.end(reading)


def _shorten_logs(folder: Path) -> None:
    """NCCL writes a line a call: of each such log the beginning and the end go into the bundle."""
    for raw in folder.glob("*.raw"):
        raw.with_suffix(".txt").write_bytes(head_and_tail(raw))
        raw.unlink()


def _reason(job: Mapping[str, Any], text: str) -> str:
    if job["kind"] == "check":
        return text
    if "DriverNotLoaded" in text or "LibraryNotFound" in text or "ModuleNotFound" in text:
        return f"no NVIDIA driver answers: {text}"
    return f"NVML gave no answer: {text}"
