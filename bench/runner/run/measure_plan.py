"""Measure a plan: ceilings, every trial in turn, then every proof, until nothing is open.

In:  a `Run` and its budget. Out: events recorded in the run. Imports no torch; the workers do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.planning.plan import Plan
from bench.planning.search.next_trial import finalist, longer, next_trial, tally, unproven
from bench.records.estimate import ceiling_precision
from bench.records.switches import deciding, differences
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
from bench.runner.processes.jobs import Nodes, WorkerEvent
from bench.runner.processes.nodes import require_free
from bench.runner.processes.supervisor import TICK_SECONDS, Limits, Supervisor
from bench.runner.run.events import CeilingsMeasured, NodesMet, ProofFailed, Proved, TrialBegun, TrialEnded
from bench.runner.run.progress import Progress
from bench.runner.run.run_state import Run
from bench.training.setting import in_group
from bench.training.vendor import torch_inside, transformers_inside

MAX_FATAL_ATTEMPTS = 3  # a trial during which the whole run died this often counts as crashed
CEILING_SECONDS = 300.0
MEETING_SECONDS = 600.0  # for all nodes to come
DISMISSAL_SECONDS = 60.0  # for the nodes that are left, at the end
SETTLE_SECONDS = 30.0  # for the driver to free the memory of a job that was killed
IN_USE_BYTES = 2 << 30  # on a GPU before the run; more than any driver keeps for itself
LEFTOVER_BYTES = 512 << 20  # on a GPU between jobs; below, it is the driver's own varying share

NOBODY_CAME = (
    "run the same command and manifest on each, with a --node of its own; open all ports between them, "
    "since gloo and NCCL choose theirs; set NCCL_SOCKET_IFNAME to choose a network"
)
INTERRUPTED = "interrupted"  # by the user, who wants the bundle without further waiting


class NodeGone(Exception):
    """A node that trains with this one no longer comes to the meeting."""


def measure(run: Run, progress: Progress, budget_seconds: float | None, nodes: Nodes | None) -> str | None:
    """Measure and prove until nothing is open. Returns why it stopped early, or None."""
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    meter = telemetry.TelemetrySampler(run.folder / telemetry.FILE_NAME, run.node)
    target = run.plan.target
    gpus = run.node.gpus[: target.gpus // target.nodes]

    def used() -> dict[int, int]:
        """Bytes in use on each GPU that trains, by index; the node's other GPUs do not matter."""
        return {gpu.index: used for gpu, used in zip(gpus, meter.used_bytes(), strict=False)}

    before = used()
    progress.start(run.id, run.plan, run.plausible_outcomes, deadline)
    tell_of_others(before, progress.say)

    def tick(event: WorkerEvent | None) -> None:
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
    """The next open trial; if none is and there is time left, a finalist to measure again for longer."""
    if trial := next_trial(run.plan, run.plausible_outcomes):
        return trial
    again = finalist(run.plan, run.plausible_outcomes, run.again)
    return None if _spent(deadline) else again  # choosing the finalist takes time, too


