"""The zoo: every model is built as published, and its recipe names its sources."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.base.errors import BadInput
from bench.base.shipped_data import DATA
from bench.cli.main import main
from bench.planning.manifest import parse_manifest
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.models import Model, family_of, known_models
from bench.training.models.dry_build import dry_build
from bench.training.models.zoo import ZooModel, zoo_model, zoo_names
from bench.training.objectives import known_objectives
from tests.builders import trial

every_model = pytest.mark.parametrize("name", zoo_names())
FIELDS = {"architecture", "architecture_source", "recipe", "parameters", "parameters_source", "dated"}
# Objectives whose models have no family file, and the sizes with which they train on a CPU in a test.
OBJECTIVES = {"sequence-to-sequence", "speech-recognition", "audio-classification", "masked-image"}
SHRUNK = {
    **dict.fromkeys(("num_layers", "num_decoder_layers", "num_hidden_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_heads", "num_attention_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("d_model", "hidden_size"), 32),
    **dict.fromkeys(("d_ff", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
}


def of_zoo(name: str) -> ZooModel:
    found = zoo_model(name)
    assert found is not None
    return found


def unit_of_last_digit(number: float) -> float:
    """1.7e9 is given to 0.1e9, and 1,235,814,400 to 100."""
    digits = f"{number:.15g}".rstrip("0") if number == int(number) else f"{number:.15g}"
    whole = str(int(number))
    return 10.0 ** (len(whole) - len(digits))


@every_model
def test_a_model_has_as_many_parameters_as_published(name: str) -> None:
    """Within a percent; or within 1.3 percent, if the published number has only its first digits."""
    published = of_zoo(name)
    with torch.device("meta"):
        module = family_of(published.model).build(published.model, kernels=False)
    count = sum(parameter.numel() for parameter in module.parameters())
    apart = abs(count - published.parameters)
    assert apart <= max(0.01 * count, min(0.013 * count, unit_of_last_digit(published.parameters) / 2))


@pytest.mark.parametrize(("number", "unit"), [(1.7e9, 1e8), (335e6, 1e6), (1_484_916_736, 1), (1.23e9, 1e7)])
def test_a_published_number_is_as_exact_as_its_digits(number: float, unit: float) -> None:
    assert math.isclose(unit_of_last_digit(number), unit)


@every_model
def test_a_model_names_its_sources_and_no_unknown_facts(name: str) -> None:
    data = json.loads((DATA / "zoo" / f"{name}.json").read_text())
    assert data.keys() >= FIELDS
    assert data.keys() <= FIELDS | {"cost", "notes"}
    published = of_zoo(name)
    assert published.model.name == name
    assert published.model.recipe.source == data["recipe"]["source"] != "the manifest"
    assert published.architecture_source
    assert published.parameters_source


def test_the_zoo_s_names_are_no_others() -> None:
    assert not {*zoo_names()} & {*known_models()}
    assert zoo_model("no-such-model") is None


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "bert-base-uncased", "mamba2-2.7b", "deberta-v3-base"])
def test_a_model_is_planned_without_mistakes_or_remarks(name: str, without_footprints: None) -> None:
    """GPT-2 and others are planned in test_shipped_counts.py."""
    build = dry_build(of_zoo(name).model, "/models/0")
    assert build.mistakes == ()
    assert build.remarks == ()
    assert build.counted is not None


def shrunk(model: Model) -> Model:
    """Return the model with two layers, few features, and all else as published."""
    small: dict[str, object] = {
        field: value for field, value in SHRUNK.items() if field in model.architecture
    }
    if "conv_dim" in model.architecture:
        small["conv_dim"] = [16] * 7
    return replace(
        model,
        architecture={**model.architecture, **small},
        recipe=replace(model.recipe, batch_size=2, precision="fp32"),
    )


@pytest.mark.parametrize(
    "name", [name for name in zoo_names() if of_zoo(name).model.recipe.objective in OBJECTIVES]
)
def test_a_shrunk_model_trains(name: str, tmp_path: Path) -> None:
    model = shrunk(of_zoo(name).model)
    one = trial(model=model, setting=(), micro_batch=1)
    run = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _: None)
    run.prepare()
    before = [weight.detach().clone() for weight in run.strategy.whole.parameters()]
    for _ in range(2):
        assert math.isfinite(float(run.strategy.forward_backward(next(run.batches), 1, sync=True)))
        run.strategy.update()
    changed = [not torch.equal(a, b) for a, b in zip(before, run.strategy.whole.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2


def test_a_manifest_names_a_model_and_may_change_its_recipe() -> None:
    document = {
        "schema": "bench/manifest/v1",
        "models": ["gpt2", {"name": "vit-b-16", "recipe": {"steps": 9}}],
    }
    gpt2, vit = parse_manifest(json.dumps(document).encode(), "m.json").models
    assert gpt2 == of_zoo("gpt2").model
    assert vit.recipe.steps == 9
    assert vit.recipe.source.endswith("; changed in the manifest: steps")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    document = {"schema": "bench/manifest/v1", "models": ["llama-3.2-1"]}
    with pytest.raises(BadInput, match=r'nearest: "llama-3.2-[13]b"'):
        parse_manifest(json.dumps(document).encode(), "m.json")


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", "--list-models", *words]) == 0
    return capsys.readouterr().out


def test_models_are_listed_by_what_they_learn_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    said = listed(capsys)
    assert {name for name in (*zoo_names(), *known_models()) if f"\n{name} " not in said} == set()
    trained = {of_zoo(name).model.recipe.objective for name in zoo_names()}
    titles = [said.index(aim.title) for aim in known_objectives().values() if aim.name in trained]
    assert titles == sorted(titles)
    assert titles[0] < said.index("gpt2") < titles[1] < said.index("modernbert-base") < titles[2]
    assert max(map(len, said.splitlines())) < 80


def test_a_search_shows_all_about_few_models(capsys: pytest.CaptureFixture[str]) -> None:
    said = listed(capsys, "llama", "3.2", "1B")
    assert "\nllama-3.2-1b " in said
    assert "smollm" not in said
    assert "370,000 hours of H100 80 GB" in said
    assert max(map(len, said.splitlines())) < 80
    (found,) = json.loads(listed(capsys, "llama", "3.2", "1b", "--json"))
    assert found["published"]["parameters"] == 1.23e9
    assert found["recipe"]["steps"] == 2_145_767
    assert "deberta-v3-base" in listed(capsys, "masked-lm")
    assert "swin-tiny" not in listed(capsys, "masked-lm")
    assert "512 + 128" in listed(capsys, "t5")


def test_a_search_without_a_result_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--list-models", "gpt3"]) == BadInput.exit_code
    assert 'nearest: "gpt2"' in capsys.readouterr().err


def test_the_zoo_is_part_of_the_package() -> None:
    assert '"zoo/*.json"' in Path("pyproject.toml").read_text()
