"""Attention of all positions to all others is found in any architecture, and its kernels compute the same.

On a CPU the operator of full-attention computes by plain products. FlexAttention trains on GPUs alone:
gradients are compared with PyTorch's attention in its place.
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
from bench.planning.memory_prediction import predict_bytes
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import Method, free_lunch, known_methods
from bench.training.models import Model, counts_of, known_models
from bench.training.models.attention import register_attention
from bench.training.models.full_attention import attend_to_all
from bench.training.setting import Setting
from bench.training.vendor import transformers_source
from tests.targets import A100, CPU, H200, V100
from tests.training.models.keeping import counted_for, made_up_batch
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

FULL_ATTENTION, FLEX = (known_methods()[name] for name in ("full-attention", "flex-attention"))
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
    "such kernels have no dropout": [
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
both = pytest.mark.parametrize("method", [FULL_ATTENTION, FLEX], ids=lambda method: method.name)
all_seen = pytest.mark.parametrize("model", SEEING_ALL, ids=lambda model: model.family)


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len({model.family for model in [*SEEING_ALL, *UNKNOWN]}) >= 20


@all_seen
def test_the_plan_takes_bench_s_kernels_where_all_positions_see_each_other(model: Model) -> None:
    for method, cpu, old in (
        (FULL_ATTENTION, "its kernels are for NVIDIA GPUs", "compute capability 9.0 alone"),
        (FLEX, "FlexAttention trains on GPUs alone", "compute capability 8.0"),
    ):
        assert method.refuse(model, H200) is None
        assert method.refuse(model, CPU) == cpu
        assert old in str(method.refuse(model, V100))
        assert method.refuse(replace(model, recipe=replace(model.recipe, precision="bf16")), H200)
    assert "full-attention" in free_lunch(model, H200)
    assert "flex-attention" not in free_lunch(model, H200)
    assert "flex-attention" in free_lunch(model, A100)


def test_flex_attention_takes_the_place_of_bench_s_kernels_for_other_widths_of_heads() -> None:
    wide = in_fp32(VIT, hidden_size=160, num_attention_heads=2, hidden_dropout_prob=0.0)
    assert "take heads of 16, 32 or 64 elements, and these have 80" in str(FULL_ATTENTION.refuse(wide, H200))
    assert "flex-attention" in free_lunch(wide, H200)


@all_seen
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@both
def test_answers_and_gradients_are_those_without_the_method(
    method: Method, model: Model, kernels: bool
) -> None:
    module, batch = built(model, kernels=kernels), made_up_batch(model, 2)
    batch = {name: data for name, data in batch.items() if name != "labels"}
    whole, before = WithLoss(module), module.config._attn_implementation
    for name, parameter in module.named_parameters():
        if any(part in name for part in ("q_proj", "query", "k_proj", "key", "qkv")):
            nn.init.normal_(parameter, std=0.3)  # scores near zero would hide what attention does with them
    expected = module(**batch).logits
    expected.logsumexp(-1).mean().backward()
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    method.find(model, whole)
    assert module.config._attn_implementation == before and not module.training
    method.apply(model, whole, [])
    assert module.config._attn_implementation == f"bench_{method.name.split('-')[0]}"
    with torch.no_grad():
        torch.testing.assert_close(module(**batch).logits, expected, rtol=1e-3, atol=1e-5)
    if method is FLEX:
        register_attention("plain", partial(attend_to_all, set()))
        module.set_attn_implementation("plain")
    module.zero_grad()
    module(**batch).logits.logsumexp(-1).mean().backward()
    found = [p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-5)


@both
@pytest.mark.parametrize("reason", ASKING_FOR_MORE)
def test_what_kernels_are_not_given_is_refused_with_the_reason(method: Method, reason: str) -> None:
    for model in ASKING_FOR_MORE[reason]:
        assert method.name not in free_lunch(model, H200)
        with pytest.raises(BadInput, match=f"{method.name}: .*({reason})"):
            method.find(model, WithLoss(built(model, kernels=True)))
    word = reason.partition("|")[2] or reason
    assert all(word in str(method.refuse(model, H200)) for model in ASKING_FOR_MORE[reason])


@both
@pytest.mark.parametrize("model", UNKNOWN, ids=lambda model: model.family)
def test_other_attention_is_refused_and_not_taken(method: Method, model: Model) -> None:
    assert method.refuse(model, H200)
    assert method.name not in free_lunch(model, H200)
    with pytest.raises(BadInput, match=f"{method.name}: "):
        method.find(model, WithLoss(built(model, kernels=True)))


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

    def __init__(self, keys: slice = slice(None), **asked: Any) -> None:
        super().__init__()
        self.keys, self.asked, self.table = keys, asked, nn.Embedding(2, 32)
        self.config = SimpleNamespace(_attn_implementation="eager")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, input_ids: Tensor) -> Any:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        entry = self.table(input_ids)[:, None]
        seen = entry[:, :, self.keys]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        if attend is None:
            return SimpleNamespace(logits=nn.functional.scaled_dot_product_attention(entry, seen, seen)[:, 0])
        return SimpleNamespace(logits=attend(self, entry, seen, seen, None, **self.asked)[0][:, :, 0])


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


@pytest.mark.parametrize("model", SEEING_ALL[:2], ids=lambda model: model.family)
def test_memory_has_no_scores_beside_a_method_for_attention(model: Model) -> None:
    settings: list[Setting] = [(*one, "compile-blocks") for one in ((), ("flex-attention",), ("kernels",))]
    counts = counts_of(model) if model.family == "vit" else counted_for(model, *settings)
    without, flex, kernels = (predict_bytes(model, setting, 64, 1, counts) for setting in settings)
    assert flex == kernels and without and flex and without > flex


def test_attention_to_other_positions_is_left_to_flex_attention() -> None:
    whole = WithLoss(Calling(keys=slice(1)))
    FLEX.find(TEXT, whole)
    with pytest.raises(BadInput, match="full-attention: its kernels take as many keys as queries"):
        FULL_ATTENTION.find(TEXT, whole)


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
