"""Estimate against reality: predict a step, then really train, in another process, and compare.

    python benchmarks/accuracy.py
        the tiny models on this machine, 30 steps of 8 passes; --rounds 3 where other work disturbs
    python benchmarks/accuracy.py --models pythia-1b --methods free-lunch --micro-batch 16 \
        --accumulation 64 --steps 3 --seconds 180 --out results/accuracy-h200

Each prediction is written to --out, with all its samples, before its real run starts.
Nothing is asserted: machines are noisy, and a reader judges.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from bench.codec import pretty_json, to_json
from bench.estimate import Interval, mean, step_interval
from bench.methods import Setting, Target, free_lunch, label, ordered
from bench.models import Model, known_models
from bench.plan import target_of
from bench.result import Measured, Timing, Trial
from bench.runner.probe import probe
from bench.runner.supervise import Limits, Supervisor

TINY = ["tiny-gpt-neox", "tiny-roberta", "tiny-mamba", "tiny-convnext", "tiny-vit"]
HEADERS = ("model", "setting", "batch", "predicted s/step", "±", "really s/step", "steps", "error")
PRELOAD = ["numpy", "torch", "transformers", "bench.runner.worker"]


def main() -> int:
    options = _options()
    node = probe()
    target = target_of(node, 1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with Supervisor(PRELOAD, lambda _: None, scratch / "forkserver.txt") as supervisor:
            for model_name in options.models:
                trial = make_trial(known_models()[model_name], target, options)
                row = compare(supervisor, trial, target, options, scratch)
                print(*row, sep="   ", file=sys.stderr, flush=True)
                rows.append(row)
    print(tabulate(rows, HEADERS, disable_numparse=True))
    return 0


def make_trial(model: Model, target: Target, options: argparse.Namespace) -> Trial:
    """The model at the wanted accumulation: its batch is cut to fit, its step stays a real one."""
    setting: Setting = ()
    if options.methods == ["free-lunch"]:
        setting = free_lunch(model, target)
    elif options.methods != ["naive"]:
        setting = ordered(options.methods)
    micro_batch = options.micro_batch or model.recipe.batch_size // options.accumulation
    recipe = dataclasses.replace(model.recipe, batch_size=micro_batch * options.accumulation)
    timing = Timing(options.target_percent, options.measure_seconds, options.measure_seconds)
    return Trial(dataclasses.replace(model, recipe=recipe), setting, micro_batch, 1, options.seed, timing)


def compare(
    supervisor: Supervisor, trial: Trial, target: Target, options: argparse.Namespace, scratch: Path
) -> tuple[str, ...]:
    limits = Limits(options.limit_seconds)
    log = options.out / f"{trial.id}.txt" if options.out else scratch / f"{trial.id}.txt"
    name = (
        trial.model.name,
        label(trial.setting, trial.model, target),
        f"{trial.micro_batch} x {trial.accumulation}",
    )
    predictions, realities = [], []
    for turn in range(options.rounds):
        outcome = supervisor.trial(trial, target.device, scratch, log, limits)
        document = {"trial": to_json(trial), "outcome": to_json(outcome)}
        _keep(options.out, trial.id, f"prediction-{turn}", document)
        steps = outcome.measurement.steps if isinstance(outcome, Measured) else ()
        predicted = step_interval(steps, trial.accumulation)
        if predicted is None:
            return (*name, f"{outcome.kind}: see {log}", "", "", "", "")
        predictions.append(predicted)
        real = supervisor.reality(trial, target.device, options.steps, options.seconds, scratch, log, limits)
        _keep(options.out, trial.id, f"reality-{turn}", {"steps": real[0], "seconds": real[1]})
        realities.append(real)
    return (*name, *_figures(predictions, realities))


def _figures(predictions: list[Interval], realities: list[tuple[int, float]]) -> tuple[str, ...]:
    """Means over the rounds; the interval is the widest of them."""
    predicted = mean([p.value for p in predictions])
    steps = sum(count for count, _ in realities)
    real = sum(seconds for _, seconds in realities) / steps
    widest = max(p.percent for p in predictions)
    error = 100 * (predicted / real - 1)
    return f"{predicted:.4f}", f"{widest:.1f}%", f"{real:.4f}", str(steps), f"{error:+.1f}%"


def _keep(out: Path | None, trial_id: str, what: str, document: object) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{trial_id}-{what}.json").write_bytes(pretty_json(document))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=TINY, choices=list(known_models()), metavar="MODEL")
    parser.add_argument("--methods", nargs="+", default=["naive"])
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="0: the recipe's batch over the accumulation"
    )
    parser.add_argument("--rounds", type=int, default=1, help="predict and train in turn, so often")
    parser.add_argument("--steps", type=int, default=30, help="real steps, at least")
    parser.add_argument("--seconds", type=float, default=0.0, help="of real training, at least")
    parser.add_argument("--target-percent", type=float, default=2.0)
    parser.add_argument("--measure-seconds", type=float, default=10.0)
    parser.add_argument("--limit-seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
