"""A row has facts of its bundle, field by field, and conditions by which rows are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.base.errors import VerificationFailed
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json, to_json
from bench.bundle.verify import verify_bundle
from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.records.products import Products
from bench.records.run_results import TrialResult
from bench.records.slowdown import Slowed
from bench.records.trial import Gpu, NodeFacts
from bench.report.compare import compared_rows
from bench.report.compare.compared_rows import (
    ComparedRun,
    Machine,
    MeasuredAttempt,
    RankedRow,
    Row,
    gather,
    recipe_of,
    rows_of,
)
from tests.builders import ESTIMATE
from tests.report.made import CRASH, bundle, manifest

SETTINGS = [((), 0.5), (("compile",), 0.25), (("checkpointing",), CRASH)]


class Found:
    """A verified bundle and what was read of it."""

    def __init__(self, path: Path, *, with_telemetry: bool = False) -> None:
        self.path = path
        self.verdict = verify_bundle(path, lambda files: gather(files, with_telemetry=with_telemetry))
        assert isinstance(self.verdict.contents, ComparedRun)
        self.run: ComparedRun = self.verdict.contents

    def rows(self, **changes: Any) -> tuple[Row, ...]:
        """Return the rows of the bundle, whose run has these differences."""
        return rows_of(self.path, self.verdict, replace(self.run, **changes))

    def row(self, **changes: Any) -> Row:
        (row,) = self.rows(**changes)
        return row

    def ranked(self, **changes: Any) -> RankedRow:
        row = self.row(**changes)
        assert isinstance(row, RankedRow)
        return row

    @property
    def best(self) -> TrialResult:
        return next(trial for trial in self.run.results.trials if trial.setting == ("compile",))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A bundle of one model in three settings, of which the second is the fastest and the third crashed."""
    return Found(bundle(tmp_path_factory.mktemp("found") / "a.tar", settings=SETTINGS))


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Found:
    of = manifest(models=["tiny-gpt-neox", "tiny-mamba"])
    return Found(bundle(tmp_path_factory.mktemp("two") / "a.tar", of=of))


# --- machines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "label"),
    [
        (Machine("NVIDIA H200", "cuda", 1, 1, "i"), "1x H200"),
        (Machine("NVIDIA H200", "cuda", 8, 1, "i"), "8x H200"),
        (Machine("NVIDIA H200", "cuda", 16, 1, "i", 2), "16x H200 on 2 nodes"),
        (Machine("1x NVIDIA H200 + 1x NVIDIA H100", "cuda", 2, 1, "i"), "1x H200 + 1x H100"),
        (Machine("a + b", "cpu", 1, 1, "i"), "a + b"),
        (Machine("a + b", "cpu", 2, 1, "i"), "2x a + b"),
        (Machine("a CPU", "cpu", 1, 1, "i"), "a CPU"),
        (Machine("a CPU", "cpu", 2, 1, "i", 2), "2x a CPU on 2 nodes"),
    ],
)
def test_a_machine_is_labelled_by_its_devices_and_nodes(machine: Machine, label: str) -> None:
    assert machine.label == label


def node(*gpus: Gpu) -> NodeFacts:
    return NodeFacts("a CPU", 16, 2**37, "Linux", "6", "3.12", gpus, "580", {}, None, None)


def gpu(index: int, name: str = "NVIDIA H200", gib: int = 80) -> Gpu:
    return Gpu(index, name, f"GPU-{9 - index}", gib * 2**30, "9.0")


def machine(facts: NodeFacts, gpus_a_node: int, devices: int) -> Machine:
    return compared_rows._machine(facts, gpus_a_node, devices, "0123")


def test_the_gpus_that_trained_make_the_machine() -> None:
    facts = node(gpu(0), gpu(1, gib=70), gpu(2, gib=10))
    digest = sha256(b"GPU-8 GPU-9")[:12]
    assert machine(facts, 2, 2) == Machine("NVIDIA H200", "cuda", 2, 70 * 2**30, f"{digest}-2")
    assert machine(facts, 3, 1) == Machine("NVIDIA H200", "cuda", 1, 80 * 2**30, f"{sha256(b'GPU-9')[:12]}-1")


