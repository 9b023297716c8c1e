"""Estimate against reality on this machine: the tiny models, 30 real steps of 8 passes, round by round.

    python benchmarks/accuracy.py [ROUNDS]

A round is one estimate between two pieces of real training, each in a process of its own, one right after the
other. A machine that has other work drifts by more than the estimate errs, within seconds: what goes on
through a round is left out by its two sides, most of the rest by the median over rounds. How far the two
sides are apart says what to expect of it. Nothing is asserted: a reader judges. On a GPU:
benchmarks/gpu/proof.sh.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from tabulate import tabulate

from bench.estimate import step_interval
from bench.manifest import load_manifest
from bench.plan import make_plan, target_of
from bench.result import Measured, Proof, Trial
from bench.runner.probe import probe
from bench.runner.supervise import Limits, Supervisor

MANIFEST = Path(__file__).parents[1] / "manifests" / "prove-tiny.json"
PRELOAD = ["numpy", "torch", "transformers", "bench.runner.worker"]
HEADERS = (
    "model", "batch", "predicted s/step", "really s/step", "real steps", "error", "error of each round",
    "real training against itself",
)  # fmt: skip


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    manifest = load_manifest(MANIFEST)
    plan = make_plan(manifest, target_of(probe(), 1))
    rows = []
    with tempfile.TemporaryDirectory() as name, Supervisor(PRELOAD, ignore, Path(name, "log")) as supervisor:
        for cell in plan.cells:
            found = [one_round(supervisor, cell.trials[0], Path(name)) for _ in range(rounds)]
            rows.append(row(cell.trials[0], found))
            print(*rows[-1], sep="   ", file=sys.stderr, flush=True)
    print(tabulate(rows, HEADERS, disable_numparse=True))
    return 0


def one_round(supervisor: Supervisor, trial: Trial, folder: Path) -> tuple[float, Proof, Proof]:
    """The estimate, and what really happened before and after."""
    proving = load_manifest(MANIFEST).prove
    assert proving is not None
    limits, log = Limits(600), folder / "log.txt"
    before = supervisor.proof(trial, proving, "cpu", folder, log, limits)
    outcome = supervisor.trial(trial, "cpu", folder, log, limits)
    assert isinstance(outcome, Measured), outcome
    predicted = step_interval(outcome.measurement.steps, trial.accumulation)
    after = supervisor.proof(trial, proving, "cpu", folder, log, limits)
    assert predicted is not None
    assert isinstance(before, Proof), before
    assert isinstance(after, Proof), after
    return predicted.value, before, after


def row(trial: Trial, rounds: list[tuple[float, Proof, Proof]]) -> tuple[str, ...]:
    real = [(before.step_seconds + after.step_seconds) / 2 for _, before, after in rounds]
    errors = [100 * (predicted / really - 1) for (predicted, _, _), really in zip(rounds, real, strict=True)]
    drifts = [100 * abs(after.step_seconds / before.step_seconds - 1) for _, before, after in rounds]
    return (
        trial.model.name,
        f"{trial.micro_batch} x {trial.accumulation}",
        f"{median(predicted for predicted, _, _ in rounds):.4f}",
        f"{median(real):.4f}",
        str(sum(before.steps + after.steps for _, before, after in rounds)),
        f"{median(errors):+.1f}%",
        " ".join(f"{error:+.0f}" for error in errors),
        f"{median(drifts):.0f}%",
    )


def ignore(_event: object) -> None:
    """Progress is of no interest here."""


if __name__ == "__main__":
    sys.exit(main())
