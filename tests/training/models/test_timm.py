"""Image models by timm's names: built, counted, planned and refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.base.errors import BadInput
from bench.export import script
from bench.export.requirements import needed
from bench.planning.manifest import parse_manifest
from bench.runner.trial.device import Device
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import free_lunch
from bench.training.models import Model, family_of
from bench.training.models.dry_build import DryBuild, dry_build
from bench.training.models.timm_family import FAMILY
from bench.training.setting import Setting
from tests.builders import trial
from tests.targets import CPU, H200

RECIPE = {"batch_size": 4, "steps": 10, "precision": "bf16", "image_size": 64}


pytestmark = pytest.mark.usefixtures("timm_beside_cpu_torch", "without_compiled_footprints")


def manifest(architecture: dict[str, Any], **recipe: Any) -> bytes:
    entry = {"name": "mine", "architecture": architecture, "recipe": RECIPE | recipe}
    return json.dumps({"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}).encode()


def model_of(name: str, **options: Any) -> Model:
    (model,) = parse_manifest(manifest({"timm": name, "num_classes": 10, **options}), "m.json").models
    return model


def built(name: str, **options: Any) -> DryBuild:
    return dry_build(model_of(name, **options), "/models/0")


@pytest.mark.parametrize(
    ("name", "options", "parameters", "blocks"),
    [
        ("resnet18", {"num_classes": 1000}, 11_689_512, 8),
        ("vit_tiny_patch16_224", {"num_classes": 1000, "img_size": 64}, 5_717_416 - (197 - 17) * 192, 12),
        ("convnext_atto", {"num_classes": 1000}, 3_695_520, 12),
    ],
)
def test_a_model_is_counted_as_timm_publishes_it(
    name: str, options: dict[str, Any], parameters: int, blocks: int
) -> None:
    build = built(name, **options)
    assert build.mistakes == ()
    assert build.counted is not None
    assert build.counted.parts.total == parameters
    assert len(build.counted.parts.blocks) == blocks
    assert build.counted.flops.total > 0
    assert build.counted.footprints


@pytest.mark.parametrize(("name", "options"), [("test_resnet", {}), ("test_vit", {"img_size": 64})])
@pytest.mark.parametrize("setting", [(), ("kernels",), ("checkpointing",), ("half-weights",)])
def test_settings_train_alike(name: str, options: dict[str, Any], setting: Setting, tmp_path: Path) -> None:
    model = model_of(name, **options)
    if name not in NAIVE_LOSSES:
        NAIVE_LOSSES[name] = losses_of(model, (), tmp_path)
    torch.testing.assert_close(losses_of(model, setting, tmp_path), NAIVE_LOSSES[name], rtol=0.05, atol=0.05)


NAIVE_LOSSES: dict[str, list[float]] = {}  # by model; every setting is compared with them


def losses_of(model: Model, setting: Setting, folder: Path) -> list[float]:
    run = TrialRun(trial(model=model, setting=setting, micro_batch=2), Device("cpu"), Team(), folder, print)
    run.prepare()
    return [float(run.step(2)) for _ in range(2)]


def test_norms_over_batches_stay_in_fp32_with_half_weights(tmp_path: Path) -> None:
    run = TrialRun(
        trial(model=model_of("resnet18"), setting=("half-weights",), micro_batch=2),
        Device("cpu"), Team(), tmp_path, lambda _event: None,
    )  # fmt: skip
    run.prepare()
    kinds = {
        (isinstance(part, torch.nn.BatchNorm2d), weight.dtype)
        for part in run.strategy.whole.modules()
        for weight in part.parameters(recurse=False)
    }
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}


def test_attention_is_fused_with_kernels_alone() -> None:
    model = model_of("vit_tiny_patch16_224", img_size=64)
    fused = [
        {
            part.fused_attn
            for part in family_of(model).build(model, kernels=on).modules()
            if hasattr(part, "fused_attn")
        }
        for on in (False, True)
    ]
    assert fused == [{False}, {True}]


def test_the_floor_has_its_attention() -> None:
    recording = recorded(model_of("vit_tiny_patch16_224", img_size=64), (), micro_batch=2)
    kinds = [recording.computations[key].kind for key in recording.counts.elements()]
    assert kinds.count("attention") == 12


def test_an_exported_script_requires_timm() -> None:
    assert "timm" in needed(script, trial(model=model_of("resnet18")))


def test_blocks_are_the_innermost_repeated_parts() -> None:
    model = model_of("convnext_atto")
    blocks = FAMILY.blocks(family_of(model).build(model, kernels=False))
    assert {type(block).__name__ for block in blocks} == {"ConvNeXtBlock"}
    assert FAMILY.blocks(torch.nn.Linear(2, 2))[0].in_features == 2  # a model without blocks is one


def test_a_free_lunch_has_no_method_for_other_models() -> None:
    model = model_of("vit_tiny_patch16_224", img_size=64)
    assert {*free_lunch(model, H200)} == {
        "tf32", "kernels", "fused-optimizer", "compile-blocks", "cuda-graphs",
    }  # fmt: skip
    assert "compile-blocks" in free_lunch(model, CPU)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    (mistake,) = built("resnet81").mistakes
    assert mistake.path == "/models/0/architecture/timm"
    assert 'nearest: "resnet1' in mistake.allowed


@pytest.mark.parametrize(
    "option", ["pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"]
)
def test_an_option_that_loads_weights_is_a_mistake(option: str) -> None:
    with pytest.raises(BadInput, match=f"/models/0/architecture/{option} +would load weights"):
        model_of("resnet18", **{option: "/tmp/weights"})


def test_an_unknown_option_is_refused_by_timm() -> None:
    (mistake,) = built("resnet18", depth_of_field=3).mistakes
    assert "timm refuses this architecture: TypeError" in mistake.found


@pytest.mark.parametrize(
    ("architecture", "recipe", "path"),
    [
        ({"timm": 3}, {}, "architecture/timm"),
        ({"timm": "resnet18", "num_classes": 1}, {}, "architecture/num_classes"),
        ({"timm": "resnet18"}, {"objective": "causal-lm", "sequence_length": 9}, "recipe/"),
        ({"timm": "resnet18"}, {"image_size": 0}, "recipe/image_size"),
    ],
)
def test_a_wrong_value_is_named(architecture: dict[str, Any], recipe: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput, match=f"/models/0/{path}"):
        parse_manifest(manifest(architecture, **recipe), "m.json")


def test_without_timm_a_model_is_counted_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.models.dry_build.find_spec", lambda _name: None)
    build = built("resnet18")
    assert build.counted is None
    assert build.mistakes == ()
    assert "timm is not installed here" in build.remarks[0]