def test_nodes_are_counted_up_and_their_leader_s_gpus_stand_for_all() -> None:
    digest = sha256(b"GPU-8 GPU-9")[:12]
    facts = node(gpu(0), gpu(1))
    for devices, nodes in ((2, 1), (3, 2), (4, 2), (5, 3)):
        assert machine(facts, 2, devices) == Machine(
            "NVIDIA H200", "cuda", devices, 80 * 2**30, f"{digest}-{devices}", nodes
        )


def test_several_kinds_of_gpu_are_counted_in_their_order() -> None:
    facts = node(gpu(0), gpu(1, "NVIDIA H100"), gpu(2))
    assert machine(facts, 3, 3).name == "2x NVIDIA H200 + 1x NVIDIA H100"


def test_a_machine_without_gpus_is_known_by_its_run() -> None:
    assert machine(node(), 0, 2) == Machine("a CPU", "cpu", 2, 2**37, "run 0123")


# --- a row -------------------------------------------------------------------------------------------------


def test_a_row_has_the_facts_of_its_verdict_and_model(found: Found) -> None:
    row, verdict, (model,) = found.ranked(), found.verdict, found.run.results.models
    assert (row.path, row.run_id, row.started_at) == (str(found.path), "aaaa", verdict.started_at)
    assert (row.level, row.trusted, row.complete) == (verdict.level, verdict.trusted, True)
    assert (row.model, row.family, row.trained) == (model.name, "gpt_neox", model)
    assert (row.precision, row.unit) == (model.recipe.precision, model.recipe.unit)
    assert (row.statement_sha256, row.received_at) == (verdict.statement_sha256, None)
    assert row.searched == found.run.searched[model.name]
    assert row.samples_sha256 == found.run.samples_sha256 != ""
    assert len(row.step_times) == 2
    assert row.on_trust is None
    assert replace(row, conditions=(("of the manifest", "a claim"),)).on_trust == "a claim"


def test_a_row_s_document_has_what_readers_need_and_nothing_else(found: Found) -> None:
    assert list(to_json(found.row())) == [
        "path", "run_id", "started_at", "level", "trusted", "complete", "machine", "model", "family",
        "precision", "unit", "conditions", "searched", "software", "training_flops", "best", "attempts",
        "watts", "telemetry", "close", "samples_sha256", "slowed", "busy_share", "marks", "products",
        "no_products",
    ]  # fmt: skip


def test_a_row_has_the_figures_of_its_fastest_trial(found: Found) -> None:
    row, best = found.ranked(), found.best
    assert best.estimate is not None
    assert row.best.setting == ("compile",)
    assert (row.days, row.best.days) == (best.estimate.days, best.estimate.days)
    model = found.run.results.models[0]
    whole = best.estimate.flops_per_second * best.estimate.step_seconds.value * model.recipe.steps
    assert row.training_flops == pytest.approx(whole)
    assert row.units == pytest.approx(row.best.units_per_second * row.days.value * 86_400)
    assert row.watts == found.run.watts[best.id] == pytest.approx(400.0)
    assert row.kwh == pytest.approx(400.0 * row.days.value * 24 / 1000)
    assert replace(row, watts=None).kwh is None
    counted = (Products("products", "fp32", 2, 4),)
    assert found.row(**with_trials(found, replace(best, products=counted))).products == counted
    unknown = replace(best, products=(), no_products="its module hides them")
    told = found.row(**with_trials(found, unknown))
    assert (told.products, told.no_products) == ((), "its module hides them")
    assert (row.slowed, row.marks) == (None, ())
    slowed, mark = Slowed(0, ("heat",), 0.5, None, None, None), Mark("busy", "it was busy", 0.5)  # type: ignore[arg-type]
    other = next(trial.id for trial in found.run.results.trials if trial.id != best.id)
    marked = found.row(slowed={best.id: slowed}, marks={other: (mark,)})
    assert (marked.slowed, marked.marks) == (slowed, ())
    assert found.row(marks={trial.id: (mark,) for trial in found.run.results.trials}).marks == (mark,)
    assert found.row(busy_shares={best.id: 0.5, other: 0.9}).busy_share == 0.5