def _spent(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def tell_of_others(before: Mapping[int, int], say: Callable[[str], None]) -> None:
    """Warn of GPU memory that was in use before the run: fewer micro-batches fit, and others may compute."""
    in_use = [f"{bytes_text(used)} on GPU {index}" for index, used in before.items() if used > IN_USE_BYTES]
    if in_use:
        say(
            f"other processes use GPU memory: {', '.join(in_use)}; "
            "which micro-batches fit, and how fast they are, depends on them"
        )


def settle(
    used: Callable[[], Mapping[int, int]],
    before: Mapping[int, int],
    say: Callable[[str], None],
    seconds: float = SETTLE_SECONDS,
) -> None:
    """Wait until as much GPU memory is free as `before` the run: that of a killed job is freed late.

    After `seconds` it warns and returns, since another process may have taken the memory.
    """
    deadline = time.monotonic() + seconds
    while more := [
        f"{bytes_text(now - before[index])} on GPU {index}"
        for index, now in used().items()
        if now - before[index] > LEFTOVER_BYTES
    ]:
        if time.monotonic() > deadline:
            say(f"GPU memory that was free at the start is in use: {', '.join(more)}; by another process?")
            return
        time.sleep(TICK_SECONDS)


def _meet(run: Run, supervisor: Supervisor, progress: Progress, nodes: Nodes) -> None:
    """Wait for all nodes and record them. EnvironmentCannot if one does not come, or they differ."""
    progress.begin("nodes", f"{nodes.count} nodes meet at {nodes.meet}")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    require_free(nodes.meet)
    try:
        facts = supervisor.facts(target.device, target.gpus, log, MEETING_SECONDS)
    except EnvironmentCannot as error:
        # A reason from the nodes themselves already ends with advice, in a second line.
        raise EnvironmentCannot(
            f"the {nodes.count} nodes did not come together at {nodes.meet}: {error.message}",
            where=error.where,
            advice=None if "\n" in error.message else NOBODY_CAME,
        ) from None
    leader, *others = map(_must_be_alike, facts)
    for number, other in enumerate(others, 1):
        names = ("on node 0", f"on node {number}")
        if different := "; ".join(differences(leader, other, "missing", names)):
            why = f"the nodes differ: {different}"
            _dismiss(run, supervisor, progress, why)
            raise EnvironmentCannot(why)
    run.record(NodesMet(facts))


def _must_be_alike(node: NodeFacts) -> dict[str, str]:
    """Facts in which nodes that measure together must agree, by name."""
    gpus = ", ".join(gpu.name for gpu in node.gpus)
    image = (node.image.config or "unknown") if node.image else "none"
    facts = {"GPUs": gpus, "driver": node.driver or "none", "image": image, "Python": node.python}
    return {**facts, **node.packages, **deciding(node.switches or {})}


def _require_all(run: Run, supervisor: Supervisor, progress: Progress, outcome: Outcome | Failure) -> None:
    """After a failure, make sure that no node is gone: NodeGone leaves the trial open for a resumed run."""
    if supervisor.nodes is None or not isinstance(outcome, Crashed | TimedOut):
        return
    progress.begin("nodes", "asking whether the other nodes are still there")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    try:
        patience = min(MEETING_SECONDS, run.manifest.trial_seconds)
        supervisor.facts(target.device, target.gpus, log, patience)
    except EnvironmentCannot:
        raise NodeGone from None


def _dismiss(run: Run, supervisor: Supervisor, progress: Progress, why: str | None = None) -> None:
    progress.begin("nodes", "telling the other nodes that the run is over")
    target, log = run.plan.target, run.folder / "logs" / "nodes.txt"
    supervisor.dismiss(target.device, target.gpus, log, Limits(DISMISSAL_SECONDS), why)


def what_is_open(run: Run) -> str:
    """How many models or settings are undecided, as a phrase."""
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
    run.record(CeilingsMeasured(ceilings))


def _measure_trial(
    run: Run, supervisor: Supervisor, progress: Progress, trial: Trial, scratch: Path, deadline: float | None
) -> None:
    again = trial.id in run.outcomes
    title = f"{trial.model.name}  {_label(run.plan, trial)}  micro-batch {trial.micro_batch}"
    progress.begin(trial.id, title + ", again" * again)
    timed = replace(trial, timing=longer(trial.timing)) if again else trial
    seconds = _until(deadline, run.manifest.trial_seconds)
    log = run.folder / "logs" / f"{trial.id}{'-again' * again}.txt"
    limits = Limits(seconds, min(seconds, 300.0), _host_limit(run, trial))
    outcome: Outcome = Crashed(f"the run or its machine died during it, {MAX_FATAL_ATTEMPTS} times")
    if run.deaths[trial.id] < MAX_FATAL_ATTEMPTS:
        run.record(TrialBegun(trial.id))
        outcome = supervisor.trial(timed, run.plan.target.device, scratch, log, limits)
    if _cut_off(outcome, deadline):
        return
    _require_all(run, supervisor, progress, outcome)
    run.record(TrialEnded(trial.id, outcome))
    replaced = again and isinstance(outcome, Measured)
    progress.end(trial, run.summaries(), replaced, run.slowed_just_now(trial.id))


def _prove_trial(
    run: Run,
    supervisor: Supervisor,
    progress: Progress,
    trial: Trial,
    proving: Proving,
    scratch: Path,
    deadline: float | None,
) -> None:
    """Train for real. The estimate is in the journal before, so that the proof cannot influence it."""
    progress.begin(trial.id, f"{trial.model.name}  {_label(run.plan, trial)}  proof")
    log = run.folder / "logs" / f"{trial.id}-proof.txt"
    seconds = _until(deadline, run.manifest.trial_seconds + 2 * proving.minutes * 60)
    limits = Limits(seconds, seconds, _host_limit(run, trial))
    match supervisor.proof(trial, proving, run.plan.target.device, scratch, log, limits):
        case Proof() as proof:
            run.record(Proved(trial.id, proof))
        case failure if _cut_off(failure, deadline):
            return
        case failure:
            _require_all(run, supervisor, progress, failure)
            run.record(ProofFailed(trial.id, failure))
    progress.proven(trial, run.summaries())


def _until(deadline: float | None, seconds: float) -> float:
    """A limit of `seconds`, or less: a job still running when the budget is spent ends then."""
    return seconds if deadline is None else max(0.0, min(seconds, deadline - time.monotonic()))


def _cut_off(outcome: object, deadline: float | None) -> bool:
    """True if the end of the budget cut the trial off; it then stays open."""
    return isinstance(outcome, TimedOut) and _spent(deadline)


def _host_limit(run: Run, trial: Trial) -> int | None:
    """The process group's memory limit on a CPU; None on a GPU, where the allocator keeps the cap."""
    return trial.memory_cap_bytes if run.plan.target.device == "cpu" else None


def _label(plan: Plan, trial: Trial) -> str:
    return next(cell.label for cell in plan.cells if trial in cell.trials)


def preload(plan: Plan) -> list[str]:
    """Modules and functions that the fork server prepares once, for all trials of the plan."""
    families = sorted({cell.model.family for cell in plan.cells})
    modeling = [transformers_inside.modeling_module(name) for name in families]
    compiles = any(in_group(cell.setting, "compilation") for cell in plan.cells)
    compiler = [*torch_inside.COMPILER_MODULES] if compiles else []
    if compiles and plan.target.device == "cpu":  # the fork server must not initialise CUDA
        compiler.append("bench.training.methods.compile:compile_something")
    return ["numpy", "torch", "torch.utils.data", "transformers", *modeling, *compiler]
