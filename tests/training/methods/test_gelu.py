"""Layers whose GELU is computed with their bias are found in any architecture, and the model stays the same.

The Triton kernels are tested in test_interpreted.py; here, PyTorch computes in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation

from bench.base.errors import BadInput
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, biased_gelu, known_models
from bench.training.models.biased_gelu import gelu_by_pytorch, gelu_layers_of, take_over
from bench.training.vendor import transformers_source
from tests.targets import CPU, H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import (
    CAUSAL,
    DECODER,
    ENCODER,
    FULL,
    IMAGES,
    OWN,
    VISION,
    WINDOWED,
    built,
    model_of,
)

GELU = known_methods()["gelu"]
BART = {
    "vocab_size": 128, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
}  # fmt: skip
CONVNEXT = {"num_labels": 10, "image_size": 64, "depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}
# The ends of the names of the layers that are found, beside the layers of the blocks.
TAKEN: list[tuple[Model, str, tuple[str, ...]]] = [
    (known_models()["tiny-gpt-neox"], "mlp.dense_h_to_4h", ()),
    (known_models()["tiny-roberta"], "intermediate.dense", ()),
    (known_models()["tiny-vit"], "mlp.fc1", ()),
    (known_models()["tiny-convnext"], "pwconv1", ()),
    (model_of("bert", "masked-lm", FULL["bert"]), "intermediate.dense", ("predictions.transform.dense",)),
    (model_of("electra", "masked-lm", FULL["electra"]), "intermediate.dense", ("predictions.dense",)),
    (model_of("distilbert", "masked-lm", FULL["distilbert"]), "ffn.lin1", ("vocab_transform",)),
    (model_of("xlm-roberta", "masked-lm", FULL["xlm-roberta"]), "intermediate.dense", ()),
    (model_of("camembert", "masked-lm", FULL["camembert"]), "intermediate.dense", ()),
    (model_of("deberta", "masked-lm", ENCODER), "intermediate.dense", ("predictions.transform.dense",)),
    (model_of("bart", "causal-lm", BART), "fc1", ()),
    (model_of("convnextv2", "image-classification", CONVNEXT), "pwconv1", ()),
    *((model_of(name, "image-classification", given), "mlp.fc1", ()) for name, given in IMAGES.items()),
    (model_of("swin", *OWN["swin"]), "mlp.fc1", ()),
]
NOT_TAKEN: list[tuple[Model, str]] = [
    (model_of("opt", *OWN["opt"]), '"relu"'),
    (model_of("gpt2", "causal-lm", CAUSAL["gpt2"]), '"gelu_new"'),
    (model_of("albert", "masked-lm", FULL["albert"]), '"gelu_new"'),
    (model_of("llama", "causal-lm", DECODER), '"silu"'),
    (model_of("qwen3", "causal-lm", CAUSAL["qwen3"]), '"silu"'),
    (model_of("gemma3_text", *WINDOWED["gemma3_text"]), '"gelu_pytorch_tanh"'),
    (model_of("starcoder2", "causal-lm", CAUSAL["starcoder2"]), '"gelu_pytorch_tanh"'),
    (model_of("modernbert", *WINDOWED["modernbert"]), "linear layer of modernbert with a bias"),
    (model_of("falcon", *OWN["falcon"]), "linear layer of falcon with a bias"),
    (known_models()["tiny-mamba"], '"silu"'),
]
taken = pytest.mark.parametrize(
    ("model", "inside", "beside"), TAKEN, ids=[model.family for model, *_ in TAKEN]
)


def test_at_least_ten_architectures_are_tried() -> None:
    assert len({model.family for model, _, _ in TAKEN}) >= 10


@taken
def test_the_layers_before_gelu_are_found(model: Model, inside: str, beside: tuple[str, ...]) -> None:
    assert GELU.refuse(model, CPU) and GELU.refuse(model, H200) is None
    assert "gelu" in free_lunch(model, H200)
    whole = WithLoss(built(model, kernels=False).train())
    GELU.find(model, whole)
    names = {part: name for name, part in whole.named_modules()}
    assert whole.gelu_layers is not None
    found = [names[layer] for layer in whole.gelu_layers.layers]
    blocks = sum(name.endswith(inside) for name in names.values())
    assert sum(name.endswith(inside) for name in found) == blocks >= 2
    others = [name for name in found if not name.endswith(inside)]
    assert len(others) == len(beside)
    assert all(name.endswith(end) for name, end in zip(others, beside, strict=True))
    found_parts = (*whole.gelu_layers.layers, *whole.gelu_layers.activations)
    assert whole.model.training and not any("forward" in vars(part) for part in found_parts)


@taken
def test_loss_and_gradients_are_those_without_the_method(
    model: Model, inside: str, beside: tuple[str, ...]
) -> None:
    whole, batch = WithLoss(built(model, kernels=False)), made_up_batch(model, 2)
    for bias in (part.bias for part in whole.modules() if isinstance(part, nn.Linear)):
        if bias is not None:
            nn.init.normal_(bias)
    found = []
    for changed in (False, True):
        if changed:
            GELU.find(model, whole)
            assert whole.gelu_layers is not None
            take_over(whole.gelu_layers, gelu_by_pytorch)
        whole.zero_grad()
        loss = whole(batch)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in whole.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "reason"), NOT_TAKEN, ids=[model.family for model, _ in NOT_TAKEN])
def test_models_without_gelu_after_a_bias_are_refused_and_have_no_such_layers(
    model: Model, reason: str
) -> None:
    assert reason in str(GELU.refuse(model, H200))
    assert "gelu" not in free_lunch(model, H200)
    with pytest.raises(BadInput, match="gelu: no linear layer with a bias"):
        GELU.find(model, WithLoss(built(model, kernels=False)))


@pytest.mark.parametrize(
    ("name", "objective", "architecture", "changed"),
    [
        ("bert", "masked-lm", ENCODER, {"hidden_act": "gelu_new"}),
        ("vit", "image-classification", VISION, {"hidden_act": "quick_gelu"}),
        ("distilbert", "masked-lm", FULL["distilbert"], {"activation": "relu"}),
        ("bart", "causal-lm", BART, {"activation_function": "silu"}),
    ],
)
def test_an_architecture_s_own_activation_decides(
    name: str, objective: str, architecture: dict[str, Any], changed: dict[str, str]
) -> None:
    model = model_of(name, objective, architecture | changed)
    (activation,) = changed.values()
    assert f'{name} has "{activation}"' in str(GELU.refuse(model, H200))


def test_an_activation_that_is_exact_gelu_only_if_asked_for() -> None:
    model = model_of("opt", "causal-lm", OWN["opt"][1] | {"activation_function": "gelu"})
    assert GELU.refuse(model, H200) is None
    assert len(gelu_layers_of(built(model, kernels=False), model).layers) == 2


@pytest.fixture
def without_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let transformers' code be unreadable, and clear the caches of its text before and after."""

    def forget() -> None:
        transformers_source._classes_of.cache_clear()
        transformers_source._why_no_biased_gelu.cache_clear()

    monkeypatch.setattr(transformers_source, "_source", lambda *_: "")
    forget()
    yield
    forget()


