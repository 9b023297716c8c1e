"""Layers that read the same tensor compute the same as one product, and add the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

from bench.base.errors import BadInput
from bench.runner.trial import fused_gradient_sums
from bench.runner.trial.half_weights_strategy import HalfWeightsStrategy
from bench.runner.trial.made_up_data import Samples, make_pool
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all, conflict, known_methods
from bench.training.models import Model, family_of, known_models
from bench.training.models.biased_gelu import gelu_by_pytorch, gelu_layers_of, take_over
from bench.training.models.own_models import resolve_inline
from bench.training.models.siblings import siblings_of
from bench.training.setting import Setting
from bench.training.vendor import transformers_source
from benchmarks.architectures import described
from tests.targets import H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import DECODER, built, model_of, named
from tests.training.models.test_head import TEXTS
from website.sources import ROOT

METHOD, KERNELS = known_methods()["joined-products"], known_methods()["kernels"]
PLAIN: Setting = ()
RECOMPUTED: Setting = ("checkpointing",)
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


# Code that calls layers otherwise than Llama's


def small(model_type: str, objective: str, **architecture: Any) -> Model:
    given = described(model_type, objective)
    given["recipe"] |= {"precision": "bf16"}
    model = resolve_inline({**given, "architecture": given["architecture"] | architecture}, "/models/0")
    assert isinstance(model, Model), model
    return model


def joined_in(whole: WithLoss) -> set[str]:
    """Return the names of the layers that compute the product of their group."""
    return {
        name.removesuffix(".matrix") for name, _ in whole.model.named_buffers() if name.endswith(".matrix")
    }


def passes_of(
    model: Model, batch: dict[str, Tensor], *, joined: bool, beside: Setting, compiled: bool
) -> Any:
    """Return losses, the norm and gradients of two passes and an update, and the layers that are joined."""
    module = built(model, kernels=KERNELS.refuse(model, H200) is None).train()
    whole, blocks = WithLoss(module, model.recipe.aim), family_of(model).blocks(module)
    apply_all((*beside, "half-weights", *(["joined-products"] if joined else [])), model, whole, blocks)
    strategy = HalfWeightsStrategy(whole, model.recipe, torch.device("cpu"), Team(), fused=False)
    for block in blocks if compiled else ():
        block.forward = torch.compile(block.forward, dynamic=False)
    torch.manual_seed(1)  # the same units are dropped
    losses = [strategy.forward_backward(batch, 2, sync=False) for _ in range(2)]
    gradients = [copy.grad.clone() for copy in strategy.weights if copy.grad is not None]
    norm = strategy.update(norm_wanted=True)
    losses.append(strategy.forward_backward(batch, 1, sync=True))
    return torch.stack(losses), norm, gradients, joined_in(whole)


def assert_same_with_and_without(
    model: Model, folder: Path, beside: Setting = (), *, compiled: bool = False
) -> set[str]:
    """Compare two passes and an update with those without the method; return the first layers of groups."""
    samples = Samples(model, make_pool(model, folder, 0), 0)
    batch = default_collate([samples[0], samples[1]])
    (losses, norm, gradients, none), (others, other_norm, other_gradients, found) = (
        passes_of(model, batch, joined=joined, beside=beside, compiled=compiled) for joined in (False, True)
    )
    assert not none
    torch.testing.assert_close(others, losses, rtol=2e-3, atol=0)
    assert other_norm == pytest.approx(norm, rel=1e-2)
    for gradient, other in zip(gradients, other_gradients, strict=True):
        # A bias of keys changes no attention: rounding alone makes its gradient.
        assert float((other - gradient).norm()) <= 0.03 * float(gradient.norm()) + 1e-3 * norm
    assert isinstance(found, set)
    return found


CHANGE_RESULTS: dict[str, tuple[str, dict[str, Any], str]] = {  # of this layer, in place
    "longformer": (
        "masked-lm", {"attention_window": 16}, "longformer.encoder.layer.0.attention.self.query",
    ),
    "led": (
        "sequence-to-sequence", {"attention_window": 16},
        "led.encoder.layers.0.self_attn.longformer_self_attn.query",
    ),
    "gemma3n_text": ("causal-lm", {"num_key_value_heads": 4}, "model.per_layer_model_projection"),
}  # fmt: skip


@pytest.mark.parametrize("beside", [PLAIN, RECOMPUTED], ids=["plain", "recomputed"])
@pytest.mark.parametrize("model_type", CHANGE_RESULTS)
def test_code_may_change_the_results_of_joined_layers(
    model_type: str, beside: Setting, tmp_path: Path
) -> None:
    objective, architecture, changed = CHANGE_RESULTS[model_type]
    model = small(model_type, objective, **architecture)
    assert changed in assert_same_with_and_without(model, tmp_path, beside)


def test_compiled_code_may_change_the_results_of_joined_layers(
    without_inductor: None, tmp_path: Path
) -> None:
    model = small("longformer", "masked-lm", attention_window=16)
    assert assert_same_with_and_without(model, tmp_path, compiled=True)


CROSS = "model.decoder.layers.{}.encoder_attn.k_proj"  # reads the output of the encoder, as in every block


@pytest.mark.parametrize("model_type", ["bart", "marian"])
def test_layers_of_two_blocks_are_not_joined(model_type: str, tmp_path: Path) -> None:
    """Checkpointing computes blocks again from the last to the first, each for itself."""
    model = small(model_type, "sequence-to-sequence")
    joined = assert_same_with_and_without(model, tmp_path, RECOMPUTED)
    assert {CROSS.format(number) for number in range(2)} <= joined


def test_compiled_blocks_of_a_decoder_compute_the_same(without_inductor: None, tmp_path: Path) -> None:
    model = small("bart", "sequence-to-sequence")
    assert CROSS.format(1) in assert_same_with_and_without(model, tmp_path, compiled=True)


def test_layers_that_share_a_weight_are_not_joined() -> None:
    """Zamba's blocks of attention are modules of their own with the same weights, which lie in one place."""
    model = small("zamba", "causal-lm")
    with pytest.raises(BadInput, match="joined-products"):
        METHOD.find(model, WithLoss(built(model, kernels=False)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda gate: gate.view(-1, 64).view(gate.shape), "cannot run if results of layers lie side by side"),
        (lambda gate: gate.as_strided(gate.shape, (8 * 128, 128, 1)), "gives another output if results"),
    ],
    ids=["a view", "strides of its own"],
)
def test_code_that_needs_results_in_one_piece_is_refused(
    change: Callable[[Tensor], Tensor], reason: str
) -> None:
    model = model_of("llama", "causal-lm", DECODER)
    module = built(model, kernels=False)
    mlp = module.model.layers[0].mlp
    mlp.forward = lambda entry: mlp.down_proj(change(mlp.gate_proj(entry)).sigmoid() * mlp.up_proj(entry))
    with pytest.raises(BadInput, match=f"joined-products: the model {reason}"):
        METHOD.find(model, WithLoss(module))


