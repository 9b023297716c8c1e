"""Summaries recomputed from samples: what a verdict says of a run, and which results do not follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.base.gpu_catalogue import gpu_named
from bench.base.strict_json import canonical_json, from_json
from bench.bundle import recompute_run
from bench.bundle.recompute_run import difference
from bench.bundle.telemetry_limits import MAX_RATE_BY_POWER
from bench.bundle.verdict import RunContents
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from bench.planning.manifest import Manifest
from bench.records.fastest import fastest_with_confidence
from bench.records.floor import Floor
from bench.records.gradients import GradientCheck
from bench.records.run_results import Results, TrialResult
from bench.records.trial import Proof
from tests.report.made import CRASH, H100, bundle, manifest, payload, repacked

Edit = Callable[[Results], Results]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return bundle(tmp_path / "b.tar")


def recomputed(path: Path) -> RunContents:
    contents = verify_bundle(path, recompute).contents
    assert isinstance(contents, RunContents)
    return contents


def results_in(path: Path) -> Results:
    return from_json(Results, json.loads(payload(path)["results.json"]))


def edited(path: Path, edit: Edit = lambda results: results, **files: bytes) -> Path:
    """Sign a bundle again with edited results and other files; a dot in a name is written as __."""
    named = {name.replace("__", "."): data for name, data in files.items()}
    return repacked(path, edit(results_in(path)), payload(path) | named)


def of_the_trial(**changes: Any) -> Edit:
    """Change the only trial of a run."""
    return lambda results: replace(results, trials=(replace(results.trials[0], **changes),))


def refused(path: Path, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why):
        recomputed(path)


# --- what a verdict says --------------------------------------------------------------------------------


def test_the_figures_of_a_verdict_are_those_of_its_samples(path: Path) -> None:
    found = recomputed(path)
    (trial,) = found.results.trials
    (steps,) = found.step_seconds[trial.id]
    assert (found.samples, len(steps)) == (12, 12)
    assert found.measured_seconds == pytest.approx(12.0)  # six steps of half a second, six of three times it
    assert (found.not_recomputed, found.slowed, found.marks) == ("", {}, {})


def test_a_floor_is_named_as_stated(tmp_path: Path) -> None:
    found = recomputed(bundle(tmp_path / "b.tar", floors={(): Floor(9, 0.3, 0, 0.1, 0)}))
    assert found.not_recomputed == "1 floor"
    checked = bundle(tmp_path / "c.tar", checks={(): GradientCheck((), 28, 0.004, "embed_in.weight", 0.03)})
    assert recomputed(checked).not_recomputed == "1 gradient check"
    assert found.measured_seconds == pytest.approx(12.0 + 9 * 0.4)


def test_a_gpu_that_heat_slowed_down_is_named_with_its_trial(tmp_path: Path) -> None:
    found = recomputed(bundle(tmp_path / "b.tar", hot=True))
    (trial,) = found.results.trials
    assert [mark.kind for mark in found.marks[trial.id]] == ["SLOWED"]
    assert found.slowed[trial.id].why == ("software thermal slowdown",)


def loaded(path: Path, load: float) -> Path:
    telemetry = payload(path)["telemetry.jsonl"].replace(b'"load":1.0', b'"load":%r' % load)
    return edited(path, telemetry__jsonl=telemetry)


def test_other_work_on_the_machine_marks_a_trial(path: Path) -> None:
    found = recomputed(loaded(path, 12.0))
    ((mark,),) = found.marks.values()
    assert (mark.kind, mark.text) == ("LOADED", "a load of 12 on 16 CPUs, from other work")


@pytest.mark.parametrize(("load", "searched"), [(11.2, False), (11.3, True)])
def test_telemetry_is_searched_for_other_work_only_above_what_a_run_makes_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch, load: float, searched: bool
) -> None:
    """Nearly no bundle needs it, and telemetry is its largest file: 16 CPUs are at most at 11.2 here."""
    found: list[object] = []
    monkeypatch.setattr(recompute_run, "marks_of_other_work", lambda *given: found.append(given) or {})
    recomputed(loaded(path, load))
    assert bool(found) == searched


def without_gpus(results: Results) -> Results:
    return replace(results, node=replace(results.node, gpus=()))


def test_telemetry_of_a_run_on_a_cpu_is_not_held_against_its_figures(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telemetry has no clock or power of a CPU."""
    monkeypatch.delattr(recompute_run, "require_telemetry")
    assert recomputed(edited(path, without_gpus)).notes == ()


# --- trials ---------------------------------------------------------------------------------------------


