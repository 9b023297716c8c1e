"""Execute one run, from manifest to signed bundle, or follow another node's run. No torch.

OUT/<run id>/          journal, logs, telemetry while it runs; kept for --resume
OUT/<run id>.tar       the bundle
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench import __version__
from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.signals import interruptible, uninterruptible
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.pack import pack
from bench.planning.manifest import Manifest
from bench.planning.plan import Plan, make_plan, target_of
from bench.records.marks import Mark
from bench.records.run_results import Results, samples_bytes
from bench.records.slowdown import Slowed
from bench.records.switches import deciding, in_words
from bench.records.trial import NodeFacts
from bench.runner.machine import probe, telemetry
from bench.runner.machine.exclusive_use import warn_of_others
from bench.runner.machine.own_environment import require_environment
from bench.runner.machine.own_image import require_image
from bench.runner.machine.own_kernels import modules_without_code
from bench.runner.processes.jobs import LAST, Nodes
from bench.runner.processes.supervisor import Supervisor
from bench.runner.run.bundle_parts import predicate, surroundings
from bench.runner.run.earlier_bundle import is_certified
from bench.runner.run.events import Moved, RunBegun, RunEnded, RunStopped
from bench.runner.run.fit_into_bundle import fit_telemetry, marks_of_trials
from bench.runner.run.journal import Journal
from bench.runner.run.measure_plan import INTERRUPTED, measure, preload, what_is_open
from bench.runner.run.progress import Progress
from bench.runner.run.run_folder import REFUSALS, choose_folder, keeping, machine
from bench.runner.run.run_state import Run, RunMachine
from bench.runner.run.seal import Seal, Sealer
from bench.training.models import Counted

MAX_MISSED_MEETINGS = 40  # in a row, before a node that follows gives up
JOBS_AHEAD = 3  # job numbers that a node that follows tries in turn: earlier jobs may have failed


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run whose bundle is written, complete or not."""

    results: Results
    bundle: Path
    seal: Seal
    kept: bool = False  # the bundle is an earlier attempt's, which an operator certified
    slowed: Mapping[str, Slowed] = field(default_factory=dict)  # by trial
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)  # by trial
    busy_shares: Mapping[str, float] = field(default_factory=dict)  # by trial


class BundleNotWritten(EnvironmentCannot):
    """The bundle could not be written. `results` are those that it would have contained."""

    def __init__(self, why: EnvironmentCannot, folder: Path, results: Results) -> None:
        advice = f"what was measured is kept in {folder}: bench run --resume packs it"
        super().__init__(why.message, where=why.where, advice=advice)
        self.results = results


def execute(
    manifest: Manifest,
    out: Path,
    sealer: Sealer,
    progress: Progress,
    *,
    resume: bool,
    budget_seconds: float | None,
    on_cpu: bool = False,
    nodes: Nodes | None = None,
    moved: bool = False,
    counted: Mapping[str, Counted] | None = None,
) -> FinishedRun:
    """Measure the manifest on this machine and write its bundle.

    An interrupt, a spent budget or an error leaves an incomplete but valid bundle. EnvironmentCannot if
    nothing in the manifest can run here, BundleNotWritten if the bundle cannot be written.
    """
    node, plan = _plan(manifest, nodes, counted, on_cpu=on_cpu)
    if not plan.cells:
        reasons = "; ".join(sorted({skip.reason for skip in plan.skipped}))
        raise EnvironmentCannot(
            f"nothing in this manifest can run here: {reasons}", advice="bench plan shows all"
        )
    folder = choose_folder(out, manifest, node, sealer.run_id, resume=resume, moved=moved)
    with keeping(folder), Journal(folder) as journal, interruptible():
        run = Run(manifest, node, plan, journal, folder)
        if resume and sealer.run_id is None and not journal.events:
            progress.say(f"no unfinished run of this manifest in {out}: a new run begins")
        _open_run(run)
        if switches := deciding(node.switches or {}):
            progress.say(f"set in this environment: {in_words(switches)}; figures will be of a run with that")
        sealer.begin(folder, progress.say)
        stopped = _measure(run, progress, budget_seconds or manifest.budget_seconds, nodes)
        if stopped is not None:
            with suppress(OSError):  # the disk is full: a resumed run then counts a death of the trial
                run.record(RunStopped(stopped))
        seal = _seal(sealer, folder, progress, stopped)
        with uninterruptible():
            return _finish(run, seal, stopped)


def _measure(run: Run, progress: Progress, budget_seconds: float | None, nodes: Nodes | None) -> str | None:
    """Measure what is open in the run. Returns why the run stopped early, or None.

    An error is raised only if nothing was measured yet (or for BENCH_DEBUG=1): else there is a bundle to
    write, and the error is the reason why it is incomplete.
    """
    uuids = [gpu.uuid for gpu in run.node.gpus[: run.gpus_of_a_node]]
    try:
        devices = ["cpu"] if run.plan.target.device == "cpu" else uuids
        with warn_of_others(devices, progress.say) as neighbours:
            return measure(run, progress, budget_seconds, nodes, neighbours.seen)
    except KeyboardInterrupt:  # a second interrupt, while `measure` handled the first
        with uninterruptible():
            return f"{INTERRUPTED}, {what_is_open(run)}"
    except Exception as error:
        message = _error_text(error, run.folder)
        first_line = message.splitlines()[0]
        if not run.outcomes or os.environ.get("BENCH_DEBUG") == "1":
            if isinstance(error, EnvironmentCannot):  # not the fault of the trial in flight
                with suppress(OSError):
                    run.record(RunStopped(first_line))
            raise
        progress.say(message)
        return f"{first_line}, {what_is_open(run)}"


