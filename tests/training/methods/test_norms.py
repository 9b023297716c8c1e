"""Two norms of a block that read the same tensor are found in any architecture, and the model stays the same.

The Triton kernel is tested in test_interpreted.py; here, PyTorch computes in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.base.errors import BadInput
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, family_of, known_models, paired_norms
from bench.training.models.paired_norms import (
    layer_norm_epsilon,
    norms_by_pytorch,
    paired_norms_of,
    take_over,
)
from bench.training.vendor import transformers_source
from tests.targets import CPU, H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import (
    CAUSAL,
    DECODER,
    MASKED,
    UNMASKED,
    WIDE,
    built,
    model_of,
)

NORMS = known_methods()["norms"]
NEOX = known_models()["tiny-gpt-neox"]
FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2}
PAIRED = [
    NEOX,
    replace(NEOX, name="dropping", architecture=NEOX.architecture | {"hidden_dropout": 0.1}),
    model_of("falcon", "causal-lm", DECODER | FALCON),
]
SEQUENTIAL = replace(NEOX, architecture=NEOX.architecture | {"use_parallel_residual": False})
BESIDE = {  # one norm for attention and MLP, norms of queries and keys, and norms behind both
    "cohere": DECODER, "gptj": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "gemma2": WIDE, "stablelm": DECODER | {"use_parallel_residual": True, "qk_layernorm": True},
}  # fmt: skip
UNPAIRED = [
    SEQUENTIAL,
    *(known_models()[f"tiny-{name}"] for name in ("roberta", "vit", "convnext", "mamba")),
    *(model_of(name, "causal-lm", given) for name, given in BESIDE.items()),
    *(model for model in [*UNMASKED, *MASKED] if model.family != "stablelm"),
]
paired = pytest.mark.parametrize("model", PAIRED, ids=lambda model: f"{model.family}-{model.name}")


def whole_of(model: Model) -> WithLoss:
    whole = WithLoss(built(model, kernels=False))
    whole.blocks = tuple(family_of(model).blocks(whole.model))
    return whole


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len({model.family for model in [*PAIRED, *UNPAIRED]}) >= 20


@paired
def test_both_norms_of_every_block_are_found(model: Model) -> None:
    assert NORMS.refuse(model, CPU) and NORMS.refuse(model, H200) is None
    assert "norms" in free_lunch(model, H200, ("half-weights",))
    whole = whole_of(model)
    NORMS.find(model, whole)
    assert [pair.block for pair in whole.paired_norms] == list(whole.blocks)
    assert not any("forward" in vars(part) for part in whole.modules())


@paired
def test_loss_and_gradients_are_those_without_the_method(model: Model) -> None:
    whole, batch, found = whole_of(model), made_up_batch(model, 2), []
    for parameter in whole.parameters():
        if parameter.dim() == 1:  # norms begin as ones, and their biases as zeros
            nn.init.normal_(parameter)
    for changed in (False, True):
        if changed:
            NORMS.find(model, whole)
            take_over(whole.paired_norms, norms_by_pytorch)
        whole.zero_grad()
        torch.manual_seed(0)
        loss = whole.train()(batch)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in whole.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", UNPAIRED, ids=lambda model: model.family)
def test_models_without_such_norms_are_refused_and_have_none(model: Model) -> None:
    reason = "only if use_parallel_residual" if model is SEQUENTIAL else "read the same tensor"
    assert reason in str(NORMS.refuse(model, H200))
    assert "norms" not in free_lunch(model, H200, ("half-weights",))
    with pytest.raises(BadInput, match="norms: no block has two layer norms that read its input"):
        NORMS.find(model, whole_of(model))


def test_the_plan_names_the_field_without_which_a_block_has_one_norm() -> None:
    unknown = {key: FALCON[key] for key in FALCON if key != "num_ln_in_parallel_attn"}
    for given, field in (({}, "new_decoder_architecture"), (unknown, "num_ln_in_parallel_attn == 2")):
        reason = NORMS.refuse(model_of("falcon", "causal-lm", DECODER | given), H200)
        assert reason == f"two norms of falcon read the same tensor only if {field}"


@pytest.fixture
def without_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let transformers' source be unreadable."""
    transformers_source._classes_of.cache_clear()
    monkeypatch.setattr(transformers_source, "_source", lambda *_: "")
    yield
    transformers_source._classes_of.cache_clear()


@pytest.mark.usefixtures("without_source")
def test_known_families_need_no_source_of_transformers() -> None:
    for name, refused in (("pythia-1b", False), ("roberta-large", True), ("vit-l", True)):
        assert (NORMS.refuse(known_models()[name], H200) is not None) == refused
    assert NORMS.refuse(SEQUENTIAL, H200)
    assert NORMS.refuse(model_of("llama", "causal-lm", CAUSAL["llama"]), H200)


# What a norm is, and what a block may do with it.


class Scaled(nn.LayerNorm):
    """Adds one to its weight, as some architectures do."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class ByHand(nn.Module):
    """The layer norm of torch, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.variance_epsilon = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return (
            x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt() * self.weight + self.bias
        )


