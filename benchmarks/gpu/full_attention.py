"""Time attention of all positions to all others in fp32, forward and backward, with each kernel in TF32.

    python benchmarks/gpu/full_attention.py [SAMPLES,POSITIONS,HEADS,WIDTH...] > kernels.jsonl

Kernels are bench's own, FlexAttention as bench calls it, and products of matrices in batches, whose softmax
the compiler fuses. Times are in milliseconds; "off" is the largest distance from attention in fp64, of the
result and of each gradient, as a share of the largest number.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from models import turn_on_gpu
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.training.models import full_attention

SHAPES = ("256,197,16,64", "64,257,16,64", "32,577,16,64", "256,197,16,32", "8,197,16,64")  # the first: ViT-L
REPEATS, ROUNDS = 6, 5
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # tensors of shape (samples, heads, positions, width)


def by_name(name: str) -> Attention:
    """Return attention that transformers calls by this name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attend = ALL_ATTENTION_FUNCTIONS[name]

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = attend(None, query, key, value, None, is_causal=False)[0]
        return result

    return call


def by_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weight = torch.softmax(query @ key.transpose(2, 3) * query.size(-1) ** -0.5, -1)
    return (weight @ value).transpose(1, 2).contiguous()


def exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value).transpose(1, 2)


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, when it does not wait for the host."""
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEATS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / REPEATS)
    return statistics.median(times)


def measured(attend: Attention, inputs: Sequence[Tensor], change: Tensor) -> dict[str, object]:
    result = attend(*inputs)

    def backward() -> Sequence[Tensor]:
        return torch.autograd.grad(result, inputs, change, retain_graph=True)

    found = [result.detach()[:2], *(each[:2] for each in backward())]
    few = [each.detach()[:2].double().requires_grad_() for each in inputs]
    right = exact(*few)
    expected = [right.detach(), *torch.autograd.grad(right, few, change[:2].double())]
    off = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True)]
    with torch.no_grad():
        forward_ms = milliseconds(lambda: attend(*inputs))
    return {"forward": forward_ms, "backward": milliseconds(backward), "off": off}


def kernels() -> Mapping[str, Attention]:
    """Return what is compared. Code that the compiler can fuse is compiled, bench's included."""
    named = {
        "bench": by_name(full_attention.full_attention()),
        "flex": by_name(full_attention.flex_attention()),
        "products": by_products,
    }
    return {name: torch.compile(attend, dynamic=False) for name, attend in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="SAMPLES,POSITIONS,HEADS,WIDTH")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    with turn_on_gpu():
        for shape in asked.shapes:
            samples, positions, heads, width = map(int, shape.split(","))
            rows = samples, positions, heads, width
            inputs = [
                torch.randn(rows, device="cuda").transpose(1, 2).detach().requires_grad_() for _ in range(3)
            ]
            change = torch.randn(rows, device="cuda")
            torch._dynamo.reset()  # a function has room for the shapes of few calls
            for name, attend in kernels().items():
                found = measured(attend, inputs, change)
                gpu = torch.cuda.get_device_name()
                print(json.dumps({"shape": shape, "gpu": gpu, "kernel": name, **found}), flush=True)


if __name__ == "__main__":
    main()
