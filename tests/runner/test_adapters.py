"""Training low-rank adapters: every setting computes what naive computes, or is refused with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.export.runtime import save_adapters
from bench.export.templates.script import load, save
from bench.records.trial import Timing
from bench.runner.trial.device import Device
from bench.runner.trial.gradients import check_gradients
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import Target, free_lunch, known_methods, refusal
from bench.training.models import Model
from bench.training.setting import NAIVE, Setting
from tests.builders import trial
from tests.targets import H200
from tests.training.models.test_adapters import ALL, FIRST, adapted, llama
from tests.training.models.test_generic import model_of

CPU = Device("cpu")
QUICK = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1, loss_steps=3)
pytestmark = pytest.mark.usefixtures("compiled_here")


def started(model: Model, setting: Setting, folder: Path, **changes: Any) -> TrialRun:
    model = replace(model, recipe=replace(model.recipe, batch_size=8))
    given = {"model": model, "setting": setting, "micro_batch": 4, "timing": QUICK, "seed": 3, **changes}
    run = TrialRun(trial(**given), CPU, Team(), folder, lambda event: None)
    run.prepare()
    return run


def curve(model: Model, setting: Setting, folder: Path) -> Tensor:
    losses, norms, _ = started(model, setting, folder).loss_curve()
    return torch.tensor([*losses, *norms], dtype=torch.float64)


@pytest.fixture(scope="module")
def naive_curve(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return curve(llama(precision="fp32"), NAIVE, tmp_path_factory.mktemp("naive"))


@pytest.mark.parametrize(
    "setting",
    [
        ("kernels",),
        ("checkpointing",),
        ("fused-optimizer",),
        ("compile-blocks", "checkpointing"),
        ("compile",),
    ],
)
def test_every_setting_computes_what_naive_computes(
    setting: Setting, naive_curve: Tensor, tmp_path: Path, without_inductor: None
) -> None:
    found = curve(llama(precision="fp32"), setting, tmp_path)
    torch.testing.assert_close(found, naive_curve, rtol=1e-4, atol=1e-6)


@pytest.mark.sweep
def test_a_model_that_inductor_compiles_computes_what_naive_computes(
    naive_curve: Tensor, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    found = curve(llama(precision="fp32"), ("compile",), tmp_path)
    torch.testing.assert_close(found, naive_curve, rtol=1e-4, atol=1e-6)


def test_a_head_at_masked_positions_computes_what_naive_computes_in_bf16(tmp_path: Path) -> None:
    """The probe that compares the head alone with the model runs in half precision here."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = adapted(model_of("bert", **off), precision="bf16")
    expected = curve(model, NAIVE, tmp_path)
    torch.testing.assert_close(curve(model, ("masked-head",), tmp_path), expected, rtol=1e-2, atol=1e-4)


def test_a_whole_trial_measures_adapters(tmp_path: Path) -> None:
    run = started(llama(save_every_steps=10), NAIVE, tmp_path)
    frozen = {n: w.clone() for n, w in run.strategy.whole.named_parameters() if not w.requires_grad}
    measured = TrialRun(run.trial, CPU, Team(), tmp_path, lambda event: None).run()
    assert measured.master_dtype == "float32"
    assert measured.flops.backward is not None
    assert measured.parameters == sum(w.numel() for w in run.strategy.whole.parameters())
    assert measured.save_seconds
    run.step(2)
    for name, weight in run.strategy.whole.named_parameters():
        assert weight.requires_grad or torch.equal(weight, frozen[name]), name
    assert len(run.strategy.optimizer.state) == 8


@pytest.mark.parametrize("setting", [NAIVE, ("kernels", "checkpointing")])
def test_gradients_of_both_matrices_are_checked(setting: Setting, tmp_path: Path) -> None:
    check = check_gradients(trial_of(llama(), setting), CPU, tmp_path, lambda event: None)
    assert check.agrees
    assert check.parameters == 8


