"""Compare bench's pass with a plain loop and with the floor: the model's products and attention alone.

    python benchmarks/gpu/frontier.py MODEL MICRO_BATCH [METHOD...] [--without plain] > frontier.json

The floor is the time of the same matrix products, convolutions and attention, forward and backward, one after
the other without anything between them, on a card that is as hot as in training. Products of siblings are
timed one by one. Prints a table on stderr. The floor is not exact in these cases: attention with a window or
dropout is timed without it, the head of a masked language model runs at all positions, weights are always in
half precision for recipes in half precision, and operators of other packages (selective scan) are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from models import find_model, setting_here, turn_on_gpu
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import HALF, make_optimizer
from bench.training.models import Model, family_of
from bench.training.models.attention import attends_causally, register_attention
from bench.training.models.counted_memory import kept_attention
from bench.training.models.generic import configured, kinds
from bench.training.models.loss import cross_entropy, empty_batch, logits
from bench.training.vendor import torch_inside

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution", "convolution_backward")
SPREAD = 0.05  # standard deviation of the random numbers that are multiplied
WARM_SECONDS = 4.0


class Recorder(TorchDispatchMode):
    """Record which products run, as often as they run, and the shapes of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[str] = Counter()
        self.arguments: dict[str, tuple[Any, Any, Any]] = {}
        self.attention: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS and func.namespace == "aten":
            shapes = tree_map(_shape_of, (args, kwargs or {}))
            self.products[repr((func, shapes))] += 1
            self.arguments[repr((func, shapes))] = (func, *shapes)
        return func(*args, **(kwargs or {}))


class Placeholder:
    """A tensor's shape, strides and precision."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype

    def __repr__(self) -> str:
        return f"{self.size} {self.stride} {self.dtype}"


def _shape_of(value: Any) -> Any:
    return Placeholder(value) if isinstance(value, Tensor) else value


def recorded(model: Model, micro_batch: int) -> Recorder:
    """Run one pass on tensors without contents, and return what it multiplied."""
    recorder = Recorder()

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **more: Any) -> Any:
        causal = attends_causally(module, more.get("is_causal"))
        recorder.attention[*(tuple(t.shape) for t in (query, key, value)), causal] += 1
        out, _ = torch.ops.bench.kept_attention(query.to(value.dtype), key.to(value.dtype), value, None)
        return out.transpose(1, 2).contiguous(), None

    kept_attention()
    register_attention("frontier_recorded", attend)
    precision = HALF.get(model.recipe.precision)
    with torch.device("meta"):
        module = family_of(model).build(model, kernels=True)
        with suppress(ValueError):  # convolutional models have no attention
            module.set_attn_implementation("frontier_recorded")
    with torch_inside.fake_tensors():
        torch_inside.make_fake(module, precision)
        batch = empty_batch(model, micro_batch, precision or torch.float32)
        with recorder:
            cross_entropy(logits(module, batch), batch["labels"]).backward()
    return recorder


def floor(model: Model, micro_batch: int, device: Device, seconds: float) -> dict[str, float]:
    """Return the milliseconds of a pass's products and of its attention, alone and under load."""
    record = recorded(model, micro_batch)
    dtype = HALF.get(model.recipe.precision, torch.float32)
    numbers = _Numbers(record, dtype, device.torch)
    products = [(numbers.call(*call), record.products[key]) for key, call in record.arguments.items()]
    attention = [(numbers.attention(*shapes), count) for shapes, count in record.attention.items()]
    spent = {"products": 0.0, "attention": 0.0}
    rounds, started, measuring = 0, time.perf_counter(), False
    while not measuring or time.perf_counter() - started < seconds:
        for name, calls in (("products", products), ("attention", attention)):
            device.synchronise()
            begun = time.perf_counter()
            for call, count in calls:
                for _ in range(count):
                    call()
            device.synchronise()
            spent[name] += time.perf_counter() - begun
        rounds += 1
        if not measuring and time.perf_counter() - started > WARM_SECONDS:
            spent, rounds, measuring, started = dict.fromkeys(spent, 0.0), 0, True, time.perf_counter()
    return {name: 1000 * total / max(rounds, 1) for name, total in spent.items()}


class _Numbers:
    """Random numbers of which every argument of a product is a view."""

    def __init__(self, record: Recorder, dtype: torch.dtype, device: torch.device) -> None:
        sizes = [0]
        tree_map(lambda v: sizes.append(_extent(v)) if isinstance(v, Placeholder) else v,
                 [entry[1:] for entry in record.arguments.values()])  # fmt: skip
        sizes += [torch.Size(shape).numel() for shapes in record.attention for shape in shapes[:3]]
        self.pool = torch.empty(max(sizes), dtype=dtype, device=device).normal_(0, SPREAD)

    def call(self, function: Any, arguments: Any, keywords: Any) -> Callable[[], object]:
        """Return a call of the product with random numbers, each expert with as many rows."""
        arguments, keywords = (
            tree_map(lambda v: self._of(v) if isinstance(v, Placeholder) else v, values)
            for values in (arguments, keywords)
        )
        if function.overloadpacket.__name__ == "_grouped_mm":
            left, right, ends, *rest = arguments
            rows = left.size(0) if right.dim() == 3 else left.size(1)
            ends = torch.arange(1, len(ends) + 1, device=ends.device) * (rows // len(ends))
            arguments = (left, right, ends.int(), *rest)
        return partial(function, *arguments, **keywords)

    def _of(self, shape: Placeholder) -> Tensor:
        return self.pool.as_strided(shape.size, shape.stride).to(shape.dtype)

    def attention(self, *shapes: Any) -> Callable[[], None]:
        *sizes, causal = shapes
        query, key, value = (
            self.pool[: torch.Size(size).numel()].view(size).detach().requires_grad_() for size in sizes
        )
        gradient = self.pool[: query.numel() // query.size(-1) * value.size(-1)]
        gradient = gradient.view(*query.shape[:-1], value.size(-1))

        def both_ways() -> None:
            grouped = query.size(1) != key.size(1)
            out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
            torch.autograd.grad(out, (query, key, value), gradient)

        return both_ways


def _extent(shape: Placeholder) -> int:
    return 1 + sum((n - 1) * step for n, step in zip(shape.size, shape.stride, strict=True))


def ours(trial: Trial, device: Device, seconds: float) -> tuple[float, float]:
    """Return the milliseconds of bench's pass, and the peak memory in GiB."""
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, device, Team(), Path(scratch), lambda _: None)
        run.prepare()
        run.step(2)
        return _timed(lambda: run.passes(2, 64), run.step, device, seconds)


def plain_loop(model: Model, micro_batch: int, device: Device, seconds: float) -> tuple[float, float]:
    """Return the same of a loop as people write it: the whole model compiled, transformers' attention."""
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
                loss = cross_entropy(logits(compiled, batch), batch["labels"])
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
        "floor": lambda: floor(model, asked.micro_batch, device, asked.seconds),
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
