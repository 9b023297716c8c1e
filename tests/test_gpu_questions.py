"""The questions for GPUs: how they share the GPUs of a machine, and that bench reads their manifests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bench.base.gpu_catalogue import find_gpu_model
from bench.planning.manifest import load_manifest
from bench.planning.plan import make_plan
from bench.training.methods import Target, free_lunch, ordered
from bench.training.models import known_models
from tests.targets import H200

SCRIPTS = Path(__file__).parents[1] / "benchmarks/gpu"
MUCH_SECONDS = 600.0
H100_MIB, H200_MIB = 81_559, 143_771


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the scripts import each other, as they do when one is started."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in ("schedule", "campaign", "open_questions"):
        sys.modules.pop(name, None)


@pytest.fixture
def schedule(scripts: None) -> ModuleType:
    return import_module("schedule")


@pytest.fixture
def campaign(scripts: None) -> ModuleType:
    return import_module("campaign")


@pytest.fixture
def open_questions(scripts: None) -> ModuleType:
    return import_module("open_questions")


def shell(line: str) -> tuple[str, ...]:
    return ("sh", "-c", line)


def test_questions_run_side_by_side_each_on_its_own_gpu(schedule: ModuleType, tmp_path: Path) -> None:
    met = tmp_path / "met"
    # Each waits until the other has started.
    line = f"echo $CUDA_VISIBLE_DEVICES; touch {met}-$0; while ! [ -e {met}-$1 ]; do sleep 0.01; done"
    questions = [
        schedule.Question(name, (*shell(line), name, other), 1.0) for name, other in (("a", "b"), ("b", "a"))
    ]
    answers = list(schedule.ask(questions, 2, tmp_path, MUCH_SECONDS))
    assert {each.question.name: each.exit_code for each in answers} == {"a": 0, "b": 0}
    assert [(tmp_path / f"{name}.txt").read_text() for name in "ab"] == ["0\n", "1\n"]


def test_a_question_for_two_gpus_has_both_and_one_for_a_certain_gpu_that_one(
    schedule: ModuleType, tmp_path: Path
) -> None:
    seen = shell("echo $CUDA_VISIBLE_DEVICES")
    questions = [
        schedule.Question("any", seen, 1.0),
        schedule.Question("both", seen, 1.0, gpus=2),
        schedule.Question("second", seen, 1.0, gpu=1),
    ]
    answers = list(schedule.ask(questions, 2, tmp_path, MUCH_SECONDS))
    assert {each.question.name: each.gpus for each in answers} == {
        "any": (0,),
        "both": (0, 1),
        "second": (1,),
    }
    assert (tmp_path / "both.txt").read_text() == "0,1\n"
    assert (tmp_path / "second.txt").read_text() == "1\n"


@pytest.mark.parametrize(("seconds", "gpus", "code"), [(50.0, 1, 0), (61.0, 1, None), (50.0, 2, None)])
def test_a_question_that_does_not_fit_is_not_started(
    schedule: ModuleType, tmp_path: Path, seconds: float, gpus: int, code: int | None
) -> None:
    question = schedule.Question("one", shell("true"), seconds, gpus)
    (answer,) = schedule.ask([question], 1, tmp_path, 60.0 + schedule.END_SECONDS)
    assert answer.exit_code == code
    assert (schedule.NOT_STARTED in str(answer)) == (code is None)
    assert (tmp_path / "one.txt").exists() == (code == 0)


def test_a_question_that_failed_stops_no_other_and_is_asked_again(
    schedule: ModuleType, tmp_path: Path
) -> None:
    failing = schedule.Question("failing", shell("echo why >&2; exit 3"), 1.0)
    good = schedule.Question("good", shell("echo {}"), 1.0)
    answers = list(schedule.ask([failing, good], 1, tmp_path, MUCH_SECONDS))
    assert [each.exit_code for each in answers] == [3, 0]
    assert (tmp_path / "failing.err").read_text() == "why\n"
    assert (tmp_path / "good.txt").read_text() == "{}\n"
    mended = replace(failing, command=shell("true"))
    assert [str(each.question.name) for each in schedule.ask([mended, good], 1, tmp_path, MUCH_SECONDS)] == [
        "failing"
    ]


def test_a_question_that_takes_too_long_is_interrupted_with_its_children(
    schedule: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    child = f"""