def _error_text(error: Exception, folder: Path) -> str:
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return f"{error.filename or folder}: cannot be written: {error.strerror}"
    return str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"


def _seal(sealer: Sealer, folder: Path, progress: Progress, stopped: str | None) -> Seal:
    """Return the key, with its certificate if that comes in time; after an interrupt, do not wait for it."""
    interrupted = stopped is not None and stopped.startswith(INTERRUPTED)
    try:
        return sealer.seal(folder, progress.say, patient=not interrupted)
    except KeyboardInterrupt:
        return sealer.seal(folder, progress.say, patient=False)


def follow(manifest: Manifest, nodes: Nodes, progress: Progress, *, on_cpu: bool) -> None:
    """Do this node's part of the leader's run until that run is over. Leaves no files behind.

    EnvironmentCannot if the leader never comes, or ends the run with an error.
    """
    _, plan = _plan(manifest, nodes, on_cpu=on_cpu)
    device, gpus = plan.target.device, plan.target.gpus
    number, missed = 0, 0
    with tempfile.TemporaryDirectory(prefix="bench-follow-") as name, interruptible():
        log = Path(name) / "log.txt"
        with Supervisor(preload(plan), lambda _: None, log, nodes=nodes) as supervisor:
            while True:
                job = number + missed % JOBS_AHEAD
                kind = supervisor.follow(job, device, gpus, log)
                if kind == LAST:
                    return
                if kind is not None:
                    progress.say(f"followed: job {job}, {kind}")
                    number, missed = job + 1, 0
                    continue
                missed += 1
                if missed >= MAX_MISSED_MEETINGS:
                    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
                    raise EnvironmentCannot(
                        f"no job from the leader at {nodes.meet}: {''.join(tail)}",
                        advice="start the same command with --node 0 there",
                    )


def _plan(
    manifest: Manifest, nodes: Nodes | None, counted: Mapping[str, Counted] | None = None, *, on_cpu: bool
) -> tuple[NodeFacts, Plan]:
    node = probe.probe(gpus_too=not on_cpu)
    require_image(manifest, node.image)
    require_environment(manifest, node.environment)
    probe.require_stack()
    if manifest.gpus is not None and manifest.gpus > 1 and not node.gpus and not on_cpu:
        raise EnvironmentCannot(
            f"the manifest asks for {manifest.gpus} GPUs, this machine has none",
            advice=f"--device cpu trains in {manifest.gpus} processes on its CPU, to try things out",
        )
    lacks = modules_without_code(gpu.compute_capability for gpu in node.gpus)
    target = target_of(node, manifest.gpus, nodes.count if nodes else 1, lacks)
    return node, make_plan(manifest, target, counted)


def _open_run(run: Run) -> None:
    """Record the journal's first line, or that another machine of the same kind continues the run."""
    if not run.journal.events:
        run.record(RunBegun(__version__, run.manifest.digest, run.node, machine(run.id), run.started_at))
        return
    here = RunMachine(machine(run.id), tuple(gpu.uuid for gpu in run.node.gpus))
    if run.machines[-1] != here:
        run.record(Moved(here.machine, here.gpus))


def _finish(run: Run, seal: Seal, stopped: str | None) -> FinishedRun:
    """Pack and sign the bundle, unless that would replace a certified bundle by an uncertified one."""
    results = run.results(stopped)
    bundle = run.folder.with_suffix(".tar")
    if seal.certificate is None and is_certified(bundle):
        return _finished(run, results, bundle, seal, kept=True)
    trials = run.trials()
    readings = run.folder / telemetry.FILE_NAME
    readings.touch()  # an interrupt may come before the first reading
    environment = {
        "node": to_json(run.node),
        "nodes": to_json(run.nodes),
        "packages": probe.all_packages(),
        **({"machines": to_json(run.machines)} if len(run.machines) > 1 else {}),
    }
    files: dict[str, bytes | Path] = {
        "manifest.json": run.manifest.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(trials, run.earlier),
        "telemetry.jsonl": fit_telemetry(readings.read_bytes(), marks_of_trials(run.spans())),
        "env.json": pretty_json(environment),
        **surroundings(run.folder),
    }
    statement = predicate(results.run, run.node, run.manifest.digest, seal, run.gpus)
    try:
        pack(bundle, files, statement, seal.key, seal.certificate)
    except EnvironmentCannot as error:
        raise BundleNotWritten(error, run.folder, results) from None
    if stopped is None:
        run.record(RunEnded(bundle.name))
    return _finished(run, results, bundle, seal)


def _finished(run: Run, results: Results, bundle: Path, seal: Seal, *, kept: bool = False) -> FinishedRun:
    return FinishedRun(
        results, bundle, seal, kept, slowed=run.slowed(), marks=run.marks(), busy_shares=run.busy_shares()
    )
