"""Low-rank adapters of any family: what is frozen, counted, refused and saved. Real torch and peft."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.base.errors import BadInput
from bench.planning.memory_prediction import host_bytes, predict_bytes, state_bytes
from bench.training.methods import arithmetic
from bench.training.models import Flops, Lora, Model, Parts, counts_of, family_of, has_formulas, known_models
from bench.training.models.adapters import FamilyWithAdapters, randomise, save_adapters, without_adapters
from bench.training.models.dry_build import DryBuild, dry_build
from tests.training.models.keeping import checkpointed, counted_for, kept_bytes_a_sample
from tests.training.models.test_counted_memory import footprint_bytes
from tests.training.models.test_generic import CASES, PICTURES, SMALL, TEXT, model_of, resolved

ALL = Lora(4, 8.0, 0.0, "all-linear")
FIRST = Lora(4, 8.0, 0.0, ("q_proj", "v_proj"))
VIT = {
    "num_labels": 10, "image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip


def adapted(model: Model, lora: Lora = ALL, **recipe: Any) -> Model:
    return replace(model, recipe=replace(model.recipe, lora=lora, **recipe))


def llama(lora: Lora = FIRST, **recipe: Any) -> Model:
    return adapted(model_of("llama"), lora, **{"precision": "bf16", **recipe})


def built(model: Model) -> nn.Module:
    torch.manual_seed(0)
    return family_of(model).build(model, kernels=False)


def dry(model: Model) -> DryBuild:
    return dry_build(model, "/models/0")


@pytest.mark.parametrize(
    ("precision", "half"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_weights_are_frozen_in_the_recipes_precision_and_adapters_are_trained_in_fp32(
    precision: str, half: torch.dtype
) -> None:
    module = built(llama(precision=precision))
    for name, weight in module.named_parameters():
        assert weight.requires_grad == (".lora_" in name), name
        assert weight.dtype == (torch.float32 if weight.requires_grad else half), name
    assert sum(".lora_A." in name for name, _ in module.named_parameters()) == 4  # two layers in two blocks
    assert all(buffer.dtype == torch.float32 for buffer in module.buffers())  # rotary frequencies


def test_building_leaves_torchs_own_precision_alone() -> None:
    built(llama())
    assert torch.get_default_dtype() == torch.float32


def test_the_head_of_an_image_classifier_is_trained_whole() -> None:
    module = built(adapted(resolved("vit", VIT, {**PICTURES, "precision": "bf16"})))
    for name, weight in module.named_parameters():
        trained = ".lora_" in name or name.startswith("classifier.")
        assert (weight.requires_grad, weight.dtype == torch.float32) == (trained, trained), name


@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm"])
def test_all_linear_leaves_out_the_layer_of_the_logits(objective: str) -> None:
    name = "llama" if objective == "causal-lm" else "bert"
    module = built(adapted(model_of(name)))
    output: Any = module
    assert type(output.get_output_embeddings()) is nn.Linear
    assert not output.get_output_embeddings().weight.requires_grad


def test_operations_of_llama_are_those_counted_by_hand() -> None:
    """A frozen product has no gradient of its weight, and in the first block none of its input either."""
    model = llama()
    length, blocks, d, inner, keys, words = 32, 2, 64, 128, 32, 1000
    assert model.recipe.sequence_length == length
    attention_in = d * d + 2 * d * keys  # query, key, value of a block
    frozen = blocks * (attention_in + d * d + 3 * d * inner) + d * words
    first, second = blocks * 2 * 4 * d, blocks * 4 * (d + keys)  # both matrices of each adapter
    pairs = length * (length + 1) // 2
    attention = blocks * 2 * 2 * pairs * d
    inputs = frozen - attention_in + first * (blocks - 1) // blocks + second
    backward = 2 * length * (inputs + first + second) + 2 * attention
    expected = Flops(2 * length * (frozen + first + second), attention, backward=backward)
    counts = counts_of(model)
    assert counts.flops == expected
    assert counts.flops.training == expected.total + backward < 3 * expected.total
    assert counts.parts.blocks == ((first + second) // blocks,) * blocks
    weights = sum(weight.numel() for weight in built(without_adapters(model)).parameters())
    assert counts.parts.frozen_bytes == 2 * weights


@pytest.mark.parametrize("name", ["tiny-gpt-neox", "tiny-roberta", "tiny-vit", "tiny-convnext"])
def test_models_of_families_with_formulas_are_counted(name: str) -> None:
    model = adapted(known_models()[name], precision="bf16")
    assert has_formulas(known_models()[name]) and not has_formulas(model)
    counts, plain = counts_of(model), counts_of(known_models()[name]).flops
    assert counts.parts.total == sum(w.numel() for w in built(model).parameters() if w.requires_grad)
    assert counts.flops.backward is not None and plain.total < counts.flops.total < 1.5 * plain.total
    assert counts.flops.backward < 2 * counts.flops.total


def test_a_head_at_masked_positions_saves_operations_of_both_passes() -> None:
    model = adapted(model_of("bert"), sequence_length=40, masked_fraction=0.25)
    counts = counts_of(model)
    found = arithmetic(("masked-head",), model, counts)
    assert counts.head_backward is not None and counts.flops.backward is not None
    assert found.total == counts.flops.total - counts.head * 3 // 4
    assert found.backward == counts.flops.backward - counts.head_backward * 3 // 4
    # The frozen layer of the logits has a gradient of its input alone, the adapter before it has both.
    assert counts.head < counts.head_backward < 1.2 * counts.head


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_counted_memory_is_what_autograd_keeps(dropout: float) -> None:
    """The count holds also in the first block, before whose adapters nothing has a gradient."""
    model = llama(replace(FIRST, dropout=dropout))
    family = family_of(model)
    assert isinstance(family, FamilyWithAdapters)
    settings: tuple[tuple[str, ...], ...] = ((), ("kernels",), ("checkpointing",))
    counts = counted_for(model, *settings, family=family)
    for setting in settings:
        module = family.build(model, kernels="kernels" in setting)
        if "checkpointing" in setting:
            checkpointed(family.blocks(module))
        kept = kept_bytes_a_sample(family, module, model)
        assert footprint_bytes(counts, model, setting) == pytest.approx(kept, rel=0.02), setting
        assert predict_bytes(model, setting, 8, 1, counts)
    assert predict_bytes(model, (), 8, 1) is None  # no formula fits


def test_frozen_weights_take_two_bytes_and_adapters_sixteen_with_a_copy_in_half_precision() -> None:
    parts = Parts(0, (100, 100), 200, 3_000, (2_000, 2_000))
    assert state_bytes(parts, (), 1, half=True, moments=1600) == 200 * (16 + 2) + 7_000
    assert state_bytes(parts, (), 2, half=True, moments=1600) == 200 * (16 + 2 + 4) + 7_000
    # With FSDP2 each of two devices holds half of everything, and gathers two blocks and what is outside.
    assert state_bytes(parts, ("fsdp-3",), 2, half=True, moments=1600) == 200 * 16 // 2 + 3_500 + (
        200 * 2 + 3_000 + 4_000 + 100 * 2
    )
    assert host_bytes(0, ("zero-2", "offload"), 0, frozen_bytes=7_000) == 0
    assert host_bytes(0, ("zero-3", "offload"), 0, frozen_bytes=7_000) == 7_000


@pytest.mark.parametrize(
    ("model", "place", "words"),
    [
        (llama(replace(FIRST, targets=("q_porj",))), "targets/0", ('"q_porj" names no linear', "q_proj")),
        (llama(replace(FIRST, targets=("v_proj", "proj"))), "targets/1", ('"proj" names no linear layer',)),
        (llama(replace(FIRST, targets=("embed_tokens",))), "targets/0", ("names no linear layer", "k_proj")),
        (llama(replace(ALL, rank=33)), "rank", ("33 is more than", "32 x 64", "at most 32")),
        (adapted(model_of("resnet")), "targets", ("resnet has no linear layers",)),
        (
            adapted(resolved("vit", VIT, PICTURES), replace(ALL, targets=("classifier",))),
            "targets/0",
            ("is the head, which is trained whole",),
        ),
    ],
)  # fmt: skip
def test_adapters_that_cannot_be_are_named_before_anything_runs(
    model: Model, place: str, words: Sequence[str]
) -> None:
    build = dry(model)
    (mistake,) = build.mistakes
    assert build.counted is None
    assert mistake.path == f"/models/0/recipe/lora/{place}"
    assert all(word in f"{mistake.found}; {mistake.allowed}" for word in words), mistake


def test_layers_that_no_code_calls_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    def without_gate(mlp: Any, entry: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = mlp.down_proj(mlp.up_proj(entry))
        return result

    monkeypatch.setattr(LlamaMLP, "forward", without_gate)
    (mistake,) = dry(llama(replace(FIRST, targets=("gate_proj", "up_proj")))).mistakes
    assert mistake.path == "/models/0/recipe/lora/targets"
    assert "its code never calls the layers gate_proj" in mistake.found


def test_what_peft_refuses_is_said_without_a_traceback() -> None:
    small = SMALL | {"state_size": 4, "num_heads": 4, "head_dim": 32, "n_groups": 1}
    beside_the_last = replace(ALL, targets=("out_proj",))
    model = adapted(resolved("mamba2", small, TEXT | {"objective": "causal-lm"}), beside_the_last)
    with pytest.raises(BadInput, match="peft refuses these adapters"):
        built(model)


def test_transposed_layers_of_gpt2_have_adapters_too() -> None:
    counts = counts_of(adapted(model_of("gpt2"), replace(ALL, targets=("c_attn",))))
    assert counts.parts.blocks == (4 * 64 + 4 * 192,) * 3


def test_saved_adapters_are_what_peft_loads(tmp_path: Path) -> None:
    import peft

    model = llama(ALL, precision="fp32")
    module = built(model)
    randomise(module)
    trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    save_adapters(trained, model, module, tmp_path)
    theirs = peft.PeftModel.from_pretrained(built(without_adapters(model)), str(tmp_path))
    ids = torch.arange(8)[None]
    plain = built(without_adapters(model))(input_ids=ids).logits
    torch.testing.assert_close(theirs(input_ids=ids).logits, module(input_ids=ids).logits)
    assert not torch.allclose(module(input_ids=ids).logits, plain)


def test_a_saved_image_classifier_includes_its_head(tmp_path: Path) -> None:
    import peft

    model = adapted(resolved("vit", VIT, PICTURES))
    module: Any = built(model)
    randomise(module)
    with torch.no_grad():
        module.classifier.weight.add_(1)
    trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    save_adapters(trained, model, module, tmp_path)
    theirs = peft.PeftModel.from_pretrained(built(without_adapters(model)), str(tmp_path))
    pixels = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(
        theirs.eval()(pixel_values=pixels).logits, module.eval()(pixel_values=pixels).logits
    )


def test_a_second_matrix_at_zero_hides_the_gradient_of_the_first() -> None:
    """The gradient check therefore begins with random second matrices."""
    module = built(llama(precision="fp32"))

    def largest_of_first() -> float:
        module.zero_grad()
        module(input_ids=torch.arange(8)[None]).logits.square().mean().backward()
        first = (w.grad for name, w in module.named_parameters() if ".lora_A." in name)
        return max(float(gradient.abs().max()) for gradient in first if gradient is not None)

    assert largest_of_first() == 0
    randomise(module)
    assert largest_of_first() > 0


def test_without_peft_the_plan_says_that_adapters_are_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.models.dry_build.find_spec", lambda name: name != "peft" or None)
    build = dry(llama())
    assert build == DryBuild(
        None, (), ("/models/0/recipe/lora: peft is not installed here, so it is counted when it runs",)
    )


def test_planning_a_recipe_with_adapters_imports_neither_torch_nor_peft() -> None:
    script = (
        "import sys, json; from bench.planning.manifest import parse_manifest; "
        "from bench.planning.plan import make_plan, target_of; from bench.training.methods import Target; "
        f"m = parse_manifest({json.dumps(MANIFEST)!r}.encode(), 'm'); "
        "make_plan(m, Target('cuda', 1, 80 << 30, elsewhere=True)); "
        "print([name for name in ('torch', 'peft', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


MANIFEST = {
    "schema": "bench/manifest/v1",
    "models": [
        {
            "name": "mine",
            "architecture": {"model_type": "llama", **CASES["llama"][0]},
            "recipe": {**TEXT, "objective": "causal-lm", "lora": {"rank": 4, "targets": "all-linear"}},
        }
    ],
}
