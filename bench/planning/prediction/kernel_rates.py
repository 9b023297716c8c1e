"""Rates of kernels that were timed by themselves, apart from whole steps. Pure.

Times are in cycles of one multiprocessor. Divided by CardRates.cycles they give the seconds on a card,
because the time of these kernels depends on a card's multiprocessors and clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

# Of the rate of large products. An H200 computes the convolutions of ConvNeXt's downsampling at 31% of it, of
# Whisper's spectrograms at 18%, of ViT's patches at 4% and of ConvNeXt's patches at 2% (cuDNN, channels
# outermost, half precision; docs/evidence/operations-h200); together, weighted as ConvNeXt has them, at 18%.
DENSE_CONVOLUTIONS = 0.18

# Attention in fp32, of the rate of products in TF32, by the method: PyTorch's own memory-efficient kernels
# multiply in fp32, the others in TF32. Heads of 64, 197 positions, one H200 (results/frontier-h200/
# where-time-goes.txt, docs/evidence/neox-speed-h200/second/families.json; bench's kernels: results/
# attention-h200/kernels.jsonl, compared with FlexAttention's there).
ATTENTION_IN_FP32: Mapping[str | None, float] = {
    "full-attention": 0.139,
    "flex-attention": 0.101,
    None: 0.0485,
}

# Cycles that fused attention takes for each element of its queries, forwards and backwards, beside its
# operations: it reads and writes queries, keys, values and their gradients, and adds up a product of each
# row. Times at 512 and at 2,048 positions give 4.9 (results/frontier-h100/attention-dropout-*.json), those of
# heads of 64 to 256 give 3.9 (docs/evidence/neox-speed-h200/first/attention.json).
QUERY_CYCLES = 4.0

# Cycles for each state of a scan of Mamba 2, forwards and backwards: positions times channels times states of
# one channel. mamba-ssm's kernels with 128 states in half precision, one H200, without the convolution before
# them (the floor of results/zoo-h200/granite-h-1b.tar).
CHUNKED_SCAN_CYCLES = 0.11

DepthwiseKernel = Literal["bench", "cudnn"]
# Cycles for each element that a depthwise convolution of seven by seven writes, forwards and backwards, by
# bench's kernels in Triton or by cuDNN; True is fp32. The geometric mean over ConvNeXt-large's four stages on
# one H100 (results/frontier-h100/depthwise.txt). In fp32, cuDNN spends most of it on the gradient of filters.
DEPTHWISE_CYCLES: Mapping[tuple[DepthwiseKernel, bool], float] = {
    ("bench", False): 4.9,
    ("bench", True): 5.8,
    ("cudnn", False): 9.0,
    ("cudnn", True): 90.6,
}
# Smaller filters take less: cycles by the number of weights that a filter has, in half precision. Four in a
# row by causal-conv1d and three by three by cuDNN, from floors in results/zoo-h200: granite-h-1b.tar,
# jamba-1.4b.tar, and segformer-b5.tar without its dense convolutions. Seven by seven as above.
CYCLES_BY_WEIGHTS = ((4, 1.7), (9, 3.3), (49, 9.0))


def depthwise_cycles(kernel: DepthwiseKernel, *, fp32: bool, weights: float) -> float:
    """Return the cycles of an element that a filter with this number of weights writes.

    Between the sizes that were measured they rise evenly. In fp32, and by bench's kernels, other sizes than
    seven by seven are assumed to take the same share of its time.
    """
    (least, cycles), *larger = CYCLES_BY_WEIGHTS
    for more, cycles_of_more in larger:
        if least < weights:
            share = min(1.0, (weights - least) / (more - least))
            cycles += share * (cycles_of_more - cycles)
        least = more
    return DEPTHWISE_CYCLES[kernel, fp32] * cycles / CYCLES_BY_WEIGHTS[-1][1]
