"""The documents of the library in words and digits: the command prints the same, and cannot tell mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.base.gpu_catalogue import gpu_models
from bench.cli.main import main
from bench.library.plan import _missing_kernels
from bench.library.verify import CheckedBundle
from bench.records.text import figures
from bench.records.trial import Gpu, NodeFacts
from bench.training.methods import Target

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "results/node-check-2xh100/quick.tar"
TINY: dict[str, Any] = {
    "schema": "bench/manifest/v1",
    "models": ["tiny-gpt-neox"],
    "methods": ["naive"],
    "micro_batch": 16,
}
LARGER = TINY | {"models": ["pythia-160m"], "methods": "guided"}


def the(items: Any) -> Any:
    """Return the only item."""
    (item,) = items
    return item


# --- plans ------------------------------------------------------------------------------------------------


def test_a_plan_has_its_machine_its_cells_and_what_is_likely() -> None:
    document: Any = bench.plan(TINY, gpu="h100", gpus=2).to_json()
    assert list(document) == [
        "schema", "manifest", "target", "cells", "skipped", "remarks", "without_kernels", "searched",
        "tried_first", "likely",
    ]  # fmt: skip
    assert document["schema"] == "bench/plan/v1"
    assert document["manifest"].startswith("sha256:")
    target = document["target"]
    assert (target["device"], target["gpus"], target["elsewhere"]) == ("cuda", 2, True)
    assert (target["name"], target["compute_capability"]) == ("NVIDIA H100 80GB HBM3", "9.0")
    assert target["memory_bytes"] == pytest.approx(79.6 * 2**30, abs=1)
    cell = the(document["cells"])
    trial = the(cell["trials"])
    assert (cell["model"], cell["setting"], cell["label"]) == ("tiny-gpt-neox", [], "naive")
    assert (trial["micro_batch"], trial["accumulation"]) == (16, 2)  # of 64 sequences a step on two GPUs
    assert 0 < cell["least_bytes"] < cell["predicted_bytes"] < 2**30
    assert cell["host_bytes"] == 0 and 0 < cell["floor_days"] < 1e-3
    assert document["tried_first"] == {"tiny-gpt-neox": trial["id"]}
    assert document["searched"] == [] and document["skipped"] == []
    likely = the(document["likely"])
    assert list(likely) == [
        "model", "days", "least_days", "most_days", "setting", "micro_batch", "accumulation",
    ]  # fmt: skip
    assert likely["model"] == "tiny-gpt-neox"
    assert 0 < likely["least_days"] < likely["days"] < likely["most_days"]
    assert 2 * likely["micro_batch"] * likely["accumulation"] == 64
    assert "compile-blocks" in likely["setting"]


def test_a_guided_plan_says_which_models_it_searches() -> None:
    assert bench.plan(LARGER | {"micro_batch": "auto"}, gpu="h100").to_json()["searched"] == ["pythia-160m"]


def test_a_plan_and_a_prediction_say_why_nothing_is_likely() -> None:
    large = TINY | {"models": ["llama-3.1-8b"]}
    likely: Any = bench.plan(large, gpu="rtx 4090").to_json()["likely"]
    reason = "needs 139.4 GiB or more; offloading is not predicted: it depends on the host"
    assert likely == [{"model": "llama-3.1-8b", "days": None, "reason": reason}]
    document: Any = bench.predict(large, gpu="rtx 4090").to_json()
    assert document["predicted"] == []
    found = {"model": "llama-3.1-8b", "gpu": "NVIDIA GeForce RTX 4090", "gpus": 1, "reason": reason}
    assert document["unpredicted"] == [found]
    interrupted: Any = bench.predict(large, gpu="rtx 4090", interrupted_every="6h").to_json()
    assert interrupted["unpredicted"] == [found]


def test_a_machine_without_gpus_plans_for_its_cpu_and_for_no_number_of_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = NodeFacts("a CPU", 8, 1 << 36, "Linux", "6", "3.12")
    monkeypatch.setattr("bench.library.plan.probed", lambda advice: node)
    for gpus in (None, 1):
        target = bench.plan(TINY, gpus=gpus).plan.target
        assert (target.device, target.gpus) == ("cpu", 1)
    with pytest.raises(bench.BadInput) as refused:
        bench.plan(TINY, gpus=2)
    assert refused.value.message == "--gpus 2 without --gpu, and this machine has no GPU"
    assert refused.value.advice == "--gpu NAME names the kind"


def test_a_machine_with_gpus_plans_for_the_number_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(number, "NVIDIA H200", f"GPU-{number}", 1 << 37, "9.0") for number in range(4))
    node = NodeFacts("a CPU", 8, 1 << 36, "Linux", "6", "3.12", gpus)
    monkeypatch.setattr("bench.library.plan.probed", lambda advice: node)
    for asked, planned in ((None, 4), (1, 1), (2, 2)):
        target = bench.plan(TINY, gpus=asked).plan.target
        assert (target.device, target.name, target.gpus) == ("cuda", "NVIDIA H200", planned)


@pytest.mark.parametrize("gpu", [model for model in gpu_models() if not model.runs_bench])
def test_no_run_is_planned_where_bench_does_not_run(gpu: Any) -> None:
    with pytest.raises(bench.BadInput, match=f"bench does not run on {gpu.name}"):
        bench.plan(TINY, gpu=gpu.name)


def test_another_machine_lacks_every_compiled_kernel_and_this_one_those_that_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"deepspeed", "flash_attn", "flash_attn_2_cuda", "mamba_ssm"}
    monkeypatch.setattr("bench.training.methods.method.installed", there.__contains__)
    elsewhere = Target("cuda", 1, 1 << 37, elsewhere=True)
    assert _missing_kernels(elsewhere) == ["flash-attn", "mamba-ssm", "causal-conv1d", "deepspeed"]
    assert _missing_kernels(replace(elsewhere, elsewhere=False)) == ["mamba-ssm", "causal-conv1d"]


# --- predictions ------------------------------------------------------------------------------------------


def predicted(**options: Any) -> list[tuple[str, int]]:
    found = bench.predict(LARGER, **options).predicted
    return [(row.predicted.gpu.split()[-1], row.predicted.gpus) for row in found]


def test_a_prediction_has_its_machines_with_energy_and_prices() -> None:
    document: Any = bench.predict(LARGER, gpu="h200", node_overhead=1.5, gco2_per_kwh=400).to_json()
    assert list(document) == ["schema", "manifest", "currency", "energy", "predicted", "unpredicted"]
    assert (document["schema"], document["currency"]) == ("bench/prediction/v1", "USD")
    assert document["manifest"].startswith("sha256:")
    assert document["energy"] == {"node_overhead": 1.5, "grams_co2_per_kwh": 400}
    row = the(document["predicted"])
    assert list(row) == ["predicted", "rented", "owned", "units_per_dollar", "node_kwh", "co2_kg"]
    assert (row["predicted"]["model"], row["predicted"]["gpu"]) == ("pythia-160m", "NVIDIA H200")
    assert row["node_kwh"] == pytest.approx(1.5 * row["predicted"]["kwh"])
    assert row["co2_kg"] == pytest.approx(0.4 * row["node_kwh"])
    assert document["unpredicted"] == []


def test_all_is_one_and_eight_of_every_known_card() -> None:
    found = bench.predict(LARGER)
    machines = [(row.predicted.gpu, row.predicted.gpus) for row in found.predicted]
    machines += [(one.gpu, one.gpus) for one in found.unpredicted]
    assert sorted(machines) == sorted((gpu.name, count) for gpu in gpu_models() for count in (1, 8))
    assert (
        predicted(gpu="h200,h200,8xh200") == predicted(gpu=["h200", "8xh200"]) == [("H200", 1), ("H200", 8)]
    )


def test_a_wish_leaves_out_what_is_too_late_or_too_dear() -> None:
    row = the(bench.predict(LARGER, gpu="8xh100").predicted)
    latest, rent, own = row.predicted.most_days, row.rented.amount, row.owned.amount
    assert own < rent
    assert predicted(gpu="8xh100", deadline=latest) == [("HBM3", 8)]
    assert predicted(gpu="8xh100", deadline=latest * 0.999) == []
    assert predicted(gpu="8xh100", budget_usd=rent) == [("HBM3", 8)]
    assert predicted(gpu="8xh100", budget_usd=rent * 0.999) == []
    assert predicted(gpu="8xh100", budget_usd=own, own=True) == [("HBM3", 8)]
    assert predicted(gpu="8xh100", budget_usd=own * 0.999, own=True) == []
    assert predicted(gpu="8xh100", budget_usd=rent, deadline=latest * 0.999) == []


def test_a_machine_outside_of_the_limits_is_named_with_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = bench.predict(LARGER, gpu="h200,8xh100", deadline="1h")
    assert late.predicted == ()
    fastest, slower = sorted(late.outside, key=lambda row: row.predicted.days)
    assert (fastest.predicted.gpus, slower.predicted.gpus) == (8, 1)
    manifest, page = tmp_path / "larger.json", tmp_path / "page.html"
    manifest.write_text(json.dumps(LARGER))
    words = ["predict", str(manifest), "--gpu=h200,8xh100", "--deadline=1h", f"--html={page}"]
    assert main(words) == 1
    named = f"the fastest is 8x H100 80GB HBM3: {figures(fastest.predicted.days)} days, "
    assert named in " ".join(capsys.readouterr().out.split())
    assert named in page.read_text()
    assert bench.predict(LARGER, gpu="h200,8xh100").outside == ()


def test_a_machine_without_a_price_is_in_no_budget() -> None:
    row = the(bench.predict(LARGER, gpu="h200").predicted)
    assert row.owned is None
    assert predicted(gpu="h200", budget_usd=1e9, own=True) == []


def test_interruptions_take_time_and_may_take_all_of_it() -> None:
    plain = the(bench.predict(LARGER, gpu="h200").predicted).predicted
    often = the(bench.predict(LARGER, gpu="h200", interrupted_every="6h").predicted).predicted
    rarely = the(
        bench.predict(LARGER, gpu="h200", interrupted_every="6h", restart=1, save_every="1m").predicted
    ).predicted
    assert plain.days < rarely.days < often.days
    never = bench.predict(LARGER, gpu="h200", interrupted_every=1.0, save_every="30d")
    assert never.predicted == ()
    assert the(never.unpredicted).reason == "between two interruptions it hardly ever reaches a checkpoint"


# --- comparisons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--prices", {"prices": ROOT / "bench/data/prices.json"}),
        ("--budget-usd", {"budget_usd": 20}),
        ("--deadline", {"deadline": 3}),
        ("--runs", {"runs": 2}),
        ("--utilisation", {"utilisation": 0.5}),
        ("--node-overhead", {"node_overhead": 1.2}),
        ("--gco2-per-kwh", {"gco2_per_kwh": 400}),
        ("--rank-all", {"rank_all": True}),
        ("--estimate", {"estimate": "8xh100"}),
    ],
)
def test_an_option_for_runs_is_refused_for_node_checks(option: str, given: dict[str, Any]) -> None:
    with pytest.raises(bench.BadInput) as refused:
        bench.compare(CHECK, **given)
    assert refused.value.message == f"{option}: for training runs only, and these are node checks"
    assert refused.value.advice == "leave it out"


def test_runs_and_node_checks_are_counted_apart(tmp_path: Path) -> None:
    run, broken = ROOT / "results/hour-h200/decided.tar", tmp_path / "broken.tar"
    broken.write_bytes(b"no bundle")
    assert bench.compare(run).runs.bundles == 1
    compared = bench.compare([run, CHECK, broken])
    assert compared.runs.bundles == 2  # with the broken one
    assert compared.fleet is not None and len(compared.fleet.nodes) == 1
    assert [refused.path for refused in compared.refused] == [str(broken)]
    assert bench.compare(CHECK).runs.bundles == 0


def test_a_machine_trains_in_at_most_all_of_its_lifetime() -> None:
    for given in (1, 1.0, "100%"):
        assert bench.compare(ROOT / "results/hour-h200/decided.tar", utilisation=given).runs.utilisation == 1
    for given in (1.01, "101%"):
        with pytest.raises(bench.BadInput, match=r"^utilisation: "):
            bench.compare(CHECK, utilisation=given)


@pytest.mark.parametrize(
    ("where", "inside"), [("a.tar", None), ("a.tar: results.json", "results.json"), (None, None)]
)
def test_a_refused_bundle_tells_the_file_inside_it(where: str | None, inside: str | None) -> None:
    refusal = bench.VerificationFailed("is malformed", where=where)
    assert CheckedBundle(Path("a.tar"), None, refusal).to_json() == {
        "path": "a.tar", "valid": False, "where": inside, "reason": "is malformed", "exit_code": 4,
    }  # fmt: skip


def test_a_valid_bundle_says_so_first() -> None:
    (checked,) = bench.verify(CHECK)
    document = checked.to_json()
    assert next(iter(document)) == "valid" and document["valid"] is True and "" not in document
