"""Contrastive training: the loss of the whole batch, with any number of passes and devices.

Every sample is compared with every other one of a step, so the mean over micro-batches is not the loss of the
batch. What holds instead: a step has one loss and one gradient, and any number of passes and devices finds
both.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, multiprocessing, nn
from transformers import CONFIG_MAPPING

from bench.base.errors import BadInput
from bench.base.strict_json import to_json
from bench.export import KINDS, Kind, refuse, script_of
from bench.planning.manifest import parse_manifest
from bench.planning.memory_prediction import predict_bytes
from bench.planning.search.lower_bounds import LowerBounds, TimedTrial, pass_cost_of
from bench.records.trial import Trial
from bench.runner.trial import recorded_pass
from bench.runner.trial.device import Device
from bench.runner.trial.gradients import check_gradients
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.recorded_pass import Replay
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import Target, refusal
from bench.training.models import Model, family_of
from bench.training.models.dry_build import dry_build
from bench.training.models.own_models import resolve_inline
from bench.training.objectives import contrastive, objective_of
from bench.training.objectives.objective import value_at
from bench.training.setting import Setting
from tests.builders import trial

pytestmark = pytest.mark.usefixtures("without_compiled_footprints")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 300, "max_position_embeddings": 16, "pad_token_id": 1}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
TOWERS = {"text_config": TEXT, "vision_config": VISION}
BATCH = 8
AIM = objective_of("contrastive")


def model_of(model_type: str = "clip", towers: Mapping[str, Any] = TOWERS, **recipe: Any) -> Model:
    given = {"objective": "contrastive", "batch_size": BATCH, "steps": 10, "precision": "fp32",
             "sequence_length": 8, "optimizer": {"name": "adamw", "epsilon": 1e-3}} | recipe  # fmt: skip
    entry = {"name": "mine", "architecture": {"model_type": model_type, **towers}, "recipe": given}
    document = {"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    return model


def a_trial(model: Model, setting: Setting = (), micro_batch: int = BATCH, gpus: int = 1) -> Trial:
    return trial(model=model, setting=setting, micro_batch=micro_batch, gpus=gpus, seed=3)


def run_of(one: Trial, folder: Path, team: Team | None = None) -> TrialRun:
    run = TrialRun(one, Device("cpu"), team or Team(), folder, lambda _: None)
    run.prepare()
    return run


def after_steps(run: TrialRun, steps: int = 2) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of a few steps, and the weights after them."""
    losses = [run.team.mean(float(run.step(run.trial.accumulation))) for _ in range(steps)]
    return losses, {name: weight.detach().clone() for name, weight in weights(run)}


def weights(run: TrialRun) -> Sequence[tuple[str, Tensor]]:
    def whole(weight: Any) -> Tensor:
        found: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        return found

    copies = getattr(run.strategy, "copies", None)
    named = copies().items() if copies else run.whole.named_parameters()
    return [(name, whole(weight).flatten()) for name, weight in named]


def agree(
    found: tuple[Sequence[float], Mapping[str, Tensor]],
    right: tuple[Sequence[float], Mapping[str, Tensor]],
    within: float = 1e-5,
) -> None:
    assert found[0] == pytest.approx(right[0], rel=within)
    assert found[1].keys() == right[1].keys()
    for name, weight in right[1].items():
        torch.testing.assert_close(found[1][name], weight, rtol=0, atol=within, msg=name)


