"""Mistakes in models of transformers' own architectures are reported before anything is measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, Mistake
from bench.base.strict_json import from_json, to_json
from bench.cli.main import main
from bench.planning.memory_prediction import predict_bytes, state_bytes
from bench.training.models import known_models
from bench.training.models.counted_operations import counted
from bench.training.models.dry_build import DryBuild, Rehearsal, _blamed, dry_build, rehearse
from bench.training.models.own_models import resolve_inline
from tests.training.models.test_generic import (
    CASES,
    CAUSAL,
    GROUPED,
    PICTURES,
    SMALL,
    TEXT,
    model_of,
    resolved,
)

pytestmark = pytest.mark.usefixtures("quick_children")

MASKED = {"objective": "masked-lm"}
# meta-llama/Llama-3.2-1B, config.json, smaller
PUBLISHED = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 128, "max_position_embeddings": 131072,
    "mlp_bias": False, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 1000,
}  # fmt: skip


def test_a_published_configuration_goes_in_as_it_is(without_footprints: None) -> None:
    assert dry_build(resolved("llama", PUBLISHED, TEXT | CAUSAL), "/models/0").mistakes == ()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "qwen3_moe",
            {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        ),
        ("phi3", {"partial_rotary_factor": 0.5, "pad_token_id": 0}),
    ],
)
def test_a_field_that_only_the_code_of_a_model_reads_is_taken(
    name: str, given: dict[str, Any], without_footprints: None
) -> None:
    assert dry_build(resolved(name, GROUPED | given, TEXT | CAUSAL), "/models/0").mistakes == ()


def without(field: str) -> dict[str, Any]:
    return {key: value for key, value in GROUPED.items() if key != field}


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str]] = [
    # type, architecture, recipe, path below the model, what was found, what is allowed
    ("llama", without("hidden_size") | {"hidden_sise": 9}, CAUSAL,
     "architecture/hidden_sise", "no such", '"hidden_size"'),
    ("llama", without("num_hidden_layers") | {"num_layers": 3}, CAUSAL,
     "architecture/num_layers", "LlamaConfig", "num_hidden_la"),
    ("llama", GROUPED | {"hidden_size": 66}, CAUSAL, "architecture", "not a multiple", "build"),
    ("llama", GROUPED | {"num_key_value_heads": 3}, CAUSAL, "architecture", "3 heads of keys", "build"),
    ("llama", GROUPED | {"hidden_act": "swiglu"}, CAUSAL, "architecture/hidden_act", "swiglu", "run"),
    ("llama", GROUPED | {"rope_scaling": {"type": "weird"}}, CAUSAL, "architecture/rope_scaling/type",
     "weird", "run"),
    ("llama", GROUPED | {"rms_norm_eps": "1e-5"}, CAUSAL, "architecture/rms_norm_eps", "got str", "build"),
    ("llama", GROUPED | {"intermediate_size": -4}, CAUSAL, "architecture/intermediate_size", "-4", "run"),
    ("llama", GROUPED | {"num_hidden_layers": 0}, CAUSAL, "architecture/num_hidden_layers", "0 is", "1"),
    ("llama", GROUPED | {"pad_token_id": 1000}, CAUSAL, "architecture/pad_token_id", "none of 1000", "999"),
    ("llama", GROUPED, MASKED, "recipe/objective", "masked-lm", "causal-lm"),
    ("modernbert", SMALL, MASKED, "architecture/pad_token_id", "50283 is none of 1000", "0 to 999"),
    ("bert", SMALL, CAUSAL, "architecture/is_decoder", "sees those that follow", "true"),
    ("xlm", {"vocab_size": 99, "emb_dim": 64, "n_layers": 1, "n_heads": 4, "pad_index": 0}, CAUSAL,
     "architecture/causal", "false: a token of xlm sees those that follow", "true"),
    ("rembert", SMALL | {"is_decoder": True}, CAUSAL, "recipe/objective", "rembert sees those that follow",
     "masked-lm"),
    ("bert", SMALL | {"max_position_embeddings": 16}, MASKED, "recipe/sequence_length", "32 is", "most 16"),
    ("gpt2", {"vocab_size": 9, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}, CAUSAL,
     "recipe/sequence_length", "32 is more", "/models/0/architecture/n_positions"),
    ("camembert", SMALL | {"max_position_embeddings": 32}, MASKED, "recipe/sequence_length", "the 30", "30"),
    ("t5", {"vocab_size": 1000}, CAUSAL, "recipe/objective", "causal-lm", "sequence-to-sequence"),
    ("deit", {"num_labels": 9, "image_size": 32}, PICTURES, "architecture", "64*64", "run"),
    # Inputs that a class of transformers needs and bench does not provide.
    ("gemma3", {"vocab_size": 1000}, CAUSAL, "architecture/model_type", "of several models", "one of them"),
    ("musicgen", {"vocab_size": 1000}, CAUSAL, "architecture/model_type", "of several models", "one of them"),
    ("encoder-decoder", {"vocab_size": 1000}, {"objective": "sequence-to-sequence", "target_length": 8},
     "architecture/model_type", "of several models", "one of them"),
    ("moonshine_streaming", {"vocab_size": 1000},
     {"objective": "speech-recognition", "audio_seconds": 1, "target_length": 8, "sequence_length": None},
     "architecture", "its code reads the field num_key_value_heads, which", "run"),
    ("shieldgemma2", {"num_labels": 2}, PICTURES, "architecture/model_type", "several models", "one of them"),
    ("siglip2", {"num_labels": 9}, PICTURES, "architecture/model_type", "lists of patches", "another type"),
    ("imagegpt", {"num_labels": 9}, PICTURES, "architecture/model_type", "no pixel_values", "another type"),
    ("pp_lcnet", {"num_labels": 9}, PICTURES, "architecture", "ForImageClassification returns no logits", ""),
    ("perceiver", {"vocab_size": 99, "num_latents": 8, "d_latents": 64, "num_self_attends_per_block": 1},
     MASKED | {"sequence_length": 64}, "architecture", "2048 predictions for 64", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "recipe", "path", "found", "allowed"), BAD)
def test_what_cannot_be_is_named_with_its_place(
    name: str, given: dict[str, Any], recipe: dict[str, Any], path: str, found: str, allowed: str
) -> None:
    text = {} if "image_size" in recipe else TEXT
    outcome = dry_build(resolved(name, given, text | recipe), "/models/0")
    assert outcome.counted is None
    (mistake,) = outcome.mistakes
    assert mistake.path == f"/models/0/{path}"
    assert found in mistake.found
    assert allowed in mistake.allowed


def test_a_decoder_of_an_encoders_type_is_one_once_it_is_said(without_footprints: None) -> None:
    model = resolved("bert", SMALL | {"is_decoder": True}, TEXT | CAUSAL)
    assert dry_build(model, "/models/0").mistakes == ()


@pytest.mark.parametrize(
    ("name", "given", "recipe"),
    [
        # Layers may override fields of the configuration.
        ("gemma4_text", GROUPED | {"head_dim": 16, "vocab_size_per_layer_input": 1000}, CAUSAL),
        # Code reads the mask, which replaced attention does not get.
        ("mpt", {"vocab_size": 1000, "d_model": 64, "n_layers": 2, "n_heads": 4}, CAUSAL),
        # A Fourier transform takes no bf16.
        ("fnet", {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128},
         MASKED),
        # The body does not call its tokens "input_ids", and has as many predictions as positions.
        ("perceiver", {"vocab_size": 99, "max_position_embeddings": 32, "num_latents": 8, "d_latents": 64,
                       "num_self_attends_per_block": 1}, MASKED),
        # A class for pictures leaves the part that reads text out.
        ("clip", {"num_labels": 9, "vision_config": {"hidden_size": 64, "intermediate_size": 128,
                  "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64}}, PICTURES),
    ],
)  # fmt: skip
def test_code_that_is_written_in_another_way_is_counted(
    name: str, given: dict[str, Any], recipe: dict[str, Any], without_footprints: None
) -> None:
    text = {} if "image_size" in recipe else TEXT
    build = dry_build(resolved(name, given, text | recipe), "/models/0")
    assert build.mistakes == ()
    assert build.counted is not None and build.counted.flops.matmul > 0


def test_a_missing_package_is_named_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def configured(_model: Any) -> None:
        raise ImportError("\nDinat requires the natten library. You can install it with pip.")

    monkeypatch.setattr("bench.training.models.dry_build.configured", configured)
    (mistake,) = dry_build(model_of("llama"), "/models/0").mistakes
    assert mistake.found == "cannot run: Dinat requires the natten library"


@pytest.mark.parametrize(
    ("error", "architecture", "field"),
    [
        ("no 'a' here", {"one": "a", "two": {"three": "a"}}, ""),
        ("no 'a' here", {"one": "b", "two": {"three": "a"}}, "/two/three"),
        ("Field 'one' with 'b'", {"one": "a", "two": "b"}, "/one"),
        ("size -40 and 4", {"one": -4, "two": 4}, ""),
        ("size -4", {"one": -4, "two": 4}, "/one"),
    ],
)
def test_an_error_is_at_the_one_field_that_it_names_or_quotes(
    error: str, architecture: dict[str, Any], field: str
) -> None:
    model = replace(model_of("llama"), architecture=architecture)
    assert _blamed("/models/0/architecture", error, model) == "/models/0/architecture" + field
    assert _blamed("/models/0/recipe", error, model) == "/models/0/recipe"


def test_models_of_timm_are_not_named_by_their_wrapper() -> None:
    recipe = {"batch_size": 2, "steps": 10, "precision": "fp32"} | PICTURES
    architecture = {"model_type": "timm_wrapper", "num_labels": 9}
    found = resolve_inline({"name": "mine", "architecture": architecture, "recipe": recipe}, "/models/0")
    assert isinstance(found, list) and '"timm"' in found[0].allowed


def test_models_with_a_file_here_need_no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.models.dry_build.subprocess.run", None)
    assert rehearse(list(known_models().values()), "m.json") == Rehearsal({}, ())


@pytest.mark.parametrize(
    ("missing", "lacks"),
    [(("torch",), "torch is"), (("torch", "transformers"), "torch and transformers are")],
)
def test_the_plan_says_which_package_is_missing_to_count(
    missing: tuple[str, ...], lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.training.models.dry_build.find_spec", lambda name: name not in missing or None)
    remark = f"/models/1: {lacks} not installed here, so it is counted when it runs"
    assert rehearse([known_models()["tiny-vit"], model_of("llama")], "m.json") == Rehearsal({}, (remark,))


def test_what_has_no_formulas_is_counted_for_the_plan() -> None:
    llama, of_its_name = model_of("llama"), replace(model_of("llama"), name="tiny-vit")
    assert rehearse([known_models()["tiny-vit"], llama], "m.json").counted == {llama.name: counted(llama)}
    assert rehearse([of_its_name], "m.json").counted["tiny-vit"] == counted(llama)


def test_mistakes_of_the_building_process_reach_the_plan_with_their_places() -> None:
    others = {key: value for key, value in GROUPED.items() if key != "hidden_size"}
    misspelt = resolved("llama", others | {"hidden_sise": 48}, TEXT | CAUSAL)
    with pytest.raises(BadInput) as refused:
        rehearse([misspelt], "m.json")
    assert "/models/0/architecture/hidden_sise  LlamaConfig has no such field" in str(refused.value)


@pytest.mark.parametrize("mistakes", [(), (Mistake("/models/0", "3", "allowed: 2"),)])
def test_a_build_is_read_as_it_was_written(mistakes: tuple[Mistake, ...]) -> None:
    build = DryBuild(None, mistakes, ("a remark",))
    assert from_json(DryBuild, json.loads(json.dumps(to_json(build)))) == build


@pytest.mark.parametrize(
    ("name", "followed"),
    [("llama", True), ("mixtral", False)],  # experts in fp32 run in a loop over data
)
def test_the_plan_of_a_new_architecture_tells_days_and_memory(
    name: str, followed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If memory cannot be counted, the plan tells what it takes before any sample."""
    model, (architecture, recipe, _) = model_of(name), CASES[name]
    entry = {"name": "mine", "architecture": {"model_type": name, **architecture}, "recipe": recipe}
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"schema": "bench/manifest/v1", "models": [entry], "methods": ["naive"]}))
    assert main(["plan", str(path), "--gpu", "h100", "--json"]) == 0
    cell = json.loads(capsys.readouterr().out)["cells"][0]
    counts = counted(model)
    assert cell["least_bytes"] == state_bytes(counts.parts, (), 1, half=False, moments=8 * counts.parts.total)
    predicted = predict_bytes(model, (), model.recipe.batch_size, 1, counts)
    assert cell["predicted_bytes"] == predicted
    assert (predicted is not None and predicted > cell["least_bytes"]) == followed
    assert cell["floor_days"] > 0
    assert main(["plan", str(path), "--gpu", "h100"]) == 0
    assert ("over " in capsys.readouterr().out) != followed


@pytest.mark.parametrize("command", [["plan"], ["run", "--device", "cpu"]])
def test_neither_plan_nor_run_begins_with_a_model_that_was_not_meant(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    architecture = without("num_hidden_layers") | {"model_type": "llama", "num_layers": 3}
    models = ["tiny-vit", {"name": "mine", "architecture": architecture, "recipe": TEXT | CAUSAL}]
    document = {"schema": "bench/manifest/v1", "models": models, "methods": "naive"}
    Path("m.json").write_text(json.dumps(document))
    assert main([command[0], "m.json", *command[1:]]) == BadInput.exit_code
    assert "/models/1/architecture/num_layers  LlamaConfig has no such field" in capsys.readouterr().err
    assert not Path("out").exists()
