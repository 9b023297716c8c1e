"""Compare passes of a recipe in fp8 with those of the same recipe in bf16, both with half-weights.

    python benchmarks/gpu/fp8.py [MODEL] [MICRO_BATCH] [METHOD...] > fp8.json

Measures both in turn in one process, each from the same seed. Prints tokens a second, first losses and peak
memory as JSON lines, and the ratio of the rates on stderr. Without methods: the free lunch beside
half-weights, joined-products and chunked-loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import torch
from models import find_model, setting_here, turn_on_gpu
from would_it_pay import measured

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.training.models import Model, Precision

BESIDE = ("half-weights", "joined-products", "chunked-loss")
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="llama-1.2b")
    parser.add_argument("micro_batch", nargs="?", type=int, default=4)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    model = find_model(asked.model)
    with turn_on_gpu():
        rates = {precision: [] for precision in PRECISIONS}
        for precision in PRECISIONS * asked.turns:
            found = _measured(_in_precision(model, precision), asked)
            rates[precision].append(found["units_a_second"])
            print(json.dumps({"precision": precision, **found}), flush=True)
    bf16, fp8 = (max(rates[precision]) for precision in PRECISIONS)
    unit = model.recipe.unit
    print(f"{model.name}: {fp8:,.0f} {unit}/s in fp8, {bf16:,.0f} in bf16: {fp8 / bf16:.3f}", file=sys.stderr)


def _in_precision(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


def _measured(model: Model, asked: argparse.Namespace) -> dict[str, Any]:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    setting = setting_here(model, asked.methods, device=kind, beside=BESIDE)
    trial = Trial(model, setting, asked.micro_batch, 1, 0, Timing(measure_seconds=asked.seconds))
    found = measured(trial, Device(kind), [])
    units = asked.micro_batch * model.recipe.units_per_sample
    return {"setting": setting, "units_a_second": 1000 * units / found["ms_a_pass"], **found}


if __name__ == "__main__":
    main()
