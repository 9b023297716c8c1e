"""Every trial of a plan, one after the other, and then every proof, until nothing is open."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.base.strict_json import to_json
from bench.planning.plan import Plan, SettingPlan
from bench.planning.search.next_trial import finalist, longer, next_trial, tally, unproven
from bench.records.environment import differences
from bench.records.estimate import ceiling_precision
from bench.records.switches import deciding
from bench.records.text import bytes_text
from bench.records.trial import (
    Crashed,
    Failure,
    Measured,
    NodeFacts,
    Outcome,
    Proof,
    Proving,
    TimedOut,
    Trial,
)
from bench.runner.machine import telemetry
from bench.runner.processes.nodes import Nodes, require_free
from bench.runner.processes.supervisor import TICK_SECONDS, Limits, Supervisor
from bench.runner.run.progress import Progress
from bench.runner.run.run_state import Run
from bench.training.setting import in_group

LIVES = 3  # a trial that takes the run with it is not tried for ever, by who starts the run again and again
CEILING_SECONDS = 300.0
MEETING_SECONDS = 600.0  # for all nodes to come
DISMISSAL_SECONDS = 60.0  # for those that are left, at the end
CLEAN_SECONDS = 30.0  # for the memory of a job that was killed to come back
HELD_BYTES = 2 << 30  # more than any driver keeps for itself
TRACE_BYTES = 512 << 20  # the driver's own share is not always the same

NOBODY_CAME = (
    "each runs the same command and manifest, with a --node of its own; between them all ports are open, "
    "since gloo and NCCL choose theirs; NCCL_SOCKET_IFNAME is by which network"
)
INTERRUPTED = "interrupted"  # by the user, who wants what there is, and now


class NodeGone(Exception):
    """One of several nodes does not come to the meeting any more."""


def measure(run: Run, progress: Progress, budget_seconds: float | None, nodes: Nodes | None) -> str | None:
    """Until nothing is open. Returns why it stopped early, or None."""
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    meter = telemetry.TelemetrySampler(run.folder / telemetry.FILE_NAME, run.node)
    target = run.plan.target
    ours = run.node.gpus[: target.gpus // target.nodes]

    def used() -> dict[int, int]:
        """Of the GPUs that train: what others do on the rest of the node is their own business."""
        return {gpu.index: held for gpu, held in zip(ours, meter.used_bytes(), strict=False)}

    before = used()
    progress.start(run.id, run.plan, run.plausible_outcomes, deadline)
    tell_of_others(before, progress.say)

    def tick(event: dict[str, Any] | None) -> None:
        meter.sample(progress.current)
        progress.event(event)

    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-run-") as scratch,
            Supervisor(
                preload(run.plan), tick, run.folder / "logs" / "forkserver.txt", nodes=nodes
            ) as supervisor,
        ):
            if nodes is not None:
                _meet(run, supervisor, progress, nodes)
            _measure_ceilings(run, supervisor, progress, deadline)
            stopped = None
            while trial := _next(run, deadline):
                if _spent(deadline):
                    stopped = f"the budget of {budget_seconds or 0:.0f} s is spent, {what_is_open(run)}"
                    break
                settle(used, before, progress.say)
                _measure_trial(run, supervisor, progress, trial, Path(scratch), deadline)
            while run.manifest.prove and (trial := unproven(run.plan, run.plausible_outcomes, run.proofs)):
                if _spent(deadline):
                    spent = f"the budget of {budget_seconds or 0:.0f} s is spent before all was proven"
                    stopped = stopped or spent
                    break
                settle(used, before, progress.say)
                _prove_trial(run, supervisor, progress, trial, run.manifest.prove, Path(scratch), deadline)
            if nodes is not None:
                _dismiss(run, supervisor, progress)
            return stopped
    except NodeGone:
        return f"a node that trains with this one is gone, {what_is_open(run)}"
    except KeyboardInterrupt:
        return f"{INTERRUPTED}, {what_is_open(run)}"
    finally:
        meter.close()
        progress.stop()


def _next(run: Run, deadline: float | None) -> Trial | None:
    """What is open; once nothing is, and as long as there is time, what decides between finalists."""
    if trial := next_trial(run.plan, run.plausible_outcomes):
        return trial
    last = finalist(run.plan, run.plausible_outcomes, run.again)
    return None if _spent(deadline) else last  # to choose it takes time, too


def _spent(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def tell_of_others(before: Mapping[int, int], say: Callable[[str], None]) -> None:
    """What was held before anything of ours was there does not fit beside it, and may compute too."""
    held = [f"{bytes_text(used)} on GPU {index}" for index, used in before.items() if used > HELD_BYTES]
    if held:
        say(f"memory is in use by others: {', '.join(held)}; what fits, and how fast it is, depends on them")


def settle(
    used: Callable[[], Mapping[int, int]],
    before: Mapping[int, int],
    say: Callable[[str], None],
    seconds: float = CLEAN_SECONDS,
) -> None:
    """The next job starts with the GPU memory that the first one had: a killed one's comes back late."""
    deadline = time.monotonic() + seconds
    while more := [
        f"{bytes_text(now - before[index])} on GPU {index}"
        for index, now in used().items()
        if now - before[index] > TRACE_BYTES
    ]:
        if time.monotonic() > deadline:
            say(f"memory is in use that was free at the start: {', '.join(more)}; who else computes there?")
            return
        time.sleep(TICK_SECONDS)


