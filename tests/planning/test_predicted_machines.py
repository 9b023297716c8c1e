"""A predicted machine, figure by figure: each follows from the step, the recipe, the card and the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.planning.plan import usable_bytes
from bench.planning.prediction import candidates, predicted_machines
from bench.planning.prediction import step_time as timing
from bench.planning.prediction.candidates import Candidate, Candidates, candidates_of
from bench.planning.prediction.card_rates import rates_of
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted, seconds_of
from bench.planning.prediction.step_time import (
    KEPT_MOVES,
    StepPart,
    group_of,
    shipped_fit,
    step_time,
    work_of,
)
from bench.training.methods import Target, label
from bench.training.models import Counted, Flops, Model, counts_by_formula, known_models
from bench.training.setting import Setting

PYTHIA = known_models()["pythia-160m"]
GIB = 2**30


def card(name: str, **changes: Any) -> GpuModel:
    found = gpu_named(name)
    assert found is not None
    return replace(found, **changes)


H200 = card("NVIDIA H200")


def counts_of(model: Model = PYTHIA) -> Counted:
    found = counts_by_formula(model)
    assert found is not None
    return found


def predict(gpu: GpuModel = H200, gpus: int = 1, model: Model = PYTHIA, cap: int | None = None) -> Any:
    (found,) = Predictor([model], {}, shipped_fit(), cap).predict(gpu, gpus)
    return found


@pytest.mark.parametrize("gpus", [1, 2])
def test_days_energy_and_units_follow_from_a_step(gpus: int) -> None:
    found, recipe = predict(gpus=gpus), PYTHIA.recipe
    assert (found.model, found.gpu, found.gpus) == ("pythia-160m", "NVIDIA H200", gpus)
    assert gpus * found.micro_batch * found.accumulation == recipe.batch_size
    assert found.days == pytest.approx(found.step_seconds * recipe.steps / 86_400)
    error = shipped_fit().error(group_of(PYTHIA, counts_of()), "NVIDIA H200", gpus)
    assert found.least_days == pytest.approx(found.days / (1 + error))
    assert found.most_days == pytest.approx(found.days * (1 + error))
    assert H200.watts is not None
    assert found.watts == gpus * H200.watts
    assert found.kwh == pytest.approx(gpus * H200.watts / 1000 * 24 * found.days)
    assert recipe.sequence_length is not None
    assert found.units == recipe.batch_size * recipe.steps * recipe.sequence_length
    assert found.source == rates_of(H200).product_source


def test_a_card_without_a_power_limit_has_no_energy() -> None:
    found = predict(replace(H200, watts=None))
    assert (found.watts, found.kwh) == (None, None)


def test_the_time_and_the_memory_are_those_of_the_setting_that_is_named() -> None:
    found, counts = predict(gpus=2), counts_of()
    target = Target("cuda", 2, int(H200.memory_gib * GIB), H200.name, H200.compute_capability, elsewhere=True)
    batch = StepPart(found.micro_batch, found.accumulation)
    work = work_of(PYTHIA, found.setting, 2, counts)
    assert work is not None
    time = step_time(work, batch, 2, rates_of(H200), PYTHIA.recipe.precision, shipped_fit().multipliers)
    assert (found.step_seconds, found.update_seconds, found.limit) == (time.seconds, time.update, time.limit)
    assert found.label == label(found.setting, PYTHIA, target)
    (candidate,) = (
        one for one in candidates_of(PYTHIA, counts, target).settings if one.setting == found.setting
    )
    assert found.memory_bytes == candidate.needs[found.micro_batch]
    assert found.pass_seconds == pytest.approx(sum(part.seconds for part in found.parts))
    alone = seconds_of(PYTHIA, counts, found.setting, batch, (H200, 2), shipped_fit())
    assert alone == found.step_seconds


def test_parts_have_the_work_of_one_pass_of_the_micro_batch() -> None:
    found = predict(gpus=2)
    work = work_of(PYTHIA, found.setting, 2, counts_of())
    assert work is not None
    n = found.micro_batch
    amounts = {
        "products": n * work.products,
        "attention": n * work.attention,
        "memory": n * (KEPT_MOVES * work.kept_bytes + work.logit_bytes) + work.weight_bytes,
        "elements": n * work.kept_elements,
    }
    told = {part.name: part.amount for part in found.parts}
    assert {name: told[name] for name in amounts} == pytest.approx(amounts)
    assert all(part.amount > 0 for part in found.parts)
    assert {part.unit for part in found.parts if part.name == "exchange"} <= {"bytes"}


def test_a_memory_cap_of_the_manifest_is_kept() -> None:
    cap = 6 * GIB
    capped, free = predict(cap=cap), predict()
    target = Target("cuda", 1, int(H200.memory_gib * GIB), H200.name, "9.0", elsewhere=True)
    assert capped.memory_bytes <= usable_bytes(cap, target) < free.memory_bytes
    assert isinstance(predict(cap=GIB // 4), Unpredicted)


def test_the_fastest_setting_that_fits_is_chosen() -> None:
    found, counts = predict(), counts_of()
    target = Target("cuda", 1, int(H200.memory_gib * GIB), H200.name, "9.0", elsewhere=True)
    rates, multipliers = rates_of(H200), shipped_fit().multipliers
    times = [
        step_time(one.work, batch, 1, rates, PYTHIA.recipe.precision, multipliers).seconds
        for one in candidates_of(PYTHIA, counts, target).settings
        for batch in one.batches_in(target.memory_bytes or 0, PYTHIA.recipe.batch_size)
    ]
    assert len(times) > 5
    assert min(times) <= found.step_seconds <= 1.01 * min(times) < max(times)


def test_machines_beyond_eight_gpus_are_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[int] = []

    def none_of(model: Model, counts: Counted, target: Target) -> Candidates:
        nodes.append(target.nodes)
        assert target.elsewhere and target.memory_bytes == int(H200.memory_gib * GIB)
        return Candidates((), ("nothing is known",))

    monkeypatch.setattr(predicted_machines, "candidates_of", none_of)
    for gpus in (1, 8, 16, 32):
        assert predict(gpus=gpus) == Unpredicted("pythia-160m", "NVIDIA H200", gpus, "nothing is known")
    assert nodes == [1, 1, 2, 4]


def test_machines_that_are_alike_share_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str | None]] = []
    real = predicted_machines.candidates_of

    def noted(model: Model, counts: Counted, target: Target) -> Candidates:
        asked.append((target.gpus, target.compute_capability))
        return real(model, counts, target)

    monkeypatch.setattr(predicted_machines, "candidates_of", noted)
    predictor = Predictor([PYTHIA], {}, shipped_fit())
    for gpu in (H200, card("NVIDIA H100 80GB HBM3"), card("NVIDIA A100-SXM4-80GB")):
        predictor.predict(gpu, 1)
    predictor.predict(H200, 2)
    assert asked == [(1, "9.0"), (1, "8.0"), (2, "9.0")]


def test_a_model_that_cannot_be_counted_here_says_what_would_count_it() -> None:
    unknown = known_models()["convnext-xl"]
    found = predict(model=replace(unknown, name="mine", family="timm"))
    assert isinstance(found, Unpredicted) and found.reason.startswith("torch and transformers must count")
    counted = Predictor([PYTHIA], {"pythia-160m": counts_of()}, shipped_fit())
    assert isinstance(counted.predict(H200, 1)[0], Predicted)


def test_what_needs_least_is_told_where_nothing_fits() -> None:
    work = work_of(PYTHIA, (), 1, counts_of())
    assert work is not None
    options = Candidates(
        (Candidate((), work, {8: 90 * GIB, 4: 46 * GIB}), Candidate(("tf32",), work, {4: 92 * GIB})),
        ("other",),
    )
    assert options.why_none().startswith("needs 50.0 GiB or more; offloading is not predicted")
    assert Candidates((), ("one", "two")).why_none() == "one; two"
    (fitting, smaller) = options.settings[0].batches_in(100 * GIB, 32)
    assert (fitting, smaller) == (StepPart(8, 4), StepPart(4, 8))
    assert options.settings[0].batches_in(50 * GIB, 32) == [StepPart(4, 8)]
    assert options.settings[0].batches_in(49 * GIB, 32) == []


@pytest.mark.parametrize(("setting", "again"), [((), 0), (("checkpointing",), 1)])
def test_frozen_weights_need_no_gradients(
    setting: Setting, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def products(flops: Flops) -> float:
        monkeypatch.setattr(timing, "arithmetic", lambda *_: flops)
        work = work_of(PYTHIA, setting, 1, counts_of())
        assert work is not None
        return work.products

    assert products(Flops(100, attention=10)) == (3 + again) * 100
    assert products(Flops(100, attention=10, backward=150)) == (1 + again) * 100 + 150 - 2 * 10
    assert products(Flops(100, attention=90, backward=150)) == (1 + again) * 100
    assert products(Flops(100, attention=10, scan=20, backward=150)) == (1 + again) * 100 + 150 - 2 * 30


def test_a_setting_that_a_method_refuses_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("cuda", 1, 2**37, elsewhere=True)
    every = candidates_of(PYTHIA, counts_of(), target)
    without = "checkpointing"
    assert any(without in one.setting for one in every.settings)

    def refuse(setting: Setting, *_: object) -> str | None:
        return "not on this machine" if without in setting else None

    monkeypatch.setattr(candidates, "refusal", refuse)
    found = candidates_of(PYTHIA, counts_of(), target)
    assert found.settings == tuple(one for one in every.settings if without not in one.setting)
    assert found.reasons.count("not on this machine") == 1
