"""Recorded answers of real cards and programs: two H200 before and after training, NCCL, the kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.node_check.all_checks import known_checks
from bench.node_check.checks.all_reduce import chosen
from bench.node_check.checks.xid import parse
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence, Reading
from bench.node_check.judging.standards import Expectations, Standards, profile_of
from bench.runner.machine.gpus import gpu_from_answers

RECORDED = Path(__file__).parent / "recorded"


def recorded(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"h200x2-{kind}.json").read_text())
    return found


def healthy() -> Evidence:
    before = recorded("idle")
    gpus = tuple(gpu_from_answers(Answers(i, raw)) for i, raw in enumerate(before["gpus"]))
    readings = {BEFORE: Reading(BEFORE, before), AFTER: Reading(AFTER, recorded("busy"))}
    return Evidence("quick", "cuda", gpus, readings)


@pytest.mark.parametrize("check", ["present", "alike", "nvlink", "fabric", "power", "ecc", "rows"])
def test_two_healthy_h200_that_trained_raise_nothing(check: str) -> None:
    findings = list(known_checks()[check].judge(healthy(), Standards(profile_of("NVIDIA H200"))))
    assert findings
    assert [f for f in findings if f.verdict not in ("pass",) and f.counts] == []


def lone(links_up: int) -> Evidence:
    """Return the answers of one GPU of a baseboard that a virtual machine has alone."""
    readings = {}
    for look, kind in ((BEFORE, "idle"), (AFTER, "busy")):
        gpu = {**recorded(kind)["gpus"][0]}
        for link in range(links_up, 18):
            gpu[f"NvLinkState.{link}"] = 0
        readings[look] = Reading(look, {**recorded(kind), "gpus": [gpu]})
    return Evidence("quick", "cuda", healthy().gpus[:1], readings)


def test_one_h200_rented_alone_needs_no_links_and_no_peers() -> None:
    check = known_checks()["nvlink"]
    profile = profile_of("NVIDIA H200")
    (finding,) = check.judge(lone(0), Standards(profile))
    assert finding.verdict == "not-run" and not finding.counts
    # It is a fault if only some links are down, or if the manifest expects links.
    for evidence, expect in ((lone(17), Expectations()), (lone(0), Expectations(nvlinks=18))):
        assert "fail" in {f.verdict for f in check.judge(evidence, Standards(profile, expect))}


def test_counters_that_grow_with_traffic_are_not_errors() -> None:
    """The CRC and ECC data counters of each link grew during training, and nvidia-smi reported no error."""
    before, after = (Answers(0, recorded(kind)["gpus"][0]) for kind in ("idle", "busy"))
    grown = [
        (after.number(f"NvLinkErrorCounter.0.{n}") or 0) - (before.number(f"NvLinkErrorCounter.0.{n}") or 0)
        for n in range(5)
    ]
    assert grown[:3] == [0, 0, 0]
    assert min(grown[3:]) > 50
    findings = known_checks()["nvlink"].judge(healthy(), Standards(profile_of("NVIDIA H200")))
    assert {f.verdict for f in findings} == {"pass"}


def test_answers_are_read_by_their_type() -> None:
    gpu = Answers(0, recorded("idle")["gpus"][0])
    assert gpu.number("EnforcedPowerLimit") == 700_000
    assert gpu.field("NVLINK_GET_SPEED") == 26_562
    assert gpu.get("RetiredPagesPendingStatus") is None
    assert gpu.why("RetiredPagesPendingStatus") == "NotSupported"
    assert gpu.why("Nothing") == "not asked"
    assert gpu.lost is None


def test_the_gpu_is_named_as_nvml_names_it() -> None:
    gpu = healthy().gpus[1]
    assert (gpu.index, gpu.name, gpu.compute_capability) == (1, "NVIDIA H200", "9.0")
    assert gpu.memory_bytes == 150_754_820_096


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (
            "NCCL INFO AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}",
            "RING",
        ),
        (
            "NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
            "NVLS",
        ),
        (
            "NCCL INFO AllReduce: 1073741824 Bytes -> Algo Tree proto Simple channel{Lo..Hi}={0..7}",
            "TREE",
        ),
        ("NCCL INFO 1073741824 Bytes -> Algo 1 proto 2 time 3030.117432", "RING"),
        ("NCCL INFO 1073741824 Bytes -> Algo 4 proto 2 time 3030.117432", "NVLS"),
    ],
)
def test_the_algorithm_of_nccl_is_read_from_its_log(log: str, found: str) -> None:
    assert chosen(f"NCCL version 2.28.9\n{log}\n") == {str(1 << 30): found}


def test_a_log_without_an_algorithm_gives_none() -> None:
    assert chosen("NCCL INFO Channel 00/24 : 0 1\n") == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[ 9.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus.", ("0000:1b:00", 79)),
        (
            "NVRM: Xid (PCI:0000:00:06.0): 31, pid=5, name=python3, Ch 00000008, MMU Fault",
            ("0000:00:06.0", 31),
        ),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04", None),
    ],
)
def test_xids_are_read_from_the_kernels_log(line: str, found: tuple[str, int] | None) -> None:
    parsed = parse(line)
    assert (parsed[:2] if parsed else None) == found
