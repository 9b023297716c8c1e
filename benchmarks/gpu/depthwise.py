"""Time ConvNeXt-large's depthwise convolutions and their gradients, by torch and by bench's kernels.

    python benchmarks/gpu/depthwise.py [--samples 64] [--rounds 30] [--warps 4] [--programs 528]

Prints one line for each precision, stage and pass, with the ratio torch / Triton and the share by which the
results differ. CUDA graphs leave out the time of launching. Each graph holds calls on several tensors, too
large together for the cache. Both graphs alternate, so that a drift in the speed of the machine affects both.
`--warps` and `--programs` replace constants of bench/training/triton/depthwise.py.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from models import turn_on_gpu
from torch import Tensor

from bench.training.triton import depthwise

STAGES = ((192, 56), (384, 28), (768, 14), (1536, 7))  # channels, pixels a side
LARGER_THAN_CACHES = 512 << 20  # bytes
Call = Callable[[Tensor, Tensor, Tensor], Tensor]  # on images, the gradient of the output, filters


def torch_gradient(images: Tensor, grad: Tensor, weight: Tensor, which: int) -> Tensor:
    """Return the gradient of the images (0) or of the filters (1)."""
    one, reach, zero = [1, 1], [3, 3], [0, 0]
    wanted = [which == 0, which == 1, False]
    groups = images.shape[1]
    found = torch.ops.aten.convolution_backward(
        grad, images, weight, None, one, reach, one, False, zero, groups, wanted
    )
    gradient: Tensor = found[which]
    return gradient


def innermost(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def filters(weight: Tensor) -> Tensor:
    return weight.flatten(1).t()


PASSES: Mapping[str, tuple[Call, Call]] = {  # torch's and bench's
    "forward": (
        lambda x, _, w: F.conv2d(x, w, padding=3, groups=len(w)),
        lambda x, _, w: depthwise._convolved(innermost(x), filters(w), None).permute(0, 3, 1, 2),
    ),
    "gradient of images": (
        lambda x, dy, w: torch_gradient(x, dy, w, 0),
        lambda _, dy, w: depthwise._images_gradient(innermost(dy), filters(w)).permute(0, 3, 1, 2),
    ),
    "gradient of filters": (
        lambda x, dy, w: torch_gradient(x, dy, w, 1),
        lambda x, dy, w: depthwise._filters_gradient(innermost(x), innermost(dy)).to(w.dtype).t().view_as(w),
    ),
}


def captured(call: Call, inputs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> torch.cuda.CUDAGraph:
    for _ in range(3):  # compiles, and chooses algorithms
        call(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in inputs:
            call(*given)
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warps", type=int, default=depthwise.WARPS)
    parser.add_argument("--programs", type=int, default=depthwise.PROGRAMS)
    arguments = parser.parse_args()
    depthwise.WARPS, depthwise.PROGRAMS = arguments.warps, arguments.programs
    torch.backends.cudnn.allow_tf32 = True  # as in a free lunch
    print(torch.cuda.get_device_name(), f"warps {arguments.warps} programs {arguments.programs}")
    for dtype in (torch.bfloat16, torch.float32):
        for channels, side in STAGES:
            shape = (arguments.samples, channels, side, side)
            images = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
            weight = torch.randn(channels, 1, 7, 7, device="cuda", dtype=dtype)
            copies = max(2, LARGER_THAN_CACHES // (2 * images.nbytes))
            inputs = [(images.clone(), torch.randn_like(images), weight) for _ in range(copies)]
            for name, calls in PASSES.items():
                theirs, ours = (call(*inputs[0]).float() for call in calls)
                off = float((ours - theirs).norm() / theirs.norm())
                graphs = [captured(call, inputs) for call in calls]
                times = [[milliseconds(graph) for graph in graphs] for _ in range(arguments.rounds)]
                slow, fast = (1000 * statistics.median(each) / copies for each in zip(*times, strict=True))
                print(
                    f"{str(dtype).removeprefix('torch.'):8} {channels:4} x {side}x{side}  {name:19}"
                    f" torch {slow:7.1f} us  bench {fast:7.1f} us  ratio {slow / fast:5.2f}"
                    f"  {2 * images.nbytes / fast / 1000:5.0f} GB/s  off {off:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    with turn_on_gpu():
        main()
