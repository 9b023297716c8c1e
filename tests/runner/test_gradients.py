"""The gradient check of a trial: right settings agree, broken ones are found. Real torch, tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.base.strict_json import from_json
from bench.records.gradients import MOST_OF_A_PARAMETER, GradientCheck
from bench.records.trial import Trial
from bench.runner.processes.jobs import GradientCheckJob
from bench.runner.processes.worker import dispatch
from bench.runner.trial import gradients
from bench.runner.trial.device import Device
from bench.runner.trial.gradients import (
    RoundingDecides,
    check_gradients,
    leave_nothing_to_chance,
    scale_down,
)
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training import methods
from bench.training.models import Model, Precision, families, family_of, known_models
from bench.training.setting import Setting
from tests.builders import trial
from tests.training.models.test_generic import SMALL, TEXT, resolved

TINY = {m.family: m for name, m in known_models().items() if name.startswith("tiny-")}
HALVED = [name for name, family in families().items() if not family.keeps_fp32_weights]
WITH_KERNELS = [n for n, family in families().items() if family.kernels and not family.missing_kernels("cpu")]
CAUSAL = TEXT | {"objective": "causal-lm", "precision": "bf16"}


def in_precision(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


def checked(model: Model, setting: Setting, folder: Path, micro_batch: int = 4) -> GradientCheck:
    one = trial_of(model, setting, micro_batch)
    return check_gradients(one, Device("cpu"), folder, lambda _: None)


def trial_of(model: Model, setting: Setting, micro_batch: int = 4) -> Trial:
    """Return a trial of two passes a step."""
    model = replace(model, recipe=replace(model.recipe, batch_size=2 * micro_batch))
    return trial(model=model, setting=setting, micro_batch=micro_batch, seed=3)


@pytest.mark.parametrize("family", list(families()))
def test_the_unmodified_model_agrees_with_itself(family: str, tmp_path: Path) -> None:
    """Several tiny models drop units at random, which the check turns off."""
    check = checked(TINY[family], (), tmp_path)
    assert check.agrees
    assert (check.worst_difference or 0) < 0.01
    module = family_of(TINY[family]).build(TINY[family], kernels=False)
    assert check.parameters == len(list(module.parameters()))
    assert check.worst in dict(module.named_parameters())


def test_the_unmodified_model_adds_up_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS may add up parts of a long sum in half precision, unless it is told not to."""
    products, seen = torch.backends.cuda.matmul, []
    plain = gradients._SteadyRun.gradients

    def spy(run: Any, *given: Any) -> Any:
        allowed = products.allow_bf16_reduced_precision_reduction
        seen.append((run.trial.setting, allowed, products.allow_fp16_reduced_precision_reduction))
        return plain(run, *given)

    monkeypatch.setattr(gradients._SteadyRun, "gradients", spy)
    checked(TINY["gpt_neox"], ("checkpointing",), tmp_path)
    assert seen == [((), False, False), (("checkpointing",), True, True)]


@pytest.mark.parametrize("family", WITH_KERNELS)
def test_kernels_agree(family: str, tmp_path: Path) -> None:
    check = checked(TINY[family], ("kernels", "checkpointing"), tmp_path)
    assert check.agrees
    assert check.reference == ()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", list(families()))
def test_models_in_half_precision_agree(family: str, precision: Precision, tmp_path: Path) -> None:
    setting = ("half-weights",) if family in HALVED else ("checkpointing",)
    check = checked(in_precision(TINY[family], precision), setting, tmp_path)
    assert check.agrees
    assert 0 < (check.worst_difference or 0) < MOST_OF_A_PARAMETER / 2, "half of the limit is left for others"


@pytest.mark.parametrize(
    ("name", "more", "setting"),
    [
        ("llama", {}, ("half-weights", "joined-products")),
        ("gemma3_text", {"head_dim": 32, "num_key_value_heads": 2}, ("kernels", "half-weights")),
        (
            "qwen3_moe",
            {
                "head_dim": 16,
                "num_key_value_heads": 2,
                "moe_intermediate_size": 32,
                "num_experts": 4,
                "num_experts_per_tok": 2,
            },
            ("kernels",),
        ),
        ("gpt2", {}, ("kernels", "half-weights")),
    ],
)
def test_other_architectures_agree(name: str, more: dict[str, Any], setting: Setting, tmp_path: Path) -> None:
    assert checked(resolved(name, SMALL | more, CAUSAL), setting, tmp_path).agrees