def definition(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the loss as its paper defines it."""
    logits = scale.exp() * images @ texts.T
    count = len(images)
    if bias is None:
        right = torch.arange(count)
        return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    signs = 2 * torch.eye(count) - 1
    return -F.logsigmoid(signs * (logits + bias)).sum() / count


class Found:
    def __init__(self, images: Tensor, texts: Tensor) -> None:
        self.image_embeds, self.text_embeds = images, texts


class Towers(nn.Module):
    """Two towers that look embeddings up."""

    def __init__(self, *, sigmoid: bool) -> None:
        super().__init__()
        self.images = nn.Parameter(F.normalize(torch.randn(12, 5), dim=1))
        self.texts = nn.Parameter(F.normalize(torch.randn(12, 5), dim=1))
        self.logit_scale = nn.Parameter(torch.tensor(1.3))
        if sigmoid:
            self.logit_bias = nn.Parameter(torch.tensor([-2.0]))

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Found:
        return Found(self.images[pixel_values], self.texts[input_ids])


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("chunk", [1 << 20, 30], ids=["at once", "in chunks"])
@pytest.mark.parametrize("sigmoid", [False, True], ids=["clip", "siglip"])
def test_loss_and_gradients_are_those_of_the_definition(
    sigmoid: bool, chunk: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrastive, "CHUNK", chunk)
    torch.manual_seed(0)
    module = Towers(sigmoid=sigmoid)
    bias = module.logit_bias if sigmoid else None
    right = definition(module.images, module.texts, module.logit_scale, bias)
    expected = torch.autograd.grad(right, list(module.parameters()))
    batches = [{"input_ids": ids, "pixel_values": ids} for ids in torch.arange(12).chunk(passes)]
    answers = torch.cat([AIM.answer(module, batch) for batch in batches])
    labels = AIM.targets(module, answers, lambda rows: rows, passes).chunk(passes)
    for batch, part in zip(batches, labels, strict=True):
        loss = AIM.loss(AIM.answer(module, batch), part)
        assert float(loss.detach()) == pytest.approx(float(right.detach()), rel=1e-5)
        (loss / passes).backward()
    for weight, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [4, 2, 1])
@pytest.mark.parametrize("model_type", ["clip", "siglip"])
def test_several_passes_train_as_one_pass_does(model_type: str, micro_batch: int, tmp_path: Path) -> None:
    model = model_of(model_type)
    one = after_steps(run_of(a_trial(model), tmp_path))
    agree(after_steps(run_of(a_trial(model, (), micro_batch), tmp_path)), one)


def test_recorded_passes_and_answers_train_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay of a recording writes its result to the same memory each time."""
    recorded: list[Replay] = []

    def record(compute: Replay) -> Replay:
        recorded.append(compute)
        written: list[Tensor] = []

        def replay() -> Tensor:
            result = compute()
            written.append(result.clone())
            return written[0].copy_(result)

        return replay

    monkeypatch.setattr(recorded_pass, "record_graph", record)
    one = after_steps(run_of(a_trial(model_of(), (), 1), tmp_path))
    agree(after_steps(run_of(a_trial(model_of(), ("cuda-graphs",), 1), tmp_path)), one)
    assert len(recorded) == 2, "the answers, and the pass"


def test_the_second_answer_drops_the_units_that_the_first_one_dropped(tmp_path: Path) -> None:
    towers = {**TOWERS, "text_config": {**TEXT, "hidden_dropout_prob": 0.5}}
    run = run_of(a_trial(model_of("chinese_clip", towers), (), 4), tmp_path)
    batches = list(run.micro_batches(run.strategy, run.batches, 1, 2))
    first = float(run.strategy.forward_backward(batches[0], 1, sync=True))
    run = run_of(a_trial(model_of("chinese_clip", towers), (), 4), tmp_path)
    (batch,) = run.micro_batches(run.strategy, run.batches, 1, 2)
    with run.whole.answering():
        answer, other = run.strategy.evaluate(batch), run.strategy.evaluate(batch)
    assert not torch.equal(answer, other), "units are dropped at random"
    assert float(AIM.loss(answer, batch["labels"])) == pytest.approx(first, rel=1e-6)


def test_a_step_of_fewer_passes_computes_the_loss_of_a_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timed step of few passes would otherwise spend less time on its loss than the recipe's step."""
    run = run_of(a_trial(model_of(), (), 2), tmp_path)
    compared: list[int] = []
    targets = run.whole.targets

    def spy(answers: Tensor, passes: int) -> Tensor:
        compared.append(len(answers))
        return targets(answers, passes)

    monkeypatch.setattr(run.whole, "targets", spy)
    assert run.timed_step(1).accumulation == 1
    run.step(4)
    assert compared == [BATCH, BATCH]


@pytest.fixture(scope="module")
def fork_server() -> None:
    """Start a process without threads, with everything that two devices import; it forks each of them.

    Python keeps the server until this process ends.
    """
    code = [f"transformers.models.{name}.modeling_{name}" for name in ("clip", "siglip")]
    torch_code = ["torch", "torch._dynamo", "torch.distributed.fsdp"]
    multiprocessing.set_forkserver_preload([*torch_code, "transformers", *code, __name__])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
        ensure_running()


def member(rank: int, folder: Path, one: Trial) -> None:
    """Train as one of two devices; write the losses and weights to a file."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    run = run_of(one, folder / str(rank), Team(rank, 2))
    torch.save(after_steps(run), folder / f"{rank}.pt")
    dist.destroy_process_group()
    # DDP's destructor would hold Python's lock while it waits for gloo's thread, which may wait for the lock.
    os._exit(0)


@pytest.fixture
def operators(request: pytest.FixtureRequest) -> None:
    """Have DeepSpeed's operators compiled for the tests of a sweep, which train with ZeRO."""
    if request.node.get_closest_marker("sweep"):
        request.getfixturevalue("zero_operators")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "setting", "micro_batch"),
    [
        ("clip", (), 4),
        ("siglip", (), 2),
        ("clip", ("fsdp-3",), 2),
        ("siglip", ("half-weights",), 4),
        pytest.param("clip", ("zero-1",), 2, marks=pytest.mark.sweep),
        pytest.param("siglip", ("zero-3",), 4, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.usefixtures("operators")
def test_two_devices_train_as_one_does(
    model_type: str, setting: Setting, micro_batch: int, tmp_path: Path, fork_server: None
) -> None:
    halved = "half-weights" in setting
    model = model_of(model_type, precision="bf16" if halved else "fp32")
    several = a_trial(model, setting, micro_batch, gpus=2)
    multiprocessing.start_processes(member, (tmp_path, several), nprocs=2, start_method="forkserver")
    # A product of four rows rounds bf16 as one of two does, so the passes of both have equally many.
    alone = a_trial(model, setting if halved else (), micro_batch if halved else BATCH)
    right = after_steps(run_of(alone, tmp_path))
    for rank in (0, 1):
        agree(torch.load(tmp_path / f"{rank}.pt"), right)


@pytest.mark.parametrize("micro_batch", [4, BATCH], ids=["two passes", "one pass"])
@pytest.mark.parametrize("setting", [(), ("kernels", "checkpointing")], ids=lambda s: "+".join(s) or "naive")
def test_gradients_of_one_sample_a_pass_are_those_of_the_micro_batch(
    setting: Setting, micro_batch: int, tmp_path: Path
) -> None:
    check = check_gradients(
        a_trial(model_of(), setting, micro_batch), Device("cpu"), tmp_path, lambda _: None
    )
    assert check.agrees
    assert (check.worst_difference or 0) < 0.01


def test_a_gradient_check_finds_a_wrong_contrastive_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that compares a micro-batch's samples with fewer others has other gradients."""
    right = contrastive.Contrastive.targets

    def halves(self: Any, module: nn.Module, answers: Tensor, gather: Any, passes: int = 1) -> Tensor:
        if passes > 1:
            return right(self, module, answers, gather, passes)
        return torch.cat([right(self, module, part, gather) for part in answers.chunk(2)])

    monkeypatch.setattr(contrastive.Contrastive, "targets", halves)
    check = check_gradients(a_trial(model_of()), Device("cpu"), tmp_path, lambda _: None)
    assert not check.agrees


@pytest.mark.parametrize("model_type", ["clip", "siglip", "metaclip_2", "chinese_clip", "altclip"])
def test_both_towers_are_counted_and_their_blocks_found(model_type: str) -> None:
    build = dry_build(model := model_of(model_type), "/models/0")
    assert build.mistakes == () and build.counted is not None
    module = family_of(model).build(model, kernels=False)
    assert len(family_of(model).blocks(module)) == len(build.counted.parts.blocks) == 4
    tower = next(part for name, part in module.named_children() if name.startswith("vision"))
    assert sum(p.numel() for p in tower.parameters()) < build.counted.parts.total
    assert {block.count for one in build.counted.footprints for block in one.footprint.blocks} == {2}
    assert build.counted.flops.convolution > 0 < build.counted.flops.attention


@pytest.mark.parametrize(
    ("tower", "field", "value", "path", "found"),
    [
        ("text_config", "max_position_embeddings", 4, "recipe/sequence_length",
         "8 is more than the 4 positions of the architecture"),
        ("text_config", "num_hidden_layer", 3, "architecture/text_config/num_hidden_layer",
         "CLIPTextConfig has no such field"),
        ("vision_config", "num_hidden_layers", 0, "architecture/vision_config/num_hidden_layers",
         "0 is less than allowed"),
        ("text_config", "pad_token_id", 300, "architecture/text_config/pad_token_id",
         "300 is none of 300 tokens"),
    ],
)  # fmt: skip
def test_a_mistake_inside_of_a_tower_is_named(
    tower: str, field: str, value: int, path: str, found: str
) -> None:
    config = {key: v for key, v in TOWERS[tower].items() if key != "num_hidden_layers" or field == key}
    towers = {**TOWERS, tower: {**config, field: value}}
    (mistake,) = dry_build(model_of(towers=towers), "/models/0").mistakes
    assert (mistake.path, mistake.found) == (f"/models/0/{path}", found)


def test_fields_that_published_towers_have_and_nothing_reads_are_no_mistakes(
    without_footprints: None,
) -> None:
    extra = {"model_type": "clip_text_model", "top_k": 50, "torch_dtype": "float32", "_name_or_path": ""}
    build = dry_build(model_of(towers={**TOWERS, "text_config": {**TEXT, **extra}}), "/models/0")
    assert build.mistakes == ()


@pytest.mark.parametrize(
    ("towers", "path"),
    [
        ({"vision_config": VISION}, "text_config/vocab_size"),
        ({"text_config": TEXT}, "vision_config/image_size"),
        ({"text_config": "small", "vision_config": VISION}, "text_config/vocab_size"),
        ({"text_config": {**TEXT, "vocab_size": "300"}, "vision_config": VISION}, "text_config/vocab_size"),
    ],
)
def test_a_tower_that_is_missing_or_has_no_size_is_named(towers: Mapping[str, Any], path: str) -> None:
    with pytest.raises(BadInput, match=f"architecture/{path} "):
        model_of(towers=towers, image_size=32)


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("clip", 49408), ("siglip", 32000), ("metaclip_2", 49408), ("chinese_clip", 30522), ("altclip", 250002)],
)
def test_a_published_configuration_leaves_sizes_to_their_defaults(model_type: str, words: int) -> None:
    model = model_of(model_type, {"text_config": {"model_type": "any"}, "vision_config": {}})
    assert AIM.vocabulary(model.architecture) == words
    assert model.recipe.image_size == model.architecture["vision_config"]["image_size"] == 224


