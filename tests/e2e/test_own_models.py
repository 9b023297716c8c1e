"""Models that people bring, of timm and as published: they train, and their bundles verify."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from bench.base.strict_json import to_json
from bench.planning.first_manifest import FirstAnswers, OwnConfig, chosen_model, first_manifest
from bench.planning.manifest import parse_manifest
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.models import Model
from bench.training.objectives import ObjectiveName, known_objectives
from bench.training.objectives.documents import Documents
from bench.training.vendor import transformers_source
from tests.builders import trial
from tests.training.objectives.test_objectives import TRAINED, model_of
from tests.warm import quick_python

pytestmark = pytest.mark.e2e

ON_CPU = Path("tests/timm_on_cpu").resolve()
FAMILIES = {  # a model of each, and the size of its images
    "vision_transformer": ("vit_tiny_patch16_224", 64), "resnet": ("resnet18", 64),
    "convnext": ("convnext_atto", 64), "efficientnet": ("efficientnet_b0", 64),
    "mobilenetv3": ("mobilenetv3_small_100", 64), "mlp_mixer": ("mixer_s32_224", 64),
    "regnet": ("regnetx_002", 64), "deit": ("deit3_small_patch16_224", 64),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 112), "eva": ("eva02_tiny_patch14_224", 56),
    "coat": ("coat_tiny", 64), "crossvit": ("crossvit_tiny_240", 240), "dla": ("dla34", 64),
    "hrnet": ("hrnet_w18_small", 64), "levit": ("levit_128s", 224), "pvt_v2": ("pvt_v2_b0", 224),
    "metaformer": ("poolformer_s12", 64), "byobnet": ("repvgg_a0", 64), "tiny_vit": ("tiny_vit_5m_224", 224),
    "xcit": ("xcit_nano_12_p16_224", 224), "edgenext": ("edgenext_xx_small", 256),
    "fastvit": ("fastvit_t8", 256), "hiera": ("hiera_tiny_224", 64),
}  # fmt: skip
# Of families whose models take minutes on a CPU without units for bf16: small pictures, few blocks of a kind.
SMALLER: Mapping[str, Mapping[str, object]] = {
    "vision_transformer": {"depth": 2, "img_size": 64}, "deit": {"depth": 2, "img_size": 64},
    "eva": {"depth": 2, "img_size": 56}, "mlp_mixer": {"img_size": 64},
    "swin_transformer": {"depths": [1, 1, 1, 1], "img_size": 112},
    "coat": {"serial_depths": [1, 1, 1, 1], "parallel_depth": 1, "img_size": 64},
    "hiera": {"stages": [1, 1, 1, 1], "img_size": [64, 64]},
}  # fmt: skip


def manifest(
    name: str, size: int, options: Mapping[str, object] = MappingProxyType({}), **more: object
) -> bytes:
    recipe = {"batch_size": 4, "steps": 10, "precision": "bf16", "image_size": size}
    entry = {"name": "mine", "architecture": {"timm": name, "num_classes": 10, **options}, "recipe": recipe}
    return json.dumps({"schema": "bench/manifest/v1", "models": [entry], "methods": "naive", **more}).encode()


@pytest.mark.sweep
@pytest.mark.usefixtures("timm_beside_cpu_torch")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_two_steps(family: str, tmp_path: Path) -> None:
    name, size = FAMILIES[family]
    (model,) = parse_manifest(manifest(name, size, SMALLER.get(family, {})), "m.json").models
    run = TrialRun(
        trial(model=model, setting=(), micro_batch=2), Device("cpu"), Team(), tmp_path, lambda _: None
    )
    run.prepare()
    weights = {name: part.detach().clone() for name, part in run.strategy.whole.named_parameters()}
    losses = [float(run.step(2)) for _ in range(2)]
    assert all(0 < loss < 100 for loss in losses)
    assert any((part != weights[name]).any() for name, part in run.strategy.whole.named_parameters())


def python_here(*words: str | Path, folder: Path, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python; `cold` uses an ordinary one as a user does, otherwise the one of tests/warm.py."""
    environment = os.environ | {"PYTHONPATH": f"{ON_CPU}:{Path.cwd()}", "HOME": str(folder)}
    command = [sys.executable if cold else quick_python(), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def bench_here(*words: str | Path, folder: Path, cold: bool = False) -> subprocess.CompletedProcess[str]:
    return python_here("-m", "bench", *words, folder=folder, cold=cold)


def measured(folder: Path, document: bytes, cold: bool = False) -> tuple[str, str]:
    """Plan, run and verify a manifest in separate processes; return what planning and verifying print."""
    (folder / "m.json").write_bytes(document)

    def printed(*words: str | Path) -> str:
        done = bench_here(*words, folder=folder, cold=cold)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    planned = printed("plan", "m.json")
    printed("run", "m.json", "--device", "cpu")
    (bundle,) = (folder / "out").glob("*.tar")
    return planned, printed("verify", bundle)


TIMING = {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1, "loss_steps": 1}


@pytest.mark.sweep
def test_a_run_measures_a_model_of_timm_and_its_bundle_verifies(tmp_path: Path) -> None:
    """The model has two layers, because free-lunch compiles each."""
    given: dict[str, object] = {"methods": ["free-lunch"], "micro_batch": 2, "timing": TIMING}
    document = manifest("vit_tiny_patch16_224", 224, {"depth": 2}, **given)
    planned, verified = measured(tmp_path, document, cold=True)
    assert "free-lunch" in planned
    assert "result     mine: " in verified


@pytest.mark.sweep
def test_published_fields_infinity_and_tokens_are_verified(tmp_path: Path) -> None:
    """The models are of a family with a file here, of transformers' own Mamba-2, and of the zoo."""
    tokens = {"precision": "fp32", "batch_tokens": 256, "tokens": 1e5, "sequence_length": 32}
    roberta = {"model_type": "roberta", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 66,
               "position_embedding_type": "absolute", "gradient_checkpointing": True}  # fmt: skip
    mamba2 = {"model_type": "mamba2", "vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 2,
              "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "pad_token_id": 0,
              "time_step_limit": [0.0, math.inf], "norm_before_gate": False}  # fmt: skip
    models = [
        {"name": "family", "architecture": roberta, "recipe": tokens},
        {"name": "published", "architecture": mamba2, "recipe": tokens | {"objective": "causal-lm"}},
        {"name": "smollm2-135m", "recipe": {"batch_tokens": 32, "tokens": 320, "sequence_length": 16}},
    ]
    document = {
        "schema": "bench/manifest/v1",
        "models": models,
        "methods": "naive",
        "micro_batch": 2,
        "timing": TIMING,
    }
    planned, verified = measured(tmp_path, json.dumps(document).encode())
    assert "remark   /models/0/architecture/position_embedding_type: nothing in" in planned
    assert "remark   /models/1/architecture/norm_before_gate: nothing in" in planned
    assert all(f"result     {model['name']}: " in verified for model in models)


MODULE = """
from torch import nn

class Words(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).relu()
        return self.head(hidden)
"""


def test_a_module_of_ones_own_is_measured_verified_and_exported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    entry = {
        "name": "mine",
        "architecture": {"module": "mine.py:Words", "config": {"vocab_size": 100, "width": 32}},
        "recipe": {"objective": "causal-lm", "batch_size": 4, "steps": 10, "precision": "fp32",
                   "sequence_length": 16},
    }  # fmt: skip
    document = {
        "schema": "bench/manifest/v1",
        "models": [entry],
        "methods": "naive",
        "micro_batch": 2,
        "timing": TIMING,
    }
    planned, verified = measured(tmp_path, json.dumps(document).encode())
    assert "mine.py, sha256 " in " ".join(planned.split()) and "result     mine: " in verified
    (tmp_path / "mine.py").unlink()
    (bundle,) = (tmp_path / "out").glob("*.tar")
    refused = bench_here("reproduce", bundle, "--device", "cpu", folder=tmp_path)
    assert (
        refused.returncode == 2 and "would run code that the bundle brings along: mine.py" in refused.stderr
    )
    again = bench_here("reproduce", bundle, "--device", "cpu", "--run-code", "-o", "again", folder=tmp_path)
    assert again.returncode in (0, 1), again.stderr  # the seconds depend on the other work of this machine
    assert bench_here("export", "--to", "script", bundle, "script", folder=tmp_path).returncode == 0
    assert "holds the code of mine.py" in (tmp_path / "script/README.md").read_text()
    trained = python_here("train.py", "--steps", "2", folder=tmp_path / "script", cold=True)
    assert trained.returncode == 0 and '"step": 2' in trained.stdout, trained.stderr


@pytest.mark.sweep
def test_every_objective_is_measured_verified_and_exported(tmp_path: Path) -> None:
    models = [
        replace(model_of(objective, cases[0][0], batch_size=4), name=objective)
        for objective, cases in TRAINED.items()
    ]
    causal = next(model for model in models if model.recipe.objective == "causal-lm")
    packed = replace(causal.recipe, documents=Documents(mean_tokens=6))
    models.append(replace(causal, name="documents", recipe=packed))
    document = {
        "schema": "bench/manifest/v1",
        "models": [described(model) for model in models],
        "methods": "naive",
        "micro_batch": 2,
        "timing": TIMING,
    }
    _, verified = measured(tmp_path, json.dumps(document).encode())
    (bundle,) = (tmp_path / "out").glob("*.tar")
    for place, model in enumerate(models):
        assert f"result     {model.name}: " in verified
        made = bench_here(
            "export", "--to", "script", "--model", model.name, bundle, model.name, folder=tmp_path
        )
        assert made.returncode == 0, made.stderr
        trained = python_here("train.py", "--steps", "1", folder=tmp_path / model.name, cold=place == 0)
        assert trained.returncode == 0 and '"step": 1' in trained.stdout, trained.stderr


def described(model: Model) -> dict[str, object]:
    """Return a model as a manifest describes it."""
    recipe = {key: value for key, value in to_json(model.recipe).items() if value is not None}
    architecture = {"model_type": model.family, **model.architecture}
    return {"name": model.name, "architecture": architecture, "recipe": recipe}


POSITIONS = ("max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings")
# GPT-SW3 is configured by a class of another type. The others are several models, which bench refuses.
NOT_READ = {"gpt-sw3", "granite_speech", "granite_speech_plus", "musicgen", "musicgen_melody"}


def test_a_first_manifest_of_any_type_has_samples_within_its_default_positions(tmp_path: Path) -> None:
    """A config.json often leaves out what is the default of its type."""
    from transformers import AutoConfig

    aims: list[ObjectiveName] = ["causal-lm", "masked-lm", "sequence-to-sequence", "speech-recognition"]
    held, too_long = 0, []
    for model_type in sorted(transformers_source.types() - NOT_READ):
        for aim in aims:
            name = transformers_source.trained_by(model_type, known_objectives()[aim].mapping)
            if not name:
                continue
            try:
                config = AutoConfig.for_model(model_type).get_text_config()
            except ValueError:  # it has no defaults
                continue
            path = tmp_path / f"{model_type}.json"
            path.write_text(json.dumps({"model_type": model_type, "architectures": [name]}))
            model = chosen_model(str(path))
            assert isinstance(model, OwnConfig)
            entry = first_manifest("m", FirstAnswers(model, None, None, None, None))["models"][0]
            positions = [getattr(config, field, None) for field in POSITIONS]
            most = min((one for one in positions if type(one) is int and one > 0), default=None)
            longest = max(entry["recipe"].get(size, 0) for size in ("sequence_length", "target_length"))
            held += most is not None
            too_long += [(model_type, aim, longest, most)] if most is not None and longest > most else []
    assert too_long == []
    assert held > 200
