"""DiT: as large as published, trained in every setting, its gradients visible to the check."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.base.errors import BadInput
from bench.planning.manifest import parse_manifest
from bench.records.gradients import LEAST_SHARE
from bench.runner.trial.device import Device
from bench.runner.trial.gradients import _SteadyRun, check_gradients
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, counts_of, family_of, uses_all_weights
from bench.training.models.dit_module import Dit, DitAttention, _patches_of, positions
from bench.training.models.dry_build import dry_build
from bench.training.setting import Setting
from tests.builders import trial
from tests.targets import CPU, H200

RECIPE = {"batch_size": 4, "steps": 10, "precision": "bf16"}
SMALL = {"input_size": 8, "hidden_size": 64, "depth": 2, "num_heads": 4, "num_classes": 10}


def manifest(architecture: dict[str, Any], **recipe: Any) -> bytes:
    entry = {"name": "mine", "architecture": {"model_type": "dit", **architecture}}
    entry["recipe"] = RECIPE | recipe
    return json.dumps({"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}).encode()


def model_of(architecture: dict[str, Any], **recipe: Any) -> Model:
    (model,) = parse_manifest(manifest(architecture, **recipe), "m.json").models
    return model


def built(**changes: Any) -> Dit:
    model = model_of({**SMALL, **changes})
    module = family_of(model).build(model, kernels=False)
    assert isinstance(module, Dit)
    return module


def run_of(model: Model, setting: Setting, folder: Path) -> TrialRun:
    one = trial(model=model, setting=setting, micro_batch=4, seed=3)
    return TrialRun(one, Device("cpu"), Team(), folder, lambda _event: None)


@pytest.mark.parametrize(
    ("width", "depth", "heads", "parameters", "multiply_adds"),
    [
        (384, 12, 6, 33e6, 6.06e9),  # S/2
        (768, 12, 12, 130e6, 23.01e9),  # B/2
        (1024, 24, 16, 458e6, 80.71e9),  # L/2
        (1152, 28, 16, 675e6, 118.64e9),  # XL/2
    ],
)
def test_a_model_is_as_large_as_published(
    width: int, depth: int, heads: int, parameters: float, multiply_adds: float
) -> None:
    counted = counts_of(model_of({"hidden_size": width, "depth": depth, "num_heads": heads}))
    assert counted.parts.total == pytest.approx(parameters, rel=0.01)
    assert len(counted.parts.blocks) == depth
    assert counted.flops.total / 2 == pytest.approx(multiply_adds, rel=0.01)


def test_a_plan_knows_its_memory_with_and_without_kernels() -> None:
    build = dry_build(model_of(SMALL), "/models/0")
    assert build.counted is not None and build.mistakes == () and build.remarks == ()
    assert {(one.kernels, one.compiled) for one in build.counted.footprints} >= {(False, False), (True, True)}


@pytest.mark.parametrize(
    ("setting", "precision", "tolerance"),
    [
        (("kernels",), "fp32", 1e-5),
        (("checkpointing",), "fp32", 1e-5),
        (("fused-optimizer",), "fp32", 1e-5),
        (("kernels", "checkpointing"), "bf16", 0.01),
        (("half-weights",), "bf16", 0.01),
        (("half-weights",), "fp16", 0.01),
    ],
)
def test_settings_train_alike(setting: Setting, precision: str, tolerance: float, tmp_path: Path) -> None:
    model = model_of({**SMALL, "class_dropout_prob": 0.0}, precision=precision)
    losses = []
    for chosen in ((), setting):
        run = run_of(model, chosen, tmp_path)
        run.prepare()
        losses.append([float(run.step(1)) for _ in range(3)])
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)
    assert losses[0][2] != losses[0][0]


def test_checkpointing_drops_the_same_classes(tmp_path: Path) -> None:
    model, losses = model_of({**SMALL, "class_dropout_prob": 0.5}, precision="fp32"), []
    for setting in ((), ("checkpointing",)):
        run = run_of(model, setting, tmp_path)
        run.prepare()
        losses.append([float(run.step(1)) for _ in range(3)])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)


def test_attention_is_fused_with_kernels_alone() -> None:
    model = model_of(SMALL)
    for kernels in (False, True):
        parts = family_of(model).build(model, kernels=kernels).modules()
        assert {part.fused for part in parts if isinstance(part, DitAttention)} == {kernels}


def test_every_block_is_a_unit() -> None:
    model, module = model_of(SMALL), built()
    assert family_of(model).blocks(module) == [*module.blocks]


def test_every_gradient_is_large_enough_for_the_check(tmp_path: Path) -> None:
    """With the closed gates of the paper, the check would compare the final layer alone."""
    model = model_of(SMALL, precision="fp32")
    one = trial(model=model, micro_batch=4, seed=3)
    run = _SteadyRun(one, Device("cpu"), Team(), tmp_path, lambda _event: None)
    gradients = dict(run.gradients([run.micro_batch()]))
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    elements = sum(gradient.numel() for gradient in gradients.values())
    average = math.hypot(*norms.values()) / math.sqrt(elements)
    shares = {name: norms[name] / math.sqrt(g.numel()) / average for name, g in gradients.items()}
    assert min(shares.values()) > LEAST_SHARE


@pytest.mark.parametrize("setting", [("kernels",), ("half-weights",)])
def test_the_check_of_gradients_agrees(setting: Setting, tmp_path: Path) -> None:
    one = trial(model=model_of({**SMALL, "class_dropout_prob": 0.9}), setting=setting, micro_batch=4, seed=3)
    check = check_gradients(one, Device("cpu"), tmp_path, lambda _event: None)
    assert check.agrees and check.parameters > 20


@pytest.mark.parametrize("part", ["modulation", "attention.qkv", "mlp.0"])
def test_the_check_of_gradients_finds_a_block_that_computes_wrong_gradients(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _SteadyRun.build_model

    def wrong(run: _SteadyRun) -> torch.nn.Module:
        module = whole(run)
        if run.trial.setting:
            weight = module.get_submodule("blocks.1").get_submodule(part).weight
            weight.register_hook(lambda gradient: 2 * gradient)
        return module

    monkeypatch.setattr(_SteadyRun, "build_model", wrong)
    one = trial(model=model_of(SMALL), setting=("kernels",), micro_batch=4, seed=3)
    check = check_gradients(one, Device("cpu"), tmp_path, lambda _event: None)
    assert not check.agrees
    assert check.worst == f"blocks.1.{part}.weight"


def test_classes_are_dropped_in_training_alone() -> None:
    torch.manual_seed(0)
    module, labels = built(class_dropout_prob=0.25), torch.arange(4000) % 10
    found = module._some_dropped(labels)
    dropped = found == 10
    assert 0.2 < dropped.float().mean() < 0.3
    assert torch.equal(found[~dropped], labels[~dropped])
    assert torch.equal(module.eval()._some_dropped(labels), labels)


@pytest.mark.parametrize("learn_sigma", [False, True])
def test_patches_are_put_together_as_they_were_cut(learn_sigma: bool) -> None:
    module = built(learn_sigma=learn_sigma)
    images = torch.rand(2, module.channels, 8, 8)
    assert torch.equal(module._image_of(_patches_of(images, 2)), images)
    answer = module(torch.rand(2, 4, 8, 8), torch.tensor([0, 999]), torch.tensor([0, 9])).logits
    assert answer.shape == (2, 8 if learn_sigma else 4, 8, 8)


def test_the_answer_depends_on_timestep_class_and_place() -> None:
    module, noisy = built().eval(), torch.rand(1, 4, 8, 8)
    with torch.no_grad():
        first = module(noisy, torch.tensor([0]), torch.tensor([0])).logits
        assert not torch.allclose(
            first, module(noisy, torch.tensor([500]), torch.tensor([0])).logits, atol=1e-4
        )
        assert not torch.allclose(
            first, module(noisy, torch.tensor([0]), torch.tensor([1])).logits, atol=1e-4
        )
    table = positions(8, 64)
    assert table.shape == (64, 64)
    assert len({tuple(row.tolist()) for row in table}) == 64


def test_a_variance_is_predicted_and_not_trained(tmp_path: Path) -> None:
    run = run_of(model_of(SMALL, precision="fp32"), (), tmp_path)
    run.prepare()
    run.strategy.forward_backward(next(run.batches), 1, sync=True)
    rows = run.strategy.whole.model.to_patches.weight.grad.view(4, 8, 64).abs().sum(dim=(0, 2))
    assert (rows[:4] > 0).all()
    assert (rows[4:] == 0).all()


def test_every_weight_is_used() -> None:
    assert uses_all_weights(model_of(SMALL))


def test_the_floor_has_its_attention() -> None:
    for setting in ((), ("kernels",)):
        recording = recorded(model_of(SMALL), setting, micro_batch=2)
        kinds = [recording.computations[key].kind for key in recording.counts.elements()]
        assert kinds.count("attention") == SMALL["depth"]
        assert kinds.count("products") > SMALL["depth"]


def test_a_free_lunch_has_no_method_for_other_models() -> None:
    model = model_of(SMALL)
    assert {*free_lunch(model, H200)} == {
        "tf32", "kernels", "fused-optimizer", "compile-blocks", "cuda-graphs",
    }  # fmt: skip
    assert "compile-blocks" in free_lunch(model, CPU)


@pytest.mark.parametrize(
    "method",
    [
        "gelu",
        "rotary",
        "norms",
        "depthwise",
        "full-attention",
        "flex-attention",
        "masked-head",
        "chunked-loss",
        "joined-products",
    ],
)
def test_a_method_that_finds_nothing_is_refused(method: str) -> None:
    assert known_methods()[method].refuse(model_of(SMALL), H200)


def test_transformers_has_no_type_of_this_name() -> None:
    from transformers import CONFIG_MAPPING

    assert "dit" not in CONFIG_MAPPING


def test_without_fields_it_is_the_largest_published() -> None:
    assert model_of({}).architecture["hidden_size"] == 1152
    assert model_of({}).recipe.objective == "denoising"


@pytest.mark.parametrize(
    ("architecture", "recipe", "path"),
    [
        ({"hidden_size": 66, "num_heads": 3}, {}, "architecture/hidden_size +66 is no multiple of 4"),
        ({"num_heads": 5}, {}, "architecture/num_heads +5 does not divide 1152"),
        ({"patch_size": 3}, {}, "architecture/patch_size +3 does not divide 32"),
        ({"patch_size": 0}, {}, "architecture/patch_size +0 is less than allowed"),
        ({"input_size": 2**20}, {}, "architecture/input_size +1048576 makes"),
        ({"mlp_ratio": 0.0}, {}, "architecture/mlp_ratio +0.0 of 1152 is less than one"),
        ({"depth": 2**31}, {}, "architecture/depth +2147483648 is more than"),
        ({"num_classes": 0}, {}, "architecture/num_classes +0 is less than allowed"),
        ({"depth": "28"}, {}, 'architecture/depth +"28" is not a whole number'),
        ({"learn_sigma": 1}, {}, "architecture/learn_sigma +1 is not true or false"),
        ({"class_dropout_prob": 2}, {}, "architecture/class_dropout_prob +2 is more than allowed"),
        ({"hidden_sise": 64}, {}, 'architecture/hidden_sise +no such field; nearest: "hidden_size"'),
        ({"model_type": "ditt"}, {"objective": "denoising"}, 'architecture/model_type .*nearest: "dit"'),
        ({}, {"objective": "image-classification", "image_size": 32}, "recipe/objective"),
        ({}, {"image_size": 256}, "recipe/image_size +means nothing for denoising; allowed: no size"),
        ({}, {"tokens": 1000}, "recipe/tokens"),
        ({"model_type": "llama", "vocab_size": 9}, {"objective": "denoising"}, "recipe/objective"),
        ({"model_type": "vit"}, {"objective": "denoising"}, "recipe/objective"),
    ],
)
def test_a_wrong_value_is_named(architecture: dict[str, Any], recipe: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput, match=f"/models/0/{path}"):
        parse_manifest(manifest(architecture, **recipe), "m.json")
