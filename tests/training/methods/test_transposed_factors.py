"""Gradients of linear layers in fp32 are products with transposed copies, and the same as without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import conflict, free_lunch, known_methods
from bench.training.models import known_models, transposed_factors
from bench.training.models.transposed_factors import (
    MIN_ROWS,
    linear_layers_of,
    room_for_transposed,
    take_over,
    transposed,
    weight_gradient,
)
from tests.targets import CPU, H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import IMAGES, built, model_of, named

METHOD = known_methods()["transposed-factors"]
TRANSPOSED = torch.ops.bench.transposed.default
PICTURES = [model_of(name, "image-classification", given) for name, given in IMAGES.items()]


class Seen(TorchDispatchMode):
    """Keep the shapes of the matrices that are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is TRANSPOSED:
            self.copies.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """Layers of which three read the same tensor, and one is wider than it is long."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.query, self.key, self.wide = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 64)
        self.narrow = nn.Linear(64, 16)

    def forward(self, hidden: Tensor) -> Tensor:
        entry = self.norm(hidden)
        mixed = self.query(entry) * self.key(entry)
        return mixed + self.narrow(F.gelu(self.wide(entry)))  # type: ignore[no-any-return]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inputs of few rows and narrow layers pay."""
    monkeypatch.setattr(transposed_factors, "MIN_ROWS", 1)
    monkeypatch.setattr(transposed_factors, "MIN_WIDTH", 16)


def gradients(module: nn.Module, run: Callable[..., Any], entry: Tensor) -> list[Tensor]:
    entry = entry.detach().requires_grad_()
    module.zero_grad()
    run(entry).square().sum().backward()
    return [entry.grad, *(weight.grad.clone() for weight in module.parameters() if weight.grad is not None)]  # type: ignore[list-item]


@pytest.mark.usefixtures("small")
def test_the_narrower_factor_of_a_weight_s_gradient_is_copied_and_each_weight() -> None:
    torch.manual_seed(0)
    block, entry = Block(), torch.randn(2, 6, 16)
    expected = gradients(block, block.forward, entry)
    METHOD.apply(known_models()["tiny-vit"], block, [block])
    with Seen() as seen:
        found = gradients(block, block.forward, entry)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weights = [tuple(layer.weight.shape) for layer in linear_layers_of(block)]
    assert sorted(seen.copies) == sorted([*weights, *[(12, 16)] * 4])


@pytest.mark.usefixtures("small", "compiled_here")
def test_compiled_layers_that_read_the_same_tensor_share_one_copy_made_in_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[tuple[int, ...]] = []
    of_forward: list[int] = []

    def room(matrix: Tensor) -> Tensor:
        copies.append(tuple(matrix.shape))
        return room_for_transposed(matrix)

    def run(entry: Tensor) -> Tensor:
        out: Tensor = compiled(entry)
        of_forward.append(len(copies))
        return out

    torch.manual_seed(0)
    block, entry = Block(), torch.randn(2, 6, 16)
    expected = gradients(block, block.forward, entry)
    METHOD.apply(known_models()["tiny-vit"], block, [block])
    known_methods()["compile-blocks"].prepare()
    compiled = torch.compile(block.forward, dynamic=False)
    monkeypatch.setattr(transposed_factors, "room_for_transposed", room)
    torch.testing.assert_close(gradients(block, run, entry), expected, rtol=1e-4, atol=1e-4)
    assert of_forward == [0]
    assert copies.count((12, 16)) == 2  # of what query, key and wide read, and of narrow's gradient
    assert len(copies) == 2 + 4  # with the weights


def test_short_inputs_and_inputs_without_a_gradient_are_left_to_torch() -> None:
    layer = nn.Linear(8, 2048)
    take_over(layer)
    with Seen() as seen:
        layer(torch.randn(MIN_ROWS - 1, 8, requires_grad=True)).sum().backward()
        layer(torch.randn(MIN_ROWS, 8)).sum().backward()
    assert seen.copies == []
    with Seen() as seen:
        layer(torch.randn(MIN_ROWS, 8, requires_grad=True)).sum().backward()
    assert seen.copies == [(2048, 8), (MIN_ROWS, 8)]


def test_factors_of_narrow_layers_are_not_copied_for_the_gradient_of_the_weight() -> None:
    changes, entries = torch.randn(40, 24), torch.randn(40, 32)
    with Seen() as seen:
        torch.testing.assert_close(weight_gradient(changes, entries), changes.t() @ entries)
    assert seen.copies == []


def test_layers_that_cannot_be_taken_are_left_alone() -> None:
    class Own(nn.Linear):
        pass

    half, odd = nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 12)
    fits = nn.Linear(16, 8, bias=False)
    assert linear_layers_of(nn.ModuleList([half, odd, Own(8, 8), fits])) == [fits]


@pytest.mark.parametrize(
    ("rows", "stride"), [(1, 32), (32, 32), (33, 96), (4064, 4064), (4096, 4128), (401_408, 401_440)]
)
def test_an_odd_number_of_lines_lies_between_the_rows_of_a_copy(rows: int, stride: int) -> None:
    with torch.device("meta"):
        copy = room_for_transposed(torch.empty(rows, 8))
    assert copy.shape == (8, rows) and copy.stride() == (stride, 1)
    assert stride >= rows and stride // 32 % 2 == 1


def test_a_copy_has_the_numbers_and_the_strides_that_its_operator_promises() -> None:
    matrix = torch.randn(5, 8)
    assert torch.equal(transposed(matrix, matrix), matrix.t())
    torch.library.opcheck(transposed, (matrix, matrix))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("model", PICTURES, ids=named)
def test_loss_and_gradients_of_models_of_images_are_those_without_the_method(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transposed_factors, "ROW_MULTIPLE", 1)
    found = []
    for method in (False, True):
        whole = WithLoss(built(model, kernels=False))
        if method:
            assert linear_layers_of(whole)
            METHOD.apply(model, whole, [])
        loss = whole(made_up_batch(model, 2))
        loss.backward()
        found.append([loss.detach(), *(w.grad for w in whole.parameters() if w.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_fp32_recipes_take_the_method_on_hopper_alone() -> None:
    vit = known_models()["vit-l"]
    assert "transposed-factors" in free_lunch(vit, H200)
    ampere = replace(H200, compute_capability="8.0")
    assert "9.0 alone" in str(METHOD.refuse(vit, ampere))
    assert "transposed-factors" not in free_lunch(vit, ampere)
    assert METHOD.refuse(vit, CPU)
    assert "half precision" in str(METHOD.refuse(known_models()["pythia-1b"], H200))
    assert "add tf32" in str(conflict(("transposed-factors",)))
