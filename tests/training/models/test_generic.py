"""Architectures without a file in bench are built and counted through transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled
from torch import nn

from bench.base.errors import BadInput
from bench.training.methods import Target, free_lunch
from bench.training.models import Counted, Flops, Model, counts_of, family_of, known_models
from bench.training.models.counted_operations import counted, counted_work
from bench.training.models.dry_build import dry_build
from bench.training.models.generic import TransformersFamily, configured, fetched_mistakes
from bench.training.models.own_models import resolve_inline
from tests.training.models.keeping import loss_of, made_up_batch

CAUSAL = {"objective": "causal-lm"}
TEXT = {"batch_size": 8, "steps": 10, "precision": "fp32", "sequence_length": 32}
PICTURES = {
    "batch_size": 8, "steps": 10, "precision": "fp32", "image_size": 64, "objective": "image-classification",
}  # fmt: skip
SMALL = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {  # architecture, recipe, blocks
    "llama": (GROUPED, TEXT | CAUSAL, 2),
    "gpt2": ({"vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 4}, TEXT | CAUSAL, 3),
    "bert": (SMALL, TEXT | {"objective": "masked-lm"}, 2),
    "mixtral": (GROUPED | {"num_local_experts": 4}, TEXT | CAUSAL, 2),
    "resnet": (  # stages, each of a sequence of layers
        {"num_labels": 10, "depths": [1, 2], "hidden_sizes": [16, 32], "embedding_size": 8},
        PICTURES, 3,
    ),
    "swin": (  # stages, each of a list of layers
        {"num_labels": 10, "image_size": 64, "patch_size": 2, "window_size": 2, "embed_dim": 16,
         "depths": [1, 2], "num_heads": [2, 4]},
        PICTURES, 3,
    ),
    "poolformer": (  # a list of lists
        {"num_labels": 10, "depths": [1, 3], "hidden_sizes": [16, 32], "num_encoder_blocks": 2,
         "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]},
        PICTURES, 4,
    ),
    "dinov2": (
        {"num_labels": 10, "image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4},
        PICTURES, 2,
    ),
    "dinov2_with_registers": (
        {"num_labels": 10, "image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4},
        PICTURES, 2,
    ),
}  # fmt: skip


TRIANGLE = 32 * 33 // 2  # pairs of positions under a causal mask
NEAR = 8 * 32 - 8 * 7 // 2  # pairs within a window of eight


def resolved(name: str, architecture: dict[str, Any], recipe: dict[str, Any]) -> Model:
    obj = {"name": "mine", "architecture": {"model_type": name, **architecture}, "recipe": recipe}
    model = resolve_inline(obj, "/models/0")
    assert isinstance(model, Model), model
    return model


def model_of(name: str, **changed: Any) -> Model:
    architecture, recipe, _ = CASES[name]
    return resolved(name, architecture | changed, recipe)


@pytest.mark.parametrize("name", CASES)
def test_it_is_built_counted_and_trained(name: str, without_footprints: None) -> None:
    model = model_of(name)
    family = family_of(model)
    module = family.build(model, kernels=False)
    build = dry_build(model, "/models/0")
    found = build.counted
    assert build.mistakes == ()
    assert found is not None
    assert found.parts.total == sum(p.numel() for p in module.parameters())
    assert found.flops.total > 0
    assert len(found.parts.blocks) == len(family.blocks(module)) == CASES[name][2]
    called = set[nn.Module]()
    for block in family.blocks(module):
        block.register_forward_hook(lambda part, *_: called.add(part))
    loss = loss_of(module, made_up_batch(model, 2))
    assert called == {*family.blocks(module)}
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad is not None for p in module.parameters())


def test_llama_is_counted_as_by_hand() -> None:
    """The count by hand covers grouped queries, three MLP matrices, and the lower triangle of attention."""
    weights = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 64 * 1000
    assert counts_of(model_of("llama")).flops == Flops(2 * 32 * weights, 2 * TRIANGLE * 4 * 64)


@pytest.mark.parametrize(
    ("name", "given", "recipe", "pairs"),
    [
        ("mistral", GROUPED | {"sliding_window": 8}, CAUSAL, 2 * NEAR),
        ("gemma2", GROUPED | {"head_dim": 16, "sliding_window": 8}, CAUSAL, NEAR + TRIANGLE),
        # Every third layer, from the first on, sees all positions; the others see half a window on each side.
        (
            "modernbert", SMALL | {"local_attention": 14, "pad_token_id": 0},
            {"objective": "masked-lm"}, 32 * 32 + 2 * NEAR - 32,
        ),
    ],
)  # fmt: skip
def test_of_a_sliding_window_only_what_it_shows_is_counted(
    name: str, given: dict[str, Any], recipe: dict[str, Any], pairs: int
) -> None:
    assert counts_of(resolved(name, given, TEXT | recipe)).flops.attention == pairs * 4 * 64


@pytest.mark.parametrize(
    ("name", "given", "objective", "pairs"),
    [
        # Attention that cannot be replaced; a mask whose values are read; layers dropped at random.
        ("falcon", {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
         "causal-lm", 2 * TRIANGLE),
        ("deberta-v2", SMALL, "masked-lm", 2 * 32 * 32),
        ("opt", {"vocab_size": 1000, "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 128,
                 "num_hidden_layers": 2, "num_attention_heads": 4}, "causal-lm", 2 * TRIANGLE),
        # An encoder, a decoder, and the cross-attention between them.
        ("bart", {"vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
                  "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
                  "decoder_ffn_dim": 128}, "masked-lm", 2 * (2 * 32 * 32 + TRIANGLE)),
    ],
)  # fmt: skip
def test_a_model_that_reads_its_data_is_counted_too(
    name: str, given: dict[str, Any], objective: str, pairs: int
) -> None:
    """Counting comes after a trial's steps, so a model that cannot be counted would be measured in vain."""
    assert counts_of(resolved(name, given, TEXT | {"objective": objective})).flops.attention == pairs * 4 * 64


