"""Estimate against reality on this machine: the tiny models, 30 real steps of 8 passes, pair by pair.

    python benchmarks/accuracy.py [PAIRS]

Each pair is one estimate and one piece of real training, each in a process of its own, one right after the
other. A machine that has other work drifts by more than the estimate errs, within seconds: the median over
pairs leaves most of that out. Nothing is asserted: a reader judges. On a GPU: benchmarks/gpu/proof.sh.
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
HEADERS = ("model", "batch", "predicted s/step", "really s/step", "real steps", "error", "error of each pair")


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    manifest = load_manifest(MANIFEST)
    plan = make_plan(manifest, target_of(probe(), 1))
    rows = []
    with tempfile.TemporaryDirectory() as name, Supervisor(PRELOAD, ignore, Path(name, "log")) as supervisor:
        for cell in plan.cells:
            found = [pair(supervisor, cell.trials[0], Path(name)) for _ in range(pairs)]
            rows.append(row(cell.trials[0], found))
            print(*rows[-1], sep="   ", file=sys.stderr, flush=True)
    print(tabulate(rows, HEADERS, disable_numparse=True))
    return 0


def pair(supervisor: Supervisor, trial: Trial, folder: Path) -> tuple[float, Proof]:
    """The estimate, and then what really happened."""
    proving = load_manifest(MANIFEST).prove
    assert proving is not None
    limits, log = Limits(600), folder / "log.txt"
    outcome = supervisor.trial(trial, "cpu", folder, log, limits)
    assert isinstance(outcome, Measured), outcome
    predicted = step_interval(outcome.measurement.steps, trial.accumulation)
    proof = supervisor.proof(trial, proving, "cpu", folder, log, limits)
    assert predicted is not None
    assert isinstance(proof, Proof), proof
    return predicted.value, proof


def row(trial: Trial, pairs: list[tuple[float, Proof]]) -> tuple[str, ...]:
    errors = [100 * (predicted / proof.step_seconds - 1) for predicted, proof in pairs]
    return (
        trial.model.name,
        f"{trial.micro_batch} x {trial.accumulation}",
        f"{median(predicted for predicted, _ in pairs):.4f}",
        f"{median(proof.step_seconds for _, proof in pairs):.4f}",
        str(sum(proof.steps for _, proof in pairs)),
        f"{median(errors):+.1f}%",
        " ".join(f"{error:+.0f}" for error in errors),
    )


def ignore(_event: object) -> None:
    """Progress is of no interest here."""


if __name__ == "__main__":
    sys.exit(main())
