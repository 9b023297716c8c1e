"""Several devices compute what one computes: losses and gradient norms of the first steps, in real processes.

gloo replaces NCCL; jobs are started by the supervisor, as in a run.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.planning.manifest import parse_manifest
from bench.records.trial import Measured, Measurement, Outcome, OutOfMemory, Proving, Timing
from bench.runner.processes.supervisor import Limits, Supervisor
from bench.training.methods import memory_saving_settings
from bench.training.models import Lora, Model, families, known_models
from bench.training.optimizers import OPTIMIZERS
from bench.training.setting import NAIVE, Setting
from tests.builders import trial
from tests.patience import PATIENCE_SECONDS
from tests.warm import quick_python

pytestmark = pytest.mark.slow
EVERYDAY = [NAIVE, ("fsdp-3",), ("fsdp-2", "offload")]  # ZeRO first compiles its own operations for a minute

TINY = {m.family: m for name, m in known_models().items() if name.startswith("tiny-")}
QUICK = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1, loss_steps=3)
MODELING = [f"transformers.models.{name}.modeling_{name}" for name in families()]
# Preload as in a run; otherwise every member of every trial would import its model's code for seconds.
# Importing DeepSpeed imports the compiler, because it decorates a function with torch.compile.
COMPILER = ["torch._dynamo", "torch._dynamo.repro.after_dynamo", "torch._inductor.compile_fx"]
PRELOAD = ["numpy", "torch", "torch.utils.data", "transformers", *MODELING, *COMPILER, "deepspeed",
           "bench.runner.processes.worker"]  # fmt: skip
LIMITS = Limits(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(sys, "executable", quick_python())
        with Supervisor(PRELOAD, lambda event: None, folder / "server.txt") as started:
            yield started


@pytest.fixture(autouse=True)
def operators(request: pytest.FixtureRequest) -> None:
    """Have DeepSpeed's operators compiled for the tests of sweeps, many of which train with ZeRO."""
    if request.node.get_closest_marker("sweep"):
        request.getfixturevalue("zero_operators")


def small(model: Model) -> Model:
    """Make a small model without dropout, which differs between devices; two devices make two passes each."""
    off = {key: 0.0 for key in families()[model.family].defaults if "dropout" in key or "drop_path" in key}
    recipe = dataclasses.replace(model.recipe, batch_size=16)
    return dataclasses.replace(model, architecture={**model.architecture, **off}, recipe=recipe)


def outcome(owner: Supervisor, folder: Path, model: Model, setting: Setting, gpus: int) -> Outcome:
    one = trial(model=model, setting=setting, micro_batch=4, gpus=gpus, timing=QUICK, seed=3)
    return owner.trial(one, "cpu", folder, folder / "log.txt", LIMITS)


def measured(owner: Supervisor, folder: Path, model: Model, setting: Setting, gpus: int) -> Measurement:
    found = outcome(owner, folder, model, setting, gpus)
    assert isinstance(found, Measured), (found, (folder / "log.txt").read_text()[-3000:])
    return found.measurement


ALONE: dict[str, Measurement] = {}


def alone(owner: Supervisor, folder: Path, model: Model) -> Measurement:
    """The measurement of one device without any method; each model is measured once for all tests."""
    if (key := repr(model)) not in ALONE:
        ALONE[key] = measured(owner, folder, model, NAIVE, 1)
    return ALONE[key]


def agree(one: Measurement, several: Measurement) -> None:
    assert several.losses == pytest.approx(one.losses, rel=1e-5)
    assert several.gradient_norms == pytest.approx(one.gradient_norms, rel=1e-4)
    assert several.samples_per_loss == one.samples_per_loss == 16
    assert several.master_dtype == "float32"


@pytest.mark.parametrize(
    "setting",
    [s if s in EVERYDAY else pytest.param(s, marks=pytest.mark.sweep) for s in memory_saving_settings(2)],
    ids=lambda setting: "+".join(setting) or "ddp",
)
def test_two_devices_compute_what_one_computes(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = small(TINY["gpt_neox"])
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2))


@pytest.mark.parametrize(
    "setting",
    [NAIVE, ("fsdp-3",), *(pytest.param((name,), marks=pytest.mark.sweep) for name in ("zero-2", "zero-3"))],
    ids=lambda setting: "+".join(setting) or "ddp",
)
def test_two_devices_train_adapters_as_one_does(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    """Frozen weights and adapters have different precisions, which FSDP2 and ZeRO have to divide together."""
    model = small(TINY["gpt_neox"])
    lora = Lora(4, 8.0, 0.0, "all-linear")
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, lora=lora, precision="bf16"))
    one, two = alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
    assert two.gradient_norms == pytest.approx(one.gradient_norms, rel=1e-2)
    assert two.master_dtype == "float32"


@pytest.mark.sweep
@pytest.mark.parametrize("family", [name for name in families() if name != "gpt_neox"])
@pytest.mark.parametrize("setting", [NAIVE, ("fsdp-3",), ("zero-3",)], ids=lambda s: "+".join(s) or "ddp")
def test_every_family_trains_on_two_devices(
    family: str, setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = small(TINY[family])
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2))


