"""A module that people bring as code: built, counted, tried before anything runs, and trained."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.base.errors import BadInput
from bench.planning.manifest import parse_manifest
from bench.runner.trial.device import Device
from bench.runner.trial.gradients import check_gradients
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import free_lunch
from bench.training.models import Model, family_of
from bench.training.models.dry_build import DryBuild, dry_build
from bench.training.models.own_module import build_own
from tests.builders import trial
from tests.targets import CPU

CODE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

class Words(nn.Module):
    def __init__(self, vocab_size, width=32):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
        self.layers = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

class Dictionary(Words):
    def forward(self, input_ids):
        return {"logits": super().forward(input_ids)}

class Regression(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.kinds, self.out = nn.Embedding(5, width), nn.Linear(width, 1)

    def forward(self, x, kind, y):
        x = x + self.kinds(kind)
        for layer in self.layers:
            x = layer(x)
        return (self.out(x) - y).square().mean()

class Tuple(Regression):
    def forward(self, **batch):
        return super().forward(**batch), None

class NoLoss(Regression):
    def forward(self, x, kind, y):
        return x

class WithoutGradient(Regression):
    def forward(self, **batch):
        return super().forward(**batch).detach()

class NotANumber(Regression):
    def forward(self, **batch):
        return super().forward(**batch) * float("nan")

class Untrained(Regression):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(4, 4)

class Frozen(Regression):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Mutating(Regression):
    def forward(self, x, kind, y):
        x.mul_(2)
        return super().forward(x, kind, y)

class Raising(Regression):
    def forward(self, **batch):
        raise ZeroDivisionError("on purpose")

class NoModule:
    pass
"""
LINES = CODE.split("\n")
BATCH = {
    "x": {"shape": [16], "elements": "numbers"},
    "kind": {"shape": [], "elements": "indices", "below": 5},
    "y": {"shape": [1], "elements": "numbers"},
}
LANGUAGE = {"objective": "causal-lm", "sequence_length": 16}


def model_of(name: str, code: Sequence[str] = LINES, **recipe: Any) -> Model:
    own_loss = "objective" not in recipe
    architecture: dict[str, Any] = {"module": f"mine.py:{name}", "code": list(code)}
    architecture |= {"batch": BATCH} if own_loss else {"config": {"vocab_size": 100}}
    fields = {"objective": "own-loss", "batch_size": 4, "steps": 10, "precision": "fp32", **recipe}
    entry = {"name": "mine", "architecture": architecture, "recipe": fields}
    document = {"schema": "bench/manifest/v1", "models": [entry]}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    return model


def built(name: str, **recipe: Any) -> DryBuild:
    return dry_build(model_of(name, **recipe), "/models/0")


@pytest.mark.parametrize("name", ["Words", "Dictionary"])
def test_a_module_is_counted(name: str) -> None:
    build = built(name, **LANGUAGE)
    blocks = 2 * 32 + (32 * 64 + 64) + (64 * 32 + 32)
    assert build.counted is not None
    assert build.counted.parts.blocks == (blocks,) * 3
    assert build.counted.parts.outside == 100 * 32 + (32 * 100 + 100)
    assert build.counted.flops.matmul == 16 * 2 * (3 * 2 * 32 * 64 + 32 * 100)
    assert build.counted.footprints  # its memory is predicted


def test_a_module_with_a_loss_of_its_own_is_counted() -> None:
    build = built("Regression")
    assert build.counted is not None and len(build.counted.parts.blocks) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Tuple", "returned a tuple"),
        ("NoLoss", "its loss is float32 of shape (2, 16)"),
        ("WithoutGradient", "without a gradient"),
        ("NotANumber", "its loss is nan on random data"),
        ("Untrained", "2 of 17 parameters get no gradient: unused.bias, unused.weight"),
        ("Frozen", "without a gradient"),
        ("Mutating", "it changes its input x in place"),
        ("Raising", "ZeroDivisionError: on purpose"),
        ("NoModule", "is no torch.nn.Module"),
        ("Missing", "mine.py has no Missing; its classes: Block, Words, "),
    ],
)
def test_what_would_make_a_measurement_meaningless_is_named(name: str, words: str) -> None:
    mistakes = built(name).mistakes
    assert [mistake.path for mistake in mistakes if words in mistake.found], mistakes
    assert all(mistake.path.startswith("/models/0/architecture") for mistake in mistakes)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (["class Mine:", "pass"], "mine.py cannot be imported: IndentationError"),
        (["import not_there_at_all"], "mine.py cannot be imported: ModuleNotFoundError"),
        (["raise SystemExit(3)"], "mine.py cannot be imported: SystemExit: 3"),
    ],
)
def test_code_that_cannot_be_imported_is_named(code: list[str], words: str) -> None:
    (mistake,) = dry_build(model_of("Mine", code), "/models/0").mistakes
    assert mistake.found.startswith(words)


def test_a_class_that_its_configuration_does_not_fit_is_named() -> None:
    code = ["from torch import nn", "class Mine(nn.Module):", "    def __init__(self, width): pass"]
    (mistake,) = dry_build(model_of("Mine", code), "/models/0").mistakes
    assert "missing 1 required positional argument: 'width'" in mistake.found


@pytest.mark.parametrize(("name", "recipe"), [("Words", LANGUAGE), ("Regression", {})])
@pytest.mark.parametrize("setting", [(), ("checkpointing",), ("half-weights",)])
def test_the_loss_falls(name: str, recipe: dict[str, Any], setting: tuple[str, ...], tmp_path: Path) -> None:
    optimizer = {"name": "adamw", "learning_rate": 0.01}
    model = model_of(name, optimizer=optimizer, **recipe | {"precision": "bf16"})
    one = trial(model=model, setting=setting, micro_batch=4)
    run = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _: None)
    run.prepare()
    batch = next(run.batches)
    losses = []
    for _ in range(8):
        losses.append(float(run.strategy.forward_backward(batch, 1, sync=True)))
        run.strategy.update()
    assert losses[-1] < losses[0]


def test_a_free_lunch_computes_the_same_gradients(tmp_path: Path, without_inductor: None) -> None:
    model = model_of("Regression")
    one = trial(model=model, setting=free_lunch(model, CPU), micro_batch=2)
    assert "compile-blocks" in one.setting
    assert check_gradients(one, Device("cpu"), tmp_path, lambda _: None).agrees


def test_modules_of_equal_code_are_one_class() -> None:
    one, other = build_own(model_of("Words", **LANGUAGE)), build_own(model_of("Words", **LANGUAGE))
    assert type(one.body) is type(other.body)


def test_a_traceback_shows_the_line_of_the_code() -> None:
    module = family_of(model := model_of("Raising")).build(model, kernels=False)
    with pytest.raises(ZeroDivisionError) as caught:
        module(x=torch.zeros(1), kind=torch.zeros(1), y=torch.zeros(1))
    assert 'raise ZeroDivisionError("on purpose")' in "".join(traceback.format_exception(caught.value))


def test_kernels_cannot_be_chosen() -> None:
    assert "decides itself" in str(family_of(model_of("Words", **LANGUAGE)).missing_kernels("cuda"))


def test_an_objective_of_its_own_is_for_modules_only() -> None:
    recipe = {"objective": "own-loss", "batch_size": 4, "steps": 10, "precision": "fp32"}
    entry = {"name": "mine", "architecture": {"model_type": "llama", "vocab_size": 9}, "recipe": recipe}
    document = {"schema": "bench/manifest/v1", "models": [entry]}
    with pytest.raises(BadInput, match='"own-loss" does not fit'):
        parse_manifest(json.dumps(document).encode(), "m.json")