def test_sizes_that_are_filled_in_are_those_of_transformers() -> None:
    for name, sizes in AIM.defaults_of_types.items():
        default = CONFIG_MAPPING[name]().to_dict()
        assert sizes == {path: value_at(default, path) for path in AIM.counts}, name


def test_another_objective_for_two_towers_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadInput, match='or the objective "contrastive"'):
        model_of(objective="causal-lm", image_size=None)


@pytest.mark.parametrize("model_type", ["align", "tipsv2"])
def test_a_model_that_scales_its_logits_otherwise_is_refused(model_type: str) -> None:
    (mistake,) = dry_build(model_of(model_type), "/models/0").mistakes
    assert "has no logit_scale" in mistake.found


def test_passes_that_wait_for_other_devices_are_not_recorded() -> None:
    setting = ("half-weights", "compile-blocks", "cuda-graphs")
    model = model_of(precision="bf16")
    one, two = (Target("cuda", gpus, 1 << 36, compute_capability="9.0", elsewhere=True) for gpus in (1, 2))
    assert refusal(setting, model, one) is None
    assert "other GPUs" in (refusal(setting, model, two) or "")


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [4, BATCH], ids=["two passes", "one pass"])
def test_compiled_models_train_alike(micro_batch: int, tmp_path: Path, without_inductor: None) -> None:
    model, setting = model_of("siglip"), ("compile-blocks",)
    one = after_steps(run_of(a_trial(model), tmp_path))
    agree(after_steps(run_of(a_trial(model, setting, micro_batch), tmp_path)), one, 1e-4)


