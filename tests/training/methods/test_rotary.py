"""Rotary positions of packed queries and keys are found in any architecture, and the model stays the same.

The Triton kernel is tested in test_interpreted.py; here, PyTorch computes in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.base.errors import BadInput
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, family_of, known_models, packed_rotary
from bench.training.models.packed_rotary import packed_rotary_of, rotated_by_pytorch, take_over
from bench.training.objectives.documents import Documents
from bench.training.vendor import transformers_source
from tests.targets import CPU, H200
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import ENCODER, MASKED, UNMASKED, built, model_of

ROTARY = known_methods()["rotary"]
NEOX = known_models()["tiny-gpt-neox"]


def neox(name: str, **fields: Any) -> Model:
    return replace(NEOX, name=name, architecture=NEOX.architecture | fields)


PACKED = [
    NEOX,
    neox("several-heads", num_attention_heads=4, rotary_pct=1.0),
    neox("without-bias", num_attention_heads=2, attention_bias=False, use_parallel_residual=False),
    neox("dropping", attention_dropout=0.25),
    model_of("persimmon", "causal-lm", ENCODER | {"qk_layernorm": False}),
]
NEARLY = {  # queries and keys are packed by head, but something else is different
    "qk_layernorm": model_of("persimmon", "causal-lm", ENCODER),
    "multi_query": model_of("falcon", "causal-lm", ENCODER),
    "alibi": model_of("falcon", "causal-lm", ENCODER | {"multi_query": False, "alibi": True}),
    "a mask that it makes itself": model_of("falcon", "causal-lm", ENCODER | {"multi_query": False}),
}
OTHERS = [
    *NEARLY.values(),
    *(known_models()[f"tiny-{name}"] for name in ("roberta", "vit", "convnext")),
    *UNMASKED,
    *MASKED,
]
packed = pytest.mark.parametrize("model", PACKED, ids=lambda model: f"{model.family}-{model.name}")


def whole_of(model: Model, *, kernels: bool = True) -> WithLoss:
    whole = WithLoss(built(model, kernels=kernels))
    whole.blocks = tuple(family_of(model).blocks(whole.model))
    return whole


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len({model.family for model in [*PACKED, *OTHERS]}) >= 20


@packed
def test_attention_of_every_block_is_found(model: Model) -> None:
    assert ROTARY.refuse(model, CPU) and ROTARY.refuse(model, H200) is None
    assert "rotary" in free_lunch(model, H200)
    whole = whole_of(model)
    ROTARY.find(model, whole)
    assert len(whole.packed_rotary) == len(whole.blocks) > 0
    for one, block in zip(whole.packed_rotary, whole.blocks, strict=True):
        assert one.attention in block.children()
        assert one.dropout == model.architecture.get("attention_dropout", 0.0)
        assert one.scale == one.width**-0.5
    assert not any("forward" in vars(part) or part._forward_hooks for part in whole.modules())
    assert not any(part.training for part in whole.model.modules())  # as the model was built


@packed
def test_loss_and_gradients_are_those_without_the_method(model: Model) -> None:
    whole, batch, found = whole_of(model, kernels=True), made_up_batch(model, 2), []
    for name, parameter in whole.named_parameters():
        if "query_key_value" in name:  # scores near zero would hide a wrong rotation
            nn.init.normal_(parameter)
    for changed in (False, True):
        if changed:
            ROTARY.find(model, whole)
            take_over(whole.packed_rotary, rotated_by_pytorch)
        whole.zero_grad()
        torch.manual_seed(0)
        loss = whole.train()(batch)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in whole.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: model.family)
def test_models_of_other_forms_are_refused_and_have_none(model: Model) -> None:
    assert ROTARY.refuse(model, H200)
    assert "rotary" not in free_lunch(model, H200)
    with pytest.raises(BadInput, match="rotary: no attention has rotary positions of packed queries"):
        ROTARY.find(model, whole_of(model))


@pytest.mark.parametrize("reason", NEARLY)
def test_the_plan_names_what_makes_the_difference(reason: str) -> None:
    assert str(ROTARY.refuse(NEARLY[reason], H200)).endswith(reason)


def test_attention_that_has_to_know_where_documents_end_is_refused() -> None:
    recipe = replace(NEOX.recipe, documents=Documents(mean_tokens=8))
    assert ROTARY.refuse(replace(NEOX, recipe=recipe), H200)


def test_known_families_need_no_source_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_source._classes_of.cache_clear()
    monkeypatch.setattr(transformers_source, "_source", lambda *_: "")
    for name, refused in (("pythia-1b", False), ("roberta-large", True), ("vit-l", True)):
        assert (ROTARY.refuse(known_models()[name], H200) is not None) == refused
    transformers_source._classes_of.cache_clear()


# What attention of this form is.


def rotated_in_neighbours(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate each number with the next one, as GPT-J does."""
    query, key, value = packed.chunk(3, dim=-1)

    def turn(part: Tensor) -> Tensor:
        beside = torch.stack((-part[..., 1::2], part[..., ::2]), dim=-1).flatten(-2)
        return part * cos.unsqueeze(2) + beside * sin.unsqueeze(2)

    return turn(query), turn(key), value


