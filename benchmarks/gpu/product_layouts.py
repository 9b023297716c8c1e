"""Time the products of a linear layer by the layout of their factors, and the copies that change a layout.

    python benchmarks/gpu/product_layouts.py [--precision tf32|fp16|bf16] [ROWS,IN,OUT...] > layouts.json

A factor is "along" if the numbers that one sum multiplies lie side by side in memory, and "across" if not. In
training the gradient of a weight has two factors that are across, and the gradient of an input has one.
Prints a line of JSON for each shape, and a table on stderr: TFLOP/s of each product, and of the products
together with the copies that they need.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from models import turn_on_gpu
from tabulate import tabulate
from torch import Tensor
from torch.utils.benchmark import Timer

from bench.training.models.transposed_factors import transposed, weight_gradient

# Rows, width of the input and of the output, in ViT-L (256 images), ConvNeXt-XL (128 images) and Mamba.
SHAPES = (
    "50432,1024,1024", "50432,1024,4096", "50432,4096,1024",
    "401408,256,1024", "401408,1024,256", "100352,512,2048", "100352,2048,512",
    "25088,1024,4096", "25088,4096,1024", "6272,2048,8192", "6272,8192,2048",
)  # fmt: skip
PRECISIONS = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU."""
    median: float = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.15).median
    return median


@torch.compile(dynamic=False)
def turned(matrix: Tensor) -> Tensor:
    """Return a copy of the matrix in which columns lie side by side."""
    return matrix.t().contiguous().t()


def measured(rows: int, width: int, out: int, precision: torch.dtype) -> dict[str, float]:
    torch._dynamo.reset()  # a function has room for the shapes of few calls, and is not compiled for more
    entry = torch.randn(rows, width, device="cuda", dtype=precision)
    weight = torch.randn(out, width, device="cuda", dtype=precision)
    gradient = torch.randn(rows, out, device="cuda", dtype=precision)
    sums = torch.zeros(out, width, device="cuda", dtype=torch.float32)
    turned_entry, turned_weight, turned_gradient = turned(entry), turned(weight), turned(gradient)
    wanted = gradient.t() @ entry
    assert torch.equal(transposed(entry, gradient), entry.t())
    for left in (gradient, turned_gradient):
        for right in (entry, turned_entry):
            assert torch.allclose(left.t() @ right, wanted, rtol=0.05, atol=0.05 * rows**0.5)
    found = {
        "forward": seconds(lambda: entry @ weight.t()),
        "input, weight across": seconds(lambda: gradient @ weight),
        "input, weight along": seconds(lambda: gradient @ turned_weight),
        "weight, both across": seconds(lambda: gradient.t() @ entry),
        "weight, entry along": seconds(lambda: gradient.t() @ turned_entry),
        "weight, gradient along": seconds(lambda: turned_gradient.t() @ entry),
        "weight, both along": seconds(lambda: turned_gradient.t() @ turned_entry),
        "copy of entry": seconds(lambda: turned(entry)),
        "copy of gradient": seconds(lambda: turned(gradient)),
        "copy of weight": seconds(lambda: turned(weight)),
        "uncompiled copy of entry": seconds(lambda: entry.t().contiguous()),
        "bench's copy of entry": seconds(lambda: transposed(entry, gradient)),
        "bench's copy of gradient": seconds(lambda: transposed(gradient, gradient)),
        "weight, bench's copy": seconds(lambda: weight_gradient(gradient, entry)),
    }
    if precision == torch.float32:
        found["weight, both across, added"] = seconds(lambda: sums.addmm_(gradient.t(), entry))
        found["weight, entry along, added"] = seconds(lambda: sums.addmm_(gradient.t(), turned_entry))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="tf32")
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="ROWS,IN,OUT")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    lines = []
    with turn_on_gpu():
        for shape in asked.shapes:
            rows, width, out = map(int, shape.split(","))
            found = measured(rows, width, out, PRECISIONS[asked.precision])
            torch.cuda.empty_cache()
            gpu = torch.cuda.get_device_name()
            line = {"shape": shape, "precision": asked.precision, "gpu": gpu, "seconds": found}
            print(json.dumps(line), flush=True)
            rate = 2e-12 * rows * width * out
            lines.append({"shape": shape} | {
                name: f"{1e6 * time:.0f} us" if "copy" in name else f"{rate / time:.0f}"
                for name, time in found.items()
            })  # fmt: skip
    print(tabulate([list(line.values()) for line in lines], headers=list(lines[0])), file=sys.stderr)


if __name__ == "__main__":
    main()
