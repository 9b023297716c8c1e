"""AdamW with 8-bit moments: its levels, what it stores, and how near it stays to AdamW."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.training.optimizers import AdamW8bit
from bench.training.optimizers.updates.adamw_8bit import (
    as_blocks,
    compiled_update,
    dynamic_levels,
    levels_on,
    new_state,
    step_factors,
    store,
    tables,
    update_blocks,
)

CPU = torch.device("cpu")
RECIPE = AdamW8bit("adamw-8bit", 1e-3, 0.9, 0.95, 1e-8, 0.1)
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize("signed", [True, False])
def test_there_are_256_levels_in_order_that_lie_closer_towards_zero(signed: bool) -> None:
    levels = list(dynamic_levels(signed=signed))
    assert len(set(levels)) == 256
    assert levels == sorted(levels)
    assert 0.0 in levels
    assert levels[-1] == 1.0
    assert min(levels) == (pytest.approx(-0.99, abs=0.01) if signed else 0.0)
    smallest = min(level for level in levels if level > 0)
    assert 1e-7 < smallest < 1e-6


@pytest.mark.parametrize("signed", [True, False])
def test_stored_numbers_come_back_within_a_few_percent_over_four_decades(signed: bool) -> None:
    torch.manual_seed(0)
    numbers = 10 ** (torch.rand(32, 256) * 4 - 4)
    if signed:
        numbers *= torch.randint(2, numbers.shape) * 2 - 1
    codes, scale = torch.zeros(32, 256, dtype=torch.uint8), torch.zeros(32, 1)
    levels = levels_on(CPU, signed=signed)
    store(numbers * 1e-5, codes, scale, levels)
    error = (levels[0][codes.int()] * scale / 1e-5 - numbers).abs() / numbers.abs()
    assert float(error.mean()) < (0.06 if signed else 0.03)
    largest = numbers.abs() > 0.1
    assert float(error[largest].max()) < 0.08


def trained(make: Any, steps: int = 50) -> tuple[list[float], list[Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 130), nn.Tanh(), nn.Linear(130, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = make(list(model.parameters()))
    inputs = torch.randn(512, 64)
    wanted = inputs[:, :8].sum(1, keepdim=True).sin()
    losses = []
    for _ in range(steps):
        loss = (model(inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.detach() for weight in model.parameters()], optimizer


def test_fifty_steps_stay_near_those_of_adamw() -> None:
    """The largest weights have 8,320 numbers, which do not fill blocks of 256."""
    exact, expected, _ = trained(lambda weights: torch.optim.AdamW(weights, **OPTIONS))
    losses, found, _ = trained(lambda weights: RECIPE.make(weights, [0] * len(weights), fused=False))
    assert losses[-1] < 0.5 * losses[0]
    assert losses == pytest.approx(exact, rel=0.02)
    moved = [float((new - old).norm()) for new, old in zip(found, expected, strict=True)]
    sizes = [float(weight.norm()) for weight in expected]
    assert all(distance < 0.02 * size for distance, size in zip(moved, sizes, strict=True))


def test_large_weights_have_a_byte_a_moment_and_small_ones_fp32() -> None:
    _, _, optimizer = trained(lambda weights: RECIPE.make(weights, [0] * len(weights), fused=False), steps=1)
    large = optimizer.param_groups[0]["params"]
    assert [weight.numel() for weight in large] == [8320, 8320]
    for weight, state in optimizer.state.items():
        if any(weight is one for one in large):
            assert state["mean"].dtype == state["root"].dtype == torch.uint8
            assert state["mean"].numel() == 33 * 256
            assert state["mean_scale"].numel() == 33
        else:
            assert state["exp_avg"].dtype == torch.float32


def test_what_was_saved_goes_on_exactly(tmp_path: Any) -> None:
    _, weights, optimizer = trained(
        lambda weights: RECIPE.make(weights, [0] * len(weights), fused=False), steps=5
    )
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copies = [nn.Parameter(weight.clone()) for weight in weights]
    loaded = RECIPE.make(copies, [0] * len(copies), fused=False)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    ours = [w for group in optimizer.param_groups for w in group["params"]]
    theirs = [w for group in loaded.param_groups for w in group["params"]]
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.ones_like(one)
        other.grad = torch.ones_like(other)
    optimizer.step()
    loaded.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        for name, value in optimizer.state[one].items():
            assert value.dtype == loaded.state[other][name].dtype
            assert torch.equal(value, loaded.state[other][name])


def test_weights_in_another_order_of_memory_are_updated_alike() -> None:
    torch.manual_seed(1)
    values, gradient = torch.randn(64, 32, 3, 3), torch.randn(64, 32, 3, 3)
    plain = nn.Parameter(values.clone())
    channels_last = nn.Parameter(values.to(memory_format=torch.channels_last, copy=True))
    for weight in (plain, channels_last):
        weight.grad = gradient.clone()
        RECIPE.make([weight], [0], fused=False).step()
    assert torch.equal(plain, channels_last)
    assert not torch.equal(plain, values)


@pytest.mark.slow
def test_the_compiled_update_computes_what_the_plain_one_does(compiled_here: None) -> None:
    torch.manual_seed(2)
    for numbers in (64 * 256, 100 * 256):  # of two sizes, one compilation
        weight, gradient = torch.randn(numbers), torch.randn(numbers)
        both = []
        for update in (update_blocks, compiled_update()):
            state, mine = new_state(weight), weight.clone()
            for step in (1, 2, 3):
                factors = torch.tensor(step_factors(OPTIONS, step))
                moments = (state["mean"], state["mean_scale"], state["root"], state["root_scale"])
                update(as_blocks(mine), as_blocks(gradient * step), *moments, factors, *tables(CPU))
            both.append((mine, copy.deepcopy(state)))
        (plain, one), (compiled, other) = both
        torch.testing.assert_close(plain, compiled)
        for name in ("mean_scale", "root_scale"):
            torch.testing.assert_close(one[name], other[name])
        for name in ("mean", "root"):  # a rounding of the last digit may cross the middle of two levels
            assert float((one[name] != other[name]).float().mean()) < 0.01