def test_of_several_classes_for_pictures_the_first_is_built() -> None:
    given = {"num_labels": 10, "image_size": 64, "hidden_size": 64, "intermediate_size": 128,
             "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip
    module = family_of(model := resolved("deit", given, PICTURES)).build(model, kernels=False)
    assert type(module).__name__ == "DeiTForImageClassification"


def test_experts_are_counted_though_torch_leaves_them_out() -> None:
    attending, router, experts = 2 * 64 * 64 + 2 * 64 * 32, 64 * 4, 2 * 3 * 64 * 128  # two of four experts
    weights = 2 * (attending + router + experts) + 64 * 1000
    assert counts_of(model_of("mixtral")).flops.matmul == 2 * 32 * weights


@pytest.mark.parametrize("name", ["tiny-gpt-neox", "tiny-roberta", "tiny-vit", "tiny-convnext"])
def test_counting_agrees_with_the_formulas(name: str) -> None:
    model = known_models()[name]
    family = family_of(model)
    known = replace(model, architecture={**family.defaults, **model.architecture})
    found = counted_work(known)
    assert found.parts.total == family.parameters(model).total
    assert found.flops == family.forward_flops(model)


def test_what_transformers_refuses_is_said_without_a_traceback() -> None:
    model = model_of("llama", rms_norm_eps="large")
    with pytest.raises(BadInput, match="rms_norm_eps") as caught:
        family_of(model).build(model, kernels=False)
    assert str(caught.value).startswith("mine: transformers refuses")


def test_fused_attention_is_left_out_if_a_decoder_would_see_later_positions() -> None:
    """UMT5's and Doge's attend causally by a mask alone, which fused attention does not get."""
    said = "no attention of umt5 is told to be causal, and fused attention gets no causal mask"
    assert TransformersFamily("umt5").missing_kernels("cpu") == said
    said = "attention of doge adds to a causal mask, and fused attention gets none"
    assert TransformersFamily("doge").missing_kernels("cpu") == said
    assert TransformersFamily("t5").missing_kernels("cpu") is None


@pytest.mark.parametrize(
    ("name", "fused"), [("llama", True), ("gemma3_text", True), ("deberta-v2", False), ("bloom", False)]
)
def test_fused_attention_is_left_out_if_transformers_does_not_support_it(name: str, fused: bool) -> None:
    """With fused attention, free-lunch, which every search uses, would fail to build."""
    model = resolved(name, SMALL, TEXT | CAUSAL)
    lunch = free_lunch(model, Target("cpu", 1, 2**34))
    assert ("kernels" in lunch) == fused
    said = None if fused else f"transformers' {name} takes no fused attention"
    assert family_of(model).missing_kernels("cpu") == said


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("flaubert", {"vocab_size": 1000, "emb_dim": 64, "n_layers": 2, "n_heads": 4}),
        ("funnel", {"vocab_size": 1000, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
                    "block_sizes": [1, 1]}),
    ],
)  # fmt: skip
def test_code_that_reads_what_it_computed_is_counted(name: str, given: dict[str, Any]) -> None:
    assert counted_work(resolved(name, given, TEXT | {"objective": "masked-lm"})).flops.total > 0


