"""Products and embeddings that add a weight's gradient to its sum give the same fp32 numbers as autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.runner.trial.fused_gradient_sums import (
    MIN_ROWS,
    add_up_in_products,
    add_up_rows,
    adds_up,
    adds_up_rows,
    join_products,
)


def sums_of(layer: nn.Linear) -> Tensor:
    sums = torch.zeros(layer.weight.shape)
    add_up_in_products(layer, sums)
    return sums


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_equal_those_of_autograd_and_are_added_to_the_sums(bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 24, bias=bias).to(dtype)
    entries = [torch.randn(3, 5, 16).to(dtype).requires_grad_() for _ in range(2)]
    changes = [torch.randn(3, 5, 24).to(dtype) for _ in range(2)]
    given = [layer(entry) for entry in entries]
    torch.autograd.backward(given, changes)
    assert layer.weight.grad is not None
    of_weight = layer.weight.grad.float()
    others = [entry.grad for entry in entries] + [layer.bias.grad if bias else torch.zeros(1)]
    layer.zero_grad()
    for entry in entries:
        entry.grad = None
    sums = sums_of(layer)
    for entry, change, expected in zip(entries, changes, given, strict=True):
        found = layer(entry)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        found.backward(change)
    assert layer.weight.grad is None
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(sums, of_weight, **close)
    now = [entry.grad for entry in entries] + [layer.bias.grad if bias else torch.zeros(1)]
    for one, other in zip(now, others, strict=True):
        torch.testing.assert_close(one, other, **close)


def test_sums_in_one_buffer_do_not_invalidate_each_other() -> None:
    """Autograd refuses modified saved tensors; here the second layer writes before the first reads."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    flat = torch.zeros(128)
    for layer, part in zip((first, second), flat.split(64), strict=True):
        add_up_in_products(layer, part.view(8, 8))
    second(first(torch.ones(2, 8, requires_grad=True))).sum().backward()
    assert all(part.abs().sum() > 0 for part in flat.split(64))


def test_the_output_of_a_layer_may_be_modified_in_place() -> None:
    """DeBERTa scales its queries in place; autograd forbids this for a view that an operator returned."""
    layer = nn.Linear(8, 8)
    sums = sums_of(layer)
    out = layer(torch.ones(2, 4, 8, requires_grad=True))
    out.view(2, 4, 2, 4).div_(2)
    out[..., :3].add_(1)
    out.sum().backward()
    torch.testing.assert_close(sums, torch.full((8, 8), 4.0))


def test_a_vector_input_is_accepted() -> None:
    layer = nn.Linear(8, 8)
    sums_of(layer)
    layer(torch.ones(8, requires_grad=True)).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.ones(8, 8))


def test_a_shared_weight_keeps_the_gradient_of_its_other_use() -> None:
    """A head may share its weight with the embedding."""
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    sums = sums_of(head)
    head(embedding(torch.tensor([1, 2]))).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad[[1, 2]].abs().sum() > 0
    assert embedding.weight.grad[3:].abs().sum() == 0, "the head's is in the sums"
    assert sums.abs().sum() > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_gradient_is_lost_if_the_input_needs_none(backend: str) -> None:
    """A compiler drops an operator whose result is unused, as in the first layer of a picture model."""
    torch._dynamo.reset()
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    sums = [sums_of(layer) for layer in (first, second)]
    torch.compile(nn.Sequential(first, nn.ReLU(), second), backend=backend)(torch.ones(3, 8)).sum().backward()
    assert first.weight.grad is not None
    assert first.weight.grad.abs().sum() > 0
    assert second.weight.grad is None
    assert sums[1].abs().sum() > 0


