"""The best this machine does on bare operations: what no training step can beat.

A matrix product per precision and a copy within device memory, each in several shapes and each
timed call by call; the best call of the best shape is the ceiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.result import Ceiling
from bench.runner.device import Device

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# (m, n, k). Large enough to fill the device, small enough for a second; the best one counts.
_GPU_SHAPES = ((8192, 8192, 8192), (16384, 8192, 4096), (4096, 4096, 16384))
_CPU_SHAPES = ((1024, 1024, 1024), (512, 2048, 1024))
_CPU_HALF_SHAPES = ((512, 512, 512),)  # without matrix units half precision is slow there
WARM_CALLS, TIMED_CALLS = 3, 12
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}


def measure_ceilings(device: Device, names: list[str], gpus: int) -> list[Ceiling]:
    """`names` are matmul-PRECISION or memory-bandwidth; each device is measured alone."""
    found: list[Ceiling] = []
    for index in range(gpus if device.kind == "cuda" else 1):
        where = torch.device(device.kind, index) if device.kind == "cuda" else device.torch
        for name in names:
            found += (
                _memory(device, where, index)
                if name == "memory-bandwidth"
                else _matmul(device, where, index, name)
            )
    return found


def _matmul(device: Device, where: torch.device, index: int, name: str) -> Iterator[Ceiling]:
    precision = name.removeprefix("matmul-")
    dtype = _DTYPES[precision]
    if device.kind == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    shapes = (
        _GPU_SHAPES if device.kind == "cuda" else _CPU_SHAPES if dtype == torch.float32 else _CPU_HALF_SHAPES
    )
    for m, n, k in shapes:
        # Random, never zeros: on zeros a GPU draws less power and runs faster than it ever would.
        a = torch.randn(m, k, device=where, dtype=dtype)
        b = torch.randn(k, n, device=where, dtype=dtype)
        out = torch.empty(m, n, device=where, dtype=dtype)
        samples = _timed(device, partial(torch.mm, a, b, out=out))
        yield Ceiling(name, index, "FLOP/s", 2 * m * n * k, samples)


def _memory(device: Device, where: torch.device, index: int) -> Iterator[Ceiling]:
    size = COPIED_BYTES[device.kind]
    source = torch.randint(0, 255, (size,), device=where, dtype=torch.uint8)
    target = torch.empty_like(source)
    samples = _timed(device, lambda: target.copy_(source))
    yield Ceiling("memory-bandwidth", index, "B/s", 2 * size, samples)  # read and written


def _timed(device: Device, call: Callable[[], object]) -> tuple[float, ...]:
    for _ in range(WARM_CALLS):
        call()
    samples = []
    for _ in range(TIMED_CALLS):
        device.synchronise()
        started = time.perf_counter()
        call()
        device.synchronise()
        samples.append(time.perf_counter() - started)
    return tuple(samples)
