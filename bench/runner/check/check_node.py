"""Check a node, from manifest to signed bundle: read its state, measure, judge, pack.

This process touches no driver and imports no torch. All work that may hang runs in a separate process group
with a time limit; a check that hangs is then reported as not run.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import __version__
from bench.base.distribution import pip_install
from bench.base.errors import BadInput, EnvironmentCannot, Incomplete
from bench.base.paths import making_folders
from bench.base.signals import interruptible, uninterruptible
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.pack import pack
from bench.node_check.all_checks import known_checks
from bench.node_check.check_manifest import DepthBudget
from bench.node_check.check_results import CheckResults, readings_bytes, results_of
from bench.node_check.checks import Check, CheckBudget
from bench.node_check.judging import WITHOUT_LOAD
from bench.node_check.judging.evidence import AFTER, BEFORE, IDLE, Answers, Evidence, Reading, read_course
from bench.node_check.judging.standards import Standards, profile_for
from bench.records.run_results import RunFacts
from bench.records.text import failure_text, seconds_text
from bench.records.trial import Failure, Gpu
from bench.runner.check.request import (
    AnyCheckJob,
    CheckJob,
    CheckRequest,
    IdleJob,
    InventoryJob,
    NodesJob,
    TelemetryJob,
)
from bench.runner.machine import nvml, probe, telemetry
from bench.runner.machine.exclusive_use import warn_of_others
from bench.runner.machine.gpus import gpu_from_answers, unmatched_names, visible, why_divided
from bench.runner.processes.jobs import Nodes, WorkerEvent
from bench.runner.processes.logs import head_and_tail
from bench.runner.processes.supervisor import Limits, Supervisor
from bench.runner.run.bundle_parts import predicate, surroundings
from bench.runner.run.fit_into_bundle import fit_telemetry, marks_of_checks
from bench.runner.run.seal import Seal, Sealer

NVML_SECONDS = 30.0  # for NVML to answer; a healthy driver takes one second
LEAST_NVML_SECONDS = 1.0  # even if the time of a level without load is over
WATCH_SECONDS = 1.0  # between two readings of the telemetry
FIRST_READING_SECONDS = 10.0  # to wait for the first reading before the first check
SOAK_START_SECONDS = 20.0  # for the soak's processes to start and to end
NODES_SECONDS = 600.0  # for other nodes to come, and for the step in hand when the level's time is over
LEAST_SECONDS = 5.0  # a check is not started if less time is left
WITHOUT_TORCH = f"torch is not installed here: {pip_install('run')}, or use the image"


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """A node check that has ended, with its bundle."""

    results: CheckResults
    evidence: Evidence
    bundle: Path
    seal: Seal


@dataclass(frozen=True, slots=True)
class GpusInUse:
    """The reason why a node was not checked: the GPUs in use, and their users."""

    reason: str


class _InUseError(Exception):
    """GPUs are in use, and the node is to be checked only if they are not."""


class CheckView:
    """Takes the progress of a node check, and shows nothing; a subclass shows it."""

    def begin(self, name: str) -> None:
        """Take the name of the reading that begins."""

    def phase(self, text: str) -> None:
        """Take what the reading does now."""

    def end(self, reading: Reading) -> None:
        """Take the reading that has ended."""

    def say(self, text: str) -> None:
        """Take a line for the user."""

    def stop(self) -> None:
        """Leave the terminal to other output."""


def check_node(request: CheckRequest, sealer: Sealer, view: CheckView) -> CheckedNode | GpusInUse:
    """Check this node and write its bundle. An interrupt leaves an incomplete but valid bundle.

    Nothing is written if the request is for an idle node and this one's GPUs are in use.
    """
    folder = request.out / (sealer.run_id or secrets.token_hex(6))
    with making_folders(request.out):
        if folder.exists():
            raise BadInput("this run was begun before", where=str(folder), advice="give another --out")
        folder.mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / telemetry.FILE_NAME).touch()
    nvml.begin()
    started = time.time()
    with interruptible():
        sealer.begin(folder, view.say)
        check = CheckRun(request, folder, view)
        try:
            stopped = check.run()
        except _InUseError as error:
            shutil.rmtree(folder)
            return GpusInUse(str(error))
        try:
            seal = sealer.seal(folder, view.say, patient=stopped is None)
        except BadInput:  # a damaged key: a timer would leave a folder at each check
            shutil.rmtree(folder)
            raise
        with uninterruptible():
            return _finish(check, seal, started, stopped)


def follow_check(request: CheckRequest, view: CheckView) -> None:
    """Do this node's part of the checks between nodes that another node leads. Leaves no files behind.

    EnvironmentCannot if it cannot take part, or if the leader is gone.
    """
    nvml.begin()
    with TemporaryDirectory(prefix="bench-follow-") as name, interruptible():
        folder = Path(name)
        (folder / "logs").mkdir()
        (folder / telemetry.FILE_NAME).touch()
        check = CheckRun(request, folder, view)
        if check.run() is not None:
            raise Incomplete("interrupted")
        for reading in check.readings.values():
            if reading.name == "pairs" and reading.reason is not None:
                raise EnvironmentCannot(reading.reason)


class CheckRun:
    """Takes the readings of one node check in turn; `readings` has each one as soon as it is taken."""

    def __init__(self, request: CheckRequest, folder: Path, view: CheckView) -> None:
        self.request = request
        self.folder = folder
        self.view = view
        self.budget: DepthBudget = request.manifest.budget(request.level)
        self.readings: dict[str, Reading] = {}
        self.gpus: tuple[Gpu, ...] = ()
        self.driver: str | None = None
        self._divided: str | None = None  # why nothing can be measured on a GPU that is present
        self._deadline = time.monotonic() + 60 * self.budget.minutes
        self._torch = bool(probe.packages(("torch",)))

    def _preload(self) -> list[str]:
        """Return modules and functions that the fork server prepares once for all members of all checks."""
        ahead = ["bench.node_check.all_checks:known_checks"]
        if nvml.is_fake():
            return [*ahead, "bench.runner.machine.fake_nvml"]
        if self.request.level in WITHOUT_LOAD:
            return [*ahead, "pynvml"]
        return [*ahead, "torch", "torch.distributed"] if self._torch else ahead

    def run(self) -> str | None:
        """Take every reading. Returns why the check stopped early, or None."""
        try:
            with Supervisor(
                self._preload(),
                self._tick,
                self.folder / "logs" / "forkserver.txt",
                "bench.runner.check.check_worker:work",
            ) as supervisor:
                self._supervisor = supervisor
                if self.request.device == "cuda":
                    self._ask_nvml(BEFORE, InventoryJob())
                    self._find_gpus()
                    if self.request.level not in ("passive", "nodes"):
                        self._ask_nvml(IDLE, IdleJob())
                    if self.request.if_idle:
                        self._require_idle()
                if self.request.level in WITHOUT_LOAD:
                    self._check_all()
                    self._read_telemetry()
                else:
                    with warn_of_others(self._devices(), self.view.say), self._watched():
                        self._check_all()
                if self.request.device == "cuda":
                    self._ask_nvml(AFTER, InventoryJob())
        except KeyboardInterrupt:
            for check in known_checks().values():
                asked = check.is_asked_at(self.request.level)
                if asked and check.measure is not None and check.name not in self.readings:
                    self.readings[check.name] = Reading(check.name, reason="interrupted before it was run")
            return "interrupted"
        return None

    def _tick(self, event: WorkerEvent | None) -> None:
        if event is not None and "phase" in event:
            self.view.phase(str(event["phase"]))

    def _ask_nvml(self, name: str, job: InventoryJob | IdleJob) -> None:
        """Read the GPUs' state. A driver that did not answer once is not asked again."""
        hung = next((r.reason for r in self.readings.values() if r.name in (BEFORE, IDLE) and r.reason), None)
        if hung is not None:
            self.readings[name] = Reading(name, reason=hung)
            return
        self._read(name, job, self._nvml_seconds())

    def _nvml_seconds(self) -> float:
        """Return how long NVML may take to answer: without load, no longer than the level's time."""
        if self.request.level not in WITHOUT_LOAD:
            return NVML_SECONDS
        return min(NVML_SECONDS, max(LEAST_NVML_SECONDS, self._deadline - time.monotonic()))

    def _require_idle(self) -> None:
        """Raise _InUseError if another process uses a GPU. A GPU that reports no use counts as idle."""
        strangers = known_checks()["strangers"]
        evidence = Evidence(self.request.level, self.request.device, self.gpus, self.readings)
        findings = strangers.judge(evidence, Standards(None))
        if used := [f"{f.subject}: {f.found}" for f in findings if f.verdict in ("warn", "fail")]:
            raise _InUseError("; ".join(used))

    def _find_gpus(self) -> None:
        data = self.readings[BEFORE].data
        answers = [Answers(index, raw) for index, raw in enumerate(data.get("gpus", ()))]
        permitted = [gpu_from_answers(gpu) for gpu in answers if not gpu.forbidden]
        shown = visible(permitted)
        if permitted and (missing := unmatched_names(permitted)):
            before = self.readings[BEFORE]
            self.readings[BEFORE] = replace(before, data={**before.data, "not_here": missing})
        count = self.request.manifest.gpus
        self.gpus = shown[:count] if count else shown
        self._divided = why_divided([answers[gpu.index] for gpu in self.gpus])
        self.driver = data.get("driver") if isinstance(data.get("driver"), str) else None

    def _devices(self) -> list[str]:
        """Return names of the measured devices, for the locks that warn others; no names if simulated."""
        if self.request.device == "cpu":
            return ["cpu"]
        return [] if nvml.is_fake() else [gpu.uuid for gpu in self.gpus]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Sample NVML during the block, in a separate process, since a driver may hang."""
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
        self._await_first_reading(watch)
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

    def _read_telemetry(self) -> None:
        """Read the telemetry of a node without load. A driver that fails or hangs leaves none.

        The fork server starts the worker: a newly started Python takes 11 MB more.
        """
        if self.gpus:
            seconds = min(FIRST_READING_SECONDS, self._nvml_seconds())
            job = TelemetryJob(str(self.folder / telemetry.FILE_NAME))
            self._supervisor.reading(job, self.folder / "logs" / "watch.txt", Limits(seconds, seconds))

    def _await_first_reading(self, watch: subprocess.Popen[bytes]) -> None:
        """Wait a while for the first reading of telemetry, so that telemetry covers the first check too."""
        deadline = time.monotonic() + min(FIRST_READING_SECONDS, self._nvml_seconds())
        path = self.folder / telemetry.FILE_NAME
        while not path.stat().st_size and watch.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _check_all(self) -> None:
        nodes = self.request.nodes
        made = {} if nodes is None else self._between_nodes(nodes)
        if nodes is not None and nodes.node > 0:
            self.readings |= made
            return
        for check in known_checks().values():
            if check.name in made:
                self.readings[check.name] = made[check.name]
                self.view.end(made[check.name])
            elif check.is_asked_at(self.request.level):
                self._check(check)

    def _between_nodes(self, nodes: Nodes) -> dict[str, Reading]:
        """Do this node's part of the checks between nodes; return their readings, or why there are none."""
        names = [name for name, check in known_checks().items() if check.between_nodes]
        chosen = [name for name in names if name not in (*self.request.skip, *self.request.manifest.skip)]
        started, left = time.time(), max(0.0, self._deadline - time.monotonic())
        job = NodesJob(
            nodes,
            tuple(self._places()),
            warm_seconds=self.budget.warm_seconds,
            seconds=self.budget.seconds,
            limit_seconds=left,
            device=self.request.device,
        )
        answer: Any = {}
        reason = self._unable_between_nodes()
        if reason is None:
            self.view.begin("pairs")
            limit = left + NODES_SECONDS
            log = self.folder / "logs" / "pairs.txt"
            answer = self._supervisor.reading(job, log, Limits(limit, limit))
        if not isinstance(answer, dict):
            reason, answer = _reason(job, answer), {}
        if reason is None and nodes.node > 0:
            return {}
        ended = time.time()
        return {
            name: Reading(name, answer.get(name, {}), reason, started_at=started, ended_at=ended)
            for name in chosen
        }

    def _unable_between_nodes(self) -> str | None:
        """Say why this node can exchange nothing with others; None if it can."""
        if nvml.is_fake():
            return "simulated GPUs exchange nothing"
        if not self._places():
            return "no GPU answers"
        if self._divided:
            return self._divided
        return None if self._torch else WITHOUT_TORCH

    def _check(self, check: Check) -> None:
        left = self._deadline - time.monotonic()
        if (left_out := self._left_out(check, left)) is not None:
            self.readings[check.name] = left_out
            self.view.end(left_out)
        elif check.measure is not None:  # a check without `measure` judges readings of NVML
            limit = check.limit_seconds + (2 * self.budget.soak_seconds if check.soaks else 0)
            self._read(check.name, self._job(check), min(limit, left))

    def _left_out(self, check: Check, seconds_left: float) -> Reading | None:
        name = check.name
        if name in self.request.skip or name in self.request.manifest.skip:
            return Reading(name, reason="left out on purpose", counts=False)
        if not check.is_made_at(self.request.level):
            return Reading(name, reason=f"not made at the level {self.request.level}", counts=False)
        if (why := check.refuse(self.request.device, self.gpus, len(self._places()) or 1)) is not None:
            return Reading(name, reason=why, counts=False)
        if check.measure is None:
            return None
        if check.workers != "host" and not self._places():
            return Reading(name, reason="no GPU answers")
        if check.workers != "host" and self._divided:
            return Reading(name, reason=self._divided)
        if check.torch and not self._torch and not nvml.is_fake():
            return Reading(name, reason=WITHOUT_TORCH)
        if seconds_left < LEAST_SECONDS:
            return Reading(
                name, reason=f"the {seconds_text(60 * self.budget.minutes)} of this level were over"
            )
        return None

    def _places(self) -> list[int]:
        """Return the indices of the GPUs that work; on a CPU a number for each process of the manifest."""
        if self.request.device == "cpu":
            return list(range(self.request.manifest.gpus or 1))
        return [gpu.index for gpu in self.gpus if gpu.memory_bytes]

    def _job(self, check: Check) -> CheckJob:
        tiny = self.request.device == "cpu"
        # With many GPUs the other checks take longer: the soak gets what is left of the level's time.
        left = self._deadline - time.monotonic() - SOAK_START_SECONDS
        soak_seconds = max(LEAST_SECONDS, min(self.budget.soak_seconds, left))
        budget = CheckBudget(
            self.request.level,
            warm_seconds=0.05 if tiny else self.budget.warm_seconds,
            seconds=0.2 if tiny else self.budget.seconds,
            soak_seconds=min(soak_seconds, 2.0) if tiny else soak_seconds,
            scratch=str(self.request.scratch or self.folder),
            tiny=tiny,
            file_systems=tuple(dict.fromkeys((*self.request.manifest.disks, *self.request.disks))),
        )
        logs = self.folder / "logs"
        return CheckJob(
            check=check.name,
            team=len(self._places()) if check.workers == "team" else 1,
            gpus=tuple(self._places()),
            budget=budget,
            torch=check.torch,
            collective=check.collective,
            environment={name: value.format(logs=logs) for name, value in check.environment.items()},
            device=self.request.device if check.workers != "host" else "cpu",
        )

    def _read(self, name: str, job: AnyCheckJob, limit_seconds: float) -> None:
        """Run the job in a worker and keep its reading, or the reason why it has no reading."""
        self.view.begin(name)
        started = time.time()
        log = self.folder / "logs" / f"{name}.txt"
        answer = self._supervisor.reading(job, log, Limits(limit_seconds, limit_seconds))
        data, reason = (answer, None) if isinstance(answer, dict) else ({}, _reason(job, answer))
        self.readings[name] = Reading(name, data, reason, started_at=started, ended_at=time.time())
        _shorten_logs(self.folder / "logs")
        self.view.end(self.readings[name])