def _meet(run: Run, supervisor: Supervisor, progress: Progress, nodes: Nodes) -> None:
    """All nodes are there, and alike: what one of them measured would else be said of another."""
    progress.begin("nodes", f"{nodes.count} nodes meet at {nodes.meet}")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    require_free(nodes.meet)
    try:
        facts = supervisor.facts(target.device, target.gpus, log, MEETING_SECONDS)
    except EnvironmentCannot as error:
        # What the nodes themselves found stands there with what to do.
        raise EnvironmentCannot(
            f"the {nodes.count} nodes did not come together at {nodes.meet}: {error.message}",
            where=error.where,
            advice=None if "\n" in error.message else NOBODY_CAME,
        ) from None
    ours, *others = map(_must_be_alike, facts)
    for number, theirs in enumerate(others, 1):
        names = ("on node 0", f"on node {number}")
        if different := "; ".join(differences(ours, theirs, "missing", names)):
            why = f"the nodes differ: {different}"
            _dismiss(run, supervisor, progress, why)
            raise EnvironmentCannot(why)
    run.record({"event": "nodes", "nodes": to_json(facts)})


def _must_be_alike(node: NodeFacts) -> dict[str, str]:
    """What nodes that measure together have in common."""
    gpus = ", ".join(gpu.name for gpu in node.gpus)
    image = (node.image.config or "unknown") if node.image else "none"
    own = {"GPUs": gpus, "driver": node.driver or "none", "image": image, "Python": node.python}
    return {**own, **node.packages, **deciding(node.switches or {})}


def _require_all(run: Run, supervisor: Supervisor, progress: Progress, outcome: Outcome | Failure) -> None:
    """A job that lost a node says nothing about its trial, which stays open for when all are there again."""
    if supervisor.nodes is None or not isinstance(outcome, Crashed | TimedOut):
        return
    progress.begin("nodes", "are the other nodes still there?")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    try:  # as patient as with a trial, which would find nobody either
        patience = min(MEETING_SECONDS, run.manifest.trial_seconds)
        supervisor.facts(target.device, target.gpus, log, patience)
    except EnvironmentCannot:
        raise NodeGone from None


def _dismiss(run: Run, supervisor: Supervisor, progress: Progress, why: str | None = None) -> None:
    progress.begin("nodes", "telling the other nodes that it is over")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    supervisor.dismiss(target.device, target.gpus, log, Limits(DISMISSAL_SECONDS), why)


def what_is_open(run: Run) -> str:
    decided, total, what = tally(run.plan, run.plausible_outcomes)
    return f"{total - decided} of {total} {what} undecided"