def test_trials_are_attempts_in_their_order(found: Found) -> None:
    naive, compiled, crashed = found.row().attempts
    assert [one.setting for one in (naive, compiled, crashed)] == [(), ("compile",), ("checkpointing",)]
    assert [one.outcome for one in (naive, compiled, crashed)] == ["measured", "measured", "crashed"]
    assert crashed.reason is not None and "it fell over" in crashed.reason
    assert not isinstance(crashed, MeasuredAttempt) and compiled.reason is None
    assert found.row().rankable == [naive, compiled]
    assert isinstance(compiled, MeasuredAttempt) and found.best.estimate is not None
    wanted = found.best.estimate
    assert (compiled.label, compiled.micro_batch, compiled.accumulation) == (
        found.best.label, found.best.micro_batch, found.best.accumulation
    )  # fmt: skip
    assert (compiled.days, compiled.step_seconds) == (wanted.days, wanted.step_seconds)
    assert (compiled.units_per_second, compiled.utilisation) == (wanted.units_per_second, wanted.utilisation)
    assert (compiled.peak_bytes, compiled.mfu is not None) == (wanted.peak_bytes, True)


def with_trials(found: Found, *trials: TrialResult) -> dict[str, Any]:
    return {"results": replace(found.run.results, trials=trials)}


def test_a_row_without_a_figure_has_no_facts_of_a_trial(found: Found) -> None:
    crashed = next(trial for trial in found.run.results.trials if trial.failure)
    row = found.row(**with_trials(found, crashed, replace(crashed, id="other", gpus=4)))
    assert not isinstance(row, RankedRow) and row.best is None
    assert (row.training_flops, row.watts, row.slowed, row.marks) == (None, None, None, ())
    assert (row.products, row.no_products, row.close, row.kwh) == ((), None, None, None)
    assert row.machine.devices == 4
    assert (row.uses_deepspeed, row.rankable) == (False, [])
    nothing = found.row(**with_trials(found))
    assert (nothing.machine.devices, nothing.attempts) == (1, ())


def changed(trial: TrialResult, **estimate: Any) -> TrialResult:
    assert trial.estimate is not None
    return replace(trial, estimate=replace(trial.estimate, **estimate))


def test_a_figure_beyond_the_limit_or_with_few_samples_is_no_rival(found: Found) -> None:
    naive = found.run.results.trials[0]
    beyond = changed(found.best, flops_per_second=1e30)
    row = found.ranked(
        **with_trials(found, naive, beyond, replace(naive, id="few", setting=("kernels",), estimate=None))
    )
    first, second, third = row.attempts
    assert (first.outcome, second.outcome, third.outcome) == ("measured", "implausible", "measured")
    assert second.reason == "implies more arithmetic than this machine reached: never ranked"
    assert third.reason == "too few samples for an interval" and third.days is None
    assert row.rankable == [first] and row.best.setting == ()


def test_the_runner_up_is_told_with_the_confidence_in_the_fastest(found: Found) -> None:
    assert found.row().close is None
    naive = found.run.results.trials[0]
    assert found.best.estimate is not None
    days = found.best.estimate.days
    near = changed(naive, days=Interval(days.value * 1.001, days.half_width))
    close = found.row(**with_trials(found, near, found.best)).close
    assert close is not None and 0 < close.confidence < 1
    assert close.rival.setting == () and close.rival.days.value == pytest.approx(days.value * 1.001)


def test_a_rival_without_a_figure_is_none(found: Found) -> None:
    crashed = next(trial for trial in found.run.results.trials if trial.failure)
    assert compared_rows._uncertain(0.5, crashed, {}, {}) is None


def test_a_setting_that_shards_with_deepspeed_is_known(found: Found) -> None:
    row = found.ranked()
    for setting, uses in (
        ((), False),
        (("zero-2",), True),
        (("kernels", "zero-1"), True),
        (("fsdp-2",), False),
    ):
        assert replace(row, best=replace(row.best, setting=setting)).uses_deepspeed == uses


def test_a_model_that_was_decided_before_the_run_ended_is_complete(two_models: Found) -> None:
    early = replace(two_models.verdict, complete=False)

    def complete(undecided: Sequence[int]) -> list[bool]:
        results = two_models.run.results
        models = [model.name for model in results.models]
        winners: Any = tuple(
            SimpleNamespace(model=model, undecided=count)
            for model, count in zip(models, undecided, strict=True)
        )
        run = replace(two_models.run, results=replace(results, winners=winners))
        return [row.complete for row in rows_of(two_models.path, early, run)]

    assert complete((0, 0)) == [True, True]
    assert complete((0, 2)) == [True, False]
    assert complete((1, 0)) == [False, True]
    assert [row.complete for row in two_models.rows()] == [True, True]