@pytest.mark.parametrize("as_one", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_layer_that_is_used_twice_adds_two_gradients(backend: str, as_one: bool) -> None:
    """ALBERT uses all its layers repeatedly: the second use writes to the sums before the first."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, entry = nn.Linear(8, 8), torch.randn(3, 8, requires_grad=True)
    layer(layer(entry)).sum().backward()
    assert layer.weight.grad is not None
    expected, layer.weight.grad = layer.weight.grad, None
    sums = sums_of(layer)
    once, twice = (torch.compile(f, backend=backend) for f in (layer, lambda x: layer(layer(x))))
    (twice(entry) if as_one else once(once(entry))).sum().backward()
    torch.testing.assert_close(sums, expected)


def test_rows_of_odd_length_and_customised_layers_are_left_to_autograd() -> None:
    class Own(nn.Linear):
        pass

    assert adds_up(nn.Linear(64, 128))
    others = (nn.Linear(64, 50_265), nn.Linear(72, 64), nn.LayerNorm(64), Own(64, 64))
    assert not any(map(adds_up, others))


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_an_embedding_adds_the_gradients_of_the_rows_that_it_looked_up(
    padding: int | None, backend: str | None
) -> None:
    torch._dynamo.reset()
    embedding = nn.Embedding(16, 8, padding_idx=padding)
    ids, change = torch.tensor([[1, 3, 3], [15, 1, 0]]), torch.randn(2, 3, 8)
    embedding(ids).backward(change)
    assert embedding.weight.grad is not None
    expected, embedding.weight.grad = embedding.weight.grad, None
    sums = torch.ones(16, 8)
    add_up_rows(embedding, sums)
    look_up = torch.compile(embedding, backend=backend) if backend else embedding
    found = look_up(ids)
    torch.testing.assert_close(found, embedding.weight[ids])
    found.backward(change)
    # Compiled together with the rest of a model, an embedding leaves its gradient to autograd.
    added = embedding.weight.grad if backend else sums - 1
    torch.testing.assert_close(added, expected)


def test_an_embedding_that_shares_its_weight_with_the_head_adds_to_the_same_sums() -> None:
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    ids = torch.tensor([1, 2])
    head(embedding(ids)).sum().backward()
    assert embedding.weight.grad is not None
    expected, embedding.weight.grad = embedding.weight.grad, None
    sums = sums_of(head)
    add_up_rows(embedding, sums)
    head(embedding(ids)).sum().backward()
    assert embedding.weight.grad is None
    torch.testing.assert_close(sums, expected)


def test_small_and_customised_embeddings_are_left_to_autograd() -> None:
    class Own(nn.Embedding):
        pass

    assert adds_up_rows(nn.Embedding(MIN_ROWS, 8))
    others = (
        nn.Embedding(MIN_ROWS - 1, 8),
        nn.Embedding(MIN_ROWS, 8, max_norm=1.0),
        nn.Embedding(MIN_ROWS, 8, scale_grad_by_freq=True),
        nn.Embedding(MIN_ROWS, 8, sparse=True),
        Own(MIN_ROWS, 8),
    )
    assert not any(map(adds_up_rows, others))


# Products of several layers that read the same tensor

CALLS: dict[str, Callable[[nn.ModuleList, Tensor], list[Tensor]]] = {
    "in order": lambda layers, entry: [layer(entry) for layer in layers],
    "in another order": lambda layers, entry: [layers[number](entry) for number in (2, 0, 1)],
    "the first one alone": lambda layers, entry: [layers[0](entry)],
    "another one alone": lambda layers, entry: [layers[1](entry)],
    "all but one": lambda layers, entry: [layers[0](entry), layers[2](entry)],
    "all of them twice": lambda layers, entry: [layer(entry) for _ in range(2) for layer in layers],
    "one of them twice": lambda layers, entry: [layers[number](entry) for number in (0, 1, 1, 2)],
    "on another tensor": lambda layers, entry: [layers[0](entry), layers[1](entry * 2), layers[2](entry)],
    "on rows of the tensor": lambda layers, entry: [layers[0](entry), layers[1](entry[:1]), layers[2](entry)],
    "on a single row": lambda layers, entry: [layers[0](entry), layers[1](entry[0, 0])],
    "with changed results": lambda layers, entry: [
        layers[0](entry).mul_(2), layers[1](entry), layers[2](entry).view(15, 2, 4).add_(1),
    ],
    "without gradients of the tensor": lambda layers, entry: [
        layer(entry.detach()).mul_(2) for layer in layers
    ],
}  # fmt: skip


def three_layers(bias: bool) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(16, rows, bias=bias) for rows in (24, 8, 8))


def results_and_gradients(
    layers: nn.ModuleList, calls: Callable[[nn.ModuleList, Tensor], list[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Call the layers in two passes; return the results, and gradients of the tensors and the biases."""
    torch.manual_seed(1)
    entries = [torch.randn(3, 5, 16, requires_grad=True) for _ in range(2)]
    results = []
    for entry in entries:
        found = calls(layers, entry)
        torch.autograd.backward(found, [torch.randn(result.shape) for result in found])
        results += [result.detach() for result in found]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    leaves = [*entries, *biases]
    return results, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


def assert_joined_layers_compute_the_same(
    bias: bool,
    calls: Callable[[nn.ModuleList, Tensor], list[Tensor]],
    changed: Callable[..., Any] = lambda calls: calls,
) -> None:
    plain, joined = three_layers(bias), three_layers(bias)
    expected, gradients = results_and_gradients(plain, calls)
    sums = torch.zeros(40 * 16 + 8)
    join_products(list(joined), sums, 8)
    found, others = results_and_gradients(joined, changed(calls))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(others, gradients)
    for layer, other, part in zip(plain, joined, sums[8:].view(40, 16).split([24, 8, 8]), strict=True):
        total = part if other.weight.grad is None else part + other.weight.grad
        given = torch.zeros_like(total) if layer.weight.grad is None else layer.weight.grad
        torch.testing.assert_close(total, given)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_joined_layers_compute_the_same_however_they_are_called(
    bias: bool, calls: Callable[[nn.ModuleList, Tensor], list[Tensor]]
) -> None:
    assert_joined_layers_compute_the_same(bias, calls)


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_compiled_joined_layers_compute_the_same_however_they_are_called(
    calls: Callable[[nn.ModuleList, Tensor], list[Tensor]], without_inductor: None
) -> None:
    assert_joined_layers_compute_the_same(True, calls, lambda calls: torch.compile(calls, dynamic=False))