@pytest.mark.parametrize("beside", [(), ("checkpointing",)], ids="+".join)
def test_a_head_at_masked_positions_agrees(beside: Setting, tmp_path: Path) -> None:
    assert checked(TINY["roberta"], ("masked-head", *beside), tmp_path).agrees


def test_compiled_blocks_agree(tmp_path: Path, without_inductor: None) -> None:
    assert checked(TINY["gpt_neox"], ("compile-blocks",), tmp_path).agrees


# Settings that are wrong


def break_method(name: str, spoil: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a method spoil the model with its loss, after its usual work."""
    method = methods.known_methods()[name]

    def apply(model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        method.apply(model, whole, blocks)
        spoil(whole)

    broken = {**methods.known_methods(), name: replace(method, apply=apply)}
    monkeypatch.setattr(methods, "known_methods", lambda: broken)


def scale(name: str, factor: float) -> Callable[[nn.Module], None]:
    """Return a function that multiplies the gradient of a parameter by a factor."""

    def spoil(whole: nn.Module) -> None:
        whole.get_parameter(f"model.{name}").register_hook(lambda gradient: gradient * factor)

    return spoil


ONE = "gpt_neox.layers.1.attention.query_key_value.weight"


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.0, 200_000.0, float("nan"), float("inf")])
def test_a_setting_with_one_wrong_gradient_is_found(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_method("checkpointing", scale(ONE, factor), monkeypatch)
    check = checked(TINY["gpt_neox"], ("checkpointing",), tmp_path)
    assert not check.agrees
    assert check.worst == ONE
    if factor - factor == 0:
        assert check.worst_difference == pytest.approx(abs(factor - 1), rel=1e-3)
    else:
        assert (check.worst_difference, check.whole_difference) == (None, None)


def test_a_setting_that_forgets_the_gradients_of_earlier_passes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_only_the_last(whole: nn.Module) -> None:
        def forget(*_: Any) -> None:
            whole.zero_grad()

        whole.register_forward_pre_hook(forget)

    break_method("checkpointing", keep_only_the_last, monkeypatch)
    check = checked(TINY["gpt_neox"], ("checkpointing",), tmp_path)
    assert check.whole_difference == pytest.approx(0.5, abs=0.01)
    assert not check.agrees


# Models whose gradients depend on rounding

LARGE_WEIGHTS = {"num_hidden_layers": 12, "initializer_range": 1.0}


def test_a_model_of_large_first_weights_can_be_checked(tmp_path: Path) -> None:
    """mamba-2.8b's weights, 0.1 in rows of 2,560, were said to have wrong gradients in every setting."""
    model = resolved("llama", SMALL | LARGE_WEIGHTS, CAUSAL)
    assert checked(model, ("half-weights", "joined-products"), tmp_path).agrees


def test_a_setting_is_not_accused_of_what_rounding_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "scale_down", lambda _: None)
    model = resolved("llama", SMALL | LARGE_WEIGHTS, CAUSAL)
    said = r"rounding decides them: the unmodified model's change by \d+% if its weights do by a millionth"
    with pytest.raises(RoundingDecides, match=f"^{said}$"):
        checked(model, ("half-weights", "joined-products"), tmp_path)


def test_a_wrong_setting_of_such_a_model_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "scale_down", lambda _: None)
    spoiled = "model.layers.1.mlp.up_proj.weight"
    break_method("checkpointing", scale(spoiled, 1e5), monkeypatch)
    model = resolved("llama", SMALL | LARGE_WEIGHTS, CAUSAL)
    check = checked(model, ("checkpointing",), tmp_path)
    assert (check.agrees, check.worst) == (False, spoiled)


def test_only_linear_layers_that_amplify_are_scaled_down() -> None:
    large, small = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    table = nn.Embedding(8, 64)
    for weight, deviation in ((large.weight, 0.5), (small.weight, 0.1), (table.weight, 1.0)):
        nn.init.normal_(weight, 0, deviation)
    before = [each.weight.detach().clone() for each in (large, small, table)]
    scale_down(nn.ModuleList([large, small, table]))
    assert float(large.weight.detach().square().mean().sqrt()) == pytest.approx(1 / 8, rel=1e-5)
    assert torch.allclose(large.weight, before[0] * float(large.weight.detach()[0, 0] / before[0][0, 0]))
    assert torch.equal(small.weight, before[1])
    assert torch.equal(table.weight, before[2])


