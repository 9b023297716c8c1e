"""Fit how much equal training differs between days of a machine and between machines of one kind.

python benchmarks/spreads.py BUNDLE_OR_FOLDER... [--write]

Compares every two runs of one model, setting, micro-batch and kind of machine, and every estimate with its
proof. A spread is the smallest with which 95% of the pairs are held: the time of either run lies in the
interval that is said of the other. Prints what the intervals hold, also of machines that the fit has not
seen; `--write` writes bench/data/spreads.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

from bench.base.shipped_data import DATA
from bench.base.strict_json import canonical_json, to_json
from bench.bundle.verdict import RunContents
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.records.estimate import TO_SIGMA, Interval
from bench.records.run_results import TrialResult
from bench.records.spread import MeasuredSpreads
from bench.report.read_bundles import distinct_bundles, look_at_all

HELD = 0.95  # share of the pairs that an interval should hold
Key = tuple[object, ...]


@dataclass(frozen=True)
class Run:
    """One trial of one bundle."""

    key: Key  # equal for the same training on the same kind of machine
    machine: str  # equal for the same GPUs
    bundle: str
    step: Interval
    proof: float | None  # seconds of a step of real training
    started_at: float  # unix time
    marked: bool  # disturbed, under load, slowed down, or unsteady


@dataclass(frozen=True)
class Pair:
    """A predicted interval, and the time that was measured later."""

    said: Interval
    found: float
    machines: frozenset[str]

    @property
    def needed(self) -> float:
        """The smallest spread with which the interval holds the time."""
        difference = abs(self.found / self.said.value - 1)
        own = self.said.half_width / self.said.value
        return TO_SIGMA * math.sqrt(max(difference**2 - own**2, 0.0))


def main() -> int:
    """Print how often stated intervals held; with --write, write the spreads that bench ships."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("paths", nargs="+", type=Path, metavar="BUNDLE_OR_FOLDER")
    parser.add_argument("--write", action="store_true", help="write bench/data/spreads.json")
    given = parser.parse_args()
    runs = list(runs_of(given.paths))
    if not runs:
        parser.error("no measured setting on a GPU in these bundles: name others, such as results/")
    spreads = fitted(runs)
    print("\n".join(lines(runs, spreads)))
    if given.write:
        (DATA / "spreads.json").write_text(json.dumps(asdict(spreads), indent=1) + "\n")
    return 0


def lines(runs: Sequence[Run], spreads: MeasuredSpreads) -> Iterator[str]:
    """Yield the report: how often measurements of two runs differ by more than is stated."""
    sound = [run for run in runs if not run.marked]
    days, machines = same_machine(sound) + proofs(sound), other_machines(sound)
    for words, pairs, spread in (
        ("this machine on another day", days, spreads.another_day),
        ("another machine of the kind", machines, spreads.another_machine),
    ):
        yield (
            f"{words}: a standard deviation of {spread:.2%}, ±{spread / TO_SIGMA:.1%}; holds"
            f" {share_held(pairs, spread):.1%} of {len(pairs)} pairs (the runs' own intervals:"
            f" {share_held(pairs, 0):.1%}); of machines left out of the fit {held_out(pairs):.1%}"
        )
    proved, every = proofs(runs), other_machines(runs)
    yield f"with marked figures too: of {len(proved)} proofs {share_held(proved, spreads.another_day):.1%}"
    yield f"and of {len(every)} pairs of machines {share_held(every, spreads.another_machine):.1%}"


def runs_of(paths: Iterable[Path]) -> Iterator[Run]:
    """Yield the runs of these bundles; those that cannot be verified are left out."""
    for _, found in look_at_all(distinct_bundles(paths), None, recompute, _runs):
        yield from found if isinstance(found, list) else ()


def _runs(path: Path, verdict: AnyVerdict) -> list[Run]:
    contents = verdict.contents
    if not isinstance(contents, RunContents) or not contents.results.node.gpus:
        return []
    results = contents.results
    gpus = results.node.gpus[: contents.stated.gpus_of(results.node)]
    models = {model.name: canonical_json(to_json(model)) for model in results.models}
    where = tuple(sorted(gpu.name for gpu in gpus))

    def run(trial: TrialResult, step: Interval) -> Run:
        used = gpus[: trial.gpus]
        key = (
            models[trial.model],
            trial.setting,
            trial.micro_batch,
            trial.gpus,
            where[: trial.gpus],
            trial.data,
        )
        machine = " ".join(sorted(gpu.uuid for gpu in used))
        proof = trial.proof.step_seconds if trial.proof else None
        return Run(key, machine, str(path), step, proof, results.run.started_at, trial.id in contents.marks)

    return [
        run(trial, trial.estimate.step_seconds)
        for trial in results.trials
        if trial.estimate is not None and trial.estimate.plausible
    ]


def _equal(runs: Iterable[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield every two runs of the same training on the same kind of machine, in both orders."""
    by_key: defaultdict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    for alike in by_key.values():
        yield from ((a, b) for a, b in permutations(alike, 2) if a.bundle != b.bundle)


def _pair(a: Run, b: Run) -> Pair:
    return Pair(a.step, b.step.value, frozenset((a.machine, b.machine)))


def same_machine(runs: Iterable[Run]) -> list[Pair]:
    """Pair equal trials of two bundles of one machine, in both orders."""
    return [_pair(a, b) for a, b in _equal(runs) if a.machine == b.machine]


def other_machines(runs: Iterable[Run]) -> list[Pair]:
    """Pair equal trials of two machines of the same kind, in both orders."""
    return [_pair(a, b) for a, b in _equal(runs) if a.machine != b.machine]


def proofs(runs: Iterable[Run]) -> list[Pair]:
    """Pair every estimate with its proof: real training by another process, minutes later."""
    return [Pair(run.step, run.proof, frozenset((run.machine,))) for run in runs if run.proof is not None]


def fit(pairs: Sequence[Pair]) -> float:
    """Find the smallest spread whose intervals hold HELD of the pairs, rounded up to 0.01%."""
    needed = sorted(pair.needed for pair in pairs)
    return math.ceil(needed[math.ceil(HELD * len(needed)) - 1] * 1e4) / 1e4


def share_held(pairs: Sequence[Pair], spread: float) -> float:
    """Return the share of pairs that differ by no more than a spread explains."""
    return sum(pair.needed <= spread for pair in pairs) / len(pairs)


def held_out(pairs: Sequence[Pair]) -> float:
    """The share of pairs that are held by a fit without any pair of one of their machines."""
    held = [
        pair.needed <= fit([other for other in pairs if not machine & other.machines])
        for machine in {frozenset((name,)) for pair in pairs for name in pair.machines}
        for pair in pairs
        if machine & pair.machines
    ]
    return sum(held) / len(held)


def fitted(runs: Sequence[Run]) -> MeasuredSpreads:
    """Fit both spreads to the runs without marks."""
    runs = [run for run in runs if not run.marked]
    days, machines = same_machine(runs) + proofs(runs), other_machines(runs)
    bundles = len({run.bundle for run in runs})
    newest = datetime.fromtimestamp(max(run.started_at for run in runs), UTC)
    return MeasuredSpreads(
        another_day=fit(days),
        another_machine=fit(machines),
        day_pairs=len(days),
        machine_pairs=len(machines),
        source=f"benchmarks/spreads.py, from {bundles} bundles in results/",
        dated=newest.date().isoformat(),
    )


if __name__ == "__main__":
    sys.exit(main())