@pytest.mark.usefixtures("without_source")
def test_known_families_need_no_source_of_transformers() -> None:
    for name, refused in (("pythia-1b", False), ("roberta-large", False), ("vit-l", False),
                          ("convnext-xl", False), ("mamba-2.8b", True)):  # fmt: skip
        assert (GELU.refuse(known_models()[name], H200) is not None) == refused
    assert GELU.refuse(
        model_of("bert", "masked-lm", ENCODER), H200
    )  # unknown, and a free lunch must not fail


# Small models of one linear layer or two: what they do between the layer and the activation.


class Toy(nn.Module):
    """A model of tokens with two layers and an activation, called as `body` says."""

    def __init__(self, body: Callable[[Toy, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.unbiased = nn.Linear(8, 4, bias=False)
        self.act, self.other = nn.GELU(), nn.GELU()
        self.tanh = nn.GELU(approximate="tanh")
        self.drop = nn.Dropout(0.5)
        self.body = body

    def forward(self, input_ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.body(self, self.table(input_ids)))


def in_place(m: Toy, x: Tensor) -> Tensor:
    x = m.second(m.first(x))
    x += 1
    return m.act(x)


def read_twice(m: Toy, x: Tensor) -> Tensor:
    x = m.first(m.second(x))
    return x * m.act(x)


def visited(m: Toy, x: Tensor) -> Tensor:
    return m.act(m.first(x)) if x.numel() else m.act(m.second(x))


both = {"first", "second"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda m, x: m.act(m.second(m.act(m.first(x)))), both),  # one activation for both layers
        (lambda m, x: m.other(m.first(m.act(m.first(m.second(x))))), {"first"}),  # one layer, two activations
        (lambda m, x: m.act(m.first(m.act(m.first(m.second(x))))), {"first"}),
        (lambda m, x: m.act(m.second(m.act(m.first(x))) + 1), set()),  # the activation has another input, too
        (lambda m, x: m.act(m.first(m.second(x))) + m.first(x), set()),  # a call without activation
        (lambda m, x: m.act(m.first(m.second(x)).view(2, 4, 2, 8).transpose(1, 2)), {"first"}),
        (lambda m, x: m.act(m.drop(m.first(m.second(x)))), set()),
        (lambda m, x: m.act(F.dropout(m.first(m.second(x)), 0.5, m.training)), set()),
        (lambda m, x: m.act(m.first(m.second(x)).chunk(2, -1)[0]), set()),
        (lambda m, x: m.act(m.first(m.second(x))[:, 1:]), set()),
        (lambda m, x: m.tanh(m.first(m.second(x))), set()),
        (lambda m, x: m.act(m.unbiased(m.first(m.second(x)))), set()),
        (lambda m, x: F.gelu(m.first(m.second(x))), set()),  # no module whose result could be replaced
        (in_place, set()),
        (read_twice, set()),
        (visited, set()),  # the layer that no token visits has the same activation
    ],
)  # fmt: skip
def test_what_happens_between_a_layer_and_its_activation(
    body: Callable[[Toy, Tensor], Tensor], expected: set[str]
) -> None:
    toy = Toy(body).train()
    names = {part: name for name, part in toy.named_modules()}
    try:
        found = {names[layer] for layer in gelu_layers_of(toy, known_models()["tiny-gpt-neox"]).layers}
    except LookupError as error:
        assert "no linear layer with a bias" in str(error)
        found = set()
    assert found == expected


def test_a_model_that_would_give_another_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = known_models()["tiny-convnext"]  # scales what its blocks add by a millionth
    monkeypatch.setattr(biased_gelu, "gelu_by_pytorch", lambda product, bias: F.relu(product + bias))
    whole = WithLoss(built(model, kernels=False))
    with pytest.raises(BadInput, match="another output"):
        GELU.find(model, whole)
    linear = [part for part in whole.modules() if isinstance(part, nn.Linear | GELUActivation)]
    assert linear and not any("forward" in vars(part) for part in linear)


def test_a_model_that_cannot_run_on_a_tiny_input_is_refused() -> None:
    model = model_of("bert", "masked-lm", ENCODER)
    module = built(model, kernels=False)
    module.forward = lambda **_: 1 / 0
    with pytest.raises(BadInput, match="cannot run on a tiny input"):
        GELU.find(replace(model, name="mine"), WithLoss(module))
