"""Measure what a change that bench does not contain would gain in whole passes, compared with no change.

    python benchmarks/gpu/would_it_pay.py CHANGES MODEL MICRO_BATCH [METHOD...] > changes.json

The model is built again each time, from the same seed. The script prints the milliseconds of a pass, the
first losses and the peak memory of each variant. A change that alters the losses by more than rounding is not
valid.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from changes import CHANGES, changed
from models import find_model, setting_here, turn_on_gpu

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team

STEPS, PASSES = 3, 2  # first steps, whose losses are compared


def measured(trial: Trial, device: Device, changes: Sequence[str]) -> dict[str, Any]:
    torch._dynamo.reset()
    gc.collect()  # frees the previous model
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as scratch, changed(changes):
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        losses, norms = [], []
        for _ in range(STEPS):
            losses.append(float(run.passes(PASSES)))
            norms.append(float(run.strategy.update(norm_wanted=True) or 0))
        device.reset_peak()
        run.step(2)
        device.synchronise()
        started, passes = time.perf_counter(), 0
        while time.perf_counter() - started < trial.timing.measure_seconds:
            run.passes(4, 4)
            device.synchronise()
            passes += 4
        ms = 1000 * (time.perf_counter() - started) / passes
        peak = device.peak_bytes() / 2**30
    return {"ms_a_pass": ms, "losses": losses, "gradient_norms": norms, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "changes", help="changes, joined by commas; variants are separated by slashes: " + ", ".join(CHANGES)
    )
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    model = find_model(asked.model)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    setting = setting_here(model, asked.methods, device=here)
    trial = Trial(model, setting, asked.micro_batch, 1, 0, Timing(measure_seconds=asked.seconds))
    print(json.dumps({"model": model.name, "setting": setting, "micro_batch": asked.micro_batch}), flush=True)
    tried = [[], *(together.split(",") for together in asked.changes.split("/"))]
    with turn_on_gpu():
        _compare(tried * asked.turns, trial, Device(here))


def _compare(tried: Sequence[Sequence[str]], trial: Trial, device: Device) -> None:
    for changes in tried:
        try:
            found = measured(trial, device, changes)
        except Exception as error:  # a change that fails must not stop the others
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps({"changes": changes, **found}), flush=True)


if __name__ == "__main__":
    main()