def _shorten_logs(folder: Path) -> None:
    """Cut NCCL's logs, which have a line for each call, to beginning and end, under a name with .txt."""
    for raw in folder.glob("*.raw"):
        raw.with_suffix(".txt").write_bytes(head_and_tail(raw))
        raw.unlink()


def _reason(job: AnyCheckJob, failure: Failure) -> str:
    """Return why a job that failed has no reading."""
    text = failure_text(failure).removeprefix("crashed: ")
    if isinstance(job, CheckJob | NodesJob):
        return text
    if "DriverNotLoaded" in text or "LibraryNotFound" in text or "ModuleNotFound" in text:
        return f"no NVIDIA driver answers: {text}"
    return f"NVML gave no answer: {text}"


def _finish(check: CheckRun, seal: Seal, started: float, stopped: str | None) -> CheckedNode:
    """Judge the readings, then pack and sign the bundle."""
    request, folder = check.request, check.folder
    telemetry_bytes = (folder / telemetry.FILE_NAME).read_bytes()
    telemetry_bytes = telemetry_bytes[: telemetry_bytes.rfind(b"\n") + 1]  # without a torn last line
    telemetry_bytes = fit_telemetry(telemetry_bytes, marks_of_checks(check.readings))
    course = read_course([json.loads(line) for line in telemetry_bytes.splitlines()])
    evidence = Evidence(request.level, request.device, check.gpus, check.readings, course)
    known = {*(gpu.uuid for gpu in check.gpus), evidence.machine}
    history = {identity: past for identity, past in request.history.items() if identity in known}
    node = replace(probe.probe(gpus_too=False), gpus=check.gpus, driver=check.driver)
    results = results_of(
        evidence,
        Standards(
            profile_for(check.gpus), request.manifest.expected(request.device), history, request.baseline
        ),
        request.manifest.require,
        bench_version=__version__,
        manifest_digest=request.manifest.digest,
        node=node,
        simulated=nvml.is_fake(),
        run=RunFacts(folder.name, started, time.time(), stopped is None, stopped),
    )
    files: dict[str, bytes | Path] = {
        "manifest.json": request.manifest.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": readings_bytes(evidence.readings),
        "telemetry.jsonl": telemetry_bytes,
        "env.json": pretty_json({"node": to_json(node), "packages": probe.all_packages()}),
        **surroundings(folder),
    }
    bundle = folder.with_suffix(".tar")
    statement = predicate(results.run, node, request.manifest.digest, seal)
    pack(bundle, files, statement, seal.key, seal.certificate)
    return CheckedNode(results, evidence, bundle, seal)
