"""Attention of all positions to all others is found in any architecture, and FlexAttention computes the same.

FlexAttention trains on GPUs alone: gradients are compared with PyTorch's attention in its place.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.base.errors import BadInput
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, known_models
from bench.training.models.attention import register_attention
from bench.training.models.full_attention import attend_to_all
from bench.training.vendor import transformers_source
from tests.targets import CPU, H200, V100
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import (
    ENCODER,
    FULL,
    IMAGES,
    MASKED,
    OWN,
    UNMASKED,
    VISION,
    built,
    model_of,
)

FLEX = known_methods()["flex-attention"]
VIT = known_models()["tiny-vit"]
TOWER = {key: value for key, value in VISION.items() if key != "num_labels"}


def in_fp32(model: Model, **fields: Any) -> Model:
    recipe = replace(model.recipe, precision="fp32")
    return replace(model, recipe=recipe, architecture={**model.architecture, **fields})


SEEING_ALL = [
    in_fp32(VIT, hidden_dropout_prob=0.0),
    *(
        in_fp32(model_of(name, "image-classification", architecture))
        for name, architecture in (
            ("dinov2", VISION), ("dinov2_with_registers", VISION), ("deit", VISION), ("ijepa", VISION),
            ("vit_msn", VISION), ("siglip", {"num_labels": 10, "vision_config": TOWER}),
        )
    ),
    *(
        in_fp32(model_of(name, "masked-lm", architecture))
        for name, architecture in (
            ("eurobert", ENCODER), ("nomic_bert", ENCODER), ("esmc", ENCODER),
            ("albert", ENCODER | {"embedding_size": 32}),
        )
    ),
]  # fmt: skip
ASKING_FOR_MORE = {  # reasons, and models whose attention is otherwise of this form
    "FlexAttention has no dropout": [
        in_fp32(VIT, attention_probs_dropout_prob=0.1),
        in_fp32(model_of("deit", "image-classification", VISION), attention_probs_dropout_prob=0.1),
        in_fp32(model_of("eurobert", "masked-lm", ENCODER), attention_dropout=0.1),
        in_fp32(model_of("distilbert", "masked-lm", FULL["distilbert"])),
    ],
    "share": [in_fp32(model_of("eurobert", "masked-lm", ENCODER), num_key_value_heads=2)],
    "narrow|of 16": [in_fp32(VIT, num_attention_heads=8)],
}  # fmt: skip
UNKNOWN = [
    in_fp32(model)
    for model in [*UNMASKED, *MASKED]
    if model.family not in {one.family for one in SEEING_ALL} | {"distilbert", "beit"}
]
all_seen = pytest.mark.parametrize("model", SEEING_ALL, ids=lambda model: model.family)


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len({model.family for model in [*SEEING_ALL, *UNKNOWN]}) >= 20


@all_seen
def test_the_plan_takes_the_method_where_all_positions_see_each_other(model: Model) -> None:
    assert FLEX.refuse(model, H200) is None
    assert FLEX.refuse(model, CPU) == "FlexAttention trains on GPUs alone"
    assert "compute capability 8.0" in str(FLEX.refuse(model, V100))
    assert "flex-attention" in free_lunch(model, H200)
    assert FLEX.refuse(replace(model, recipe=replace(model.recipe, precision="bf16")), H200)


@all_seen
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_answers_and_gradients_are_those_without_the_method(model: Model, kernels: bool) -> None:
    module, batch = built(model, kernels=kernels), made_up_batch(model, 2)
    batch = {name: data for name, data in batch.items() if name != "labels"}
    whole, before = WithLoss(module), module.config._attn_implementation
    for name, parameter in module.named_parameters():
        if any(part in name for part in ("q_proj", "query", "k_proj", "key", "qkv")):
            nn.init.normal_(parameter, std=0.3)  # scores near zero would hide what attention does with them
    expected = module(**batch).logits
    expected.logsumexp(-1).mean().backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    FLEX.find(model, whole)
    assert module.config._attn_implementation == before and not module.training
    FLEX.apply(model, whole, [])
    assert module.config._attn_implementation == "bench_flex"
    with torch.no_grad():
        torch.testing.assert_close(module(**batch).logits, expected, rtol=1e-3, atol=1e-5)
    register_attention("plain", partial(attend_to_all, set()))
    module.set_attn_implementation("plain")
    module.zero_grad()
    module(**batch).logits.logsumexp(-1).mean().backward()
    found = [p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("reason", ASKING_FOR_MORE)
def test_what_flex_attention_is_not_given_is_refused_with_the_reason(reason: str) -> None:
    for model in ASKING_FOR_MORE[reason]:
        assert "flex-attention" not in free_lunch(model, H200)
        with pytest.raises(BadInput, match=f"flex-attention: .*({reason})"):
            FLEX.find(model, WithLoss(built(model, kernels=True)))
    word = reason.partition("|")[2] or reason
    assert all(word in str(FLEX.refuse(model, H200)) for model in ASKING_FOR_MORE[reason])


@pytest.mark.parametrize("model", UNKNOWN, ids=lambda model: model.family)
def test_other_attention_is_refused_and_not_taken(model: Model) -> None:
    assert FLEX.refuse(model, H200)
    assert "flex-attention" not in free_lunch(model, H200)
    with pytest.raises(BadInput, match="flex-attention: "):
        FLEX.find(model, WithLoss(built(model, kernels=True)))


def test_a_bias_of_positions_is_found_by_the_call_that_hands_it_on() -> None:
    biased = in_fp32(model_of("beit", "image-classification", OWN["beit"][1]))
    plain = in_fp32(model_of("beit", "image-classification", IMAGES["beit"]))
    with pytest.raises(BadInput, match="its attention takes"):
        FLEX.find(biased, WithLoss(built(biased, kernels=True)))
    FLEX.find(plain, WithLoss(built(plain, kernels=True)))
    assert FLEX.refuse(biased, H200) == FLEX.refuse(plain, H200)  # the plan cannot tell them apart


class Calling(nn.Module):
    """Attention of all positions to all others, which calls itself by its registered name."""

    is_causal = False

    def __init__(self, **asked: Any) -> None:
        super().__init__()
        self.asked, self.table = asked, nn.Embedding(2, 32)
        self.config = SimpleNamespace(_attn_implementation="eager")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, input_ids: Tensor) -> Any:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        entry = self.table(input_ids)[:, None]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        if attend is None:
            return SimpleNamespace(
                logits=nn.functional.scaled_dot_product_attention(entry, entry, entry)[:, 0]
            )
        return SimpleNamespace(logits=attend(self, entry, entry, entry, None, **self.asked)[0][:, :, 0])


TEXT = known_models()["tiny-roberta"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, None),
        ({"position_ids": torch.zeros(1)}, None),
        ({"output_attentions": False, "cu_seq_lens_q": None}, None),
        ({"sliding_window": 128}, "takes sliding_window"),
        ({"softcap": 30.0}, "takes softcap"),
        ({"s_aux": torch.zeros(1)}, "takes s_aux"),
        ({"is_causal": True}, "do not see those that follow"),
        ({"scaling": 0.0}, "another output"),
    ],
)
def test_a_call_tells_what_attention_needs(asked: dict[str, Any], reason: str | None) -> None:
    whole = WithLoss(Calling(**asked))
    torch.nn.init.normal_(whole.model.table.weight)
    if reason is None:
        FLEX.find(TEXT, whole)
        return
    with pytest.raises(BadInput, match=reason):
        FLEX.find(TEXT, whole)
    assert whole.model.config._attn_implementation == "eager"


def test_finding_changes_no_random_numbers() -> None:
    whole = WithLoss(built(SEEING_ALL[0], kernels=True))
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    FLEX.find(SEEING_ALL[0], whole)
    torch.testing.assert_close(torch.rand(4), expected)


def test_known_families_need_no_source_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_source._classes_of.cache_clear()
    monkeypatch.setattr(transformers_source, "_source", lambda *_: "")
    assert FLEX.refuse(known_models()["vit-l"], H200) is None
    assert "dropout" in str(FLEX.refuse(in_fp32(VIT, attention_probs_dropout_prob=0.1), H200))
    for name in ("pythia-1b", "roberta-large", "convnext-xl"):
        assert FLEX.refuse(in_fp32(known_models()[name]), H200)
    transformers_source._classes_of.cache_clear()