def packed_by_kind(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take all queries first, then all keys, as ModernBERT does."""
    samples, positions, heads, width = packed.shape
    by_kind = packed.view(samples, positions, 3, heads, width // 3).transpose(2, 3).flatten(-2)
    return rotated_by_pytorch(by_kind, cos, sin)


class Attention(nn.Module):
    """Attention with two heads that rotates by `rotate` and attends with these options."""

    def __init__(self, rotate: Callable[..., Any], before: nn.Module, **options: Any) -> None:
        super().__init__()
        self.both, self.out, self.before = nn.Linear(32, 96), nn.Linear(32, 32), before
        self.rotate, self.options = rotate, options

    def forward(self, hidden_states: Tensor, position_embeddings: Any) -> tuple[Tensor, None]:
        by_head = self.before(self.both(hidden_states).view(*hidden_states.shape[:2], 2, 48))
        query, key, value = (part.transpose(1, 2) for part in self.rotate(by_head, *position_embeddings))
        found = F.scaled_dot_product_attention(query, key, value, **self.options)
        return self.out(found.transpose(1, 2).flatten(2)), None


class Toy(nn.Module):
    """A model of tokens with one block."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.table, self.block = nn.Embedding(2, 32), nn.Sequential(attention)

    def forward(self, input_ids: Tensor) -> Any:
        angles = torch.arange(input_ids.shape[1])[None, :, None] / torch.tensor([1, 3, 9, 27]).repeat(2)
        tables = (angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2))
        out, _ = self.block[0](self.table(input_ids), position_embeddings=tables)
        return SimpleNamespace(logits=out)


@pytest.mark.parametrize(
    ("attention", "found"),
    [
        (Attention(rotated_by_pytorch, nn.Identity(), is_causal=True), True),
        (Attention(rotated_by_pytorch, nn.Identity(), is_causal=True, scale=0.5), True),
        (Attention(rotated_by_pytorch, nn.Identity()), False),
        (Attention(rotated_in_neighbours, nn.Identity(), is_causal=True), False),
        (Attention(packed_by_kind, nn.Identity(), is_causal=True), False),
        (Attention(rotated_by_pytorch, nn.LayerNorm(48), is_causal=True), False),
        (Attention(rotated_by_pytorch, nn.Identity(), attn_mask=torch.ones(8, 8).tril().bool()), False),
    ],
)
def test_a_module_is_known_by_what_it_computes(attention: Attention, found: bool) -> None:
    toy = Toy(attention)
    if not found:
        with pytest.raises(LookupError, match="no attention has rotary positions"):
            packed_rotary_of(toy, [toy.block], NEOX)
        return
    (one,) = packed_rotary_of(toy, [toy.block], NEOX)
    assert (one.attention, one.projection, one.output) == (attention, attention.both, attention.out)
    assert (one.width, one.scale) == (16, attention.options.get("scale"))


def test_compiled_blocks_compute_the_same_in_one_graph(without_inductor: None) -> None:
    whole, batch = whole_of(NEOX), made_up_batch(NEOX, 2)
    expected = whole(batch)
    ROTARY.find(NEOX, whole)
    take_over(whole.packed_rotary, rotated_by_pytorch)
    for block in whole.blocks:
        block.forward = torch.compile(block.forward, dynamic=False, fullgraph=True)
    torch.testing.assert_close(whole(batch), expected)


def test_a_model_that_would_give_another_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(found: Any, _: Any) -> None:
        take_over(found, rotated_in_neighbours)

    monkeypatch.setattr(packed_rotary, "take_over", wrong)
    model = neox("turning", rotary_pct=1.0)
    whole = whole_of(model)
    for parameter in whole.parameters():
        nn.init.normal_(parameter)
    with pytest.raises(BadInput, match="another output"):
        ROTARY.find(model, whole)
    assert not any("forward" in vars(part) for part in whole.modules())


def test_a_model_that_cannot_run_on_a_tiny_input_is_refused() -> None:
    whole = whole_of(NEOX)
    whole.model.forward = lambda **_: 1 / 0
    with pytest.raises(BadInput, match="cannot run on a tiny input"):
        ROTARY.find(replace(NEOX, name="mine"), whole)
