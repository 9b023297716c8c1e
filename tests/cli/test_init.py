"""`bench init`: five questions on a real pseudo-terminal, or options; what it writes is a valid manifest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.shipped_data import MANIFEST_SCHEMA, read_data
from bench.cli.main import main
from bench.planning.first_manifest import chosen_amount, chosen_model, chosen_rent
from bench.planning.manifest import load_manifest
from tests.terminals import Shown, on_terminal

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 514,
    "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
MODEL, PRECISION, AMOUNT = "[pythia-160m] ", "[published] ", "[published] "
HOURS, RENT = "[1] ", "[none] "


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*typed: tuple[str, str], words: tuple[str, ...] = ("m.json",)) -> Shown:
    return on_terminal(["init", *words], 80, typed=typed)


def written(name: str = "m.json") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
    return document


def test_five_empty_answers_make_a_valid_minimal_manifest() -> None:
    shown = asked(*((prompt, "\n") for prompt in (MODEL, PRECISION, AMOUNT, HOURS, RENT)))
    assert shown.code == 0
    assert written() == {
        "$schema": "manifest-v1.schema.json",
        "schema": "bench/manifest/v1",
        "name": "m",
        "models": ["pythia-160m"],
        "budget_minutes": 60,
    }
    assert load_manifest(Path("m.json")).budget_seconds == 3600
    assert shown.lines[-2:] == ["  bench plan m.json", "  bench run m.json"]
    assert shown.text.count("?") == 5
    assert shown.widest <= 80


def test_the_schema_lies_beside_the_manifest() -> None:
    assert main(["init", "m.json", "--model", "tiny-vit"]) == 0
    assert json.loads(Path("manifest-v1.schema.json").read_bytes()) == read_data(MANIFEST_SCHEMA)


def test_a_mistake_is_answered_with_the_nearest_name_and_asked_again() -> None:
    shown = asked(
        (MODEL, "pythia-16m\n"),
        ('nearest: "pythia-160m"', ""),
        (MODEL, "pythia-160m\n"),
        (PRECISION, "bf61\n"),
        ('nearest: "bf16"', ""),
        (PRECISION, "bf16\n"),
        (AMOUNT, "a lot\n"),
        ("300B tokens", ""),
        (AMOUNT, "20B\n"),
        (HOURS, "soon\n"),
        (HOURS, "0.5h\n"),
        (RENT, "3 h10o\n"),
        ("nearest", ""),
        (RENT, "$3 h100\n"),
    )
    assert shown.code == 0, shown.text
    assert written()["models"] == [
        {"name": "pythia-160m", "recipe": {"precision": "bf16", "tokens": 20 * 10**9}}
    ]
    assert written()["budget_minutes"] == 30
    assert written("m-prices.json")["rents"][0]["gpu"] == ["NVIDIA H100 80GB HBM3"]
    assert "  bench predict m.json --gpu h100 --prices m-prices.json" in shown.lines
    assert "at most $1.50 a GPU" in shown.text


@pytest.mark.parametrize(("key", "said"), [("\x03", "interrupted"), ("\x04", "the input ended")])
def test_an_interrupt_and_the_end_of_the_input_write_nothing(key: str, said: str, folder: Path) -> None:
    shown = asked((MODEL, "\n"), (PRECISION, key))
    assert shown.code == 5
    assert said in shown.text
    assert "Traceback" not in shown.text
    assert list(folder.iterdir()) == []


def test_only_what_no_option_says_is_asked() -> None:
    words = "m.json --model vit-l --precision bf16 --train-on 1M --hours none"
    shown = asked((RENT, "\n"), words=tuple(words.split()))
    assert shown.code == 0
    assert shown.text.count("?") == 1
    assert written()["models"] == [
        {"name": "vit-l", "recipe": {"precision": "bf16", "epochs": 1, "samples": 1_000_000}}
    ]
    assert "budget_minutes" not in written()


# --- without a terminal ---------------------------------------------------------------------------------


def test_without_a_terminal_nothing_is_asked_and_the_missing_option_is_named(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["init", "m.json"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("bench init: --model is missing")
    assert "?" not in shown.err + shown.out
    assert list(folder.iterdir()) == []


def test_without_a_terminal_defaults_are_taken() -> None:
    assert main(["init", "--model", "tiny-vit"]) == 0
    assert written("manifest.json")["models"] == ["tiny-vit"]


@pytest.mark.parametrize("path", ["My Llama/config.json", "My Llama"])
def test_a_config_json_becomes_a_model_of_ones_own(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("My Llama").mkdir()
    Path("My Llama/config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert main(["init", "m.json", "--model", path]) == 2
    assert "--train-on is missing" in capsys.readouterr().err
    assert main(["init", "m.json", "--model", path, "--train-on", "2B tokens"]) == 0
    (model,) = load_manifest(Path("m.json")).models
    assert (model.name, model.recipe.objective, model.recipe.precision) == ("my-llama", "causal-lm", "bf16")
    assert model.recipe.sequence_length == 512
    assert model.recipe.steps == -(-2 * 10**9 // (256 * 512))
    assert written()["models"][0]["architecture"].keys() == LLAMA.keys() - {
        "architectures", "torch_dtype", "use_cache"
    }  # fmt: skip
    assert "are ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "line 1"),
        ("[]", "no model_type"),
        ('{"model_type": "swin"}', "does not say what a swin learns"),
        ('{"model_type": "lama"}', '"lama" is not a type of transformers\n  nearest: "llama"'),
        (
            '{"model_type": "mine", "architectures": ["Mine"]}',
            "type of transformers\n  write a module of your own",
        ),
        (
            json.dumps({**LLAMA, "hidden_layers": 2, "num_attention_heads": 2, "vocab_size": "x"}),
            "config.json, as an architecture: 1 mistake\n  /models/0/architecture/vocab_size",
        ),
    ],
)
def test_a_config_json_with_mistakes_is_refused(
    config: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.json").write_text(config, encoding="utf-8")
    assert main(["init", "m.json", "--model", "config.json", "--train-on", "2B"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("m.json").exists()


@pytest.mark.parametrize(
    ("model_type", "name", "objective"),
    [
        ("moonshine", "MoonshineForConditionalGeneration", "speech-recognition"),
        ("bart", "BartForConditionalGeneration", "sequence-to-sequence"),
        ("hubert", "HubertForSequenceClassification", "audio-classification"),
        ("clip", "CLIPModel", "contrastive"),
        ("gemma3", "Gemma3ForConditionalGeneration", "causal-lm"),
    ],
)
def test_the_objective_is_that_for_which_transformers_lists_the_class(
    model_type: str, name: str, objective: str
) -> None:
    config = {"model_type": model_type, "architectures": [name], "is_encoder_decoder": True}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    own = chosen_model("config.json")
    assert not isinstance(own, str)
    assert own.objective == objective


@pytest.mark.parametrize(
    ("model_type", "name", "said"),
    [
        ("wav2vec2-conformer", "Wav2Vec2ConformerForCTC",
         '"architectures" to ["Wav2Vec2ConformerForSequenceClassification"] (audio-classification)'),
        ("dinov3_vit", "DINOv3ViTModel", "no class of dinov3_vit that bench trains; write a module"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_trained_is_named_with_those_that_are(
    model_type: str, name: str, said: str
) -> None:
    config = {"model_type": model_type, "architectures": [name]}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BadInput, match=f"is for {name}, which bench does not train") as refused:
        chosen_model("config.json")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "field",
    ["max_position_embeddings", "n_positions", "context_length", "max_decoder_position_embeddings"],
)
def test_a_sample_is_no_longer_than_the_models_positions_by_any_name(field: str) -> None:
    config = {"model_type": "rwkv", "architectures": ["RwkvForCausalLM"], "vocab_size": 64, field: 1024}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["init", "m.json", "--model", "config.json", "--train-on", "2B"]) == 0
    assert load_manifest(Path("m.json")).models[0].recipe.sequence_length == 1024


def test_a_text_is_no_longer_than_the_positions_that_its_tower_has_by_default() -> None:
    towers = {"text_config": {"vocab_size": 64}, "vision_config": {"image_size": 32}}
    config = {"model_type": "siglip", "architectures": ["SiglipModel"], **towers}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["init", "m.json", "--model", "config.json", "--train-on", "1M samples"]) == 0
    assert load_manifest(Path("m.json")).models[0].recipe.sequence_length == 64


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("BertForMaskedLM", 512),
        ("GPT2LMHeadModel", 1024),
        ("LlamaForCausalLM", 2048),
        ("OPTForCausalLM", 2048),
        ("RobertaForMaskedLM", 256),  # of 512 positions, two are before the first token's
        ("BartForConditionalGeneration", 1024),
        ("WhisperForConditionalGeneration", 256),  # of 448
        ("MistralForCausalLM", 4096),  # of 131,072
    ],
)
def test_a_sample_is_no_longer_than_the_positions_that_a_type_has_by_default(
    name: str, positions: int
) -> None:
    """The manifest is one that `bench plan` takes."""
    model_type = re.split(r"For|LM", name)[0].lower()
    config = {"model_type": model_type, "architectures": [name], "vocab_size": 64}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["init", "m.json", "--model", "config.json", "--train-on", "2B samples"]) == 0
    recipe = load_manifest(Path("m.json")).models[0].recipe
    assert positions in (recipe.sequence_length, recipe.target_length)


@pytest.mark.parametrize("side", [32, [32, 32]])
def test_the_size_of_square_images_stands_once(side: int | list[int]) -> None:
    config = {"model_type": "hiera", "architectures": ["HieraForImageClassification"], "image_size": side,
              "num_labels": 10}  # fmt: skip
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["init", "m.json", "--model", "config.json", "--train-on", "1M samples"]) == 0
    (model,) = load_manifest(Path("m.json")).models
    assert model.recipe.image_size == 32


def test_nothing_is_overwritten_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.json").write_text("mine", encoding="utf-8")
    Path("manifest-v1.schema.json").write_text("mine too", encoding="utf-8")
    assert main(["init", "m.json", "--model", "tiny-vit"]) == 2
    assert Path("m.json").read_text(encoding="utf-8") == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["init", "m.json", "--model", "tiny-vit", "--force"]) == 0
    assert written()["models"] == ["tiny-vit"]
    assert Path("manifest-v1.schema.json").read_text(encoding="utf-8") == "mine too"


def test_prices_that_are_there_are_not_overwritten_either(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m-prices.json").write_text("mine", encoding="utf-8")
    assert main(["init", "m.json", "--model", "tiny-vit", "--rent", "2 h100"]) == 2
    assert "m-prices.json" in capsys.readouterr().err
    shown = asked(*((prompt, "\n") for prompt in (MODEL, PRECISION, AMOUNT, HOURS)), (RENT, "2 h100\n"))
    assert shown.code == 2
    assert Path("m-prices.json").read_text(encoding="utf-8") == "mine"
    assert not Path("m.json").exists()


def test_a_folder_that_is_not_there_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "my work/first/m.json", "--model", "tiny-vit"]) == 0
    assert "bench plan 'my work/first/m.json'" in capsys.readouterr().out
    assert main(["plan", "my work/first/m.json"]) == 0


def test_a_file_in_the_place_of_a_folder_is_named_before_a_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("notes").write_text("mine", encoding="utf-8")
    assert main(["init", "notes/first/m.json"]) == 2
    said = capsys.readouterr().err
    assert f"{Path.cwd() / 'notes'}: is no folder" in said


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("300B tokens", 300 * 10**9, "tokens"),
        ("300e9", None, None),
        ("20,000,000", 20_000_000, "tokens"),
        ("1.5T", 1_500_000_000_000, "tokens"),
        ("3M samples", 3_000_000, "samples"),
        ("0", None, None),
        ("-5B", None, None),
        ("9999T", None, None),
        ("", None, None),
    ],
)
def test_what_an_amount_means(text: str, count: int | None, unit: str | None) -> None:
    if count is None:
        with pytest.raises(Exception, match="is no amount of data"):
            chosen_amount(text, "pythia-160m")
    else:
        amount = chosen_amount(text, "pythia-160m")
        assert amount is not None
        assert (amount.count, amount.unit) == (count, unit)


def test_a_model_of_images_reads_no_tokens() -> None:
    with pytest.raises(Exception, match="image-classification reads no tokens"):
        chosen_amount("3B tokens", "vit-l")


@pytest.mark.parametrize("text", ["2.5 h100", "h100 2.50", "h100=2.5", "$2.5 h100", "2.5 a100 80gb"])
def test_a_rent_is_a_price_and_a_gpu(text: str) -> None:
    rent = chosen_rent(text)
    assert rent is not None
    assert rent.dollars == 2.5


@pytest.mark.parametrize("text", ["h100", "2.5", "-2 h100", "nan h100", "1 2 h100", ""])
def test_what_is_no_rent(text: str) -> None:
    with pytest.raises(Exception, match="is no rent"):
        chosen_rent(text)


def test_a_name_of_a_known_model_is_not_taken_by_a_file() -> None:
    Path("pythia-160m").mkdir()
    Path("pythia-160m/config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert chosen_model("pythia-160m") == "pythia-160m"
    own = chosen_model("pythia-160m/config.json")
    assert not isinstance(own, str)
    assert own.name == "my-pythia-160m"
