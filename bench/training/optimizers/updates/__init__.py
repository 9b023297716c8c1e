"""The updates of optimizers that torch lacks or computes slowly. The files import torch at module level."""

BLOCK = 256  # numbers that share a scale in adamw-8bit