class WithoutMean(ByHand):
    """A root mean square norm that has a bias."""

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return x * scale * self.weight + self.bias


@pytest.mark.parametrize(
    ("part", "epsilon"),
    [
        (nn.LayerNorm(8), 1e-5), (ByHand(), 1e-3), (Scaled(8), None), (WithoutMean(), None),
        (nn.RMSNorm(8), None), (nn.LayerNorm(8, bias=False), None), (nn.GroupNorm(2, 8), None),
        (nn.BatchNorm1d(8), None), (nn.Linear(8, 8), None), (nn.LayerNorm((2, 8)), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
def test_a_layer_norm_is_known_by_what_it_computes(part: nn.Module, epsilon: float | None) -> None:
    assert layer_norm_epsilon(part) == epsilon


Body = Callable[["Block", Tensor], Tensor]


class Block(nn.Module):
    """A block with two norms and two layers, which computes what `body` says."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.one, self.other, self.third = nn.LayerNorm(8), ByHand(), nn.LayerNorm(8)
        self.one.eps = 1e-3
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.body = body

    def forward(self, hidden: Tensor) -> Tensor:
        return self.body(self, hidden)


class Toy(nn.Module):
    """A model of tokens with one block, called with its input by position or by name."""

    def __init__(self, body: Body, *, named: bool = False) -> None:
        super().__init__()
        self.table, self.block, self.named = nn.Embedding(2, 8), Block(body), named

    def forward(self, input_ids: Tensor) -> Any:
        hidden = self.table(input_ids)
        return SimpleNamespace(logits=self.block(hidden=hidden) if self.named else self.block(hidden))


def side_by_side(m: Block, x: Tensor) -> Tensor:
    return x + m.left(m.one(x)) + m.right(m.other(x))


def one_after_the_other(m: Block, x: Tensor) -> Tensor:
    x = x + m.left(m.one(x))
    return x + m.right(m.other(x))


@pytest.mark.parametrize(
    ("toy", "found"),
    [
        (Toy(side_by_side), True),
        (Toy(lambda m, x: m.left(m.one(x)) * m.third(m.right(m.other(x)))), True),  # another norm elsewhere
        (Toy(side_by_side, named=True), False),
        (Toy(one_after_the_other), False),
        (Toy(lambda m, x: m.left(m.one(x)) + m.right(m.third(x))), False),  # epsilons differ
        (Toy(lambda m, x: m.left(m.one(x)) + m.right(m.one(x))), False),  # one norm, twice
        (Toy(lambda m, x: m.one(x) + m.other(x) + m.one(x)), False),
        (Toy(lambda m, x: m.one(x * 1) + m.other(x * 1)), False),
        (Toy(lambda m, x: m.other(m.one(x)) + x), False),
    ],
)
def test_what_a_block_does_with_its_norms(toy: Toy, found: bool) -> None:
    try:
        (pair,) = paired_norms_of(toy, [toy.block], NEOX)
        assert (pair.first, pair.second, pair.epsilon) == (toy.block.one, toy.block.other, 1e-3)
    except LookupError as error:
        assert "no block has two layer norms" in str(error)
        assert not found
    else:
        assert found


def test_a_block_keeps_nothing_and_says_if_it_changes_its_mind() -> None:
    toy, tokens = Toy(side_by_side), torch.zeros(1, 2, dtype=torch.long)
    take_over(paired_norms_of(toy, [toy.block], NEOX), norms_by_pytorch)
    expected = toy(tokens).logits
    torch.testing.assert_close(toy(tokens).logits, expected)
    toy.block.body = one_after_the_other
    with pytest.raises(RuntimeError, match="reads another tensor than before"):
        toy(tokens)


def test_compiled_blocks_compute_the_same_in_one_graph(without_inductor: None) -> None:
    whole, batch = whole_of(NEOX), made_up_batch(NEOX, 2)
    NORMS.find(NEOX, whole)
    take_over(whole.paired_norms, norms_by_pytorch)
    expected = whole(batch)
    for block in whole.blocks:
        block.forward = torch.compile(block.forward, dynamic=False, fullgraph=True)
    torch.testing.assert_close(whole(batch), expected)


def test_a_model_that_would_give_another_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(hidden: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return hidden, hidden, hidden

    monkeypatch.setattr(paired_norms, "norms_by_pytorch", wrong)
    whole = whole_of(NEOX)
    with pytest.raises(BadInput, match="another output"):
        NORMS.find(NEOX, whole)
    assert not any("forward" in vars(part) for part in whole.modules())


def test_rows_that_are_too_wide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.methods.triton_kernels.MAX_WIDTH", 63)
    reason = "its kernels take 63 numbers a row at most; tiny-gpt-neox has 64"
    assert NORMS.refuse(NEOX, H200) == reason
    with pytest.raises(BadInput, match=reason):
        NORMS.find(NEOX, whole_of(NEOX))


def test_a_model_that_cannot_run_on_a_tiny_input_is_refused() -> None:
    whole = whole_of(NEOX)
    whole.model.forward = lambda **_: 1 / 0
    with pytest.raises(BadInput, match="cannot run on a tiny input"):
        NORMS.find(replace(NEOX, name="mine"), whole)