@pytest.mark.sweep
@pytest.mark.parametrize("setting", [NAIVE, ("fsdp-3",), ("zero-3",)], ids=lambda s: "+".join(s) or "ddp")
def test_a_diffusion_transformer_trains_on_two_devices(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    fields = {"input_size": 8, "hidden_size": 64, "depth": 2, "num_heads": 4, "class_dropout_prob": 0.0}
    recipe = {"batch_size": 16, "steps": 100, "precision": "fp32"}
    entry = {"name": "mine", "architecture": {"model_type": "dit", **fields}, "recipe": recipe}
    document = {"schema": "bench/manifest/v1", "models": [entry]}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2))


@pytest.mark.sweep
@pytest.mark.parametrize("setting", [("compile-blocks", "fsdp-3"), ("compile",)], ids="+".join)
def test_compiled_models_train_on_two_devices(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = small(TINY["gpt_neox"])
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2))


@pytest.mark.sweep
def test_half_weights_on_two_devices_compute_what_they_do_on_one(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    model = small(TINY["gpt_neox"])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision="bf16"))
    setting = ("half-weights",)
    agree(
        measured(supervisor, tmp_path, model, setting, 1), measured(supervisor, tmp_path, model, setting, 2)
    )


@pytest.mark.parametrize("name", ["muon", "adamw-8bit"])
def test_two_devices_update_as_one_does_with_every_optimizer(
    name: str, supervisor: Supervisor, tmp_path: Path
) -> None:
    """Losses and gradients of three steps; each device computes every update."""
    model = small(TINY["gpt_neox"])
    optimizer = OPTIMIZERS[name](name, 1e-3, 0.9, 0.95, 1e-8, 0.1)
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, optimizer=optimizer))
    one = measured(supervisor, tmp_path, model, NAIVE, 1)
    several = measured(supervisor, tmp_path, model, NAIVE, 2)
    assert several.losses == pytest.approx(one.losses, rel=1e-4)
    assert several.gradient_norms == pytest.approx(one.gradient_norms, rel=1e-3)
    assert one.losses != alone(supervisor, tmp_path, small(TINY["gpt_neox"])).losses


@pytest.mark.sweep
@pytest.mark.parametrize(
    "setting", [NAIVE, ("half-weights",), ("fsdp-2",), ("fsdp-3",), ("zero-2",), ("zero-3",)], ids="+".join
)
def test_a_recipe_in_fp8_on_two_devices_computes_what_it_does_on_one(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = small(TINY["gpt_neox"])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision="fp8"))
    one, several = alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2)
    assert several.losses == pytest.approx(one.losses, rel=2e-3)
    assert several.gradient_norms == pytest.approx(one.gradient_norms, rel=3e-2)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", [s for s in memory_saving_settings(1) if "offload" in s], ids="+".join)
def test_one_device_offloads(setting: Setting, supervisor: Supervisor, tmp_path: Path) -> None:
    model = small(TINY["gpt_neox"])
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 1))


@pytest.mark.parametrize(
    "setting",
    [("fsdp-2", "offload"), pytest.param(("zero-2", "offload"), marks=pytest.mark.sweep)],
    ids="+".join,
)
def test_offloaded_gradients_are_added_up_in_every_timed_step(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    found = measured(supervisor, tmp_path, small(TINY["gpt_neox"]), setting, 1)
    assert min(sample.accumulation for sample in found.steps) == 2


ESM = {
    "model_type": "esm", "vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 66,
    "position_embedding_type": "rotary", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize(
    "setting",
    [NAIVE, ("checkpointing",), ("compile-blocks",), ("fsdp-3",), ("zero-2",)],
    ids=lambda setting: "+".join(setting) or "ddp",
)
def test_an_unused_weight_does_not_stop_training(
    setting: Setting, supervisor: Supervisor, tmp_path: Path
) -> None:
    """DDP waits for the gradient of an unused weight and used to refuse the second step."""
    recipe = {
        "objective": "masked-lm", "sequence_length": 64, "batch_size": 16, "steps": 100, "precision": "fp32",
    }  # fmt: skip
    entry = {"name": "esm", "architecture": ESM, "recipe": recipe}
    document = {"schema": "bench/manifest/v1", "models": [entry]}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    agree(alone(supervisor, tmp_path, model), measured(supervisor, tmp_path, model, setting, 2))


@pytest.mark.sweep
def test_a_compiled_head_accepts_the_output_of_its_body_under_zero(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """Under ZeRO, Mamba's features are fp32 and its head is in half precision, without autocast."""
    model = small(TINY["mamba"])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision="bf16"))
    plain, compiled = (
        measured(supervisor, tmp_path, model, setting, 1)
        for setting in (("zero-1", "offload"), ("compile-blocks", "zero-1", "offload"))
    )
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-2)


def test_an_estimate_for_two_devices_is_proven_on_two(supervisor: Supervisor, tmp_path: Path) -> None:
    one = trial(model=small(TINY["vit"]), micro_batch=4, gpus=2, timing=QUICK)
    proof = supervisor.proof(one, Proving(2, 0), "cpu", tmp_path, tmp_path / "log.txt", LIMITS)
    assert not isinstance(proof, OutOfMemory)
    assert (proof.steps, proof.seconds > 0) == (2, True)  # type: ignore[union-attr]


def test_all_members_measure_the_ceilings(supervisor: Supervisor, tmp_path: Path) -> None:
    found = supervisor.ceilings(["fp32"], "cpu", 2, tmp_path / "log.txt", LIMITS)
    names = ("matmul-fp32", "product-alone", "product-together", "memory-bandwidth", "all-reduce")
    assert {(ceiling.name, ceiling.device) for ceiling in found} == {
        (name, device) for name in names for device in (0, 1)
    }
