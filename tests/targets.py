"""Machines for which tests make plans."""

from bench.training.methods import Target

CPU = Target("cpu", 1, 16 << 30, "a CPU")
H200 = Target("cuda", 1, 140 << 30, "NVIDIA H200", "9.0")
FOUR_H200 = Target("cuda", 4, 140 << 30, "NVIDIA H200", "9.0")
RTX_3090 = Target("cuda", 1, 24 << 30, "NVIDIA GeForce RTX 3090", "8.6")
A100 = Target("cuda", 1, 80 << 30, "NVIDIA A100-SXM4-80GB", "8.0")
V100 = Target("cuda", 1, 32 << 30, "Tesla V100-SXM2-32GB", "7.0")