def test_a_wrong_gradient_of_a_first_matrix_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient would be zero in both models, and equal, if second matrices started at zero."""

    def wrong(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
        weight = next(w for name, w in whole.named_parameters() if ".lora_A." in name)
        weight.register_hook(lambda gradient: 3 * gradient)

    method = known_methods()["fused-optimizer"]
    monkeypatch.setitem(known_methods(), "fused-optimizer", replace(method, apply=wrong))  # type: ignore
    check = check_gradients(trial_of(llama(), ("fused-optimizer",)), CPU, tmp_path, lambda event: None)
    assert not check.agrees
    assert ".lora_A." in check.worst


def trial_of(model: Model, setting: Setting) -> Any:
    model = replace(model, recipe=replace(model.recipe, batch_size=8))
    return trial(model=model, setting=setting, micro_batch=4, seed=3)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (("half-weights",), "half-weights copies weights that are trained"),
        (("half-weights", "joined-products"), "half-weights copies weights that are trained"),
        (("compile-blocks", "half-weights", "chunked-loss"), "half-weights copies weights"),
        (("gelu",), "bench's own kernels compute gradients of all weights"),
        (("depthwise",), "bench's own kernels compute gradients of all weights"),
        (("zero-1",), "zero-1 shards nothing on one GPU"),
    ],
)
def test_what_frozen_weights_rule_out_is_refused_with_one_sentence(setting: Setting, reason: str) -> None:
    assert reason in str(refusal(setting, llama(), H200))


def test_a_free_lunch_has_nothing_that_adapters_rule_out() -> None:
    lunch = free_lunch(llama(), H200)
    assert set(lunch) == {"tf32", "kernels", "fused-optimizer", "compile-blocks", "cuda-graphs"}
    assert refusal(lunch, llama(), H200) is None


def test_without_peft_every_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "has", lambda target, package: package != "peft")
    assert refusal(NAIVE, llama(), H200) == "peft is not installed: pip install 'bench-appliance[lora]'"


def test_a_floor_leaves_out_gradients_of_frozen_weights() -> None:
    plain, lora = model_of("llama"), llama(precision="fp32")
    products = [
        sum(count for key, count in recorded(model, NAIVE, 1).counts.items() if "products" in key)
        for model in (plain, lora)
    ]
    per_block = 7  # products with weights; attention is recorded apart
    forward = 2 * per_block + 1
    assert products[0] == 3 * forward
    # Frozen: forward, and the gradient of the input but in the first block's query, key and value. An adapter
    # has four products more in the backward pass, and two without a gradient of its input.
    assert products[1] == 2 * forward - 3 + 4 * 2 + 4 * 4 - 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_holds_adapters_alone_and_training_goes_on_from_it(tmp_path: Path) -> None:
    model = llama(precision="fp32")
    whole = started(model, NAIVE, tmp_path)
    for _ in range(2):
        whole.step(2)
    strategy: Any = whole.strategy
    assert all(".lora_" in name for name in strategy.state()["model"])
    save(strategy, tmp_path / "checkpoints", 2, Team())
    resumed = started(model, NAIVE, tmp_path)
    assert load(resumed.strategy, tmp_path / "checkpoints") == 2
    resumed.batches, whole.batches = whole.load(), whole.load()
    assert [float(resumed.step(2)) for _ in range(3)] == [float(whole.step(2)) for _ in range(3)]


def test_exported_scripts_save_adapters_as_peft_does(tmp_path: Path) -> None:
    run = started(llama(ALL), NAIVE, tmp_path)
    module = run.strategy.whole.model
    save_adapters(run.trial, module, tmp_path / "adapter", writes=False)
    assert not (tmp_path / "adapter").exists()
    save_adapters(run.trial, module, tmp_path / "adapter", writes=True)
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_models_without_adapters_have_none_to_save(tmp_path: Path) -> None:
    run = started(model_of("llama"), NAIVE, tmp_path)
    save_adapters(run.trial, run.strategy.whole.model, tmp_path / "adapter", writes=True)
    assert not (tmp_path / "adapter").exists()


def test_two_and_all_targets_train_as_many_matrices_as_they_name(tmp_path: Path) -> None:
    counts = [len(started(llama(lora), NAIVE, tmp_path).strategy.optimizer.param_groups[0]["params"])
              for lora in (FIRST, ALL)]  # fmt: skip
    assert counts == [2 * 2 * 2, 2 * 2 * 7]
