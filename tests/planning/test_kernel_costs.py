"""The losses of a plan without compiled kernels, and their measured costs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bench
from bench.base.kernel_list import MODULES
from bench.cli.main import main
from bench.planning.kernel_costs import KernelCost, calls, kernel_costs, lost_methods, measured_costs
from bench.planning.manifest import Manifest, parse_manifest
from bench.planning.plan import make_plan
from bench.training.methods import Target
from bench.training.models import known_models

ROOT = Path(bench.__file__).parent.parent
ALL = [*MODULES]
H200 = Target("cuda", 1, 141 << 30, "NVIDIA H200", "9.0", elsewhere=True)


RECIPE = {
    "objective": "causal-lm", "batch_size": 8, "steps": 1000, "precision": "bf16", "sequence_length": 8
}  # fmt: skip


def manifest(*models: object, methods: object = "guided") -> Manifest:
    document = {"schema": "bench/manifest/v1", "models": models, "methods": methods}
    return parse_manifest(json.dumps(document).encode(), "m.json")


def costs(*models: object, target: Target = H200, methods: object = "guided") -> list[KernelCost]:
    return kernel_costs(manifest(*models, methods=methods), target, ALL)


@pytest.mark.parametrize(
    ("model", "wheel", "lost"),
    [
        ("mamba-2.8b", "mamba-ssm", {"kernels"}),
        ("mamba-2.8b", "causal-conv1d", {"kernels"}),
        ("mamba-2.8b", "flash-attn", set()),
        ("pythia-1b", "mamba-ssm", set()),
        ("pythia-1b", "flash-attn", set()),
        ("pythia-1b", "deepspeed", {"zero-1", "zero-2", "zero-3"}),
    ],
)
def test_a_method_is_lost_if_only_the_wheel_is_lacking(model: str, wheel: str, lost: set[str]) -> None:
    assert lost_methods(known_models()[model], H200, [wheel]) == lost


def test_flash_attn_costs_no_known_model_anything() -> None:
    assert {
        name for name, model in known_models().items() if lost_methods(model, H200, ["flash-attn"])
    } == set()


def test_wheels_that_cost_the_same_are_told_together() -> None:
    kernels, sharding = costs("mamba-2.8b", "pythia-1b")
    assert (kernels.wheels, kernels.methods) == (("mamba-ssm", "causal-conv1d"), ("kernels",))
    assert [each.model for each in kernels.models] == ["mamba-2.8b"]
    assert sharding.wheels == ("deepspeed",)
    assert {each.model for each in sharding.models} == {"mamba-2.8b", "pythia-1b"}


def test_a_model_falls_back_to_the_first_setting_that_a_plan_without_the_wheel_has() -> None:
    (kernels,) = (cost for cost in costs("mamba-2.8b") if cost.methods == ("kernels",))
    without = replace(H200, lacks=MODULES["mamba-ssm"])
    left = [cell.label for cell in make_plan(manifest("mamba-2.8b"), without).cells]
    (model,) = kernels.models
    assert (model.settings_left, model.falls_back_to) == (len(left), left[0])
    assert "falls back to free-lunch + checkpointing, how much slower was never measured" in kernels.text


def test_a_model_that_does_not_fit_without_the_wheel_has_nothing_left() -> None:
    (kernels,) = costs("mamba-2.8b", methods=["free-lunch"])
    assert kernels.models[0].settings_left == 0
    assert kernels.text.endswith("no setting is left that fits (mamba-2.8b)")


def test_a_manifest_that_asks_for_no_setting_with_the_wheel_loses_nothing() -> None:
    assert costs("pythia-1b", "mamba-2.8b", methods=["naive"]) == []


def test_code_of_transformers_that_calls_a_kernel_is_named() -> None:
    """Mixers of Mamba run kernels by a method only, so that a manifest without it misses no wheel."""
    lfm2, jamba = (
        {"name": f"small-{name}", "architecture": {"model_type": name, "vocab_size": 1000}, "recipe": RECIPE}
        for name in ("lfm2", "jamba")
    )
    found = {cost.wheels: cost.callers for cost in costs("pythia-1b", lfm2, jamba, methods=["naive"])}
    assert found == {("causal-conv1d",): ("small-lfm2",)}


@pytest.mark.parametrize(
    ("line", "called"),
    [("from flash_attn import x", True), ("import flash_attn_2_cuda", True), ("flash_attn = 1", False)],
)
def test_code_of_the_user_that_imports_a_kernel_calls_it(line: str, called: bool) -> None:
    own = {"module": "m.py:M", "code": ["import os", line]}
    assert calls(replace(known_models()["pythia-1b"], architecture=own), "flash-attn") is called


def test_a_cpu_loses_nothing_without_kernels_of_gpus() -> None:
    cpu = Target("cpu", 1, 64 << 30, "a CPU")
    assert kernel_costs(manifest("mamba-2.8b"), cpu, ["mamba-ssm", "causal-conv1d", "flash-attn"]) == []


def test_measured_steps_are_told_with_the_machine_and_only_for_as_many_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,) = costs("pythia-1b")
    assert "no slower, as measured on 1 x NVIDIA H200 (pythia-1b)" in one.text
    slower = tuple(replace(row, times=1.009) for row in measured_costs())
    with monkeypatch.context() as patched:
        patched.setattr("bench.planning.kernel_costs.measured_costs", lambda: slower)
        (one,) = costs("pythia-1b")
    assert "a step takes 1.009 times as long, as measured on 1 x NVIDIA H200 (pythia-1b)" in one.text
    (four,) = costs("pythia-1b", target=replace(H200, gpus=4))
    assert four.models[0].measured is None
    assert "how much slower was never measured" in four.text


def test_the_measured_costs_follow_from_the_bundles_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kernel_costs as computed

    shipped = json.loads((ROOT / "bench/data/kernel_costs.json").read_bytes())["rows"]
    assert list(computed.rows()) == shipped
    assert {row.wheel for row in measured_costs()} == {"deepspeed"}
    sys.modules.pop("kernel_costs")


def test_the_plan_says_what_missing_kernels_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(manifest("mamba-2.8b").data)
    assert main(["plan", str(path), "--gpu", "h200"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "kernels assumed here" in text
    assert "kernels without mamba-ssm or causal-conv1d, for the method kernels: falls back to" in text
    assert main(["plan", str(path), "--gpu", "h200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["without_kernels"]
    assert [cost["wheels"] for cost in told] == [["mamba-ssm", "causal-conv1d"], ["deepspeed"]]
    assert told[0]["models"][0]["falls_back_to"] == "free-lunch + checkpointing"
