"""Gradients of a Pythia's matrices, added to their fp32 sums: by a kernel, or by the product itself?

    python benchmarks/gpu/gradients.py [--rounds 30] > gradients.json

They take turns on the same numbers, for each matrix of a block, at the micro-batch that the model trains
with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.models import known_models
from bench.runner.halved import _add

MICRO_BATCHES = {"pythia-1b": 32, "pythia-2.8b": 8, "pythia-6.9b": 1}
Adding = Callable[[Tensor, Tensor, Tensor], None]  # to the sums, of (tokens, outputs) and (tokens, inputs)


def apart(total: Tensor, gradient: Tensor, entry: Tensor) -> None:
    _add(total, gradient.T @ entry)


def as_one(total: Tensor, gradient: Tensor, entry: Tensor) -> None:
    if total.is_cuda:
        torch.addmm(total, gradient.T, entry, out_dtype=torch.float32, out=total)
    else:  # to try this out: PyTorch has it for GPUs alone
        torch.addmm(total, gradient.T, entry, out=total)


def product_alone(total: Tensor, gradient: Tensor, entry: Tensor) -> None:  # noqa: ARG001
    gradient.T @ entry


ADDINGS: dict[str, Adding] = {"apart": apart, "as one": as_one, "product alone": product_alone}


def seconds(add: Adding, *tensors: Tensor) -> float:
    started = now()
    add(*tensors)
    return now() - started


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(outputs: int, inputs: int, tokens: int, half: torch.dtype, rounds: int) -> dict[str, object]:
    device, dtype = ("cuda", half) if torch.cuda.is_available() else ("cpu", torch.float32)
    gradient = torch.randn(tokens, outputs, device=device, dtype=dtype)
    entry = torch.randn(tokens, inputs, device=device, dtype=dtype)
    totals = {name: torch.zeros(outputs, inputs, device=device) for name in ADDINGS}
    for name, add in ADDINGS.items():
        for _ in range(3):
            seconds(add, totals[name], gradient, entry)
    off = (totals["as one"] - totals["apart"]).norm() / totals["apart"].norm()
    found: dict[str, list[float]] = {name: [] for name in ADDINGS}
    for _ in range(rounds):
        for name, add in ADDINGS.items():
            found[name].append(seconds(add, totals[name], gradient, entry))
    medians = {name: statistics.median(times) for name, times in found.items()}
    operations = 2 * outputs * inputs * tokens
    return {
        "shape": [outputs, inputs, tokens], "off": float(off), "median_seconds": medians,
        "tflops_of_product": operations / medians["product alone"] / 1e12,
        "gained": medians["apart"] / medians["as one"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, help="of a pass, to try it out")
    arguments = parser.parse_args()
    for name, micro_batch in MICRO_BATCHES.items():
        model = known_models()[name]
        half = torch.bfloat16 if model.recipe.precision == "bf16" else torch.float16
        tokens = arguments.tokens or micro_batch * (model.recipe.sequence_length or 1)
        wide, hidden = model.architecture["intermediate_size"], model.architecture["hidden_size"]
        for outputs, inputs in ((3 * hidden, hidden), (hidden, hidden), (wide, hidden), (hidden, wide)):
            found = measured(outputs, inputs, tokens, half, arguments.rounds)
            print(json.dumps({"model": name, **found}), flush=True)


if __name__ == "__main__":
    main()