def test_a_worker_says_why_rounding_leaves_gradients_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "scale_down", lambda _: None)
    model = resolved("llama", SMALL | LARGE_WEIGHTS, CAUSAL)
    one = trial_of(model, ("half-weights", "joined-products"))
    job = GradientCheckJob(trial=one, device="cpu", gpus=1)
    final = dispatch(job, Device("cpu"), Team(), tmp_path, lambda _: None)
    assert final["outcome"]["kind"] == "unsupported"
    assert final["outcome"]["reason"].startswith("rounding decides them")


# What is compared


def test_a_model_that_does_not_fit_is_computed_with_less_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, tried = TrialRun.build_model, []

    def build_or_fail(run: TrialRun) -> nn.Module:
        tried.append(run.trial.setting)
        if len(tried) <= 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return build(run)

    monkeypatch.setattr(TrialRun, "build_model", build_or_fail)
    check = checked(TINY["gpt_neox"], ("kernels",), tmp_path)
    assert check.agrees
    assert tried == [(), ("checkpointing",), ("kernels", "checkpointing"), ("kernels",)]
    assert check.reference == ("kernels", "checkpointing")


def test_a_model_that_is_slow_without_kernels_is_computed_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mamba-2.8b without kernels gave no sign of life for five minutes on an H200, and was not checked."""
    assert families()["mamba"].slow_without_kernels
    monkeypatch.setattr(families()["gpt_neox"], "slow_without_kernels", True)
    assert checked(TINY["gpt_neox"], ("kernels",), tmp_path).reference == ("kernels", "checkpointing")
    assert checked(TINY["gpt_neox"], ("tf32",), tmp_path).reference == ()


def test_a_model_that_never_fits_is_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: TrialRun) -> nn.Module:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrialRun, "build_model", fail)
    with pytest.raises(torch.OutOfMemoryError):
        checked(TINY["gpt_neox"], (), tmp_path)


def test_a_data_parallel_trial_is_checked_on_one_device(tmp_path: Path) -> None:
    one = trial(model=TINY["gpt_neox"], setting=("checkpointing",), micro_batch=2, gpus=2, seed=3)
    assert check_gradients(one, Device("cpu"), tmp_path, lambda _: None).agrees


def test_a_bias_of_keys_whose_true_gradient_is_zero_raises_no_alarm(tmp_path: Path) -> None:
    model = in_precision(TINY["roberta"], "bf16")
    run = gradients._SteadyRun(trial(model=model, micro_batch=4, seed=3), *places(tmp_path))
    of = dict(run.gradients([run.micro_batch()]))
    biases = {name: gradient.norm() for name, gradient in of.items() if name.endswith("key.bias")}
    queries = {name: gradient.norm() for name, gradient in of.items() if name.endswith("query.bias")}
    assert max(biases.values()) < 0.05 * min(queries.values()), "they are only noise"
    assert checked(model, ("half-weights",), tmp_path).agrees


def places(folder: Path) -> tuple[Any, ...]:
    return Device("cpu"), Team(), folder, lambda _: None


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("bert", {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}),
        ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("llama", {"attention_dropout": 0.5}),
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 64}),
        ("mixtral", {"router_jitter_noise": 0.5, "num_local_experts": 4, "num_key_value_heads": 2}),
    ],
)
@pytest.mark.parametrize("kernels", [False, True])
def test_two_passes_of_one_model_agree_once_nothing_is_left_to_chance(
    name: str, fields: dict[str, float], kernels: bool
) -> None:
    objective = "masked-lm" if name == "bert" else "causal-lm"
    model = resolved(name, SMALL | fields, TEXT | {"objective": objective})
    module = family_of(model).build(model, kernels=kernels)
    tokens = torch.randint(1000, (2, 32))

    def outcomes() -> int:
        """Count the different outcomes of some passes."""
        return len({module(input_ids=tokens).logits.sum().item() for _ in range(8)})

    assert outcomes() > 1
    leave_nothing_to_chance(module)
    assert outcomes() == 1


def test_a_worker_checks_gradients(tmp_path: Path) -> None:
    one = trial(model=TINY["gpt_neox"], setting=("checkpointing",), micro_batch=2, seed=3)
    phases: list[Mapping[str, Any]] = []
    job = GradientCheckJob(trial=one, device="cpu", gpus=1)
    final = dispatch(job, Device("cpu"), Team(), tmp_path, phases.append)
    assert from_json(GradientCheck, final["gradient_check"]).agrees
    assert [event["phase"] for event in phases if "phase" in event] == ["reference", "compare"]
