"""Time attention, forward and backward, with each installed kernel: that of the Pythias, or of one shape.

    python benchmarks/gpu/attention.py [--rounds 30] > attention.json
    python benchmarks/gpu/attention.py --shape 8 16 2048 64 --full --dropout 0.1 > roberta.json

Kernels alternate, so that a drift in the speed of the machine affects all of them. Errors of a kernel are
printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from models import turn_on_gpu
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.training.models import known_models

MICRO_BATCHES = {"pythia-160m": 64, "pythia-410m": 32, "pythia-1b": 32, "pythia-2.8b": 8, "pythia-6.9b": 4}
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # tensors of shape (samples, heads, positions, width)


def kernels(*, causal: bool, dropout: float) -> Iterator[tuple[str, Attention]]:
    choice = partial(scaled_dot_product_attention, is_causal=causal, dropout_p=dropout)
    yield "choice", choice
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        yield name, forced(backend, choice)
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        print(f"flash-attn-4 is not installed: {error}", file=sys.stderr)
        return

    def newest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    if not dropout:
        yield "flash-attn-4", newest


def forced(backend: SDPBackend, choice: Attention) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([backend]):
            return choice(q, k, v)

    return attend


def seconds(attend: Attention, inputs: list[Tensor], gradient: Tensor) -> float:
    started = now()
    torch.autograd.grad(attend(*inputs), inputs, gradient)
    return now() - started


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(
    here: Mapping[str, Attention], shape: tuple[int, ...], half: torch.dtype, rounds: int
) -> dict[str, Any]:
    device, dtype = ("cuda", half) if torch.cuda.is_available() else ("cpu", torch.float32)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, device=device, dtype=dtype)
    found: dict[str, Any] = {}
    working: dict[str, Attention] = {}
    for name, attend in here.items():
        try:
            seconds(attend, inputs, gradient)  # warm up: some kernels are compiled at first use
            with torch.no_grad():
                off = float((attend(*inputs) - here["choice"](*inputs)).abs().max())
        except Exception as error:  # kernels raise different errors for unsupported shapes
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
            continue
        working[name] = attend
        found[name] = {"off": off, "seconds": []}
    for _ in range(rounds):
        for name, attend in working.items():
            found[name]["seconds"].append(seconds(attend, inputs, gradient))
    for name in working:
        found[name]["median"] = statistics.median(found[name]["seconds"])
    return found


def shapes(samples: int | None) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Yield the Pythias' names, the shapes of their queries, and their precisions."""
    for name, micro_batch in MICRO_BATCHES.items():
        model = known_models()[name]
        heads, width = model.architecture["num_attention_heads"], model.architecture["hidden_size"]
        shape = (samples or micro_batch, heads, model.recipe.sequence_length or 0, width // heads)
        yield name, shape, torch.bfloat16 if model.recipe.precision == "bf16" else torch.float16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=int, help="samples per pass of the Pythias, for a trial run")
    parser.add_argument("--shape", type=int, nargs=4, help="samples, heads, positions, width, in bf16")
    parser.add_argument("--full", action="store_true", help="attention to later positions as well")
    parser.add_argument("--dropout", type=float, default=0.0)
    asked = parser.parse_args()
    here = dict(kernels(causal=not asked.full, dropout=asked.dropout))
    one = [("one shape", tuple(asked.shape), torch.bfloat16)] if asked.shape else None
    with turn_on_gpu():
        for name, shape, half in one or shapes(asked.samples):
            found = measured(here, shape, half, asked.rounds)
            how = {"causal": not asked.full, "dropout": asked.dropout}
            print(json.dumps({"model": name, "shape": shape, **how, **found}), flush=True)


if __name__ == "__main__":
    main()
