"""The guided search in simulated worlds finds the fastest setting and measures few settings.

The speeds of a world are random, from ranges wider than those measured (docs/accuracy.md). The
search receives the measurements that it requests, with noise.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from bench.planning.manifest import parse_manifest
from bench.planning.memory_prediction import predict_bytes
from bench.planning.plan import Plan, SettingPlan, make_plan
from bench.planning.search import next_trial as search
from bench.planning.search.candidates import promising
from bench.planning.search.lower_bounds import PassCost, TimedTrial, pass_cost_of
from bench.planning.search.next_trial import fastest, next_trial, remaining, unproven
from bench.records.fastest import fastest_with_confidence
from bench.records.trial import Crashed, Measured, Outcome, OutOfMemory, StepSample, TimedOut, Trial
from bench.training.methods import UNRECORDABLE, Target, free_lunch
from bench.training.models import family_of, known_models
from bench.training.setting import Setting, in_group
from tests.builders import measurement, reduce_trials
from tests.targets import FOUR_H200, H200, RTX_3090

WORLDS = 25


def guided(model: str, target: Target, **more: Any) -> Plan:
    document = {"schema": "bench/manifest/v1", "models": [model], **more}
    return make_plan(parse_manifest(json.dumps(document).encode(), "m.json"), target)


def is_compiled(setting: Setting) -> bool:
    return in_group(setting, "compilation") is not None


class World:
    def __init__(self, seed: int, plan: Plan, noise: float = 0.002) -> None:
        draw = random.Random(seed)
        self.plan, self.noise, self.random = plan, noise, draw
        self.rate = draw.uniform(0.005, 0.05)  # seconds per sample
        self.overhead = draw.uniform(0.0, 0.15)  # share of a pass of 16 samples
        self.update = draw.uniform(0.01, 0.1)
        self.memory = draw.uniform(0.9, 1.08)  # used memory over predicted memory
        self.costs = {
            "checkpointing": draw.uniform(1.12, 1.4),
            "offload": draw.uniform(1.0, 3.0),
            "zero-1": draw.uniform(1.0, 1.4),
            "fsdp-2": draw.uniform(1.0, 1.2),
            "half-weights": draw.uniform(0.955, 1.03),
            "masked-head": draw.uniform(0.85, 0.95),
        }
        # Share of an update that autocast costs in every pass, by casting weights.
        self.casts = draw.uniform(0.2, 0.55)
        # Seconds per parameter: in every pass of FSDP2, over the bus and on the host, and in an update.
        self.added_up, self.updated = draw.uniform(0.07e-9, 1e-9), draw.uniform(0.5e-9, 2e-9)
        self.costs["zero-2"] = self.costs["zero-1"] * draw.uniform(1.0, 1.1)
        self.costs["zero-3"] = self.costs["zero-2"] * draw.uniform(1.1, 2.0)
        self.costs["fsdp-3"] = self.costs["fsdp-2"] * draw.uniform(1.0, 1.2)
        self.uncompiled = draw.uniform(1.1, 2.0)
        self.broken = draw.choice([None, None, "half-weights", "checkpointing", "compile"])
        self.hangs = draw.choice([True, False])

    def seconds(self, trial: Trial, passes: int) -> float:
        share = 1.0
        for name in trial.setting:
            share *= self.costs.get(name, 1.0)
        share *= 1.0 if is_compiled(trial.setting) else self.uncompiled
        sharding = in_group(trial.setting, "sharding")
        half = trial.model.recipe.precision != "fp32"
        zero = sharding is not None and sharding.startswith("zero-")
        if half and zero:
            # Weights are in half precision under ZeRO and FSDP2, too.
            share *= min(1.0, self.costs["half-weights"])
        a_pass = share * self.rate * (trial.micro_batch + 16 * self.overhead)
        if half and not zero and "half-weights" not in trial.setting:
            a_pass += self.casts * self.update  # FSDP2's exchange of weights or of gradients
        divided = trial.gpus if sharding else 1
        update = self.update / divided
        if sharding and "offload" in trial.setting:
            parameters = family_of(trial.model).parameters(trial.model).total / divided
            update += parameters * self.updated
            if sharding.startswith("fsdp-"):
                a_pass = max(a_pass, parameters * self.added_up)  # both at the same time
        return update + passes * a_pass

    def outcome(self, cell: SettingPlan, trial: Trial) -> Outcome:
        return self.failure(cell, trial) or self.measured(trial)

    def failure(self, cell: SettingPlan, trial: Trial) -> Outcome | None:
        if self.broken in trial.setting or (self.broken == "compile" and is_compiled(trial.setting)):
            if self.broken == "cuda-graphs":
                return Crashed(f"RuntimeError: {UNRECORDABLE}: operation not permitted")
            return TimedOut(300.0, "first steps") if self.hangs else Crashed("broken in this world")
        need = cell.needs[trial.micro_batch]
        if need is not None and need * self.memory > self.plan.memory_bytes:
            return OutOfMemory("gpu", "")
        return None

    def measured(self, trial: Trial) -> Measured:
        counts = (1,) if trial.accumulation == 1 else (1, min(16, trial.accumulation))
        samples = [
            StepSample(n, self.seconds(trial, n) * self.random.gauss(1, self.noise))
            for _ in range(5)
            for n in counts
        ]
        return Measured(measurement(samples))

    def searched(self) -> dict[str, Outcome]:
        cells = {trial.id: cell for cell in self.plan.cells for trial in cell.trials}
        known: dict[str, Outcome] = {}
        while trial := next_trial(self.plan, known):
            assert trial.id not in known
            known[trial.id] = self.outcome(cells[trial.id], trial)
        assert remaining(self.plan, known) == 0
        return known

    def regret(self, known: dict[str, Outcome]) -> float:
        """Return how much slower the chosen setting is than the truly fastest one."""
        working = [
            trial for cell in self.plan.cells for trial in cell.trials if self.failure(cell, trial) is None
        ]
        best = min(self.seconds(trial, trial.accumulation) for trial in working)
        chosen = fastest(self.plan, known, self.plan.cells[0].model.name)
        assert chosen is not None
        return self.seconds(chosen, chosen.accumulation) / best - 1


@pytest.mark.parametrize("target", [H200, FOUR_H200], ids=["one", "four"])
@pytest.mark.parametrize("model", ["pythia-160m", "pythia-1b", "roberta-large", "vit-l", "pythia-6.9b"])
def test_the_search_is_nearly_always_within_a_percent_of_the_fastest_after_few_trials(
    model: str, target: Target
) -> None:
    plan = guided(model, target)
    everything = sum(len(cell.trials) for cell in plan.cells)
    regrets, spent = [], []
    for seed in range(WORLDS):
        world = World(seed, plan)
        known = world.searched()
        regrets.append(world.regret(known))
        spent.append(len(known))
    assert sum(regret <= 0.01 for regret in regrets) >= 0.95 * WORLDS, sorted(regrets)[-20:]
    assert sum(spent) / WORLDS <= max(0.10 * everything, 8), (sum(spent) / WORLDS, everything)


@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize("model", ["pythia-1b", "vit-l"])
def test_with_one_pass_per_step_sharding_is_not_ruled_out(model: str, samples: int) -> None:
    """With so few samples per GPU, only a smaller micro-batch can separate the update from the pass."""
    entry = {"name": model, "recipe": {"batch_size": samples * FOUR_H200.gpus}}
    plan = make_plan(
        parse_manifest(json.dumps({"schema": "bench/manifest/v1", "models": [entry]}).encode(), "m.json"),
        FOUR_H200,
    )
    spent = []
    for seed in range(WORLDS):
        world = World(seed, plan)
        known = world.searched()
        assert world.regret(known) <= 0.01
        spent.append(len(known))
    assert sum(spent) / WORLDS <= 12


def test_a_memory_saving_setting_is_found_if_only_that_helps() -> None:
    plan = guided("pythia-1b", RTX_3090)
    for seed in range(40):
        world = World(seed, plan)
        if world.broken == "checkpointing":
            continue
        assert world.regret(world.searched()) <= 0.02


def first_turns(count: int, failing: str | None = None) -> list[str]:
    """Return the models of the first trials; a trial of one model may never end."""
    document = {"schema": "bench/manifest/v1", "models": ["pythia-160m", "vit-l", "roberta-large"]}
    plan = make_plan(parse_manifest(json.dumps(document).encode(), "m.json"), H200)
    world, known = World(1, plan), {}
    world.broken = None
    cells = {trial.id: cell for cell in plan.cells for trial in cell.trials}
    order = []
    while (trial := next_trial(plan, known)) and len(order) < count:
        fails = trial.model.name == failing
        known[trial.id] = TimedOut(300.0, "first steps") if fails else world.outcome(cells[trial.id], trial)
        order.append(trial.model.name)
    return order


def test_every_model_has_an_answer_before_any_has_a_second() -> None:
    order = first_turns(6)
    assert set(order[:3]) == set(order[3:]) == {"pythia-160m", "vit-l", "roberta-large"}


def test_a_model_that_only_fails_does_not_block_the_others() -> None:
    """A failing model may have dozens of settings, each of which takes the full time limit of a trial."""
    order = first_turns(4, failing="pythia-160m")
    assert order == ["pythia-160m", "vit-l", "roberta-large", "pythia-160m"]


LLAMA = {
    "name": "my-llama",
    "architecture": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64},
    "recipe": {
        "objective": "causal-lm",
        "batch_size": 1024,
        "steps": 10,
        "precision": "bf16",
        "sequence_length": 32,
    },
}


@pytest.mark.parametrize(("target", "most"), [(H200, 12), (FOUR_H200, 8)], ids=["one", "four"])
@pytest.mark.parametrize("sharded", [False, True])
def test_without_memory_predictions_few_trials_run_out_of_memory(
    sharded: bool, target: Target, most: int
) -> None:
    """After each failure a quarter of the samples is tried, down to one sample in every setting."""
    document = {"schema": "bench/manifest/v1", "models": [LLAMA]}
    plan = make_plan(parse_manifest(json.dumps(document).encode(), "m.json"), target)
    known: dict[str, Outcome] = {}
    while trial := next_trial(plan, known):
        if trial.micro_batch <= 4 and (not sharded or in_group(trial.setting, "sharding")):
            break
        known[trial.id] = OutOfMemory("gpu", "")
    assert trial is not None
    assert len(known) <= (most if sharded else 4)


def unpredicted(model: str, target: Target) -> Plan:
    """Plan a model as one without formulas: every micro-batch is included, and its memory is unknown."""
    plan = guided(model, replace(target, memory_bytes=2**60))
    cells = tuple(replace(cell, needs=dict.fromkeys(cell.needs)) for cell in plan.cells)
    return replace(plan, cells=cells, memory_bytes=target.memory_bytes)


class Unpredicted(World):
    """A world in which trials take the memory of the formulas, but the plan does not know it."""

    def failure(self, cell: SettingPlan, trial: Trial) -> Outcome | None:
        if self.took(trial) > self.plan.memory_bytes:
            return OutOfMemory("gpu", "")
        return super().failure(cell, trial)

    def measured(self, trial: Trial) -> Measured:
        found = super().measured(trial).measurement
        return Measured(replace(found, peak_bytes=int(self.took(trial))))

    def took(self, trial: Trial) -> float:
        predicted = predict_bytes(trial.model, trial.setting, trial.micro_batch, trial.gpus)
        assert predicted is not None
        return self.memory * predicted


@pytest.mark.parametrize(
    ("model", "target", "most"),
    [("pythia-1b", RTX_3090, 7), ("pythia-6.9b", RTX_3090, 6), ("pythia-2.8b", H200, 6),
     ("pythia-6.9b", FOUR_H200, 11)],
)  # fmt: skip
def test_memory_per_sample_is_learnt_without_predictions(model: str, target: Target, most: int) -> None:
    """Trials of other settings are used; otherwise each setting would search downwards on its own."""
    plan = unpredicted(model, target)
    regrets, ran_out = [], []
    for seed in range(WORLDS):
        world = Unpredicted(seed, plan)
        known = world.searched()
        regrets.append(world.regret(known))
        ran_out.append(sum(isinstance(outcome, OutOfMemory) for outcome in known.values()))
    assert sum(regret <= 0.015 for regret in regrets) >= 0.95 * WORLDS, sorted(regrets)[-5:]
    assert sum(ran_out) / WORLDS <= most


def test_a_model_whose_passes_cannot_be_recorded_is_trained_without_recording() -> None:
    plan = guided("pythia-1b", H200)
    world = World(1, plan)
    world.broken = "cuda-graphs"
    known = world.searched()
    assert sum(isinstance(outcome, Crashed) for outcome in known.values()) <= 2
    chosen = fastest(plan, known, "pythia-1b")
    assert chosen is not None
    assert is_compiled(chosen.setting)
    assert world.regret(known) <= 0.01


def test_a_setting_is_not_tried_unrecorded_if_its_passes_can_be_recorded() -> None:
    plan = guided("pythia-1b", H200)
    for seed in range(5):
        world = World(seed, plan)
        world.broken = None
        known = world.searched()
        tried = {trial.setting for cell in plan.cells for trial in cell.trials if trial.id in known}
        recorded = {setting for setting in tried if "cuda-graphs" in setting}
        assert recorded
        assert not tried & {tuple(name for name in setting if name != "cuda-graphs") for setting in recorded}


@pytest.mark.parametrize(("hangs", "most"), [(True, 1), (False, 2)])
def test_a_method_that_times_out_is_tried_once_and_one_that_crashes_twice(hangs: bool, most: int) -> None:
    plan = guided("pythia-1b", H200)
    world = World(1, plan)
    world.broken, world.hangs = "compile", hangs
    known = world.searched()
    failed = [outcome for outcome in known.values() if isinstance(outcome, (Crashed, TimedOut))]
    assert 1 <= len(failed) <= most
    assert world.regret(known) <= 0.01


def test_a_large_model_on_a_slow_card_starts_with_passes_of_seconds() -> None:
    """With 16 samples per pass, which fit, no trial of the model ends within a quarter of an hour."""
    plan = guided("pythia-6.9b", RTX_3090)
    assert max(trial.micro_batch for cell in plan.cells for trial in cell.trials) >= 16
    first = next_trial(plan, {})
    assert first is not None and first.micro_batch <= 2
    fast = next_trial(guided("pythia-160m", RTX_3090), {})
    assert fast is not None and fast.micro_batch >= 4, "what is fast begins with many"


@pytest.mark.parametrize(
    ("phase", "again"), [("build", False), ("first steps", False), ("warm-up", True), ("measure", True)]
)
def test_a_trial_that_timed_out_while_training_is_tried_with_fewer_samples(phase: str, again: bool) -> None:
    """A trial that timed out before training may be stuck at any micro-batch."""
    plan = guided("pythia-1b", H200)
    (cell, trial) = next((c, t) for c in plan.cells for t in c.trials if t.micro_batch == 16)
    known: dict[str, Outcome] = {trial.id: TimedOut(300.0, phase)}
    left = {t.micro_batch for t in promising([cell], known, plan.memory_bytes)}
    assert left == ({1, 2, 4} if again else set())
    others = promising(plan.cells, known, plan.memory_bytes)
    assert others[0].micro_batch <= 4 or not again


def test_a_trial_that_is_expected_to_time_out_is_tried_last() -> None:
    plan = guided("pythia-2.8b", RTX_3090)
    (cell,) = (c for c in plan.cells if c.setting[-3:] == ("checkpointing", "zero-2", "offload"))
    one = next(trial for trial in cell.trials if trial.micro_batch == 1)
    steps = [StepSample(n, 5.0 + 4.0 * n) for n in (1, 2) for _ in range(3)]
    known: dict[str, Outcome] = {one.id: Measured(measurement(steps))}
    # A step of one pass takes nine seconds: a dozen take two minutes, and steps with many samples more.
    patient = promising(plan.cells, known, plan.memory_bytes, math.inf)
    hasty = promising(plan.cells, known, plan.memory_bytes, 300.0)
    assert {trial.id for trial in patient} == {trial.id for trial in hasty}, "none is left out"
    large = [t.micro_batch >= 16 for t in hasty if t.micro_batch <= 2 or t.micro_batch >= 16]
    assert any(large) and not all(large)
    assert large == sorted(large)
    mixed = [t.micro_batch >= 16 for t in patient if t.micro_batch <= 2 or t.micro_batch >= 16]
    assert mixed != sorted(mixed)


def told(plan: Plan, setting: Setting, passes: dict[int, float], update: float) -> dict[str, Outcome]:
    """Make the steps of a trial whose pass takes the given seconds."""
    found: dict[str, Outcome] = {}
    for trial in (trial for cell in plan.cells if cell.setting == setting for trial in cell.trials):
        if a_pass := passes.get(trial.micro_batch):
            found[trial.id] = Measured(measurement([StepSample(n, update + n * a_pass) for n in (1, 3)] * 5))
    return found


def test_a_setting_is_tried_at_a_micro_batch_near_to_the_fastest() -> None:
    """On an H200, passes of 64 and 128 samples showed no overhead, which says nothing of a single sample.

    Half-weights were therefore tried with one sample, as if each of a thousand passes saved part of an
    update.
    """
    plan = guided("pythia-160m", H200)
    lunch = plan.cells[0].setting
    known = told(plan, lunch, {128: 0.5538, 64: 0.2766}, 0.006)
    trial = next_trial(plan, known)
    assert trial is not None
    assert trial.setting != lunch
    assert trial.micro_batch >= 64


def test_a_pass_of_one_sample_rules_out_no_larger_ones() -> None:
    """A pass of one sample is all kernel launches: it gave 24.2 s per step, and 64 samples gave 4.37 s."""
    plan = guided("pythia-160m", H200)
    lunch = plan.cells[0].setting
    halved = free_lunch(known_models()["pythia-160m"], H200, ("half-weights",))
    assert any(cell.setting == halved for cell in plan.cells)
    known = told(plan, lunch, {128: 0.5538, 64: 0.2766}, 0.006) | told(plan, halved, {1: 0.0236}, 0.006)
    trial = next_trial(plan, known)
    assert trial is not None
    assert trial.setting == halved


def test_settings_without_visible_overhead_have_equal_expectations() -> None:
    """Chance would otherwise decide which setting counts: one process would search on where another ends."""
    plan = guided("pythia-160m", FOUR_H200)
    settings = [cell.setting for cell in plan.cells if "offload" not in cell.setting]
    assert len(settings) > 10
    for smallest in settings:
        timed = [
            TimedTrial(replace(plan.cells[0].trials[0], setting=setting, micro_batch=size), 1.0, 0.0)
            for setting in settings
            for size in ((16, 32) if setting == smallest else (64, 128))
        ]
        assert pass_cost_of(timed) == PassCost(0.0, 16)


def test_the_proven_setting_is_the_reported_fastest() -> None:
    """A recipe that saves every ten steps may be fastest with a setting whose steps are slower."""
    often = {"name": "pythia-160m", "recipe": {"save_every_steps": 10}}
    document = {"schema": "bench/manifest/v1", "models": [often]}
    plan = make_plan(parse_manifest(json.dumps(document).encode(), "m.json"), H200)
    ended: list[tuple[Trial, str, Outcome]] = []
    for cell, seconds, saving in zip(plan.cells, (1.0, 1.1), (20.0, 1.0), strict=False):
        trial = cell.trials[0]
        steps = [StepSample(trial.accumulation, seconds)] * 3
        ended.append((trial, cell.label, Measured(measurement(steps, save_seconds=saving))))
    told = fastest_with_confidence("pythia-160m", reduce_trials(ended, (), {}), 0).trial
    proven = unproven(plan, {trial.id: outcome for trial, _, outcome in ended}, ())
    assert proven is not None
    assert told == proven.id == ended[1][0].id


def test_a_search_can_be_replayed() -> None:
    plan = guided("pythia-410m", H200)
    assert list(World(3, plan).searched()) == list(World(3, plan).searched())


def test_only_a_model_whose_setting_is_searched_for_has_promising_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listed setting has no further trials once a smaller micro-batch was slower."""
    plan = guided("pythia-410m", H200, methods=["naive"])
    (cell,) = plan.cells
    assert len(cell.trials) > 2
    ended: dict[str, Outcome] = {
        trial.id: Measured(measurement([StepSample(trial.accumulation, seconds)] * 3))
        for trial, seconds in zip(cell.trials, (1.0, 1.1), strict=False)
    }
    monkeypatch.setattr(search.candidates, "promising", lambda *_: [cell.trials[2]])
    assert next_trial(plan, ended) is None
    searched = replace(plan, guided=frozenset({"pythia-410m"}))
    assert next_trial(searched, ended) == cell.trials[2]


def test_of_a_model_that_was_not_measured_nothing_is_the_fastest_or_proven() -> None:
    plan = guided("pythia-410m", H200)
    assert fastest(plan, {}, "pythia-410m") is None
    assert unproven(plan, {}, ()) is None