def _measure_ceilings(run: Run, supervisor: Supervisor, progress: Progress, deadline: float | None) -> None:
    if run.ceilings:
        return
    precisions = sorted({ceiling_precision(cell.model, cell.setting) for cell in run.plan.cells})
    target = run.plan.target
    progress.begin("ceilings", "ceilings of this machine")
    log = run.folder / "logs" / "ceilings.txt"
    limits = Limits(_until(deadline, CEILING_SECONDS))
    try:
        ceilings = supervisor.ceilings(precisions, target.device, target.gpus, log, limits)
    except EnvironmentCannot:
        if _spent(deadline):
            return
        raise
    run.record({"event": "ceilings", "ceilings": to_json(ceilings)})


def _measure_trial(
    run: Run, supervisor: Supervisor, progress: Progress, trial: Trial, scratch: Path, deadline: float | None
) -> None:
    cell, again = _cell_of(run.plan, trial), trial.id in run.outcomes
    about = f"{trial.model.name}  {cell.label}  micro-batch {trial.micro_batch}"
    progress.begin(trial.id, about + ", again" * again)
    timed = replace(trial, timing=longer(trial.timing)) if again else trial
    seconds = _until(deadline, run.manifest.trial_seconds)
    log = run.folder / "logs" / f"{trial.id}{'-again' * again}.txt"
    limits = Limits(seconds, min(seconds, 300.0), _host_limit(run, trial))
    outcome: Outcome = Crashed(f"the run or its machine died during it, {LIVES} times")
    if run.deaths[trial.id] < LIVES:
        run.record({"event": "begun", "id": trial.id})
        outcome = supervisor.trial(timed, run.plan.target.device, scratch, log, limits)
    if _cut_off(outcome, deadline):
        return
    _require_all(run, supervisor, progress, outcome)
    run.record({"event": "trial", "id": trial.id, "outcome": to_json(outcome)})
    progress.end(trial, run.summaries(), again and isinstance(outcome, Measured), run.slowed().get(trial.id))


def _prove_trial(
    run: Run,
    supervisor: Supervisor,
    progress: Progress,
    trial: Trial,
    proving: Proving,
    scratch: Path,
    deadline: float | None,
) -> None:
    """The estimate is in the journal by now, and so cannot follow what comes out here."""
    cell = _cell_of(run.plan, trial)
    progress.begin(trial.id, f"{trial.model.name}  {cell.label}  proof")
    log = run.folder / "logs" / f"{trial.id}-proof.txt"
    seconds = _until(deadline, run.manifest.trial_seconds + 2 * proving.minutes * 60)
    limits = Limits(seconds, seconds, _host_limit(run, trial))
    match supervisor.proof(trial, proving, run.plan.target.device, scratch, log, limits):
        case Proof() as proof:
            run.record({"event": "proof", "id": trial.id, "proof": to_json(proof)})
        case failure if _cut_off(failure, deadline):
            return
        case failure:
            _require_all(run, supervisor, progress, failure)
            run.record({"event": "unproven", "id": trial.id, "outcome": to_json(failure)})
    progress.proven(trial, run.summaries())


def _until(deadline: float | None, seconds: float) -> float:
    """A budget is kept: what is running when it is spent ends then."""
    return seconds if deadline is None else max(0.0, min(seconds, deadline - time.monotonic()))


def _cut_off(outcome: object, deadline: float | None) -> bool:
    """By the end of the budget, which says nothing about the trial: it stays open."""
    return isinstance(outcome, TimedOut) and _spent(deadline)


def _host_limit(run: Run, trial: Trial) -> int | None:
    """On a CPU the memory cap is the process group's; on a GPU its allocator's."""
    return trial.memory_cap_bytes if run.plan.target.device == "cpu" else None


def _cell_of(plan: Plan, trial: Trial) -> SettingPlan:
    return next(cell for cell in plan.cells if trial in cell.trials)


def preload(plan: Plan) -> list[str]:
    families = sorted({cell.model.family for cell in plan.cells})
    modeling = [f"transformers.models.{name}.modeling_{name}" for name in families]
    compiles = any(in_group(cell.setting, "compilation") for cell in plan.cells)
    compiler = ["torch._dynamo", "torch._inductor.compile_fx"] if compiles else []
    if compiles and plan.target.device == "cpu":  # a GPU must not wake up in the process that forks
        compiler.append("bench.training.methods.compile:compile_something")
    return ["numpy", "torch", "torch.utils.data", "transformers", *modeling, *compiler]
