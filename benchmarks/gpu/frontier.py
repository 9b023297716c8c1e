"""Compare bench's pass with a plain loop and with the floor: the model's products and attention alone.

    python benchmarks/gpu/frontier.py MODEL MICRO_BATCH [METHOD...] [--without plain] > frontier.json

The floor is that of bench/runner/trial/floor.py, which says where it is not exact. Prints a table on stderr.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from models import find_model, setting_here, turn_on_gpu
from tabulate import tabulate

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.runner.trial.floor import measure_floor
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import HALF, make_optimizer
from bench.training.models import Model, family_of
from bench.training.models.generic import configured, kinds
from bench.training.models.model import empty_batch

WARM_SECONDS = 4.0


def ours(trial: Trial, device: Device, seconds: float) -> tuple[float, float]:
    """Return the milliseconds of bench's pass, and the peak memory in GiB."""
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        run.step(2)
        return _timed(lambda: run.passes(2, 64), run.step, device, seconds)


def floor(trial: Trial, device: Device, seconds: float) -> dict[str, float]:
    """Return the milliseconds of a pass's products, convolutions, attention and scans alone."""
    found = measure_floor(trial, device, lambda _: None, most_seconds=seconds)
    return {kind: 1000 * of_kind for kind, of_kind in found.parts.items()}


def plain_loop(model: Model, micro_batch: int, device: Device, seconds: float) -> tuple[float, float]:
    """Return milliseconds and peak GiB of a plain loop: the whole model compiled, transformers' attention."""
    torch.manual_seed(0)
    precision = HALF.get(model.recipe.precision)
    with device.torch:
        kind = kinds()[model.recipe.objective]
        fused = "eager" if family_of(model).missing_kernels("cpu") else "sdpa"
        module = kind.from_config(configured(model), attn_implementation=fused).float().train()
        batch = empty_batch(model, micro_batch, torch.float32)
    batch = {name: t.random_(2) if t.dtype == torch.long else t.normal_() for name, t in batch.items()}
    optimizer = make_optimizer(module.parameters(), model.recipe, fused=True)
    compiled = torch.compile(module)

    def two_passes() -> None:
        for _ in range(2):
            with torch.autocast(device.kind, dtype=precision, enabled=precision is not None):
                aim = model.recipe.aim
                answer = aim.answer(compiled, batch)
                loss = aim.loss(answer, aim.labels(batch, answer, compiled))
            loss.backward()

    def step(_: int) -> None:
        two_passes()
        optimizer.step()
        optimizer.zero_grad()

    return _timed(two_passes, step, device, seconds)


def _timed(
    two_passes: Callable[[], object], step: Callable[[int], object], device: Device, seconds: float
) -> tuple[float, float]:
    step(2)
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_SECONDS:
        two_passes()
        device.synchronise()
    device.reset_peak()
    started, passes = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        two_passes()
        device.synchronise()
        passes += 2
    return 1000 * (time.perf_counter() - started) / passes, device.peak_bytes() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("methods", nargs="*", help="default: the free lunch, with half-weights if possible")
    parser.add_argument("--without", nargs="*", default=[], choices=["ours", "plain", "floor"])
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    model, kind = find_model(asked.model), "cuda" if torch.cuda.is_available() else "cpu"
    with turn_on_gpu():
        _measure(model, kind, asked)


def _measure(model: Model, kind: Literal["cpu", "cuda"], asked: argparse.Namespace) -> None:
    device, units = Device(kind), asked.micro_batch * model.recipe.units_per_sample
    setting = setting_here(model, asked.methods, device=kind, beside=["half-weights"])
    trial = Trial(model, setting, asked.micro_batch, 1, 0, Timing())
    measures: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(trial, device, asked.seconds),
        "plain": lambda: plain_loop(model, asked.micro_batch, device, asked.seconds),
        "floor": lambda: floor(trial, device, asked.seconds),
    }
    found: dict[str, Any] = {"model": model.name, "setting": setting, "micro_batch": asked.micro_batch}
    for name, measure in measures.items():
        if name not in asked.without:
            try:
                found[name] = measure()
            except torch.OutOfMemoryError:
                found[name] = None
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
    print(json.dumps(found), flush=True)
    _print_table(found, units, model.recipe.unit)


def _print_table(found: dict[str, Any], units: int, unit: str) -> None:
    floor_ms = sum(found["floor"].values()) if found.get("floor") else None
    rows = []
    for name in ("ours", "plain", "floor"):
        if found.get(name):
            ms, peak = (floor_ms, None) if name == "floor" else found[name]
            rows.append((name, ms, 1000 * units / ms, floor_ms and f"{100 * floor_ms / ms:.0f}%", peak))
    headers = ("what", "ms a pass", f"{unit}/s", "of the floor", "peak GiB")
    print(f"{found['model']}, micro-batch {found['micro_batch']}", file=sys.stderr)
    print(tabulate(rows, headers, floatfmt=",.1f"), file=sys.stderr)


if __name__ == "__main__":
    main()
