"""Time the update of each optimizer beside a pass, on the weights and gradients of one model.

    python benchmarks/gpu/optimizers.py MODEL MICRO_BATCH [METHOD...] > optimizers.json

Optimizers take turns on the same weights, so that a drift in the speed of the machine affects all of them. An
update is the whole of it: clipping, optimizer, copies of half-precision weights, clearing of gradients.
Prints a table on stderr: the share of the update in a step at the recipe's batch, and the update against
that of fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from models import find_model, setting_here, turn_on_gpu
from tabulate import tabulate

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import make_optimizer
from bench.training.models import Model
from bench.training.optimizers import OPTIMIZERS

NAMES = ("adamw", "adamw-8bit", "muon")  # the first is what the others are compared with
WARM = 3  # updates and pairs of passes that are not timed: moments are made, and one update is compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("methods", nargs="*", help="default: the free lunch, with half-weights if possible")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    model, kind = find_model(asked.model), "cuda" if torch.cuda.is_available() else "cpu"
    with turn_on_gpu():
        found = measure(model, kind, asked)
    print(json.dumps(found))
    rows = [
        (name, 1000 * one["update_seconds"], one["share_of_step"], one["against_adamw"], one["moments_gib"])
        for name, one in found["optimizers"].items()
    ]
    headers = ("optimizer", "update, ms", "share of a step", "against fused adamw", "moments, GiB")
    print(tabulate(rows, headers, floatfmt=("", ".2f", ".2%", ".2f", ".3f")), file=sys.stderr)


def measure(model: Model, kind: Literal["cpu", "cuda"], asked: argparse.Namespace) -> dict[str, Any]:
    device = Device(kind)
    setting = setting_here(model, asked.methods, device=kind, beside=["half-weights"])
    trial = Trial(model, setting, asked.micro_batch, 1, 0, Timing())
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        optimizers = {name: optimizer_of(run, name) for name in NAMES}
        passes = [seconds_of(lambda: run.passes(2), device) / 2 for _ in range(WARM + asked.rounds)][WARM:]
        updates: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(WARM + asked.rounds):
            for name, optimizer in optimizers.items():
                updates[name].append(seconds_of_update(run, optimizer, device))
    pass_seconds = statistics.median(passes)
    seconds = {name: statistics.median(of_name[WARM:]) for name, of_name in updates.items()}
    return {
        "model": model.name, "setting": setting, "micro_batch": asked.micro_batch,
        "passes_a_step": trial.accumulation, "pass_seconds": pass_seconds, "rounds": asked.rounds,
        "device": torch.cuda.get_device_name() if kind == "cuda" else "CPU",
        "optimizers": {
            name: {
                "update_seconds": update,
                "share_of_step": update / (trial.accumulation * pass_seconds + update),
                "against_adamw": update / seconds[NAMES[0]],
                "moments_gib": moments_gib(optimizers[name]),
            }
            for name, update in seconds.items()
        },
    }  # fmt: skip


def optimizer_of(run: TrialRun, name: str) -> torch.optim.Optimizer:
    """Return the optimizer of this name, fused, for the weights that the run's strategy updates."""
    o, strategy = run.trial.model.recipe.optimizer, run.strategy
    named = OPTIMIZERS[name](name, o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay)
    recipe = replace(run.trial.model.recipe, optimizer=named)
    return make_optimizer(strategy.weights, recipe, True, strategy.whole)  # type: ignore[attr-defined]


def seconds_of_update(run: TrialRun, optimizer: torch.optim.Optimizer, device: Device) -> float:
    """Return the seconds of an update with random gradients: on zeros, a GPU draws less power."""
    strategy: Any = run.strategy
    strategy.optimizer = optimizer
    for weight in strategy.weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.normal_(0, 1e-4)
    return seconds_of(strategy.update, device)


def seconds_of(call: Callable[[], object], device: Device) -> float:
    device.synchronise()
    started = time.perf_counter()
    call()
    device.synchronise()
    return time.perf_counter() - started


def moments_gib(optimizer: torch.optim.Optimizer) -> float:
    states = optimizer.state.values()
    return sum(t.nbytes for state in states for t in state.values() if isinstance(t, torch.Tensor)) / 2**30


if __name__ == "__main__":
    main()
