"""Every objective: its made-up samples, a model that it trains, and the sizes that its recipe needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CONFIG_MAPPING

from bench.base.errors import BadInput
from bench.planning.manifest import parse_manifest
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Samples, make_pool
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.models import Model, counts_of, family_of
from bench.training.models.dry_build import DryBuild, dry_build
from bench.training.models.generic import kinds
from bench.training.models.model import empty_batch
from bench.training.models.own_models import resolve_inline
from bench.training.objectives import known_objectives, objective_of
from bench.training.objectives.objective import ObjectiveName
from bench.training.objectives.sound import FORMS, sound_part
from bench.training.setting import Setting
from bench.training.vendor import transformers_source
from tests.builders import trial

pytestmark = pytest.mark.usefixtures("without_compiled_footprints")

LAYERS = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
FEED_FORWARD = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 300}
BART = {"d_model": 32, "vocab_size": 300, "max_position_embeddings": 64, **LAYERS, **FEED_FORWARD}
WHISPER = {
    **LAYERS, **FEED_FORWARD, "d_model": 32, "vocab_size": 300, "num_mel_bins": 16,
    "max_source_positions": 50, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SEVEN_LAYERS = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
LANGUAGE = {**SMALL, "vocab_size": 300}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
LATENT = {"input_size": 8, "hidden_size": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
TOWERS = {
    "text_config": {**LANGUAGE, "max_position_embeddings": 16, "pad_token_id": 1},
    "vision_config": VISION,
}
PAIR = {"image_size": 32, "sequence_length": 8}
SEQUENCE = {"sequence_length": 16, "target_length": 8}
# A type, its fields, and the sizes of a recipe, for each objective.
TRAINED: Mapping[ObjectiveName, tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = {
    "causal-lm": (("llama", LANGUAGE, {"sequence_length": 16}),),
    "masked-lm": (("bert", LANGUAGE, {"sequence_length": 16}),),
    "image-classification": (("dinov2", {**VISION, "num_labels": 10}, {"image_size": 32}),),
    "sequence-to-sequence": (("t5", T5, SEQUENCE), ("bart", BART, SEQUENCE)),
    "speech-recognition": (("whisper", WHISPER, {"audio_seconds": 1, "target_length": 8}),),
    "audio-classification": (
        ("wav2vec2", {**SMALL, **SEVEN_LAYERS, "num_labels": 10}, {"audio_seconds": 1}),
        ("audio-spectrogram-transformer", {**SMALL, "num_mel_bins": 32, "max_length": 64, "num_labels": 10},
         {"audio_seconds": 1}),
    ),
    "masked-image": (("deit", {**VISION, "encoder_stride": 8}, {"image_size": 32}),),
    "denoising": (("dit", LATENT, {}),),
    "contrastive": (("clip", TOWERS, PAIR), ("siglip", TOWERS, PAIR)),
}  # fmt: skip
CASES = [(objective, model_type) for objective, cases in TRAINED.items() for model_type, *_ in cases]
# Those that compare samples with each other are tried in test_contrastive.py.
SAMPLE_BY_SAMPLE = [case for case in CASES if not known_objectives()[case[0]].compares_samples]


@cache
def built(objective: ObjectiveName, model_type: str) -> DryBuild:
    """Build a model as it is published, once for all tests: counting its memory takes seconds."""
    return dry_build(model_of(objective, model_type), "/models/0")


def model_of(objective: ObjectiveName, model_type: str, **changes: Any) -> Model:
    fields, sizes = next(rest for name, *rest in TRAINED[objective] if name == model_type)
    recipe = {"objective": objective, "batch_size": 4, "steps": 10, "precision": "fp32", **sizes, **changes}
    recipe = {name: value for name, value in recipe.items() if value is not None}
    entry = {"name": "mine", "architecture": {"model_type": model_type, **fields}, "recipe": recipe}
    document = {"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    return model


def test_every_objective_is_tried_here() -> None:
    """Modules with a loss of their own are tried in tests/training/models/test_own_module.py."""
    assert TRAINED.keys() == known_objectives().keys() - {"own-loss"}


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_made_up_samples_have_the_form_of_the_batch(
    objective: ObjectiveName, model_type: str, tmp_path: Path
) -> None:
    model = model_of(objective, model_type)
    parts = model.recipe.aim.parts(model.architecture, model.recipe)
    kinds = {"indices": "i", "pixels": "u", "numbers": "f", "flags": "b"}
    pool = make_pool(model, tmp_path, 0)
    samples, again = Samples(model, pool, 0), Samples(model, pool, 0)
    for index in (0, 1, 5_000_000):
        found = {name: np.asarray(part) for name, part in samples[index].items()}
        assert {name: (part.shape, part.dtype.kind) for name, part in found.items()} == {
            part.name: (part.shape, kinds[part.elements]) for part in parts
        }
        for name, part in again[index].items():
            np.testing.assert_array_equal(part, found[name])


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_the_loss_falls(objective: ObjectiveName, model_type: str, tmp_path: Path) -> None:
    model = model_of(objective, model_type, optimizer={"name": "adamw", "learning_rate": 0.003})
    run = TrialRun(trial(model=model, setting=()), Device("cpu"), Team(), tmp_path, lambda _: None)
    run.prepare()
    batch = next(run.batches)
    losses = []
    for _ in range(6):
        losses.append(float(run.strategy.forward_backward(batch, 1, sync=True)))
        run.strategy.update()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_a_model_is_counted_as_it_is_built(objective: ObjectiveName, model_type: str) -> None:
    model, build = model_of(objective, model_type), built(objective, model_type)
    assert build.mistakes == () and build.counted is not None
    module = family_of(model).build(model, kernels=False)
    assert build.counted.parts.total == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert build.counted.flops.total == counts_of(model).flops.total > 0


@pytest.mark.parametrize(("objective", "model_type"), SAMPLE_BY_SAMPLE)
def test_the_mean_loss_of_micro_batches_is_the_loss_of_the_batch(
    objective: ObjectiveName, model_type: str, tmp_path: Path
) -> None:
    model = model_of(objective, model_type)
    run = TrialRun(trial(model=model, setting=()), Device("cpu"), Team(), tmp_path, lambda _: None)
    run.prepare()
    whole, batch = run.strategy.whole.eval(), next(run.batches)
    halves = [{name: part[i : i + 2] for name, part in batch.items()} for i in (0, 2)]
    with torch.no_grad():
        mean = sum(float(whole(half)) for half in halves) / 2
        assert mean == pytest.approx(float(whole(batch)), rel=1e-4)


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_a_missing_size_is_named(objective: ObjectiveName, model_type: str) -> None:
    aim = known_objectives()[objective]
    for size in aim.sizes:
        if size in aim.defaults or size == "image_size":  # the architecture has it, or one of its towers
            continue
        with pytest.raises(BadInput, match=f"recipe/{size} +missing"):
            model_of(objective, model_type, **{size: None})


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_a_size_of_another_objective_is_refused(objective: ObjectiveName, model_type: str) -> None:
    sizes = {size for aim in known_objectives().values() for size in aim.sizes}
    for size in sizes - {*known_objectives()[objective].sizes}:
        with pytest.raises(BadInput, match=f"recipe/{size} +means nothing for {objective}"):
            model_of(objective, model_type, **{size: 1})


@pytest.mark.parametrize(
    ("objective", "model_type", "size", "value", "reason"),
    [
        ("sequence-to-sequence", "bart", "target_length", 65, "65 is more than the 64 positions"),
        ("sequence-to-sequence", "bart", "sequence_length", 65, "65 is more than the 64 positions"),
        ("speech-recognition", "whisper", "target_length", 17, "17 is more than the 16 positions"),
    ],
)
def test_a_sample_longer_than_the_positions_is_refused(
    objective: ObjectiveName, model_type: str, size: str, value: int, reason: str
) -> None:
    (mistake,) = dry_build(model_of(objective, model_type, **{size: value}), "/models/0").mistakes
    assert mistake.path == f"/models/0/recipe/{size}" and mistake.found.startswith(reason)


def test_blocks_are_those_of_the_encoder_and_of_the_decoder() -> None:
    model = model_of("sequence-to-sequence", "bart")
    module = family_of(model).build(model, kernels=False)
    names = [name for name, part in module.named_modules() if part in family_of(model).blocks(module)]
    assert [name.split(".")[-3] for name in names] == ["encoder", "encoder", "decoder", "decoder"]


@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_a_head_has_weights_of_its_own_if_the_architecture_says_so(
    model_type: str, without_footprints: None
) -> None:
    model = model_of("sequence-to-sequence", model_type)
    parted = replace(model, architecture={**model.architecture, "tie_word_embeddings": False})
    few, many = (dry_build(one, "/models/0").counted for one in (model, parted))
    assert few is not None and many is not None
    head = model.architecture["vocab_size"] * model.architecture["d_model"]
    assert many.parts.total - few.parts.total >= head


@pytest.mark.parametrize(("objective", "model_type"), CASES)
def test_the_memory_of_every_objective_is_counted(objective: ObjectiveName, model_type: str) -> None:
    counted = built(objective, model_type).counted
    assert counted is not None and counted.footprints


def test_a_batch_without_contents_has_the_recipes_precision() -> None:
    model = model_of("speech-recognition", "whisper")
    batch = empty_batch(model, 3, torch.bfloat16)
    assert batch["input_features"].dtype == torch.bfloat16 and batch["labels"].dtype == torch.int64


def test_t5_gives_fused_attention_a_bias_whose_rows_lie_in_memory_one_number_beside_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels on a GPU read no other: plain attention in fp32 would run in their place."""
    strides: list[int] = []
    attend = F.scaled_dot_product_attention

    def spy(*given: Any, attn_mask: Tensor | None = None, **more: Any) -> Tensor:
        strides.extend([] if attn_mask is None else [attn_mask.stride(-1)])
        return attend(*given, attn_mask=attn_mask, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    one = trial(model=model_of("sequence-to-sequence", "t5"), setting=("kernels",), micro_batch=2)
    run = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _: None)
    run.prepare()
    run.step(1)
    assert len(strides) == 6, "two layers of an encoder, two of a decoder that attends twice"
    assert set(strides) == {1}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("setting", [(), ("half-weights",)], ids=["naive", "half-weights"])
