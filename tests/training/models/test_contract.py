"""Contracts of every family and every model, including new ones."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from bench.base.strict_json import from_json, to_json
from bench.runner.trial.training_loop import WithLoss
from bench.training.models import Family, Model, counts_of, families, family_of, known_models
from bench.training.models.probe import tiny_input
from tests.training.models.keeping import loss_of, made_up_batch

MODELS = list(known_models().values())
TINY = [model for model in MODELS if model.name.startswith("tiny-")]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
every_tiny_model = pytest.mark.parametrize("model", TINY, ids=lambda model: model.name)
every_family = pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)


def built(model: Model, kernels: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return family_of(model).build(model, kernels=kernels)


def without_dropout(model: Model) -> Model:
    zeros = {key: 0.0 for key in family_of(model).defaults if "drop" in key}
    return replace(model, architecture={**model.architecture, **zeros})


# Without building the model


@every_family
def test_every_family_has_a_tiny_model(family: Family) -> None:
    assert [model for model in TINY if model.family == family.name]


@every_model
def test_a_model_is_without_mistakes(model: Model) -> None:
    family = families()[model.family]
    assert list(family.mistakes(model, "/models/0")) == []
    assert model.recipe.objective in family.objectives
    assert set(model.architecture) <= set(family.defaults), "a field that the arithmetic may not know"


@every_model
def test_a_recipe_is_complete_and_says_where_it_comes_from(model: Model) -> None:
    recipe = model.recipe
    assert recipe.source
    assert min(recipe.batch_size, recipe.steps) > 0
    assert recipe.schedule.warmup_steps < recipe.steps
    assert (recipe.sequence_length is None) != (recipe.image_size is None)
    assert (recipe.masked_fraction is not None) == (recipe.objective == "masked-lm")
    # Fields that the data loader reads; it has no defaults.
    assert "num_labels" in model.architecture or "vocab_size" in model.architecture


@every_model
def test_a_model_survives_json(model: Model) -> None:
    assert from_json(Model, to_json(model)) == model


@every_model
def test_memory_grows_with_what_is_kept(model: Model) -> None:
    family = families()[model.family]
    for setting in ((), ("kernels",)):
        kept = [family.kept_bytes(model, (*setting, *c)) for c in (("checkpointing",), ())]
        height = [max(family.activation_bytes(model, (*setting, *c))) for c in (("checkpointing",), ())]
        assert 0 < kept[0] < kept[1]
        assert kept[0] <= height[0] <= height[1]
        assert kept[1] <= height[1]


def test_planning_needs_neither_torch_nor_transformers() -> None:
    code = """
import sys
from bench.training.models import families, known_models
from bench.training.models.own_models import resolve_inline
for model in known_models().values():
    family = families()[model.family]
    list(family.mistakes(model, ""))
    family.parameters(model), family.forward_flops(model), family.missing_kernels("cuda")
    family.activation_bytes(model, ("kernels", "checkpointing"))
recipe = {"objective": "causal-lm", "batch_size": 1, "steps": 1, "precision": "fp32", "sequence_length": 8}
resolve_inline({"name": "x", "architecture": {"model_type": "lama"}, "recipe": recipe}, "")
assert not {"torch", "transformers"} & set(sys.modules), "too heavy"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@every_family
def test_kernels_are_there_or_the_reason_is(family: Family) -> None:
    for device in ("cpu", "cuda"):
        reason = family.missing_kernels(device)
        assert reason is None or len(reason) > 10
        assert family.kernels is not None or reason is not None


# With the model built


@every_family
def test_defaults_are_those_of_transformers(family: Family) -> None:
    config = transformers.AutoConfig.for_model(family.name)
    for field, default in family.defaults.items():
        if field == "rotary_pct":
            assert config.rope_parameters["partial_rotary_factor"] == default
        elif field == "rotary_emb_base":
            assert config.rope_parameters["rope_theta"] == default
        elif field == "time_step_rank":
            assert config.time_step_rank == math.ceil(config.hidden_size / 16)
        elif isinstance(default, list):
            assert list(getattr(config, field)) == default, field
        else:
            assert getattr(config, field) == default, field


