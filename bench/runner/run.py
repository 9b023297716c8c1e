"""One run: manifest to signed bundle, with a journal in between that survives anything.

OUT/<run id>/          journal, logs, telemetry while it runs; kept for --resume
OUT/<run id>.tar       the bundle
"""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import __version__
from bench.bundle import pack
from bench.codec import DecodeError, canonical_json, from_json, pretty_json, to_json, union_from_json
from bench.errors import BadInput, EnvironmentCannot
from bench.estimate import ceiling_precision
from bench.manifest import Manifest
from bench.methods import in_group
from bench.plan import Cell, Plan, make_plan, target_of
from bench.result import Ceiling, Failure, NodeFacts, Outcome, Proof, ProofOrFailure, Proving, Trial
from bench.runner import journal as journals
from bench.runner import probe, telemetry
from bench.runner.journal import Journal
from bench.runner.progress import Progress
from bench.runner.supervise import Limits, Supervisor
from bench.search import next_trial, remaining, unproven
from bench.signing import Predicate, Signer, utc
from bench.summary import Results, RunFacts, samples_bytes, summarise

CEILING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finished:
    results: Results
    bundle: Path


class Run:
    """The state of one run, all of it derived from the journal."""

    def __init__(
        self, manifest: Manifest, node: NodeFacts, plan: Plan, journal: Journal, folder: Path
    ) -> None:
        self.manifest = manifest
        self.node = node
        self.plan = plan
        self.journal = journal
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}
        self.ceilings: tuple[Ceiling, ...] = ()
        self.proofs: dict[str, ProofOrFailure] = {}
        self.id = folder.name
        self.started_at = time.time()
        for event in journal.events:
            self._replay(event)

    def _replay(self, event: dict[str, Any]) -> None:
        try:
            match event["event"]:
                case "run":
                    self.started_at = event["started_at"]
                case "ceilings":
                    self.ceilings = from_json(tuple[Ceiling, ...], event["ceilings"])
                case "trial":
                    self.outcomes[event["id"]] = union_from_json(Outcome, event["outcome"])
                case "proof":
                    self.proofs[event["id"]] = from_json(Proof, event["proof"])
                case "unproven":
                    self.proofs[event["id"]] = union_from_json(Failure, event["outcome"])
        except (DecodeError, KeyError) as error:
            raise BadInput(f"not a journal of this version: {error}", where=str(self.journal.path)) from None

    def record(self, event: dict[str, Any]) -> None:
        self.journal.append(event)
        self._replay(event)

    def results(self, stopped: str | None) -> Results:
        return Results(
            bench_version=__version__,
            manifest_digest=self.manifest.digest,
            run=RunFacts(self.id, self.started_at, time.time(), stopped is None, stopped),
            node=self.node,
            models=self.manifest.models,
            seed=self.manifest.seed,
            timing=self.manifest.timing,
            memory_cap_bytes=self.manifest.memory_cap_bytes,
            ceilings=self.ceilings,
            trials=summarise(self.trials(), self.ceilings, self.proofs),
            skipped=self.plan.skipped,
        )

    def trials(self) -> list[tuple[Trial, str, Outcome]]:
        return [
            (trial, cell.label, self.outcomes[trial.id])
            for cell in self.plan.cells
            for trial in cell.trials
            if trial.id in self.outcomes
        ]


def execute(
    manifest: Manifest,
    out: Path,
    signer: Signer,
    progress: Progress,
    *,
    resume: bool,
    budget_seconds: float | None,
) -> Finished:
    """Measures here. An interrupt or a spent budget leaves an incomplete but valid bundle."""
    node = probe.probe()
    _require_device(manifest, node)
    plan = make_plan(manifest, target_of(node, manifest.gpus))
    if not plan.cells:
        reasons = "; ".join(sorted({skip.reason for skip in plan.skipped}))
        raise EnvironmentCannot(
            f"nothing in this manifest can run here: {reasons}", advice="bench plan shows all"
        )
    folder = _choose_folder(out, manifest, node, resume)
    with Journal(folder) as journal, _interruptible():
        run = Run(manifest, node, plan, journal, folder)
        if not journal.events:
            run.record(_header(run))
        stopped = _measure(run, progress, budget_seconds or manifest.budget_seconds)
        with _uninterruptible():
            return _finish(run, signer, stopped)