def test_weights_that_the_architecture_freezes_stay_as_they_are(
    setting: Setting, optimizer: str, tmp_path: Path
) -> None:
    """Whisper's positions in the sound, a table of sines, are parameters that nobody trains."""
    model = model_of("speech-recognition", "whisper", precision="bf16", optimizer={"name": optimizer})
    run = TrialRun(
        trial(model=model, setting=setting, micro_batch=2), Device("cpu"), Team(), tmp_path, lambda _: None
    )
    run.prepare()
    weights = dict(run.whole.named_parameters())
    frozen = {name for name, weight in weights.items() if not weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    run.step(2)
    assert frozen == {"model.model.encoder.embed_positions.weight"}
    changed = {name for name in weights if not torch.equal(weights[name], before[name])}
    assert len(changed) > len(weights) / 2 and not changed & frozen


def types_of(objective: ObjectiveName) -> Iterator[tuple[str, Any]]:
    """Yield the types that an objective trains, each with transformers' default configuration."""
    trained = kinds()[objective]._model_mapping
    for name, kind in CONFIG_MAPPING.items():
        if kind in trained:
            with suppress(Exception):  # some types have none
                yield name, kind()


@pytest.mark.parametrize("objective", ["speech-recognition", "audio-classification"])
def test_sound_has_the_form_that_a_type_takes_by_default(objective: ObjectiveName) -> None:
    """The form that bench fills in without transformers is the one of transformers' configurations."""
    size = replace(model_of("speech-recognition", "whisper").recipe, audio_seconds=30)
    forms = {name: form for one in FORMS.values() for name, form in one.items()}
    for name, default in types_of(objective):
        stated = {field: getattr(default, field, None) for field in forms}
        assert sound_part(FORMS.get(name, {}), size) == sound_part(stated, size), name
        assert FORMS.get(name, {}).items() <= stated.items(), name


@pytest.mark.parametrize(
    ("model_type", "given", "objective"),
    [
        ("whisper", {"vocab_size": 300}, "speech-recognition"),
        ("audio-spectrogram-transformer", {"num_labels": 9}, "audio-classification"),
        ("clip", {"text_config": {}, "vision_config": {}}, "contrastive"),
    ],
)
def test_a_manifest_without_the_form_of_its_data_means_the_same_model_without_transformers(
    model_type: str, given: dict[str, Any], objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier without transformers would refuse the bundle of another model."""
    sizes = {"audio_seconds": 30, "target_length": 8, "sequence_length": 8}
    described = {
        "name": "mine", "architecture": {"model_type": model_type, **given},
        "recipe": {"batch_size": 2, "steps": 1, "precision": "fp32", "objective": objective}
        | {name: sizes[name] for name in objective_of(objective).sizes if name in sizes},
    }  # fmt: skip
    with_transformers = resolve_inline(described, "/models/0")
    assert isinstance(with_transformers, Model)
    monkeypatch.setattr(transformers_source, "types", frozenset)
    monkeypatch.setattr(transformers_source, "_source", lambda *_: "")
    assert resolve_inline(described, "/models/0") == with_transformers
    assert with_transformers.architecture.keys() > given.keys() or objective == "contrastive"


@pytest.mark.usefixtures("without_footprints")
def test_a_form_that_was_filled_in_may_be_what_a_misspelt_field_means() -> None:
    given = {"model_type": "audio-spectrogram-transformer", "num_labels": 9, "num_mel_bin": 64}
    recipe = {"batch_size": 2, "steps": 1, "precision": "fp32", "audio_seconds": 10}
    recipe |= {"objective": "audio-classification"}
    model = resolve_inline({"name": "mine", "architecture": given, "recipe": recipe}, "/models/0")
    assert isinstance(model, Model)
    (mistake,) = dry_build(model, "/models/0").mistakes
    assert mistake.path.endswith("/num_mel_bin") and '"num_mel_bins"' in mistake.allowed