# Every architecture of a language model that trains

NOTHING_TO_JOIN = {"albert", "gpt-sw3", "granitemoehybrid", "hrm_text", "phi4_multimodal", "rwkv", "zamba"}
OF_ITSELF: dict[str, dict[str, Any]] = {  # computes the same in each pass only so
    "reformer": {
        "hash_seed": 0, "hidden_dropout_prob": 0.0, "lsh_attention_probs_dropout_prob": 0.0,
        "local_attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip


def trained(objective: str) -> list[tuple[str, str]]:
    """Return the types that docs/models.md says to train with an objective, each with the objective."""
    _, _, section = (ROOT / "docs" / "models.md").read_text().partition(f"\n## {objective}\n")
    listed = section.partition("\nTrain: ")[2].partition(".\n")[0]
    return [(name.strip("`"), objective) for name in listed.split(", ")]


TRAINED = [pair for aim in ("causal-lm", "masked-lm", "sequence-to-sequence") for pair in trained(aim)]
PLANNED = [pair for pair in TRAINED if transformers_source.why_not_joined(pair[0]) is None]


def test_docs_state_how_many_architectures_are_tried() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    types, planned = ({model_type for model_type, _ in pairs} for pairs in (TRAINED, PLANNED))
    joined = planned - NOTHING_TO_JOIN
    assert f"{len(types)} types of language models [train](models.md), in {len(TRAINED)} pairs" in page
    assert f"{len(joined)} of them join layers" in page
    assert f"The plan refuses {len(types - planned)}," in page


@pytest.mark.sweep
@pytest.mark.parametrize(("model_type", "objective"), PLANNED)
def test_every_architecture_computes_the_same_or_is_refused(
    model_type: str, objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_gradient_sums, "ROW_MULTIPLE", 1)  # small models have short rows
    model = small(model_type, objective, **OF_ITSELF.get(model_type, {}))
    if model_type in NOTHING_TO_JOIN:
        with pytest.raises(BadInput, match="no two linear layers of a block read the same tensor"):
            METHOD.find(model, WithLoss(built(model, kernels=False)))
    else:
        assert assert_same_with_and_without(model, tmp_path, RECOMPUTED)


def test_layers_that_compute_gelu_are_not_joined() -> None:
    """Phi's attention and its MLP read the same norm; the first layer of the MLP takes GELU over."""
    model = small("phi", "causal-lm", hidden_act="gelu", num_key_value_heads=4)
    batch, losses = made_up_batch(model, 2), []
    for joined in (False, True):
        whole = WithLoss(built(model, kernels=True))
        if joined:
            METHOD.find(model, whole)
            take_over(gelu_layers_of(whole.model, model), gelu_by_pytorch)
        strategy = HalfWeightsStrategy(whole, model.recipe, torch.device("cpu"), Team(), fused=False)
        losses.append(strategy.forward_backward(batch, 1, sync=True))
    assert [len(group) for group in whole.siblings] == [4, 4]
    assert len(joined_in(whole)) == 2
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-3, atol=0)


def test_it_needs_half_weights() -> None:
    assert "half-weights" in str(conflict(("joined-products",)))