def test_a_row_has_the_trials_of_its_own_model(two_models: Found) -> None:
    first, second = two_models.rows()
    assert (first.model, second.model) == ("tiny-gpt-neox", "tiny-mamba")
    assert (len(first.attempts), len(second.attempts)) == (1, 1)
    assert len(two_models.run.watts) == 2
    assert first.training_flops != second.training_flops


def test_wrong_gradients_of_a_model_count_for_its_setting_alone(found: Found) -> None:
    check: Any = SimpleNamespace()
    trial = found.best
    told = "bench.report.compare.compared_rows.gradients_text"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(told, lambda _: "half")
        attempt = compared_rows._attempt(trial, {trial.id: 0.5}, {}, check)
    assert (attempt.outcome, attempt.mfu) == ("wrong-gradients", 0.5)
    assert attempt.reason == "its gradients differ from the unmodified model's by half: never ranked"


def test_an_attempt_has_every_figure_of_its_trial(found: Found) -> None:
    trial = SimpleNamespace(
        label="a label", setting=("kernels",), micro_batch=3, accumulation=5, failure=None,
        outcome="measured", estimate=ESTIMATE, id="t", share_of_floor=0.75, no_gradient_check="none was made",
    )  # fmt: skip
    attempt = compared_rows._attempt(cast(TrialResult, trial), {"t": 0.25}, {"t": ("LOADED",)})
    assert attempt == MeasuredAttempt(
        "a label", ("kernels",), 3, 5, outcome="measured", reason=None, days=ESTIMATE.days,
        step_seconds=ESTIMATE.step_seconds, units_per_second=64.0, utilisation=0.5, mfu=0.25,
        share_of_floor=0.75, peak_bytes=1 << 30, no_gradient_check="none was made",
        marks=("LOADED",),
    )  # fmt: skip


def test_telemetry_is_read_where_it_is_asked_for(found: Found) -> None:
    bare = found.row()
    assert (bare.telemetry, bare.episodes) == (None, ())
    told = Found(found.path, with_telemetry=True)
    assert told.run.course is not None and told.row().telemetry is told.run.course
    assert told.row().episodes == told.run.episodes != ()