@every_model
def test_parameters_are_exact(model: Model) -> None:
    with torch.device("meta"):
        module = built(model)
    assert families()[model.family].parameters(model).total == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tiny-gpt-neox", {"tie_word_embeddings": True, "attention_bias": False}),
        ("tiny-roberta", {"type_vocab_size": 2, "max_position_embeddings": 80}),
        ("tiny-mamba", {"tie_word_embeddings": False, "use_bias": True, "use_conv_bias": False, "expand": 3}),
        ("tiny-mamba", {"time_step_rank": 3, "conv_kernel": 3, "state_size": 5}),
        ("tiny-convnext", {"layer_scale_init_value": 0.0, "patch_size": 2, "depths": [2, 1]}),
        ("tiny-convnext", {"num_stages": 3, "hidden_sizes": [8, 16, 24], "depths": [1, 2, 1]}),
        ("tiny-vit", {"qkv_bias": False, "patch_size": 8, "num_labels": 7}),
    ],
)
def test_parameters_are_exact_whatever_the_architecture(name: str, changed: dict[str, object]) -> None:
    model = known_models()[name]
    model = replace(model, architecture={**model.architecture, **changed})
    with torch.device("meta"):
        module = built(model)
    assert families()[model.family].parameters(model).total == sum(p.numel() for p in module.parameters())


@every_tiny_model
def test_a_module_is_ready_to_train(model: Model) -> None:
    module = built(model)
    assert module.training
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in module.parameters())


@every_tiny_model
def test_blocks_are_distinct_parts_with_most_of_the_weights(model: Model) -> None:
    module = built(model)
    blocks = families()[model.family].blocks(module)
    inside = {id(p) for block in blocks for p in block.parameters()}
    assert len({id(block) for block in blocks}) == len(blocks) == 2
    assert set(map(id, blocks)) <= set(map(id, module.modules()))
    assert len(inside) == sum(len(list(block.parameters())) for block in blocks), "shared between blocks"
    sizes = tuple(sum(p.numel() for p in block.parameters()) for block in blocks)
    assert families()[model.family].parameters(model).blocks == sizes


@pytest.mark.parametrize(
    "model",
    [m for m in TINY if not families()[m.family].missing_kernels("cpu")],
    ids=lambda model: model.name,
)
def test_the_same_seed_gives_the_same_weights_with_kernels_and_without(model: Model) -> None:
    plain, fused = built(model).state_dict(), built(model, kernels=True).state_dict()
    assert plain.keys() == fused.keys()
    assert all(torch.equal(plain[name], fused[name]) for name in plain)


@every_tiny_model
def test_the_loss_is_the_mean_over_what_is_asked_and_shifts_nothing(model: Model) -> None:
    model = without_dropout(model)
    module, batch = built(model), made_up_batch(model, 2)
    labels = batch["labels"]
    if model.recipe.objective == "masked-lm":
        labels[:, ::3] = -100
    loss = loss_of(module, batch)
    logits = module(**{key: value for key, value in batch.items() if key != "labels"}).logits
    picked = F.log_softmax(logits.double(), -1)[labels != -100]
    expected = -picked.gather(-1, labels[labels != -100][:, None]).mean()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.item() == pytest.approx(math.log(logits.size(-1)), rel=0.3), "far from a guess at the start"


@every_tiny_model
def test_the_loss_is_fp32_under_autocast(model: Model) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss_of(built(model), made_up_batch(model, 2)).dtype == torch.float32


@every_tiny_model
def test_a_step_down_the_gradient_lowers_the_loss(model: Model) -> None:
    model = without_dropout(model)
    module, batch = built(model), made_up_batch(model, 4)
    before = loss_of(module, batch)
    before.backward()
    gradients = [p.grad for p in module.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    norm = torch.stack([g.norm() for g in gradients]).norm()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(1e-3 / norm * parameter.grad)
        after = loss_of(module, batch)
    # To first order, the loss falls by the length of the step times the gradient's norm.
    assert (before - after).item() == pytest.approx(1e-3 * norm.item(), rel=0.1)


@every_tiny_model
def test_operations_are_known_to_the_worker(model: Model) -> None:
    assert counts_of(model).flops == families()[model.family].forward_flops(model)


@pytest.mark.parametrize("model", [m for m in TINY if m.recipe.unit == "tokens"], ids=lambda m: m.name)
def test_body_and_head_called_separately_compute_the_same_in_half_precision(model: Model) -> None:
    """ZeRO calls them in this way, with half-precision weights and without autocast."""
    whole = WithLoss(built(without_dropout(model)).bfloat16())
    batch = made_up_batch(model, 2)
    expected = whole(batch)
    whole.split_head(tiny_input(whole.model, model))
    assert whole.head is not None
    assert torch.equal(whole(batch), expected)
