"""A push says which compiled kernels a run will lack, and what that costs its models on these GPUs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.cli.main import main
from bench.images.archive import facts_of
from bench.images.engines import EngineFacts
from bench.planning.manifest import parse_manifest
from bench.push.image_store import Shippable
from bench.push.missing_kernels import capabilities_of, cost_findings, missing_in_image, who_waits
from bench.push.node_preflight import ChosenEngine, NodePreflight
from bench.push.node_survey import InstalledEngine, Survey, read_survey
from tests.images.stand_in_kernels import compiled_wheel, make_plain
from tests.push.test_node_survey import ANSWERS
from tests.push.test_without_engine import ROOT, push

MAMBA = parse_manifest(
    json.dumps(
        {"schema": "bench/manifest/v1", "models": ["mamba-2.8b"], "methods": "guided", "gpus": 1}
    ).encode(),
    "m.json",
)
PLAIN = {"bench.without": "causal-conv1d deepspeed flash-attn mamba-ssm"}


def node(name: str = "NVIDIA H100 80GB HBM3") -> Survey:
    survey = read_survey(ANSWERS, 1763730000.5, ["docker"])
    return dataclasses.replace(survey, gpus=tuple(dataclasses.replace(gpu, name=name) for gpu in survey.gpus))


def label(**code: list[str]) -> dict[str, str]:
    named = {name.replace("_", "-"): codes for name, codes in code.items()}
    return {"bench.kernels": json.dumps(named), "bench.without": "deepspeed flash-attn"}


@pytest.mark.parametrize(
    ("labels", "capability", "missing"),
    [
        (PLAIN, "9.0", ["causal-conv1d", "deepspeed", "flash-attn", "mamba-ssm"]),
        (label(mamba_ssm=["9.0"]), "9.0", ["deepspeed", "flash-attn"]),
        (label(mamba_ssm=["9.0"]), "12.0", ["deepspeed", "flash-attn", "mamba-ssm"]),
        (label(mamba_ssm=["8.0"]), "8.9", ["deepspeed", "flash-attn"]),
        (label(deepspeed=[]), "12.0", ["deepspeed", "flash-attn"]),
        ({"bench.kernels": "{"}, "9.0", []),
        ({"bench.kernels": '{"mamba-ssm": 1}'}, "9.0", []),
        ({}, "9.0", []),
    ],
)
def test_an_image_lacks_what_its_labels_say_and_what_has_no_code(
    labels: dict[str, str], capability: str, missing: list[str]
) -> None:
    assert missing_in_image(labels, [capability]) == missing


def test_kernels_must_run_on_all_gpus_of_a_node() -> None:
    assert missing_in_image({"bench.kernels": '{"mamba-ssm": ["9.0"]}'}, ["9.0", "8.0"]) == ["mamba-ssm"]
    assert missing_in_image({"bench.kernels": '{"mamba-ssm": ["9.0"]}'}, []) == []


def test_gpus_that_bench_does_not_know_have_no_known_capability() -> None:
    assert capabilities_of(node()) == ["9.0"]
    assert capabilities_of(node("Some GPU of tomorrow")) == []


def test_the_loss_is_a_warning_with_what_to_do() -> None:
    (kernels, sharding) = cost_findings(MAMBA, node(), PLAIN["bench.without"].split(), "add a kernel layer")
    assert {kernels.level, sharding.level} == {"warn"}
    assert kernels.what.startswith("without causal-conv1d or mamba-ssm, for the method kernels: falls back")
    assert kernels.advice == "add a kernel layer"
    assert sharding.what.startswith("without deepspeed, for the methods zero-1, zero-2, zero-3:")


def test_nothing_is_said_where_nothing_is_lost() -> None:
    assert cost_findings(MAMBA, node(), ["flash-attn"], "") == []
    assert cost_findings(MAMBA, node(), [], "") == []
    assert cost_findings(MAMBA, dataclasses.replace(node(), gpus=()), ["mamba-ssm"], "") == []


def test_a_batch_that_the_gpus_cannot_share_is_told_by_the_run() -> None:
    odd = dataclasses.replace(MAMBA, gpus=3)
    assert cost_findings(odd, node(), ["mamba-ssm"], "") == []


# --- what waits for the layer ----------------------------------------------------------------------------

BOTH = parse_manifest(
    b'{"schema": "bench/manifest/v1", "models": ["pythia-160m", "mamba-2.8b"], "gpus": 1}', "m.json"
)
OTHERS = parse_manifest(b'{"schema": "bench/manifest/v1", "models": ["pythia-160m"], "gpus": 1}', "m.json")
KERNELS = ["mamba-ssm", "causal-conv1d"]


def test_models_that_could_begin_without_the_layer_are_told_from_those_that_wait_for_it() -> None:
    assert who_waits(BOTH, node(), KERNELS, 165_000_000, 2.5e6) == (
        "165.0 MB of it, 1 min, are the kernel layer, for mamba-2.8b alone: "
        "the image without it is enough for the others"
    )
    assert who_waits(OTHERS, node(), KERNELS, 165_000_000, None) == (
        "165.0 MB of it are the kernel layer, which no model here needs: the image without it is enough"
    )


def test_nothing_is_told_where_all_models_wait_or_nothing_is_sent() -> None:
    assert who_waits(MAMBA, node(), KERNELS, 165_000_000, 2.5e6) is None
    assert who_waits(BOTH, node(), [*KERNELS, "deepspeed"], 165_000_000, 2.5e6) is None
    assert who_waits(BOTH, node(), KERNELS, 0, 2.5e6) is None


# --- in a push -------------------------------------------------------------------------------------------


def test_a_push_tells_both_of_the_image_that_it_sends(tmp_path: Path) -> None:
    plain = make_plain(tmp_path)
    layer, out = tmp_path / "kernels.tar", tmp_path / "with-kernels.tar"
    wheel = compiled_wheel(tmp_path / "wheels", "mamba-ssm", "9.0")
    command = ["image", "kernels", "cuda13", "--source", str(ROOT), "--wheels", str(wheel.parent), "-o"]
    assert main([*command, str(layer)]) == 0
    assert main(["image", "add", str(plain), str(layer), "-o", str(out)]) == 0
    survey = dataclasses.replace(
        node(), engines={"docker": InstalledEngine(EngineFacts("docker", "27.5.1", "cdi", None))}
    )
    one, _ = push(tmp_path, BOTH.data, on_cpu=False)

    def chosen(path: Path) -> ChosenEngine:
        return ChosenEngine(survey, "docker", Shippable(path, facts_of(path)), send_bytes=1)

    assert [
        finding.what.partition(",")[0] for finding in NodePreflight(one)._missing_kernels(chosen(plain))
    ] == [
        "without causal-conv1d or mamba-ssm",
        "without deepspeed",
    ]
    assert [
        finding.what.partition(",")[0] for finding in NodePreflight(one)._missing_kernels(chosen(out))
    ] == [
        "without causal-conv1d",
        "without deepspeed",
    ]
    assert NodePreflight(one)._who_waits(chosen(plain)) is None
    waits = NodePreflight(one)._who_waits(chosen(out))
    assert waits is not None and "are the kernel layer, for mamba-2.8b alone" in waits
