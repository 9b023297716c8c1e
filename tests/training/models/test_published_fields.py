"""Fields of published configurations: kept if anything reads them, a remark if nothing does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.cli.main import main
from bench.planning.manifest import parse_manifest
from bench.training.models import family_of
from bench.training.models.dry_build import DryBuild, dry_build
from bench.training.models.generic import configured
from bench.training.models.own_models import meant_field
from tests.training.models.test_generic import CAUSAL, PICTURES, SMALL, TEXT, resolved

pytestmark = pytest.mark.usefixtures("without_footprints")

MASKED = {"objective": "masked-lm"}
GPT2 = {"vocab_size": 1000, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64}
MAMBA2 = {"vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16,
          "state_size": 8, "n_groups": 1, "pad_token_id": 0}  # fmt: skip


def built(model_type: str, architecture: dict[str, Any], recipe: dict[str, Any]) -> DryBuild:
    text = {} if "image_size" in recipe else TEXT
    return dry_build(resolved(model_type, architecture, text | recipe), "/models/0")


@pytest.mark.parametrize(
    ("model_type", "architecture", "recipe", "fields"),
    [
        ("bert", SMALL | {"position_embedding_type": "absolute", "gradient_checkpointing": False}, MASKED,
         ["position_embedding_type"]),
        ("gpt2", GPT2 | {"n_ctx": 64, "task_specific_params": {"text-generation": {}}}, CAUSAL,
         ["n_ctx", "task_specific_params"]),
        ("llama", SMALL | {"transformers.js_config": {"dtype": "fp16"}, "rope_interleaved": False}, CAUSAL,
         ["transformers.js_config", "rope_interleaved"]),
        ("modernbert", SMALL | {"pad_token_id": 0, "layer_norm_eps": 1e-5, "global_attn_every_n_layers": 2},
         MASKED, ["layer_norm_eps"]),
        ("gemma3_text", SMALL | {"cache_implementation": "hybrid", "sliding_window_pattern": 2}, CAUSAL,
         ["cache_implementation"]),
        ("swin", {"num_labels": 10, "image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16,
                  "depths": [1, 1], "num_heads": [2, 2], "path_norm": True}, PICTURES, ["path_norm"]),
    ],
)  # fmt: skip
def test_a_field_that_nothing_reads_is_a_remark(
    model_type: str, architecture: dict[str, Any], recipe: dict[str, Any], fields: list[str]
) -> None:
    build = built(model_type, architecture, recipe)
    assert build.mistakes == ()
    said = [
        f"/models/0/architecture/{f}: nothing in transformers' {model_type} reads this field" for f in fields
    ]
    assert list(build.remarks) == said


def test_fields_of_fairseq_in_published_configurations_of_sound_models_are_not_taken_for_others() -> None:
    """The field mask_time_min_space, for instance, is no mask_time_min_masks."""
    fields = ("min_space", "other", "selection")
    masks = {
        f"mask_{of}_{name}": 1 if name == "min_space" else 0.0
        for of in ("time", "channel")
        for name in fields
    }
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    convolutions = {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_labels": 10}
    recipe = {"batch_size": 8, "steps": 10, "precision": "fp32", "audio_seconds": 1}
    recipe |= {"objective": "audio-classification"}
    model = resolved("hubert", sizes | convolutions | masks, recipe)
    assert dry_build(model, "/models/0").mistakes == ()


def test_a_configuration_does_not_turn_checkpointing_on() -> None:
    model = resolved("bert", SMALL | {"gradient_checkpointing": True}, TEXT | MASKED)
    assert not family_of(model).build(model, kernels=False).is_gradient_checkpointing


def test_code_of_the_hub_is_not_run_and_that_is_said() -> None:
    build = built("phi3", SMALL | {"pad_token_id": 0, "auto_map": {"AutoConfig": "x.Y"}}, CAUSAL)
    (remark,) = build.remarks
    assert "its code is not run; transformers' own phi3 is measured" in remark


@pytest.mark.parametrize(
    ("model_type", "architecture", "recipe", "changed"),
    [
        ("gemma3_text", SMALL, CAUSAL, {"sliding_window_pattern": 2}),
        ("modernbert", SMALL | {"pad_token_id": 0}, MASKED, {"global_attn_every_n_layers": 2}),
    ],
)
def test_a_field_that_the_configuration_converts_changes_the_layers(
    model_type: str, architecture: dict[str, Any], recipe: dict[str, Any], changed: dict[str, Any]
) -> None:
    layers = {"num_hidden_layers": 4}
    plain, other = (
        configured(resolved(model_type, architecture | layers | given, TEXT | recipe))
        for given in ({}, changed)
    )
    assert plain.layer_types != other.layer_types


def test_position_buckets_change_debertas_parameters() -> None:
    given = SMALL | {"relative_attention": True, "max_position_embeddings": 64}
    with_buckets = built("deberta-v2", given | {"position_buckets": 8}, MASKED)
    without = built("deberta-v2", given, MASKED)
    assert with_buckets.mistakes == without.mistakes == ()
    assert with_buckets.counted is not None
    assert without.counted is not None
    assert with_buckets.counted.parts.total < without.counted.parts.total


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [
        ({"hidden_sise": 9}, {"hidden_size": 64}, "hidden_size"),
        ({"num_layers": 3}, {"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"num_layers": 2}, {"num_hidden_layers": 2}, None),  # says the same
        ({"n_embd": 32}, {"hidden_size": 64, "n_hidden": 8}, "hidden_size"),  # as in GPT-2
        ({"n_embd": 32, "hidden_size": 64}, {"hidden_size": 64}, None),
        ({"pad_index": 3}, {"pad_token_id": 0}, None),  # a token, on which no size depends
        ({"classif_dropout": 0.1, "classifier_dropout": 0.0}, {"classifier_dropout": 0.0}, None),
        ({"position_embedding_type": "absolute"}, {"max_position_embeddings": 512}, None),
        ({"transformers.js_config": {}}, {"transformers_version": "5"}, None),
        ({"n_ctx": 64}, {"n_positions": 32}, None),
    ],
)
def test_an_unread_field_may_stand_for_one_that_was_not_given_and_that_it_would_change(
    given: dict[str, Any], known: dict[str, Any], expected: str | None
) -> None:
    assert meant_field(next(iter(given)), given, known) == expected


def test_sizes_by_the_names_of_another_type_are_mistakes_and_their_defaults_are_remarks() -> None:
    plain = {"vocab_size": 1000, "n_layer": 12, "n_head": 12}
    said = built("nomic_bert", plain | {"n_embd": 48, "n_positions": 64}, MASKED)
    assert {(one.path, one.allowed) for one in said.mistakes} == {
        (f"/models/0/architecture/{given}", f'nearest: "{meant}"; or leave it out: nothing reads it')
        for given, meant in (("n_embd", "hidden_size"), ("n_positions", "max_position_embeddings"))
    }
    assert built("nomic_bert", plain | {"n_embd": 768}, MASKED).mistakes == ()


def test_a_target_longer_than_the_decoders_positions_is_a_mistake_in_the_recipe() -> None:
    led = {
        "vocab_size": 1000, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "attention_window": [4],
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 16,
    }  # fmt: skip
    said = built("led", led, {"objective": "sequence-to-sequence", "target_length": 32})
    (mistake,) = said.mistakes
    assert mistake.path == "/models/0/recipe/target_length"
    assert "32 is more than the 16 positions" in mistake.found


ROBERTA = {"model_type": "roberta", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 66}  # fmt: skip


def manifest(architecture: dict[str, Any], objective: str) -> bytes:
    recipe = {
        "objective": objective,
        "batch_size": 8,
        "steps": 10,
        "precision": "fp32",
        "sequence_length": 64,
    }
    entry = {"name": "mine", "architecture": architecture, "recipe": recipe}
    return json.dumps({"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}).encode()


def test_a_family_with_a_file_here_remarks_on_the_same_fields() -> None:
    parsed = parse_manifest(
        manifest(ROBERTA | {"position_embedding_type": "absolute"}, "masked-lm"), "m.json"
    )
    (remark,) = parsed.remarks
    assert remark.startswith(
        "/models/0/architecture/position_embedding_type: nothing in transformers' roberta"
    )
    model = parsed.models[0]
    assert model.architecture["position_embedding_type"] == "absolute"  # a verifier looks for what is stated
    assert family_of(model).build(model, kernels=False).config.num_hidden_layers == 2


@pytest.mark.parametrize("field", ["hidden_sise", "is_decoder"])
def test_a_family_with_a_file_here_refuses_misspelt_fields_and_those_without_formulas(field: str) -> None:
    given = {key: value for key, value in ROBERTA.items() if key != "hidden_size"} | {field: 9}
    with pytest.raises(BadInput, match=f"architecture/{field}  no such field"):
        parse_manifest(manifest(given, "masked-lm"), "m.json")


def test_infinity_is_read_in_an_architecture_and_nowhere_else() -> None:
    document = manifest(MAMBA2 | {"model_type": "mamba2", "time_step_limit": [0.0, math.inf]}, "causal-lm")
    assert b"Infinity" in document
    (model,) = parse_manifest(document, "m.json").models
    assert configured(model).time_step_limit == [0.0, math.inf]
    tagged = document.replace(b"Infinity", b'{"__float__": "Infinity"}')
    assert parse_manifest(tagged, "m.json").models == (model,)
    with pytest.raises(BadInput, match="NaN is no JSON number"):
        parse_manifest(document.replace(b"Infinity", b"NaN"), "m.json")
    with pytest.raises(BadInput, match="/models/0/recipe/steps"):
        parse_manifest(document.replace(b'"steps": 10', b'"steps": Infinity'), "m.json")


def test_a_configuration_of_several_models_names_the_one_to_give() -> None:
    given = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}
    with pytest.raises(
        BadInput, match=r'text_config .* with its "model_type" \(of this one: "gemma3_text"\)'
    ):
        parse_manifest(manifest(given, "causal-lm"), "m.json")


@pytest.mark.parametrize("model_type", ["bart", "whisper"])
def test_a_decoder_is_not_trained_without_its_encoder(model_type: str) -> None:
    (mistake,) = built(model_type, {"vocab_size": 60_000}, CAUSAL).mistakes
    assert mistake.path == "/models/0/recipe/objective"
    assert f"would train the decoder of {model_type} alone" in mistake.found


def test_the_plan_shows_remarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.json").write_bytes(manifest(ROBERTA | {"position_embedding_type": "absolute"}, "masked-lm"))
    assert main(["plan", "m.json", "--gpu", "h100"]) == 0
    said = capsys.readouterr().out
    remark = "remark /models/0/architecture/position_embedding_type: nothing in transformers' roberta reads"
    assert remark in " ".join(said.split())  # wrapped to the width of a terminal
    assert main(["plan", "m.json", "--gpu", "h100", "--json"]) == 0
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert "position_embedding_type" in remark
