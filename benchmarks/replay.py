"""Replay the guided search on bundles that contain every setting, to measure its regret and its cost.

    python benchmarks/replay.py BUNDLE_OR_FOLDER... [--replays 1000]

The duration of each trial, including compilation, comes from the bundle's telemetry. The search receives a
measurement whose samples are drawn from the trial's own, as another run would have produced it. The number of
samples follows hour.json's timing, and their time is added to the cost. The search chooses only among
measured trials, so regret and cost refer to the same trials. If a model was measured again after free-lunch
had gained methods, trials with more such methods than the model's free-lunch are left out, because a search
uses the same free-lunch methods in all its trials.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tabulate import tabulate

from bench.base.frozen import dataclass
from bench.base.strict_json import field_values, from_json, strict_loads
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Files, Verdict
from bench.node_check.recompute_any import recompute
from bench.planning.manifest import load_manifest, parse_manifest
from bench.planning.plan import Plan, SettingPlan, make_plan, target_of
from bench.planning.search.lower_bounds import arithmetic_of
from bench.planning.search.next_trial import fastest, finalist, longer, next_trial, step_seconds
from bench.records.estimate import BETWEEN_PROCESSES
from bench.records.trial import Measured, Measurement, NodeFacts, Outcome, StepSample, Timing, Trial
from bench.report.read_bundles import distinct_bundles, look_at_all
from bench.runner.trial.stopping_rules import is_enough
from bench.training.setting import Setting, in_group

ALLOWED_REGRET = 0.01  # share of the fastest time
HOUR = Path(__file__).parents[1] / "manifests/hour.json"
HEADERS = (
    "model", "card", "GPUs", "trials", "all, s", "guided, s", "share", "asked", "mean regret", "95th %",
    "<= 1%",
)  # fmt: skip
Key = tuple[Setting, int]  # setting and micro-batch, which identify a trial of a world


class WorldName(NamedTuple):
    """A model and the machine on which it trains: trials of one name can replace each other."""

    model: str
    card: str  # the kinds of the GPUs that trained, or the CPU
    gpus: int


Part = tuple[WorldName, NodeFacts, Key, Outcome, float]  # a trial: where it ran, key, outcome, seconds


@dataclass()
class World:
    """One model on a given number of GPUs of one kind, with each trial's outcome and duration."""

    node: NodeFacts
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    seconds: dict[Key, float] = field(default_factory=dict)


def main() -> int:
    """Print each model's regret, and how often it is within what is allowed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE_OR_FOLDER")
    parser.add_argument("--replays", type=int, default=1000, help="of each model and machine; default: 1000")
    arguments = parser.parse_args()
    found = worlds(arguments.bundles)
    rows, good, total = [], 0, 0
    everything = spent = 0.0  # GPU seconds
    for name, world in sorted(found.items()):
        results = list(replays(name, world, arguments.replays))
        rows.append(row(name, world, results))
        good += sum(replay.regret <= ALLOWED_REGRET for replay in results)
        total += len(results)
        everything += name.gpus * sum(world.seconds.values())
        spent += name.gpus * mean(replay.seconds for replay in results)
    print(tabulate(rows, HEADERS, disable_numparse=True))
    print(f"\nregret at most {ALLOWED_REGRET:.0%} in {good / total:.1%} of {total} replays")
    print(f"the search takes {spent / everything:.1%} of the GPU time of all trials")
    return 0


def worlds(paths: Iterable[Path]) -> Mapping[WorldName, World]:
    """Merge bundles into worlds, by model and machine; the latest bundle wins where they overlap."""
    found: dict[WorldName, World] = {}
    for _, parts in sorted(_read(paths), key=lambda read: read[0]):
        for name, node, key, outcome, seconds in parts:
            world = found.setdefault(name, World(node))
            world.outcomes[key], world.seconds[key] = outcome, seconds
    return {name: _with_one_free_lunch(world) for name, world in found.items()}


def _with_one_free_lunch(world: World) -> World:
    """Leave out trials that use arithmetic methods beyond the world's free-lunch."""
    lunch = arithmetic_of(max((s for s, _ in world.outcomes if not _saves_memory(s)), key=len))
    outcomes = {key: outcome for key, outcome in world.outcomes.items() if arithmetic_of(key[0]) <= lunch}
    return World(world.node, outcomes, {key: world.seconds[key] for key in outcomes})


def _saves_memory(setting: Setting) -> bool:
    return "checkpointing" in setting or in_group(setting, "sharding") is not None


def _contents(_path: Path, verdict: Verdict[ReplayedRun]) -> ReplayedRun:
    return verdict.contents


def _read(paths: Iterable[Path]) -> Iterator[tuple[float, list[Part]]]:
    """Yield the start time of each bundle's run, and its trials."""
    for path, run in look_at_all(distinct_bundles(paths), None, replayed_run, _contents):
        if isinstance(run, Exception):
            raise SystemExit(f"{path}: {run}")
        yield run.results.run.started_at, run.parts


@dataclass(frozen=True, slots=True)
class ReplayedRun(RunContents):
    """The contents of a bundle, and what a replay needs of each of its trials."""

    parts: list[Part]


def replayed_run(files: Files) -> ReplayedRun:
    """Recompute a bundle, which must be of a run."""
    run = recompute(files)
    assert isinstance(run, RunContents)
    results = run.results
    lines = map(strict_loads, files.lines("samples.jsonl"))
    measured = {line["trial"]: from_json(Measurement, line["measurement"]) for line in lines}
    spans = _spans(files)
    parts = []
    for t in results.trials:
        outcome = t.failure or Measured(measured[t.id])
        key = (t.setting, t.micro_batch)
        name = WorldName(t.model, card_of(results.node, t.gpus), t.gpus)
        parts.append((name, results.node, key, outcome, spans.get(t.id, 0.0)))
    return ReplayedRun(**field_values(run), parts=parts)


