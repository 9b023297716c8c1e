"""Hold the predicted memory of a setting against what its passes take, allocated and reserved.

    python benchmarks/gpu/peaks.py MODEL MICRO_BATCH [METHOD...] [--changes NAME...] > peaks.json

Measures the setting without cuda-graphs, with cuda-graphs, and with cuda-graphs after gradients were moved
out of the memory that the first passes used: a gradient among freed activations keeps all of their segment.
Prints the largest tensors that a pass keeps for its backward pass, and a table on stderr. `--changes` makes
changes of changes.py, which the prediction does not know.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from changes import changed
from models import find_model, setting_here, turn_on_gpu
from tabulate import tabulate
from torch import Tensor

from bench.planning.memory_prediction import predict_bytes
from bench.records.trial import Timing, Trial
from bench.runner.trial import recorded_pass
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import RECORDED
from bench.training.models import Model, family_of
from bench.training.models.counted_operations import counted
from bench.training.models.generic import TransformersFamily
from bench.training.setting import Setting

LISTED = 24  # kinds of tensors
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("methods", nargs="*", help="default: the free lunch, with half-weights if possible")
    parser.add_argument("--changes", nargs="*", default=(), metavar="NAME")
    asked = parser.parse_args()
    model = find_model(asked.model)
    kind: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    with turn_on_gpu(), changed(asked.changes):
        setting = setting_here(model, asked.methods, device=kind, beside=["half-weights"])
        plain = tuple(name for name in setting if name != RECORDED)
        kept = Kept()
        found = {"not recorded": measured(model, plain, asked.micro_batch, kind, kept)}
        if RECORDED in setting:
            found["recorded"] = measured(model, setting, asked.micro_batch, kind)
            recorded_pass.record_graph = after_moving_gradients(recorded_pass.record_graph)
            found["recorded, gradients moved"] = measured(model, setting, asked.micro_batch, kind)
    predicted = predict_bytes(model, setting, asked.micro_batch, 1, counts_of(model))
    asked_for = {"model": model.name, "setting": setting, "micro_batch": asked.micro_batch}
    answer = {"changes": asked.changes, "predicted": predicted, "found": found, "kept": kept.largest()}
    print(json.dumps(asked_for | answer))
    rows = [
        (name, (predicted or 0) / GIB, *(value / GIB for value in peaks.values()))
        for name, peaks in found.items()
    ]
    headers = ("passes", "predicted GiB", "allocated GiB", "reserved GiB")
    print(f"{model.name}, micro-batch {asked.micro_batch}", file=sys.stderr)
    print(tabulate(rows, headers, floatfmt=".2f"), file=sys.stderr)


class Kept:
    """Counts the bytes of tensors that autograd keeps, by shape and type. A storage counts once a pass."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.seen: set[int] = set()

    def hooks(self) -> AbstractContextManager[Any]:
        hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t)
        return hooks

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes[f"{tensor.dtype} {list(tensor.shape)}"] += storage.nbytes()
        return tensor

    def largest(self) -> dict[str, int]:
        return dict(self.bytes.most_common(LISTED))


def measured(
    model: Model, setting: Setting, micro_batch: int, kind: Literal["cpu", "cuda"], kept: Kept | None = None
) -> dict[str, int]:
    """Return the peaks of a few steps, allocated and reserved; fill `kept` in a further pass."""
    gc.collect()
    torch.cuda.empty_cache()
    device = Device(kind)
    trial = Trial(model, setting, micro_batch, 1, 0, Timing())
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        device.reset_peak()
        for _ in range(3):
            run.step(2)
        device.synchronise()
        peaks = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
        with kept.hooks() if kept else nullcontext():
            if kept:
                run.step(1)
    return peaks


def after_moving_gradients(record: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records after gradients were allocated again, side by side."""

    def recording(compute: Callable[[], Tensor]) -> Any:
        weights = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Parameter)]
        weights = [one for one in weights if one.grad is not None and one.grad.is_cuda]
        on_host = [weight.grad.cpu() for weight in weights if weight.grad is not None]
        for weight in weights:
            weight.grad = None
        torch.cuda.empty_cache()
        for weight, gradient in zip(weights, on_host, strict=True):
            weight.grad = gradient.to(weight.device)
        return record(compute)

    return recording


def counts_of(model: Model) -> Any:
    family = family_of(model)
    return counted(model, family) if isinstance(family, TransformersFamily) else None


if __name__ == "__main__":
    main()
