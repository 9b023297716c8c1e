"""Muon: its orthogonalisation, its update beside torch.optim.Muon's, and which weights are matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bench.base.errors import BadInput
from bench.training.optimizers import Muon
from bench.training.optimizers.updates.block_matrices import block_matrices
from bench.training.optimizers.updates.muon import orthogonalised


def muon(**changes: Any) -> Muon:
    return Muon("muon", 0.01, 0.9, 0.95, 1e-8, 0.1, **changes)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 96), (2, 96, 16), (1, 1, 8)])
def test_singular_values_become_about_one_and_singular_vectors_stay(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    found = orthogonalised(matrices.bfloat16(), 5).float()
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ found @ right.mT  # the singular values, if the vectors are the same
    diagonal = values.diagonal(dim1=1, dim2=2)
    assert float(diagonal.min()) > 0.5
    assert float(diagonal.max()) < 1.3
    assert float((values - diagonal.diag_embed()).abs().max()) < 0.1


def test_a_stack_is_orthogonalised_matrix_by_matrix() -> None:
    torch.manual_seed(1)
    matrices = torch.randn(4, 24, 48) * torch.tensor([1e-4, 1.0, 1e3, 0.0]).view(4, 1, 1)
    together = orthogonalised(matrices.bfloat16(), 5)
    alone = torch.cat([orthogonalised(one.bfloat16(), 5) for one in matrices.split(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=0.02)
    assert not together[3].any()  # zeros stay zeros


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_matrices_are_updated_as_by_torch_and_the_rest_as_by_adamw(adjust_lr: Any, nesterov: bool) -> None:
    torch.manual_seed(2)
    shapes = [(16, 32), (32, 16), (16, 32), (16, 16)]
    weights = [nn.Parameter(torch.randn(shape)) for shape in [*shapes, (40,), (64, 8)]]
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    recipe = muon(adjust_lr=adjust_lr, nesterov=nesterov, adamw_learning_rate=3e-3)
    ours = recipe.make(weights, [1, 1, 1, 1, 0, 0], fused=False)
    torchs = torch.optim.Muon(
        copies[:4], lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=adjust_lr
    )
    adamw = torch.optim.AdamW(copies[4:], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for _ in range(3):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn_like(weight)
            copy.grad = weight.grad.clone()
        for optimizer in (ours, torchs, adamw):
            optimizer.step()
    for weight, copy in zip(weights[:4], copies[:4], strict=True):
        torch.testing.assert_close(weight, copy, rtol=0, atol=0.01 * 2e-1)  # products in bf16
    for weight, copy in zip(weights[4:], copies[4:], strict=True):
        torch.testing.assert_close(weight, copy)


def test_filters_are_rows_and_experts_are_matrices_of_their_own() -> None:
    """A convolution's weight and a stack of experts change like the same numbers in plain matrices."""
    torch.manual_seed(3)
    gradients = [torch.randn(6, 3, 2, 2), torch.randn(2, 5, 7)]
    stacked = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
    plain = [nn.Parameter(torch.zeros(6, 12)), *(nn.Parameter(torch.zeros(5, 7)) for _ in range(2))]
    for weight, gradient in zip(stacked, gradients, strict=True):
        weight.grad = gradient
    for weight, gradient in zip(plain, [gradients[0].flatten(1), *gradients[1]], strict=True):
        weight.grad = gradient
    muon().make(stacked, [1, 2], fused=False).step()
    muon().make(plain, [1, 1, 1], fused=False).step()
    torch.testing.assert_close(stacked[0].flatten(1), plain[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(stacked[1], torch.stack(plain[1:]), rtol=0, atol=1e-3)
    assert float(stacked[1].abs().min().detach()) > 0


def test_the_loss_of_a_small_model_falls() -> None:
    torch.manual_seed(4)
    body = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
    model = nn.Sequential(body, nn.Linear(32, 1))
    optimizer = muon().make(list(model.parameters()), block_matrices(model, [body]), fused=True)
    inputs = torch.randn(256, 8)
    wanted = inputs[:, :3].sum(1, keepdim=True).sin()
    losses = []
    for _ in range(60):
        loss = (model(inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_model_without_matrices_in_blocks_is_refused() -> None:
    with pytest.raises(BadInput, match="no matrix in repeated blocks"):
        muon().make([nn.Parameter(torch.zeros(3, 3))], [0], fused=False)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 4
        self.up = nn.Parameter(torch.zeros(4, 6, 5))
        self.bias = nn.Parameter(torch.zeros(4, 6))


class Block(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.of_gpt2 = Conv1D(8, 8)
        self.convolution = nn.Conv2d(3, 6, 2)
        self.depthwise = nn.Conv1d(8, 8, 3, groups=8)
        self.positions = nn.Embedding(4, 8)
        self.experts = Experts()
        self.router = nn.Parameter(torch.zeros(4, 8))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.tied = nn.Linear(8, 10, bias=False)
        self.tied.weight = table.weight


def test_what_a_module_is_decides() -> None:
    table = nn.Embedding(10, 8)
    block = Block(table)
    whole = nn.ModuleDict({"table": table, "block": block, "shared": nn.ModuleList([block])})
    whole["head"] = nn.Linear(8, 10)
    names = [name for name, _ in whole.named_parameters()]
    counts = dict(zip(names, block_matrices(whole, [block]), strict=True))
    assert {name: count for name, count in counts.items() if count} == {
        "block.linear.weight": 1,
        "block.of_gpt2.weight": 1,
        "block.convolution.weight": 1,
        "block.experts.up": 4,
    }


def test_known_families_have_matrices_in_their_blocks() -> None:
    from bench.training.models import family_of, known_models

    for name, model in known_models().items():
        if not name.startswith("tiny-"):
            continue
        family = family_of(model)
        with torch.device("meta"):
            module = family.build(model, kernels=False)
        blocks = family.blocks(module)
        counts = block_matrices(module, blocks)
        inside = sum(p.numel() for block in blocks for p in block.parameters())
        found = sum(p.numel() for p, count in zip(module.parameters(), counts, strict=True) if count)
        assert 0.75 * inside < found < inside, name
