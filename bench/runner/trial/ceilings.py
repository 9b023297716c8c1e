"""Measure the ceilings of a machine: bare operations that no training step can beat.

A matrix product per precision, a copy within device memory, copies to and from the host, and an all-reduce.
Every call is timed. Products have several shapes and memory layouts, and the best call of all of them is the
ceiling. All devices measure at once, as in training, since they share power and host; one product is measured
on each device alone, too. Imports torch at module level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from bench.base.strict_json import from_json
from bench.records.genuine_gpus import PRODUCT_ALONE, PRODUCT_TOGETHER
from bench.records.trial import Ceiling
from bench.runner.trial.device import Device
from bench.runner.trial.team import Team
from bench.training.models.fp8 import rows_in_fp8
from bench.training.vendor import torch_inside

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,  # of the product, and of the random numbers before they are cast
}
# Shapes (m, n, k): large enough to fill the device, small enough to take less than a second.
_GPU_SHAPES = ((8192, 8192, 8192), (16384, 8192, 4096), (4096, 4096, 16384))
_CPU_SHAPES = ((1024, 1024, 1024), (512, 2048, 1024))
_CPU_HALF_SHAPES = ((512, 512, 512),)  # half precision is slow without matrix units
# Whether each factor is transposed in memory. A linear layer has all three: its output, the gradient of its
# input, and that of its weight. Without units for half precision, a CPU is 12 times as fast in one of them.
_LAYOUTS = ((False, True), (False, False), (True, False))
WARM_CALLS, TIMED_CALLS = 3, 12
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
HOST_BYTES = 1 << 30
REDUCED_BYTES = {"cuda": 1 << 30, "cpu": 16 << 20}


def measure_ceilings(device: Device, team: Team, precisions: list[str]) -> list[Ceiling]:
    """Return the ceilings of all members: matrix products in these precisions, copies and an all-reduce."""
    everyone = team.gather(list(_ceilings(device, team, precisions)))
    return [from_json(Ceiling, ceiling) for member in everyone for ceiling in member]


def _ceilings(device: Device, team: Team, precisions: list[str]) -> Iterator[Ceiling]:
    for precision in precisions:
        yield from _matmul(device, team, precision)
    if team.size > 1:
        yield from _own_rate(device, team)
    yield _memory(device, team)
    if device.kind == "cuda":
        yield from _host_copies(device, team)
    if team.size > 1:
        yield _all_reduce(device, team)


def _matmul(device: Device, team: Team, precision: str) -> Iterator[Ceiling]:
    dtype = _DTYPES[precision]
    if device.kind == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    cpu_shapes = _CPU_SHAPES if dtype == torch.float32 else _CPU_HALF_SHAPES
    for m, n, k in _GPU_SHAPES if device.kind == "cuda" else cpu_shapes:
        # Random, because on zeros a GPU draws less power, and runs faster than it ever does in training.
        a = torch.randn(m, k, device=device.torch, dtype=dtype)
        b = torch.randn(k, n, device=device.torch, dtype=dtype)
        for call in _fp8_products(a, b) if precision == "fp8" else products(a, b):
            samples = _timed(device, team, call)
            yield Ceiling(f"matmul-{precision}", team.rank, "FLOP/s", 2 * m * n * k, samples)


def products(a: torch.Tensor, b: torch.Tensor) -> Iterator[partial[torch.Tensor]]:
    """Yield the product of two matrices with its factors in every layout of training."""
    out = torch.empty(len(a), b.shape[1], device=a.device, dtype=a.dtype)
    for a_turned, b_turned in _LAYOUTS:
        yield partial(torch.mm, _turned(a) if a_turned else a, _turned(b) if b_turned else b, out=out)


def _turned(matrix: torch.Tensor) -> torch.Tensor:
    """Return an equal matrix whose columns lie one after the other in memory."""
    return matrix.t().contiguous().t()


def _fp8_products(a: torch.Tensor, b: torch.Tensor) -> Iterator[Callable[[], object]]:
    """Yield the product of two matrices in fp8; matrix units take this precision in one layout."""
    yield partial(torch_inside.fp8_product, *rows_in_fp8(a), *rows_in_fp8(b.t()))


def _own_rate(device: Device, team: Team) -> Iterator[Ceiling]:
    """Measure one product on one device after the other, then on all at once: names of one card share it."""
    m, n, k = (_GPU_SHAPES if device.kind == "cuda" else _CPU_HALF_SHAPES)[0]
    a, b = (torch.randn(*shape, device=device.torch, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
    call = partial(torch.mm, a, _turned(b))  # the layout of a linear layer, fast on every device
    for turn in range(team.size):
        team.wait()
        if turn == team.rank:
            alone = tuple(_call_seconds(device, call) for _ in range(WARM_CALLS + TIMED_CALLS))[WARM_CALLS:]
    team.wait()
    for name, samples in ((PRODUCT_ALONE, alone), (PRODUCT_TOGETHER, _timed(device, team, call))):
        yield Ceiling(name, team.rank, "FLOP/s", 2 * m * n * k, samples)


def _memory(device: Device, team: Team) -> Ceiling:
    source = _bytes(COPIED_BYTES[device.kind], device.torch)
    target = torch.empty_like(source)
    samples = _timed(device, team, lambda: target.copy_(source))
    # Each byte is read and written.
    return Ceiling("memory-bandwidth", team.rank, "B/s", 2 * source.nbytes, samples)


def _host_copies(device: Device, team: Team) -> Iterator[Ceiling]:
    on_device = _bytes(HOST_BYTES, device.torch)
    on_host = torch.empty_like(on_device, device="cpu", pin_memory=True)
    copies = {
        "host-to-device": lambda: on_device.copy_(on_host, non_blocking=True),
        "device-to-host": lambda: on_host.copy_(on_device, non_blocking=True),
    }
    for name, copy in copies.items():
        yield Ceiling(name, team.rank, "B/s", on_device.nbytes, _timed(device, team, copy))


def _all_reduce(device: Device, team: Team) -> Ceiling:
    tensor = torch.ones(REDUCED_BYTES[device.kind] // 4, device=device.torch)
    samples = _timed(device, team, lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX))
    # The least bytes that each device sends and receives: github.com/NVIDIA/nccl-tests doc/PERFORMANCE.md
    work = 2 * (team.size - 1) * tensor.nbytes // team.size
    return Ceiling("all-reduce", team.rank, "B/s", work, samples)


def _bytes(size: int, device: torch.device) -> torch.Tensor:
    """Return random bytes, drawn as 64-bit integers: a CPU draws single bytes three times as slowly."""
    return torch.empty(size // 8, device=device, dtype=torch.int64).random_().view(torch.uint8)


def _timed(device: Device, team: Team, call: Callable[[], object]) -> tuple[float, ...]:
    """Return the seconds of each call, after warm-up calls; all members begin each call together."""
    for _ in range(WARM_CALLS):
        call()
    samples = []
    for _ in range(TIMED_CALLS):
        device.synchronise()
        team.wait()
        samples.append(_call_seconds(device, call))
    return tuple(samples)


def _call_seconds(device: Device, call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    device.synchronise()
    return time.perf_counter() - started