def test_a_trial_may_have_a_micro_batch_of_one(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar", micro_batch=1)
    assert recomputed(path).results.trials[0].micro_batch == 1
    refused(edited(path, of_the_trial(micro_batch=0)), "is on no GPU, or has no micro-batch")


def test_a_trial_is_on_one_gpu_at_least(path: Path) -> None:
    refused(edited(path, of_the_trial(gpus=0)), "is on no GPU, or has no micro-batch")


def test_a_memory_cap_is_a_part_of_a_trial(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar", of=manifest(memory_cap_gib=40))
    assert recomputed(path).results.memory_cap_bytes == 40 * 2**30


def test_the_folder_of_its_data_is_a_part_of_a_trial(tmp_path: Path) -> None:
    """The manifest names the folder, and a trial on made-up data is another trial."""
    path = bundle(tmp_path / "b.tar", of=with_data("/texts"))
    results, files = results_in(path), payload(path)
    (trial,) = results.trials
    refused(path, f"trial {trial.id} read made-up data, the manifest says /texts$")
    new = replace(recompute_run._trial(results, trial), data="/texts").id
    named = {name: data.replace(trial.id.encode(), new.encode()) for name, data in files.items()}
    read = replace(results, trials=(replace(trial, id=new, data="/texts"),))
    assert recomputed(repacked(path, read, named)).results.trials[0].data == "/texts"


def with_data(folder: str) -> Manifest:
    """Return a manifest whose model reads a folder, which need not be on this machine."""
    plain = manifest()
    document = json.loads(plain.data) | {"models": [{"name": "tiny-gpt-neox", "data": folder}]}
    return replace(plain, data=canonical_json(document))


def test_a_failed_trial_has_no_samples(path: Path) -> None:
    """Samples of such a trial would be ranked by nobody, and their time would still count."""
    failed = of_the_trial(outcome="crashed", failure=CRASH, estimate=None)
    refused(edited(path, failed), "is of a trial that is not in the results")


def test_a_step_of_almost_no_time_is_no_figure(path: Path) -> None:
    """Days of zero would be ranked first."""
    line = json.loads(payload(path)["samples.jsonl"])
    for step in line["measurement"]["steps"]:
        step["seconds"] = 5e-324 * step["accumulation"]
    too_fast = edited(path, samples__jsonl=canonical_json(line) + b"\n")
    refused(too_fast, "the step, the days or a rate of trial .* is not above zero")


# --- the claimed rate -----------------------------------------------------------------------------------


def watts_for(path: Path, gpus: int) -> float:
    """Return the least power of a GPU that agrees with the figure of the run on this number of GPUs."""
    (trial,) = results_in(path).trials
    model = gpu_named(H100)
    assert trial.estimate and model and model.watts
    share = trial.estimate.flops_per_second / gpus / (MAX_RATE_BY_POWER * 494.7e12)  # in tf32
    return share * model.watts


def test_each_gpu_computes_its_share_of_the_rate(tmp_path: Path) -> None:
    on_two = partial(bundle, tmp_path / "b.tar", gpus=2)
    least = watts_for(on_two(), gpus=2)
    assert recomputed(on_two(watts=1.01 * least)).samples == 12
    refused(on_two(watts=0.99 * least), "GPU 0 computed 0 TFLOP/s with 0 W, which it cannot")


def test_a_figure_above_the_measured_limit_is_not_held_against_telemetry(tmp_path: Path) -> None:
    """An implausible figure is a defect of bench, said in every output and ranked nowhere."""
    least = watts_for(bundle(tmp_path / "b.tar"), gpus=1)
    implausible = bundle(tmp_path / "b.tar", watts=0.99 * least, ceiling_seconds=1e9)
    (trial,) = recomputed(implausible).results.trials
    assert trial.estimate and not trial.estimate.plausible
    refused(bundle(tmp_path / "b.tar", watts=0.99 * least), "GPU 0 computed 0 TFLOP/s with 0 W, which it")


# --- differences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        (1.0, 1.0, True),
        (1e9, 1e9 - 1, True),  # exactly the rounding that is allowed
        (1e9 - 1, 1e9, True),
        (-1e9, -1e9 + 1, True),
        (1e9, 1e9 - 1.001, False),
        (0.0, 1e-300, False),
        (1.0, -1.0, False),
        (0.5, None, False),
        (None, 0.5, False),
        (10**10, 10**10 + 1, False),  # whole numbers are not rounded
        (1e10, 10**10 + 1, False),
        (10**10 + 1, 1e10, False),
        ("1", 1.0, False),
    ],
)
def test_figures_agree_but_for_rounding(theirs: object, ours: object, same: bool) -> None:
    assert difference(theirs, ours) == (None if same else "it")


def test_the_first_field_that_differs_is_named(path: Path) -> None:
    (one,) = results_in(path).trials
    assert one.estimate
    other: TrialResult = replace(one, estimate=replace(one.estimate, peak_bytes=1, flops_per_second=1.0))
    assert difference(one, other) == "flops_per_second"
    assert difference(one, one.estimate) == "it"
    more = edited(path, of_the_trial(loss_difference=0.5))
    refused(more, "loss_difference does not follow from the samples")


