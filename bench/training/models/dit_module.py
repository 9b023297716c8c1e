"""The module of DiT, written from the paper: Peebles and Xie, arXiv 2212.09748, with adaLN-Zero.

Imports torch at module level: only dit.py imports it, in a worker or in the process of dry_build.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.models.module_family import Answer

FREQUENCIES = 128  # of a timestep; each has a sine and a cosine
LONGEST = 10_000  # longest wavelength of timesteps and positions, in units of 2 pi


class Dit(nn.Module):
    """Predicts the noise of latents, and its variance if the architecture has `learn_sigma`."""

    def __init__(self, a: Mapping[str, Any], *, fused: bool) -> None:
        super().__init__()
        width, side = a["hidden_size"], a["input_size"] // a["patch_size"]
        self.patch, self.side = a["patch_size"], side
        self.channels = a["in_channels"] * (2 if a["learn_sigma"] else 1)
        self.no_class = a["num_classes"]
        self.drop_class = float(a["class_dropout_prob"])
        self.embed_patches = nn.Linear(a["in_channels"] * self.patch**2, width)
        self.embed_timestep = nn.Sequential(
            nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.embed_class = nn.Embedding(self.no_class + 1, width)
        self.register_buffer("positions", positions(side, width), persistent=False)
        self.blocks = nn.ModuleList(DitBlock(a, fused=fused) for _ in range(a["depth"]))
        self.norm = _norm(width)
        self.modulation = nn.Linear(width, 2 * width)
        self.to_patches = nn.Linear(width, self.channels * self.patch**2)

    def forward(self, noisy: Tensor, timestep: Tensor, class_labels: Tensor) -> Answer:
        """Take latents [samples, channels, side, side]; return as large ones."""
        tokens = self.embed_patches(_patches_of(noisy, self.patch)) + self.positions.to(noisy.dtype)
        condition = self.embed_timestep(waves(timestep, FREQUENCIES).to(noisy.dtype))
        condition = F.silu(condition + self.embed_class(self._some_dropped(class_labels)))
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.modulation(condition).unsqueeze(1).chunk(2, dim=-1)
        patches = self.to_patches(_modulated(self.norm(tokens), shift, scale))
        return Answer(self._image_of(patches))

    def _some_dropped(self, class_labels: Tensor) -> Tensor:
        """Return the labels with some replaced by "no class", as guidance without a classifier needs."""
        if not (self.training and self.drop_class):
            return class_labels
        dropped = torch.rand(class_labels.shape, device=class_labels.device) < self.drop_class
        return class_labels.masked_fill(dropped, self.no_class)

    def _image_of(self, patches: Tensor) -> Tensor:
        """Put patches [samples, patches, numbers] together: the inverse of `_patches_of`."""
        side, patch = self.side, self.patch
        parts = patches.unflatten(2, (patch, patch, self.channels)).unflatten(1, (side, side))
        return parts.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


class DitBlock(nn.Module):
    """Attention and MLP between two norms that the condition shifts and scales, each behind a gate."""

    def __init__(self, a: Mapping[str, Any], *, fused: bool) -> None:
        super().__init__()
        width = a["hidden_size"]
        inner = int(width * a["mlp_ratio"])
        self.modulation = nn.Linear(width, 6 * width)
        self.attention_norm, self.mlp_norm = _norm(width), _norm(width)
        self.attention = DitAttention(width, a["num_heads"], fused=fused)
        self.mlp = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width)
        )
        # The paper begins with closed gates, through which no gradient flows: see docs/adr/0034.
        with torch.no_grad():
            for gate in (2, 5):
                self.modulation.bias.view(6, width)[gate] += 1

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """Mix and transform tokens, shifted, scaled and gated by what the condition says for each sample."""
        parts = self.modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts
        tokens = tokens + gate * self.attention(_modulated(self.attention_norm(tokens), shift, scale))
        return tokens + mlp_gate * self.mlp(_modulated(self.mlp_norm(tokens), mlp_shift, mlp_scale))


class DitAttention(nn.Module):
    """Attention of every token to every token, by PyTorch's fused kernels or written out."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Let every token attend to all; not fused, the scores are a tensor of their own."""
        # [3, samples, heads, tokens, width of a head]
        query, key, value = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            scores = (query * query.size(-1) ** -0.5) @ key.transpose(-2, -1)
            mixed = scores.softmax(dim=-1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def waves(numbers: Tensor, frequencies: int) -> Tensor:
    """Return the cosines and sines of numbers at frequencies from 1 down to nearly 1 / LONGEST."""
    exponents = torch.arange(frequencies, device=numbers.device, dtype=torch.float32) / frequencies
    angles = numbers.float().unsqueeze(-1) * torch.exp(-math.log(LONGEST) * exponents)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def positions(side: int, width: int) -> Tensor:
    """Return the fixed positions of patches: half of the width is for the row, half for the column."""
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.cat((waves(row.flatten(), width // 4), waves(column.flatten(), width // 4)), dim=-1)


def _patches_of(images: Tensor, patch: int) -> Tensor:
    """Cut images [samples, channels, side, side] into patches [samples, patches, numbers]."""
    side = images.size(-1) // patch
    parts = images.unflatten(3, (side, patch)).unflatten(2, (side, patch))
    return parts.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)


def _modulated(normed: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return normed * (1 + scale) + shift