import pathlib, time
try:
    pathlib.Path({str(started)!r}).touch()
    time.sleep(600)
except KeyboardInterrupt:
    print("partial")
"""
    monkeypatch.setattr(schedule, "time", SimpleNamespace(
        monotonic=lambda: 2 * MUCH_SECONDS if started.exists() else 0.0, sleep=time.sleep
    ))  # fmt: skip
    question = schedule.Question("long", (*shell('"$0" -c "$1"; exit 5'), sys.executable, child), 1.0)
    (answer,) = schedule.ask([question], 1, tmp_path, MUCH_SECONDS)
    assert answer.exit_code != 0
    assert not (tmp_path / "long.done").exists()
    assert (tmp_path / "long.txt").read_text() == "partial\n"


@pytest.mark.parametrize(("gpu", "memory_mib"), [("h100", H100_MIB), ("h200", H200_MIB)])
def test_every_setting_of_each_open_question_can_be_measured(
    open_questions: ModuleType, tmp_path: Path, gpu: str, memory_mib: int
) -> None:
    """A method that does not exist for a model would leave a rented machine with nothing to measure."""
    questions = open_questions.Questions(tmp_path, 2, memory_mib).all()
    names = [each.name for each in questions]
    assert len(set(names)) == len(names)
    manifests = [Path(word) for each in questions for word in each.command if word.endswith(".json")]
    own = sorted(tmp_path.glob("*.manifest.json"))
    assert {each for each in manifests if each.name != "hour.json"} == {*own}
    card = find_gpu_model(gpu)
    assert card is not None
    for path in own:
        manifest = load_manifest(path)
        assert manifest.gpus is not None
        target = Target(
            "cuda", manifest.gpus, memory_mib << 20, card.name, card.compute_capability, elsewhere=True
        )
        plan = make_plan(manifest, target)
        assert plan.cells
        assert [skipped.reason for skipped in plan.skipped] == [], path.name


@pytest.mark.parametrize("big", [False, True])
def test_bench_reads_each_manifest_of_the_campaign(campaign: ModuleType, tmp_path: Path, big: bool) -> None:
    questions = [each.question(big, tmp_path) for each in campaign.MEASUREMENTS]
    assert [each is None for each in questions].count(True) == (0 if big else 1)  # pythia-6.9b needs 141 GB
    for path in tmp_path.glob("*.manifest.json"):
        manifest = load_manifest(path)
        assert manifest.prove is not None


def test_the_campaign_measures_today_s_free_lunch_beside_half_weights(campaign: ModuleType) -> None:
    for each in campaign.MEASUREMENTS:
        if each.methods != ["free-lunch"]:
            lunch = free_lunch(known_models()[each.model], H200, ("half-weights",))
            assert ordered(*each.methods) == lunch, each.model


def test_a_model_on_every_gpu_is_proved_on_one_and_measured_on_the_others(campaign: ModuleType) -> None:
    wanted = campaign.wanted(["pythia-1b", "vit-l", "convnext-xl"], ["vit-l", "pythia-1b"], 3)
    assert [(each.name or each.model, each.gpu, each.proof_steps > 0) for each in wanted] == [
        ("pythia-1b", 1, True),
        ("vit-l", 0, True),
        ("convnext-xl", None, True),
        ("pythia-1b-gpu0", 0, False),
        ("pythia-1b-gpu2", 2, False),
        ("vit-l-gpu1", 1, False),
        ("vit-l-gpu2", 2, False),
    ]


def test_a_bundle_of_an_interrupted_run_is_named_partial(
    campaign: ModuleType, schedule: ModuleType, tmp_path: Path
) -> None:
    for code, kept in ((0, "vit-l.tar"), (130, "vit-l-partial.tar")):
        (tmp_path / "vit-l").mkdir(exist_ok=True)
        (tmp_path / "vit-l/vit-l-0123.tar").write_bytes(b"bundle")
        campaign.keep_bundle(schedule.Answer(schedule.Question("vit-l", ("true",), 1.0), code), tmp_path)
        assert (tmp_path / kept).read_bytes() == b"bundle"