# --- refusals, each by itself ---------------------------------------------------------------------------


def test_results_are_of_the_manifest_in_their_bundle(path: Path) -> None:
    files: Any = SimpleNamespace(read=lambda name: payload(path)[name], sha256={"manifest.json": "0" * 64})
    with pytest.raises(VerificationFailed, match=r"^the results are of another manifest$"):
        recompute_run.recompute_run(json.loads(payload(path)["results.json"]), files)


def with_limits(*rates: float | None) -> Edit:
    """Give each trial another measured limit; None is no limit."""

    def edit(results: Results) -> Results:
        pairs = zip(results.trials, rates, strict=True)
        return replace(
            results,
            trials=tuple(
                replace(one, estimate=one.estimate and replace(one.estimate, ceiling_flops_per_second=rate))
                for one, rate in pairs
            ),
        )

    return edit


@pytest.mark.parametrize(("rate", "asked"), [(1e12, 0), (None, 1)])
def test_only_a_figure_without_a_measured_limit_is_bounded_by_the_vendor_s_peak(
    path: Path, monkeypatch: pytest.MonkeyPatch, rate: float | None, asked: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(recompute_run, "require_rate", lambda *given: calls.append(given))
    results = with_limits(rate)(results_in(path))
    trials = {one.id: recompute_run._trial(results, one) for one in results.trials}
    recompute_run._require_physics(results, results.node.gpus, trials)
    assert len(calls) == asked
    without = replace(results, trials=(replace(results.trials[0], estimate=None),))
    recompute_run._require_physics(without, results.node.gpus, trials)
    assert len(calls) == asked


def test_a_proof_needs_a_figure_and_is_held_to_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []
    monkeypatch.setattr(recompute_run, "require_memory", lambda *given: held.append(f"memory {given[-1]}"))
    monkeypatch.setattr(recompute_run, "require_proof_rate", lambda *given: held.append("rate"))
    results = of_the_trial(proof=Proof(10, 5.0, 77))(results_in(path))
    trials = {one.id: recompute_run._trial(results, one) for one in results.trials}
    recompute_run._require_physics(results, results.node.gpus, trials)
    assert held == [f"memory {2**34}", "memory 77", "rate"]
    without = of_the_trial(estimate=None)(results)
    with pytest.raises(VerificationFailed, match=r"the proof of trial \w+ proves no figure$"):
        recompute_run._require_physics(without, results.node.gpus, trials)


@pytest.mark.parametrize(
    ("change", "accepted"),
    [({}, True), ({"undecided": 5}, True), ({"undecided": -1}, False), ({"confidence": 0.5}, False)],
)
def test_the_fastest_trial_is_the_one_that_the_trials_show(
    path: Path, change: dict[str, Any], accepted: bool
) -> None:
    def with_winner(results: Results) -> Results:
        winner = fastest_with_confidence(results.models[0].name, results.trials, 0)
        return replace(results, winners=(replace(winner, **change),))

    if accepted:
        assert recomputed(edited(path, with_winner)).samples == 12
    else:
        refused(edited(path, with_winner), "the fastest of tiny-gpt-neox is not the one that its trials show")


def test_why_gradients_were_not_checked_is_a_part_of_the_results(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b.tar", checks={(): "it crashed"})
    (trial,) = recomputed(path).results.trials
    assert trial.no_gradient_check == "it crashed"


def test_samples_of_the_first_of_two_measurements_alone_are_refused(path: Path) -> None:
    line = json.loads(payload(path)["samples.jsonl"])
    first = canonical_json(line | {"earlier": True}) + b"\n"
    refused(edited(path, samples__jsonl=first), "holds only the first of two measurements of the trial")


def test_operations_of_every_measurement_are_counted_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []
    monkeypatch.setattr(
        recompute_run.ManifestCheck, "require_flops", lambda _, trial, flops: counted.append(flops)
    )
    recomputed(path)
    (line,) = (json.loads(part) for part in payload(path)["samples.jsonl"].splitlines())
    (flops,) = counted
    assert line["measurement"]["flops"]["matmul"] == flops.matmul  # type: ignore[attr-defined]


def test_a_trial_stands_once_in_the_results_and_is_of_one_of_their_models(path: Path) -> None:
    def twice(results: Results) -> Results:
        return replace(results, trials=results.trials * 2)

    refused(edited(path, twice), r"holds a trial twice$")
    results = results_in(path)
    with pytest.raises(VerificationFailed, match=r"trial \w+ is of no model in the results$"):
        recompute_run._trial(results, replace(results.trials[0], model="another"))


def test_a_trial_is_measured_once(path: Path) -> None:
    line = payload(path)["samples.jsonl"]
    refused(edited(path, samples__jsonl=line * 2), r"holds the trial \w+ for the second time")
