"""One run: manifest to signed bundle, with a journal in between that survives anything.

OUT/<run id>/          journal, logs, telemetry while it runs; kept for --resume
OUT/<run id>.tar       the bundle
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.sbom import PLACE as SBOM
from bench.base.signals import answered_by
from bench.base.stamps import utc
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.pack import pack
from bench.bundle.statement import Predicate, identity_of
from bench.planning.manifest import Manifest
from bench.planning.plan import Plan, make_plan, target_of
from bench.records.run_results import Results, RunFacts, samples_bytes
from bench.records.slowdown import Slowed
from bench.records.switches import deciding, in_words
from bench.records.trial import NodeFacts
from bench.runner.machine import probe, telemetry
from bench.runner.machine.exclusive_use import alone
from bench.runner.machine.own_image import require_image
from bench.runner.processes.nodes import LAST, Nodes
from bench.runner.processes.supervisor import Supervisor
from bench.runner.run.earlier_bundle import is_certified
from bench.runner.run.fit_into_bundle import fitting_course, fitting_logs, marks_of_trials
from bench.runner.run.journal import Journal
from bench.runner.run.measure_plan import INTERRUPTED, measure, preload, what_is_open
from bench.runner.run.progress import Progress
from bench.runner.run.run_folder import REFUSALS, choose_folder, keeping, machine
from bench.runner.run.run_state import Run
from bench.runner.run.seal import Seal, Sealer
from bench.training.models import Counted

PATIENCE = 40  # meetings in a row that come to nothing before a node that follows gives up
NUMBERS = 3  # how many jobs ahead it looks, for those that failed before it came


@dataclass(frozen=True, slots=True)
class FinishedRun:
    results: Results
    bundle: Path
    seal: Seal
    kept: bool = False  # the bundle is that of an earlier attempt, which an operator certified
    slowed: Mapping[str, Slowed] = field(default_factory=dict)  # by trial


class Unpacked(EnvironmentCannot):
    """Only the bundle could not be written. What it would have said is here."""

    def __init__(self, why: EnvironmentCannot, folder: Path, results: Results) -> None:
        kept = f"what was measured is kept in {folder}: bench run --resume packs it"
        super().__init__(why.message, where=why.where, advice=kept)
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
    """Measures here. An interrupt or a spent budget leaves an incomplete but valid bundle."""
    node, plan = _plan(manifest, on_cpu, nodes, counted)
    if not plan.cells:
        reasons = "; ".join(sorted({skip.reason for skip in plan.skipped}))
        raise EnvironmentCannot(
            f"nothing in this manifest can run here: {reasons}", advice="bench plan shows all"
        )
    folder = choose_folder(out, manifest, node, resume, sealer.run_id, moved)
    with keeping(folder), Journal(folder) as journal, interruptible():
        run = Run(manifest, node, plan, journal, folder)
        if resume and sealer.run_id is None and not journal.events:
            progress.say(f"nothing unfinished of this manifest in {out}: begun anew")
        _open_run(run)
        if switches := deciding(node.switches or {}):
            progress.say(f"set here: {in_words(switches)}; the figures will be those of a run with that")
        sealer.begin(folder, progress.say)
        stopped = _measure(run, progress, budget_seconds or manifest.budget_seconds, nodes)
        if stopped is not None:
            with suppress(OSError):  # a disk that is full: then it seems to have died
                run.record({"event": "stopped", "why": stopped})
        seal = _seal(sealer, folder, progress, stopped)
        with uninterruptible():
            return _finish(run, seal, stopped)


def _measure(run: Run, progress: Progress, budget_seconds: float | None, nodes: Nodes | None) -> str | None:
    """Returns why it stopped early, or None. Whatever fails on the way, what was measured gets its bundle."""
    try:
        with alone(_devices(run.node, run.plan), progress.say):
            return measure(run, progress, budget_seconds, nodes)
    except KeyboardInterrupt:  # once more, while the first one was answered
        with uninterruptible():
            return f"{INTERRUPTED}, {what_is_open(run)}"
    except Exception as error:
        told = _in_words(error, run.folder)
        if not run.outcomes or os.environ.get("BENCH_DEBUG") == "1":
            if isinstance(error, EnvironmentCannot):  # no trial took the run with it
                with suppress(OSError):
                    run.record({"event": "stopped", "why": told.splitlines()[0]})
            raise
        progress.say(told)
        return f"{told.splitlines()[0]}, {what_is_open(run)}"


def _in_words(error: Exception, folder: Path) -> str:
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return f"{error.filename or folder}: cannot be written: {error.strerror}"
    return str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"


def _devices(node: NodeFacts, plan: Plan) -> list[str]:
    if plan.target.device == "cpu":
        return ["cpu"]
    return [gpu.uuid for gpu in node.gpus[: plan.target.gpus // plan.target.nodes]]


def _seal(sealer: Sealer, folder: Path, progress: Progress, stopped: str | None) -> Seal:
    """Who interrupts the run, or the wait for a certificate, wants the bundle now."""
    wants_it_now = stopped is not None and stopped.startswith(INTERRUPTED)
    try:
        return sealer.seal(folder, progress.say, patient=not wants_it_now)
    except KeyboardInterrupt:
        return sealer.seal(folder, progress.say, patient=False)


def follow(manifest: Manifest, nodes: Nodes, progress: Progress, *, on_cpu: bool) -> None:
    """Does what the leader's run asks of this node, until that run is over. Leaves nothing behind."""
    _, plan = _plan(manifest, on_cpu, nodes)
    device, gpus = plan.target.device, plan.target.gpus
    number, missed = 0, 0
    with tempfile.TemporaryDirectory(prefix="bench-follow-") as name, interruptible():
        log = Path(name) / "log.txt"
        with Supervisor(preload(plan), lambda _: None, log, nodes=nodes) as supervisor:
            while (kind := supervisor.follow(number + missed % NUMBERS, device, gpus, log)) != LAST["kind"]:
                if kind is not None:
                    progress.say(f"followed: job {number + missed % NUMBERS}, {kind}")
                    number, missed = number + missed % NUMBERS + 1, 0
                    continue
                missed += 1
                if missed >= PATIENCE:
                    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
                    raise EnvironmentCannot(
                        f"no job from the leader at {nodes.meet}: {''.join(tail)}",
                        advice="start the same command with --node 0 there",
                    )