def card_of(node: NodeFacts, gpus: int) -> str:
    """Name the kinds of the GPUs that train, the leading ones of a node; without GPUs, name the CPU."""
    kinds = dict.fromkeys(gpu.name for gpu in node.gpus[:gpus])
    return ", ".join(kinds) or node.cpu


def _spans(files: Files) -> Mapping[str, float]:
    """Compute the seconds of each trial, from its first line of telemetry to that of the next trial."""
    starts: dict[str, float] = {}
    ended = 0.0
    for line in files.lines("telemetry.jsonl"):
        entry = json.loads(line)
        ended = entry["at"]
        if entry["trial"]:
            starts.setdefault(entry["trial"], ended)
    order = sorted(starts.items(), key=lambda pair: pair[1])
    until = [start for _, start in order[1:]] + [ended]
    return {name: end - start for (name, start), end in zip(order, until, strict=True)}


class Replay(NamedTuple):
    """One replay of a search: what its choice loses against the best setting, and what it asked for."""

    regret: float
    asked: int
    seconds: float


def replays(name: WorldName, world: World, count: int) -> Iterator[Replay]:
    """Yield `count` replays of the search on measured outcomes, each with its own random numbers."""
    plan = plan_of(name, world)
    timing = load_manifest(HOUR).timing
    true = {key: step_seconds(trial, world.outcomes[key]) for key, trial in _trials(plan).items()}
    best = min(seconds for seconds in true.values() if seconds is not None)
    for seed in range(count):
        draw = random.Random(seed)
        known: dict[str, Outcome] = {}
        again: set[str] = set()
        spent = 0.0
        while trial := next_trial(plan, known) or finalist(plan, known, again):
            key, wanted = (trial.setting, trial.micro_batch), timing
            if trial.id in known:
                again.add(trial.id)
                wanted = longer(timing)
            known[trial.id], more = drawn(world.outcomes[key], trial.accumulation, wanted, draw)
            spent += world.seconds[key] + more
        chosen = fastest(plan, known, name.model)
        assert chosen is not None, f"no trial of {name.model} was measured"
        took = true[chosen.setting, chosen.micro_batch]
        assert took is not None
        yield Replay(took / best - 1, len(known) + len(again), spent)


def plan_of(name: WorldName, world: World) -> Plan:
    """Make the plan of a guided run that chooses among all trials measured in a world."""
    settings = dict.fromkeys(setting for setting, _ in world.outcomes)
    methods = [list(setting) or "naive" for setting in settings]
    document = {
        "schema": "bench/manifest/v1", "models": [name.model], "methods": methods, "gpus": name.gpus,
    }  # fmt: skip
    target = replace(target_of(world.node, name.gpus), elsewhere=True)
    plan = make_plan(parse_manifest(json.dumps(document).encode(), name.model), target)
    cells = (_known(cell, world) for cell in plan.cells)
    return replace(plan, cells=tuple(cell for cell in cells if cell.trials), guided=frozenset({name.model}))


def _known(cell: SettingPlan, world: World) -> SettingPlan:
    kept = [t for t in cell.trials if (t.setting, t.micro_batch) in world.outcomes]
    return replace(cell, trials=tuple(kept))


def _trials(plan: Plan) -> Mapping[Key, Trial]:
    return {(trial.setting, trial.micro_batch): trial for cell in plan.cells for trial in cell.trials}


def drawn(outcome: Outcome, accumulation: int, timing: Timing, draw: random.Random) -> tuple[Outcome, float]:
    """Draw a trial as another process might have measured it; return it and the seconds that it adds.

    Samples are drawn with replacement, and one random factor makes all of them slower or faster.
    """
    if not isinstance(outcome, Measured):
        return outcome, 0.0
    factor = draw.gauss(1.0, BETWEEN_PROCESSES)
    by_count: dict[int, list[float]] = defaultdict(list)
    for step in outcome.measurement.steps:
        by_count[step.accumulation].append(step.seconds)
    steps: list[StepSample] = []
    elapsed = 0.0
    while not is_enough(steps, accumulation, elapsed, timing):
        steps += (StepSample(count, factor * draw.choice(seen)) for count, seen in sorted(by_count.items()))
        elapsed += sum(step.seconds for step in steps[-len(by_count) :])
    measured = Measured(replace(outcome.measurement, steps=tuple(steps)))
    return measured, elapsed - sum(step.seconds for step in outcome.measurement.steps)


def row(name: WorldName, world: World, results: list[Replay]) -> tuple[str, ...]:
    """Return a line of the table: the regrets of a model's replays, and what they spent of all time."""
    regrets = sorted(replay.regret for replay in results)
    everything = sum(world.seconds.values())
    spent = mean(replay.seconds for replay in results)
    return (
        name.model,
        name.card.removeprefix("NVIDIA "),
        str(name.gpus),
        str(len(world.outcomes)),
        f"{everything:.0f}",
        f"{spent:.0f}",
        f"{spent / everything:.0%}",
        f"{mean(replay.asked for replay in results):.1f}",
        f"{mean(regrets):.2%}",
        f"{regrets[int(0.95 * (len(regrets) - 1))]:.2%}",
        f"{sum(r <= ALLOWED_REGRET for r in regrets) / len(regrets):.1%}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