def test_a_batch_in_tokens_is_refused() -> None:
    with pytest.raises(BadInput, match=r"recipe/batch_tokens +contrastive counts pairs"):
        model_of(batch_size=None, batch_tokens=64)


def test_predicted_memory_includes_the_embeddings_of_the_whole_batch() -> None:
    small, large = model_of("siglip"), model_of("siglip", batch_size=4096)
    counts = dry_build(small, "/models/0").counted
    assert counts is not None
    one, other = (predict_bytes(model, (), 2, 1, counts) for model in (small, large))
    assert one is not None and other is not None
    numbers = 2 * (SMALL["hidden_size"] + 1)  # of a pair: two sides, with the column of the bias
    assert other - one > 4 * 2 * 2 * (4096 - BATCH) * numbers + 4 * 4096**2


def test_a_step_of_one_pass_may_be_faster_than_its_passes_in_other_steps() -> None:
    """A step of one pass answers each pair once, so that three quarters of its computations are left."""
    model = model_of()
    timed = [
        TimedTrial(
            a_trial(model, (), size), step_seconds=0.1 + BATCH / size * (0.1 + size), update_seconds=0.1
        )
        for size in (2, 4)
    ]
    least = LowerBounds(timed)(a_trial(model), pass_cost_of(timed))
    assert 0.5 * BATCH < least < 0.1 + 3 / 4 * (0.1 + BATCH)


