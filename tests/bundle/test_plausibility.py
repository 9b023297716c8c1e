"""Figures at the limits of what a run can give: the last that is accepted, and the first that is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.base.strict_json import from_json
from bench.bundle import plausibility
from bench.bundle.handshake import DRIFT_SECONDS
from bench.bundle.plausibility import (
    doubts,
    require_consistent,
    require_measured,
    require_operations,
    require_plain,
    require_products,
    require_same_node,
    without_telemetry,
)
from bench.bundle.statement import identity_of
from bench.bundle.tar_format import open_bundle
from bench.records.estimate import Interval
from bench.records.products import Products
from bench.records.run_results import Fastest, Results
from bench.records.trial import Image, Proof, StepSample
from bench.training.models import Flops, Lora
from tests.builders import MODEL, RECIPE, measurement, trial

REAL = Path(__file__).parents[2] / "results" / "proof-h200" / "pythia-160m.tar"
ADAPTED = trial(model=replace(MODEL, recipe=replace(RECIPE, lora=Lora(4, 8.0, 0.0, "all-linear"))))


@cache
def real_results() -> Results:
    with open_bundle(REAL) as opened:
        return from_json(Results, json.loads(opened.read("results.json")))


def refused_unless(accepted: bool) -> AbstractContextManager[object]:
    return nullcontext() if accepted else pytest.raises((ValueError, VerificationFailed))


@pytest.mark.parametrize(
    ("step", "accepted"),
    [
        (StepSample(1, 1e-9), True),
        (StepSample(2, 1.0), True),  # as many passes as a step of the recipe has
        (StepSample(3, 1.0), False),
        (StepSample(0, 1.0), False),
        (StepSample(1, 0.0), False),
        (StepSample(1, -1.0), False),
    ],
)
def test_a_step_takes_time_and_at_most_the_passes_of_the_recipe(step: StepSample, accepted: bool) -> None:
    usual = StepSample(1, 1.0)
    with refused_unless(accepted):
        require_measured(trial(), measurement([usual, step]))
    with refused_unless(accepted):
        require_measured(trial(), measurement([usual], warmup=(usual, step)))


@pytest.mark.parametrize("name", ["log_seconds", "save_seconds", "eval_seconds_per_sample"])
def test_nothing_takes_less_than_no_time(name: str) -> None:
    for value in (None, 0.0):
        require_measured(trial(), measurement([], **{name: value}))
    with pytest.raises(ValueError, match=f"{name} of trial .* is negative"):
        require_measured(trial(), measurement([], **{name: -1e-9}))


@pytest.mark.parametrize("name", ["peak_bytes", "parameters", "samples_per_loss"])
def test_no_count_of_a_measurement_is_negative(name: str) -> None:
    require_measured(trial(), measurement([], **{name: 0}))
    with pytest.raises(ValueError, match=f"{name} of trial .* is negative"):
        require_measured(trial(), measurement([], **{name: -1}))


def test_no_phase_of_a_pass_takes_less_than_no_time() -> None:
    require_measured(trial(), measurement([], phase_seconds={"forward": 0.0, "backward": 1.0}))
    with pytest.raises(ValueError, match=r"backward of trial .* is negative"):
        require_measured(trial(), measurement([], phase_seconds={"forward": 1.0, "backward": -1e-9}))


@pytest.mark.parametrize(
    ("flops", "accepted"),
    [
        (Flops(1), True),
        (Flops(0, scan=1), True),
        (Flops(0), False),
        (Flops(-1, attention=2), False),
        (Flops(2, attention=-1), False),
        (Flops(2, convolution=-1), False),
        (Flops(2, scan=-1), False),
    ],
)
def test_a_pass_has_operations_and_none_of_a_kind_is_fewer_than_none(flops: Flops, accepted: bool) -> None:
    with refused_unless(accepted):
        require_operations(trial(), flops)


@pytest.mark.parametrize(
    ("backward", "accepted"), [(0, False), (1, True), (200, True), (201, False), (-1, False), (None, False)]
)
def test_a_backward_pass_beside_frozen_weights_has_at_most_twice_the_operations(
    backward: int | None, accepted: bool
) -> None:
    with refused_unless(accepted):
        require_operations(ADAPTED, Flops(90, 10, backward=backward))


@pytest.mark.parametrize(
    ("proof", "accepted"),
    [
        (Proof(1, 1e-9, 0), True),
        (Proof(0, 1.0, 1), False),
        (Proof(1, 0.0, 1), False),
        (Proof(1, 1.0, -1), False),
    ],
)
def test_real_training_has_steps_and_takes_time(proof: Proof, accepted: bool) -> None:
    results = real_results()
    (proven,) = results.trials
    with refused_unless(accepted):
        require_consistent(replace(results, trials=(replace(proven, proof=proof),)))


@pytest.mark.parametrize(("samples", "accepted"), [((1e-9,), True), ((1.0, 0.0), False), ((), False)])
def test_a_measured_limit_takes_time(samples: Sequence[float], accepted: bool) -> None:
    results = real_results()
    ceilings = (*results.ceilings, replace(results.ceilings[0], samples=tuple(samples)))
    with refused_unless(accepted):
        require_consistent(replace(results, ceilings=ceilings))


@pytest.mark.parametrize(("complete", "stopped"), [(True, None), (False, "the budget was spent")])
def test_a_run_is_complete_or_was_stopped(complete: bool, stopped: str | None) -> None:
    results = real_results()
    require_consistent(replace(results, run=replace(results.run, complete=complete, stopped=stopped)))
    with pytest.raises(VerificationFailed, match="marked complete and stopped, or neither"):
        require_consistent(replace(results, run=replace(results.run, complete=not complete, stopped=stopped)))


def test_a_model_has_at_most_one_fastest_trial_and_no_stranger_has_one() -> None:
    results = real_results()
    winner = Fastest("pythia-160m", results.trials[0].id, 0, 1.0)
    require_consistent(replace(results, winners=(winner,)))
    for winners in ((winner, winner), (winner, replace(winner, model="another"))):
        with pytest.raises(VerificationFailed, match="a model has a fastest trial twice, or a model without"):
            require_consistent(replace(results, winners=winners))


def told(run: dict[str, float], spent: float = 1.0, begun: float = 100.0, ended: float = 200.0) -> list[str]:
    """Return the doubts about a measurement from `begun` to `ended`, in a run from 100 to 200."""
    results = real_results()
    facts = replace(results.run, **{"started_at": 100.0, "ended_at": 200.0} | run)
    one = measurement([], started_at=begun, ended_at=ended)
    notes = doubts(replace(results, run=facts), results.node.gpus, [one], spent)
    return [note.text for note in notes]


LONGER = "its samples take 161 s, and by its own clock it took 100 s: taken on trust"
ELSEWHEN = "by its own clock it measured at other times than it ran: taken on trust"


@pytest.mark.parametrize(
    ("times", "doubted"),
    [
        ({"spent": 100.0 + DRIFT_SECONDS}, []),
        ({"spent": 101.0 + DRIFT_SECONDS}, [LONGER]),
        ({"begun": 100.0 - DRIFT_SECONDS, "ended": 200.0 + DRIFT_SECONDS}, []),
        ({"begun": 99.0 - DRIFT_SECONDS}, [ELSEWHEN]),
        ({"ended": 201.0 + DRIFT_SECONDS}, [ELSEWHEN]),
        ({"begun": 150.0, "ended": 150.0}, []),
        ({"begun": 150.0, "ended": 149.0}, [ELSEWHEN]),
    ],
)
def test_a_runs_own_clock_may_be_a_minute_off(times: dict[str, float], doubted: list[str]) -> None:
    assert DRIFT_SECONDS == 60
    assert told({}, **times) == doubted


def test_each_model_without_a_measured_limit_is_taken_on_trust_once() -> None:
    results = real_results()
    (one,) = results.trials
    assert one.estimate is not None
    unbounded = replace(one, estimate=replace(one.estimate, ceiling_flops_per_second=None))
    failed = replace(one, model="failed", estimate=None)
    trials = (unbounded, unbounded, failed, replace(unbounded, model="other"), replace(one, model="bounded"))
    notes = doubts(replace(results, trials=trials), results.node.gpus, [], 0.0)
    unlimited = "no limit of its machine was measured: its speed is taken on trust"
    assert [str(note) for note in notes] == [f"{one.model}: {unlimited}", f"other: {unlimited}"]


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        ({}, True),
        ({"driver": "1"}, False),
        ({"cpu": "another"}, False),
        ({"image": "sha256:0"}, False),
        ({"environment": "sha256:0"}, False),
        ({"gpus": None}, False),
        ({"gpus": "GPU-a, GPU-b"}, False),  # a text that has every UUID in it
        ({"gpus": ["GPU-a"]}, False),
        ({"gpus": ["GPU-c", "GPU-b", "GPU-a"]}, True),  # of all nodes that trained together
    ],
)
def test_a_statement_names_the_machine_of_the_results(changed: dict[str, Any], accepted: bool) -> None:
    node = real_results().node
    gpus = tuple(replace(node.gpus[0], uuid=uuid) for uuid in ("GPU-a", "GPU-b"))
    image = Image("cuda13", "0" * 64, "1" * 64, "sha256:" + "2" * 64)
    node = replace(node, gpus=gpus, driver="580", image=image, environment=None)
    with refused_unless(accepted):
        require_same_node(node, identity_of(node) | changed)


@pytest.mark.parametrize(
    ("work", "samples", "accepted"),
    [(1, (1e-9,), True), (0, (1.0,), False), (1, (0.0,), False), (1, (), False), (1, (1.0, -1.0), False)],
)
def test_a_limit_is_of_some_work_in_some_time(work: int, samples: tuple[float, ...], accepted: bool) -> None:
    limit = replace(real_results().ceilings[0], work=work, samples=samples)
    with refused_unless(accepted):
        require_consistent(replace(real_results(), ceilings=(limit,)))


@pytest.mark.parametrize(
    ("setting", "label", "fits"),
    [
        ((), "naive", True),
        ((), "free-lunch", False),
        (("tf32",), "tf32", True),
        (("tf32",), "naive", False),
        (("tf32", "kernels"), "tf32 + kernels", True),
        (("tf32", "kernels"), "kernels + tf32", False),
        (("tf32", "kernels"), "tf32", False),
        (("kernels", "tf32"), "free-lunch + tf32", True),
        (("tf32", "kernels"), "tf32 + free-lunch", False),
        (("checkpointing",), "free-lunch", False),
        (("of-a-later-version",), "free-lunch", True),
        (("compile-blocks",), "free-lunch", True),
        (("tf32",), "tf32 + checkpointing", False),
    ],
)
def test_a_label_names_the_setting(setting: tuple[str, ...], label: str, fits: bool) -> None:
    (proven,) = real_results().trials
    labelled = replace(proven, setting=setting, label=label)
    with refused_unless(fits):
        require_consistent(replace(real_results(), trials=(labelled,)))


@pytest.mark.parametrize("name", ["results.json", "manifest.json"])
def test_a_text_of_several_lines_is_refused_in_either_document(name: str) -> None:
    texts = {"results.json": {"a": "one line"}, "manifest.json": {"b": ["one line"]}}
    require_plain(*texts.values())
    texts[name] = {"c": ["one", "two\nlines"]}
    with pytest.raises(VerificationFailed, match="/c/1 is a text of several lines") as caught:
        require_plain(*texts.values())
    assert caught.value.where == name


def test_a_model_whose_fastest_trial_no_gpu_reported_on_is_taken_on_trust() -> None:
    results = real_results()
    (fastest,) = results.trials
    assert list(without_telemetry(results, set(), ())) == []
    assert list(without_telemetry(results, {"another"}, ())) == []
    (note,) = without_telemetry(results, {fastest.id}, ())
    assert (note.model, note.text.partition(":")[0]) == (
        fastest.model, "a GPU reported neither clock nor power while it was timed"
    )  # fmt: skip
    assert list(without_telemetry(replace(results, trials=()), {fastest.id}, ())) == []


def test_the_trial_that_is_ranked_in_place_of_a_marked_one_needs_telemetry_too() -> None:
    results = real_results()
    (first,) = results.trials
    assert first.estimate is not None
    days = Interval(2 * first.estimate.days.value, 0.1)
    second = replace(first, id="second", estimate=replace(first.estimate, days=days))
    both = replace(results, trials=(first, second))
    assert list(without_telemetry(both, {"second"}, ())) == []
    assert len([*without_telemetry(both, {"second"}, {first.id})]) == 1


def test_products_that_a_pass_cannot_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older bundles have none, and then nothing is asked."""
    monkeypatch.setattr(plausibility, "why_no_products", lambda *_: "its products are another's")
    require_products(trial(), measurement([]))
    told = measurement([], products=(Products("products", "fp32", 1, 1),))
    with pytest.raises(ValueError, match=rf"^trial {trial().id}: its products are another's$"):
        require_products(trial(), told)
    monkeypatch.setattr(plausibility, "why_no_products", lambda *_: None)
    require_products(trial(), told)


@pytest.mark.parametrize("field", ["floor", "gradient_check"])
def test_a_floor_or_a_gradient_check_that_no_trial_can_have_is_refused(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = real_results()
    checked = replace(results, trials=(replace(results.trials[0], **{field: SimpleNamespace()}),))
    for why in ("why_no_floor", "why_no_check"):
        monkeypatch.setattr(plausibility, why, lambda *_: None)
    require_consistent(checked)
    own = "why_no_floor" if field == "floor" else "why_no_check"
    monkeypatch.setattr(plausibility, own, lambda *_: "it takes no time")
    with pytest.raises(ValueError, match=rf"^trial {results.trials[0].id}: it takes no time$"):
        require_consistent(checked)
