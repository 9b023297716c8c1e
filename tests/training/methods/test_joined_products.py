"""Layers that read the same tensor compute the same as one product, and add the same gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.base.errors import BadInput
from bench.runner.trial.half_weights_strategy import HalfWeightsStrategy
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import conflict, known_methods
from bench.training.models import Model, family_of, known_models
from bench.training.models.siblings import siblings_of
from tests.targets import H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import DECODER, built, model_of, named
from tests.training.models.test_head import TEXTS

METHOD = known_methods()["joined-products"]
ALBERT = next(model for model in TEXTS if model.family == "albert")  # all its blocks are one module
JOINED = [model for model in TEXTS if METHOD.refuse(model, H200) is None and model is not ALBERT]


def strategy_of(model: Model, *, joined: bool) -> HalfWeightsStrategy:
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    whole = WithLoss(built(model, kernels=True))
    if joined:
        METHOD.find(model, whole)
    return HalfWeightsStrategy(whole, model.recipe, torch.device("cpu"), Team(), fused=False)


@pytest.mark.parametrize("model", JOINED, ids=named)
def test_loss_gradients_and_update_are_those_without_the_method(model: Model) -> None:
    batch = made_up_batch(model, 2)
    found = []
    for joined in (False, True):
        strategy = strategy_of(model, joined=joined)
        losses = [strategy.forward_backward(batch, 2, sync=False) for _ in range(2)]
        gradients = [copy.grad.clone() for copy in strategy.weights if copy.grad is not None]
        norm = strategy.update(norm_wanted=True)
        losses.append(strategy.forward_backward(batch, 1, sync=True))
        found.append((losses, norm, gradients))
    (losses, norm, gradients), (others, other_norm, other_gradients) = found
    torch.testing.assert_close(others, losses, rtol=2e-3, atol=0)
    assert other_norm == pytest.approx(norm, rel=1e-2)
    for gradient, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=0, atol=0.03 * float(gradient.abs().max()) + 1e-6)


def test_many_architectures_have_layers_to_join() -> None:
    assert len(JOINED) >= 10


def test_siblings_of_a_llama() -> None:
    model = model_of("llama", "causal-lm", DECODER)
    module = built(model, kernels=False)
    names = {layer: name.rsplit(".", 1)[-1] for name, layer in module.named_modules()}
    assert [[names[layer] for layer in group] for group in siblings_of(module, model)] == [
        ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"],
    ] * 2  # fmt: skip


def test_layers_without_siblings_are_refused() -> None:
    assert "gpt_neox" in str(METHOD.refuse(known_models()["pythia-1b"], H200))
    assert METHOD.refuse(known_models()["vit-l"], H200)
    joined_already = model_of("phi3", "causal-lm", DECODER | {"pad_token_id": 0})
    for model in (joined_already, ALBERT):
        with pytest.raises(BadInput, match="joined-products"):
            METHOD.find(model, WithLoss(built(model, kernels=False)))


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # Qwen2's queries, keys and values have biases
def test_compiled_blocks_compute_the_same(family: str, without_inductor: None) -> None:
    """Inductor compiles joined products in tests/training/test_fp8.py."""
    model = model_of(family, "causal-lm", DECODER)
    batch, norms = made_up_batch(model, 2), []
    for compiled in (False, True):
        strategy = strategy_of(model, joined=True)
        if compiled:
            assert isinstance(strategy.whole, WithLoss)
            for block in family_of(model).blocks(strategy.whole.model):
                block.forward = torch.compile(block.forward, dynamic=False)
        strategy.forward_backward(batch, 1, sync=True)
        norms.append(strategy.update(norm_wanted=True))
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


def test_it_needs_half_weights() -> None:
    assert "half-weights" in str(conflict(("joined-products",)))