def _plan(
    manifest: Manifest, on_cpu: bool, nodes: Nodes | None, counted: Mapping[str, Counted] | None = None
) -> tuple[NodeFacts, Plan]:
    node = probe.probe(gpus_too=not on_cpu)
    require_image(manifest, node.image)
    _require_device(manifest, node, on_cpu)
    return node, make_plan(manifest, target_of(node, manifest.gpus, nodes.count if nodes else 1), counted)


def _require_device(manifest: Manifest, node: NodeFacts, on_cpu: bool) -> None:
    probe.require_stack()
    if manifest.gpus is not None and manifest.gpus > 1 and not node.gpus and not on_cpu:
        raise EnvironmentCannot(
            f"the manifest asks for {manifest.gpus} GPUs, this machine has none",
            advice=f"--device cpu trains in {manifest.gpus} processes on its CPU, to try things out",
        )


def _open_run(run: Run) -> None:
    """The journal's first line; or, where another machine of the same kind goes on, which one."""
    if not run.journal.events:
        run.record(_header(run))
        return
    here = {"machine": machine(run.id), "gpus": [gpu.uuid for gpu in run.node.gpus]}
    if run.machines[-1] != here:
        run.record({"event": "moved", **here})


def _header(run: Run) -> dict[str, Any]:
    return {
        "event": "run",
        "schema": "bench/journal/v1",
        "bench": __version__,
        "manifest": run.manifest.digest,
        "node": to_json(run.node),
        "machine": machine(run.id),
        "started_at": run.started_at,
    }


def _finish(run: Run, seal: Seal, stopped: str | None) -> FinishedRun:
    results = run.results(stopped)
    bundle = run.folder.with_suffix(".tar")
    if seal.certificate is None and is_certified(bundle):
        return FinishedRun(results, bundle, seal, kept=True, slowed=run.slowed())
    trials = run.trials()
    course = run.folder / telemetry.FILE_NAME
    course.touch()  # an interrupt may come before its first reading
    files: dict[str, bytes | Path] = {
        "manifest.json": run.manifest.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(trials, run.earlier),
        "telemetry.jsonl": fitting_course(course.read_bytes(), marks_of_trials(run.spans())),
        "env.json": pretty_json(
            {
                "node": to_json(run.node),
                "nodes": to_json(run.nodes),
                "packages": probe.all_packages(),
                **({"machines": run.machines} if len(run.machines) > 1 else {}),
            }
        ),
    }
    files |= surroundings(run.folder)
    signed = predicate(results.run, run.node, run.manifest.digest, seal, run.gpus)
    try:
        pack(bundle, files, signed, seal.key, seal.certificate)
    except EnvironmentCannot as error:
        raise Unpacked(error, run.folder, results) from None
    if stopped is None:
        run.record({"event": "end", "bundle": bundle.name})
    return FinishedRun(results, bundle, seal, slowed=run.slowed())


def surroundings(folder: Path) -> dict[str, bytes | Path]:
    """What every run leaves beside its results: what was in its image, and its logs."""
    found: dict[str, bytes | Path] = {"sbom.cdx.json": SBOM.read_bytes()} if SBOM.exists() else {}
    return found | fitting_logs(folder / "logs")


def predicate(
    run: RunFacts, node: NodeFacts, manifest_digest: str, seal: Seal, gpus: Sequence[str] | None = None
) -> Predicate:
    return Predicate(
        run_id=run.id,
        manifest_sha256=manifest_digest.removeprefix("sha256:"),
        node=identity_of(node, gpus),
        started_at=utc(run.started_at),
        ended_at=utc(run.ended_at),
        complete=run.complete,
        level="operator" if seal.certificate else "self",
        nonce=seal.nonce,
    )


def interruptible() -> AbstractContextManager[None]:
    """A polite kill or a lost terminal ends the run as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return answered_by(interrupt, (signal.SIGTERM, signal.SIGHUP))


def uninterruptible() -> AbstractContextManager[None]:
    """While the bundle is written, which takes a moment."""
    return answered_by(signal.SIG_IGN)