def _require_device(manifest: Manifest, node: NodeFacts) -> None:
    probe.require_stack()
    if manifest.gpus is not None and manifest.gpus > 1 and not node.gpus:
        raise EnvironmentCannot(f"the manifest asks for {manifest.gpus} GPUs, this machine has none")
    bf16 = [m.name for m in manifest.models if m.recipe.precision == "bf16"]
    old = [gpu.name for gpu in node.gpus if float(gpu.compute_capability) < 8.0]
    if bf16 and old:
        raise EnvironmentCannot(f"{bf16[0]} trains in bf16, which {old[0]} does not have")


def _header(run: Run) -> dict[str, Any]:
    return {
        "event": "run",
        "schema": "bench/journal/v1",
        "bench": __version__,
        "manifest": run.manifest.digest,
        "node": to_json(run.node),
        "started_at": run.started_at,
    }


def _choose_folder(out: Path, manifest: Manifest, node: NodeFacts, resume: bool) -> Path:
    """A new run's folder, or the newest unfinished one of the same manifest on the same machine."""
    out.mkdir(parents=True, exist_ok=True)
    if resume and (found := _unfinished(out, manifest, node)):
        return found
    folder = out / secrets.token_hex(6)
    folder.mkdir()
    return folder


def _unfinished(out: Path, manifest: Manifest, node: NodeFacts) -> Path | None:
    paths = sorted(out.glob(f"*/{journals.FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        events = list(journals.read_journal(path))
        if not events or events[0].get("manifest") != manifest.digest or events[-1].get("event") == "end":
            continue
        if canonical_json(events[0].get("node")) != canonical_json(to_json(node)):
            raise BadInput(
                "was begun on another machine or software stack; results must not be mixed",
                where=str(path.parent),
                advice="leave --resume out to start anew",
            )
        if events[0].get("bench") != __version__:
            raise BadInput(f"was begun by bench {events[0].get('bench')}", where=str(path.parent))
        return path.parent
    return None


def _measure(run: Run, progress: Progress, budget_seconds: float | None) -> str | None:
    """Until nothing is open. Returns why it stopped early, or None."""
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    meter = telemetry.Telemetry(run.folder / telemetry.FILE_NAME, run.node)
    progress.start(run.id, run.plan, run.outcomes, deadline)

    def tick(event: dict[str, Any] | None) -> None:
        meter.sample(progress.current)
        progress.event(event)

    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-run-") as scratch,
            Supervisor(_preload(run.plan), tick, run.folder / "logs" / "forkserver.txt") as supervisor,
        ):
            _measure_ceilings(run, supervisor, progress)
            while trial := next_trial(run.plan, run.outcomes):
                if deadline is not None and time.monotonic() > deadline:
                    return f"the budget of {budget_seconds or 0:.0f} s is spent, {_open(run)}"
                _measure_trial(run, supervisor, progress, trial, Path(scratch))
            while run.manifest.prove and (trial := unproven(run.plan, run.outcomes, run.proofs)):
                if deadline is not None and time.monotonic() > deadline:
                    return f"the budget of {budget_seconds or 0:.0f} s is spent before all was proven"
                _prove_trial(run, supervisor, progress, trial, run.manifest.prove, Path(scratch))
    except KeyboardInterrupt:
        return f"interrupted, {_open(run)}"
    finally:
        meter.close()
        progress.stop()
    return None


def _open(run: Run) -> str:
    return f"{remaining(run.plan, run.outcomes)} of {len(run.plan.cells)} settings undecided"


def _measure_ceilings(run: Run, supervisor: Supervisor, progress: Progress) -> None:
    if run.ceilings:
        return
    precisions = sorted({ceiling_precision(cell.model, cell.setting) for cell in run.plan.cells})
    target = run.plan.target
    progress.begin("ceilings", "ceilings of this machine")
    log = run.folder / "logs" / "ceilings.txt"
    ceilings = supervisor.ceilings(precisions, target.device, target.gpus, log, Limits(CEILING_SECONDS))
    run.record({"event": "ceilings", "ceilings": to_json(ceilings)})


def _measure_trial(run: Run, supervisor: Supervisor, progress: Progress, trial: Trial, scratch: Path) -> None:
    cell = _cell_of(run.plan, trial)
    progress.begin(trial.id, f"{trial.model.name}  {cell.label}  micro-batch {trial.micro_batch}")
    seconds = run.manifest.trial_seconds
    log = run.folder / "logs" / f"{trial.id}.txt"
    limits = Limits(seconds, min(seconds, 300.0), _host_limit(run, trial))
    outcome = supervisor.trial(trial, run.plan.target.device, scratch, log, limits)
    run.record({"event": "trial", "id": trial.id, "outcome": to_json(outcome)})
    progress.end(trial, run.results(None).trials)


def _prove_trial(
    run: Run, supervisor: Supervisor, progress: Progress, trial: Trial, proving: Proving, scratch: Path
) -> None:
    """The estimate is in the journal by now, and so cannot follow what comes out here."""
    cell = _cell_of(run.plan, trial)
    progress.begin(trial.id, f"{trial.model.name}  {cell.label}  proof")
    log = run.folder / "logs" / f"{trial.id}-proof.txt"
    seconds = run.manifest.trial_seconds + 2 * proving.minutes * 60
    limits = Limits(seconds, seconds, _host_limit(run, trial))
    match supervisor.proof(trial, proving, run.plan.target.device, scratch, log, limits):
        case Proof() as proof:
            run.record({"event": "proof", "id": trial.id, "proof": to_json(proof)})
        case failure:
            run.record({"event": "unproven", "id": trial.id, "outcome": to_json(failure)})
    progress.proven(trial, run.results(None).trials)


def _host_limit(run: Run, trial: Trial) -> int | None:
    """On a CPU the memory cap is the process group's; on a GPU its allocator's."""
    return trial.memory_cap_bytes if run.plan.target.device == "cpu" else None


def _cell_of(plan: Plan, trial: Trial) -> Cell:
    return next(cell for cell in plan.cells if trial in cell.trials)


def _preload(plan: Plan) -> list[str]:
    families = sorted({cell.model.family for cell in plan.cells})
    modeling = [f"transformers.models.{name}.modeling_{name}" for name in families]
    compiles = any(in_group(cell.setting, "compilation") for cell in plan.cells)
    compiler = ["torch._dynamo", "torch._inductor.compile_fx"] if compiles else []
    return ["numpy", "torch", "torch.utils.data", "transformers", *modeling, *compiler]


def _finish(run: Run, signer: Signer, stopped: str | None) -> Finished:
    results = run.results(stopped)
    files: dict[str, bytes | Path] = {
        "manifest.json": run.manifest.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(run.trials()),
        "telemetry.jsonl": (run.folder / telemetry.FILE_NAME).read_bytes(),
        "env.json": pretty_json({"node": to_json(run.node), "packages": probe.all_packages()}),
    }
    for log in sorted((run.folder / "logs").glob("*.txt")):
        files[f"logs/{log.name}"] = log.read_bytes()
    bundle = run.folder.with_suffix(".tar")
    pack(bundle, files, _predicate(run, results), signer)
    if stopped is None:
        run.record({"event": "end", "bundle": bundle.name})
    return Finished(results, bundle)


def _predicate(run: Run, results: Results) -> Predicate:
    return Predicate(
        run_id=run.id,
        manifest_sha256=run.manifest.digest.removeprefix("sha256:"),
        node={"gpus": [gpu.uuid for gpu in run.node.gpus], "driver": run.node.driver, "cpu": run.node.cpu},
        started_at=utc(results.run.started_at),
        ended_at=utc(results.run.ended_at),
        complete=results.run.complete,
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """A polite kill or a lost terminal ends the run as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """While the bundle is written, which takes a moment."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