STRANGERS_CODE = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil/repo--code.Evil")


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("llama", {"rope_type": "dynamic", "factor": 2.0}),
        ("llama", {"rope_type": "longrope", "factor": 2.0, **FACTORS}),
        ("phimoe", {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 2.0, **FACTORS}),
    ],
)
def test_frequencies_that_depend_on_positions_are_counted_without_contents(
    name: str, scaling: dict[str, Any]
) -> None:
    """Rotary code that looks for the largest position hinders neither operations nor memory."""
    half = TEXT | CAUSAL | {"precision": "bf16"}
    scaled = counted(resolved(name, GROUPED | {"pad_token_id": 0, "rope_scaling": scaling}, half))
    assert scaled == counted_plainly(name)
    assert scaled.footprints


@cache
def counted_plainly(name: str) -> Counted:
    """Count an architecture without scaled frequencies, once for all tests."""
    return counted(resolved(name, GROUPED | {"pad_token_id": 0}, TEXT | CAUSAL | {"precision": "bf16"}))


@pytest.mark.parametrize("inside", [False, True])
def test_code_that_a_configuration_names_is_neither_fetched_nor_asked_about(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has no causal dinov2, so it would ask for "y" to run that of a stranger's repository."""

    def asked(*_: object) -> str:
        raise AssertionError("asked whether to run a stranger's code")

    monkeypatch.setattr("builtins.input", asked)
    architecture, _, _ = CASES["dinov2"]
    named = {"backbone_config": {"model_type": "dinov2", "auto_map": STRANGERS_CODE}} if inside else {}
    model = resolved(
        "dinov2", architecture | {"auto_map": STRANGERS_CODE, "vocab_size": 100} | named, TEXT | CAUSAL
    )
    assert "auto_map" not in str(configured(model).to_dict())
    with pytest.raises(BadInput, match="Unrecognized configuration class"):
        family_of(model).build(model, kernels=False)


NAMED_ELSEWHERE = [
    {"backbone": "evil/repo", "use_pretrained_backbone": True},
    {"vision_config": {"model_type": "dpt", "backbone": "evil/repo"}},
    {"vision_config": {"model_type": "timm_wrapper", "architecture": "hf-hub:evil/repo"}},
    {"backbone_config": {"model_type": "timm_backbone", "backbone": "hf-hub:evil/repo"}},
    {"parts": [{"backbone": "evil/repo"}]},
]


@pytest.mark.parametrize("named", NAMED_ELSEWHERE)
def test_a_part_of_an_architecture_that_a_repository_would_describe_is_a_mistake(
    named: dict[str, Any],
) -> None:
    given = {"model_type": "dpt", **named}
    mistakes = list(TransformersFamily("dpt").architecture_mistakes(given, "image-classification", "/m"))
    assert [m.path for m in mistakes if "repository" in m.found or "Hub" in m.found]
    assert all(m.path.startswith("/m/architecture/") for m in mistakes)


def test_a_backbone_may_be_described_by_its_fields() -> None:
    inner = {"model_type": "dinov2", "hidden_size": 64, "depths": [1, 2]}
    assert not list(fetched_mistakes({"backbone": None, "backbone_config": inner}, ""))


def test_nothing_is_asked_of_the_hub_while_a_model_is_built() -> None:
    """A field that names a repository may be one of which bench does not know that it does."""
    known = resolved("dinov2", *CASES["dinov2"][:2])
    named = replace(known, family="dpt", architecture={"backbone": "evil/repo"})
    offline_before = constants.HF_HUB_OFFLINE
    with pytest.raises(OfflineModeIsEnabled):
        configured(named)
    assert offline_before == constants.HF_HUB_OFFLINE


def test_a_published_configuration_with_code_builds_transformers_own_model() -> None:
    architecture, recipe, _ = CASES["llama"]
    model = resolved("llama", architecture | {"auto_map": STRANGERS_CODE}, recipe)
    assert type(family_of(model).build(model, kernels=False)).__module__.startswith(
        "transformers.models.llama"
    )


class _Experts(nn.Module):
    """A block whose experts have most of its weights; `width` makes blocks unlike each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        expert = lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout())  # noqa: E731
        self.attention = nn.Linear(64, width)
        self.experts = nn.ModuleList(expert() for _ in range(4))


def test_experts_in_lists_are_no_layers_of_stages() -> None:
    model = nn.Sequential(nn.ModuleList([_Experts(8), _Experts(16)]))
    found = TransformersFamily("llama").blocks(model)
    assert [type(block) for block in found] == [_Experts, _Experts]
