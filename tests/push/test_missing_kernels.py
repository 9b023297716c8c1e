"""A push says which compiled kernels a run will lack, and what that costs its models on these GPUs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bench.planning.manifest import parse_manifest
from bench.push.missing_kernels import capabilities_of, cost_findings, missing_in_image
from bench.push.node_survey import Survey, read_survey
from tests.push.test_node_survey import ANSWERS

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