def test_a_manifest_that_bench_cannot_read_is_refused(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ValueError("v"), LookupError("l"), TypeError("t"), AttributeError("a")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(compared_rows, "watts_of", fail)
        with pytest.raises(VerificationFailed, match="the manifest or the telemetry is malformed: "):
            Found(found.path)


# --- software and conditions -------------------------------------------------------------------------------


def with_node(found: Found, **changes: Any) -> dict[str, Any]:
    results = found.run.results
    return {"results": replace(results, node=replace(results.node, **changes))}


def test_the_software_of_a_row_is_that_of_its_node(found: Found) -> None:
    software, results = found.row().software, found.run.results
    assert (software.bench, software.torch, software.driver) == (results.measured_by, "2.11.0", "580")
    assert (software.image, software.stack) == (None, results.node.stack)
    assert found.row(**with_node(found, packages={})).software.torch is None
    image = cast(Any, SimpleNamespace(config="0" * 64))
    environment = cast(Any, SimpleNamespace())
    for kind, changes, shown in (
        ("image", {"image": image}, "abc"),
        ("environment", {"environment": environment}, "environment abc"),
        ("environment", {"environment": environment, "image": image}, "environment abc"),
        ("packages", {}, None),
    ):
        own = SimpleNamespace(
            node=SimpleNamespace(
                packages={}, driver=None, stack="s", **{"image": None, "environment": None, **changes}
            ),
            measured_by="b",
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compared_rows, "software_digest", lambda _, kind=kind: (kind, "abc"))
            assert compared_rows._software(cast(Any, own)).image == shown


def conditions(found: Found, **changes: Any) -> dict[str, str]:
    return dict(found.row(**changes).conditions)


def short(value: object) -> str:
    return sha256(canonical_json(value))[:8]


def test_rows_are_told_apart_by_exactly_these_conditions(found: Found) -> None:
    (model,) = found.run.results.models
    recipe = model.recipe
    rest = {"batch_size", "steps", "precision", "sequence_length", "image_size", "source"}
    told = conditions(found)
    assert list(told) == [
        "batch", "steps", "precision", "sequence length", "optimizer", "architecture", "rest of the recipe",
        "memory cap", "image", "device", "torch", "assurance level",
    ]  # fmt: skip
    assert told["batch"] == str(recipe.batch_size) and told["steps"] == str(recipe.steps)
    assert told["precision"] == recipe.precision and told["sequence length"] == str(recipe.sequence_length)
    assert told["optimizer"] == recipe.optimizer.name
    assert told["architecture"] == short([model.family, dict(model.architecture)])
    assert told["rest of the recipe"] == short({k: v for k, v in to_json(recipe).items() if k not in rest})
    assert (told["memory cap"], told["device"], told["torch"]) == ("none", "cuda", "2.11.0")
    assert told["assurance level"] == found.verdict.level
    names = (
        "batch",
        "steps",
        "precision",
        "sequence length",
        "optimizer",
        "architecture",
        "rest of the recipe",
    )
    assert found.row().recipe == tuple((name, told[name]) for name in names)
    assert recipe_of((("image size", "224"), ("torch", "2"))) == (("image size", "224"),)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"batch_size": 16}, {"batch"}),
        ({"steps": 77}, {"steps"}),
        ({"precision": "bf16"}, {"precision"}),
        ({"sequence_length": 9}, {"sequence length"}),
        ({"sequence_length": None}, {"sequence length"}),
        ({"image_size": 224}, {"image size"}),
        ({"source": "a paper"}, set()),
        ({"save_every_steps": 7}, {"rest of the recipe"}),
    ],
    ids=str,
)
def test_a_recipe_that_differs_in_one_field_differs_in_one_condition(
    found: Found, change: dict[str, Any], differs: set[str]
) -> None:
    model = found.run.results.models[0]
    base = replace(model, recipe=replace(model.recipe, image_size=None))
    other = replace(base, recipe=replace(base.recipe, **change))
    one, two = (dict(compared_rows.recipe_conditions(each)) for each in (base, other))
    assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} == differs


def test_conditions_of_the_run_and_its_software_are_named(found: Found) -> None:
    results = replace(found.run.results, memory_cap_bytes=3 * 2**29)
    assert conditions(found, results=results)["memory cap"] == "1.5 GiB"
    switched = with_node(found, switches={"CUBLAS_WORKSPACE": "1", "OMP_NUM_THREADS": "4"})
    assert "CUBLAS_WORKSPACE" in conditions(found, **switched)["switches"]
    assert "switches" not in conditions(found, **with_node(found, switches={"OMP_NUM_THREADS": "4"}))
    every = (
        "torch",
        "triton",
        "transformers",
        "flash-attn",
        "deepspeed",
        "mamba-ssm",
        "causal-conv1d",
        "numpy",
    )
    packed = with_node(found, packages=dict.fromkeys(every, "1"))
    told = conditions(found, **packed)
    assert [name for name in every if name in told] == list(every[:5])
    for family in ("mamba", "mamba2"):
        model = replace(found.run.results.models[0], family=family)
        run = replace(found.run, results=replace(packed["results"], models=(model,)))
        named = dict(compared_rows._conditions(run, model, "self"))
        assert [name for name in every if name in named] == list(every[:7])


def test_data_of_the_user_s_own_and_claims_on_trust_are_conditions(found: Found) -> None:
    model = found.run.results.models[0]
    stated: Any = SimpleNamespace(data_of=lambda name: "/data/own" if name == model.name else None)
    notes: Any = [
        SimpleNamespace(text="of all", model=None),
        SimpleNamespace(text="of this", model=model.name),
        SimpleNamespace(text="of another", model="other"),
    ]
    told = dict(compared_rows._conditions(replace(found.run, stated=stated, notes=notes), model, "self"))
    assert told["data"] == "/data/own"
    assert told["of the manifest"] == "of all; of this"
    assert "data" not in conditions(found) and "of the manifest" not in conditions(found)