@pytest.mark.parametrize("micro_batch", [4, BATCH])
def test_an_exported_script_trains_on_the_loss_of_the_whole_batch(
    micro_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_trial(model_of(), (), micro_batch)
    (tmp_path / "trial.json").write_text(json.dumps(to_json(one)))
    (tmp_path / "train.py").write_text(script_of("script", 1000))
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "2", "--log-every", "1"])
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    losses = [json.loads(line)["loss"] for line in capsys.readouterr().out.splitlines()]
    right, _ = after_steps(run_of(a_trial(model_of()), tmp_path / "run"))
    assert losses == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_other_frameworks_are_refused(kind: Kind) -> None:
    reason = refuse(kind, a_trial(model_of(), (), 4))
    assert (reason is None) == (kind == "script")


def test_the_floor_of_both_towers_is_recorded() -> None:
    recording = recorded(model_of(), ("kernels",), 4)
    assert {each.kind for each in recording.computations.values()} >= {
        "products", "attention", "convolutions",
    }  # fmt: skip


def test_a_trial_measures_with_the_losses_of_any_micro_batch(tmp_path: Path) -> None:
    model = model_of(eval_samples=8, eval_every_steps=2, log_every_steps=2, save_every_steps=5)
    quick = dataclasses.replace(trial().timing, target_percent=50, measure_seconds=0.1, warmup_seconds=0.1)
    found = [
        TrialRun(
            dataclasses.replace(a_trial(model, (), size), timing=quick),
            Device("cpu"), Team(), tmp_path, lambda _: None,
        ).run()
        for size in (BATCH, 2)
    ]  # fmt: skip
    assert found[1].losses == pytest.approx(found[0].losses, rel=1e-5)
    assert all(each.eval_seconds_per_sample for each in found)
    assert {sample.accumulation for sample in found[0].steps} == {1}
    assert len({sample.accumulation for sample in found[1].steps}) == 2


def test_a_type_that_transformers_lacks_is_never_looked_up_as_a_file() -> None:
    """A bundle's author chooses the type: it must not name a path on the machine that verifies."""
    towers = {"text_config": {}, "vision_config": {}}
    for model_type in ("../../../..", "a" * 500):
        entry = {"name": "mine", "architecture": {"model_type": model_type, **towers}, "recipe": {}}
        assert isinstance(found := resolve_inline(entry, "/models/0"), list)
        assert "is not a type of transformers" in " ".join(mistake.found for mistake in found)
