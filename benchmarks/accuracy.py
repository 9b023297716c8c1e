"""Estimate against reality on this machine: the tiny models, 30 real steps of 8 passes, in rounds.

    python benchmarks/accuracy.py [ROUNDS [OUT]]

Each round is a `bench run` of manifests/prove-tiny.json: estimate, then proof, one process each. A machine
that has other work drifts by more than the estimate errs, within seconds; means over rounds show what is
left of that. Nothing is asserted: a reader judges. On a GPU: benchmarks/gpu/proof.sh, one round.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from bench.estimate import mean
from bench.report.bundles import check_all, results_of
from bench.summary import TrialResult
from bench.verify import Verdict

MANIFEST = Path(__file__).parents[1] / "manifests" / "prove-tiny.json"
HEADERS = ("model", "predicted s/step", "really s/step", "real steps", "error", "error of each round")


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(sys.argv[2] if len(sys.argv) > 2 else scratch)
        bench = str(Path(sys.executable).with_name("bench"))
        for _ in range(rounds):
            subprocess.run(
                [bench, "run", str(MANIFEST), "--out", str(out)], check=True, stdout=subprocess.DEVNULL
            )
        print(tabulate(rows(out), HEADERS, disable_numparse=True))
    return 0


def rows(out: Path) -> list[tuple[str, ...]]:
    verdicts = [verdict for _, verdict in check_all([out], None) if isinstance(verdict, Verdict)]
    trials = [trial for verdict in verdicts for trial in results_of(verdict).trials]
    names = dict.fromkeys(trial.model for trial in trials)
    return [row(name, [trial for trial in trials if trial.model == name]) for name in names]


def row(name: str, trials: list[TrialResult]) -> tuple[str, ...]:
    pairs = [(t.estimate.step_seconds.value, t.proof) for t in trials if t.estimate and t.proof]
    predicted = mean([seconds for seconds, _ in pairs])
    steps = sum(proof.steps for _, proof in pairs)
    really = sum(proof.seconds for _, proof in pairs) / steps
    each = [f"{100 * (seconds / proof.step_seconds - 1):+.1f}" for seconds, proof in pairs]
    error = f"{100 * (predicted / really - 1):+.1f}%"
    return name, f"{predicted:.4f}", f"{really:.4f}", str(steps), error, " ".join(each)


if __name__ == "__main__":
    sys.exit(main())
