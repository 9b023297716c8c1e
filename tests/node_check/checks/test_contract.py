"""Contracts of every check, including new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.base.gpu_catalogue import gpu_named
from bench.node_check.all_checks import NAMES, known_checks
from bench.node_check.check_results import judge
from bench.node_check.checks import Check
from bench.node_check.judging import DEPTHS
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.standards import Standards, profiles
from bench.records.trial import Gpu

GPU = Gpu(0, "NVIDIA H200", "GPU-0", 150 << 30, "9.0")
FOLDER = Path(__file__).parents[3] / "bench" / "node_check" / "checks"


def test_every_file_is_a_check() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert {name.replace("-", "_") for name in known_checks()} == files


@pytest.mark.parametrize("depth", ["quick", "nodes"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_readings_nothing_passes_and_what_older_bundles_lack_does_not_count(
    device: Any, depth: Any
) -> None:
    findings = judge(Evidence(depth, device, (GPU,), {}), Standards(None), ())
    assert {f.check for f in findings} == {n for n, one in known_checks().items() if one.is_asked_at(depth)}
    assert all(f.verdict == "not-run" for f in findings)
    for finding in findings:
        if known_checks()[finding.check].has_older_bundles:
            assert (finding.found, finding.counts) == ("the bundle is older than this check", False)


@pytest.mark.parametrize("name", known_checks())
def test_every_check_has_a_question_and_a_time_limit(name: str) -> None:
    check = known_checks()[name]
    assert check.name == name
    assert check.question.endswith("?")
    assert 0 < check.limit_seconds <= 200
    if check.least_gpus > 1:
        assert "GPUs" in (check.refuse("cuda", (GPU,), 1) or "")


def test_a_failure_is_blamed_on_the_card_only_if_nothing_around_it_can_be_the_reason() -> None:
    by_blame: dict[str, set[str]] = {}
    for name, check in known_checks().items():
        by_blame.setdefault(check.blames, set()).add(name)
    assert by_blame["guests"] == {"strangers"}
    assert by_blame["card"] == {
        "present", "matmul", "memory", "copies", "peers", "all-reduce", "agreement", "soak", "pcie", "nvlink",
        "ecc", "rows", "xid",
    }  # fmt: skip
    assert by_blame.keys() == {"card", "node", "guests"}


def test_every_profile_has_sources_and_tolerances_that_can_fail() -> None:
    assert len(profiles()) >= 17
    names = [gpu for profile in profiles() for gpu in profile.gpus]
    assert len(names) == len(set(names))
    for profile in profiles():
        assert profile.sources
        assert profile.pcie_generation
        assert profile.power_watts or "350-400 W" in profile.sources[0]  # then the card's own default counts
        for name, wanted in profile.figures.items():
            assert len(wanted.source) > 10, (profile.name, name)
            assert 0 < wanted.warn_percent < wanted.fail_percent <= 50


def test_no_reference_is_more_than_the_vendors_peak() -> None:
    for profile in profiles():
        gpu = gpu_named(profile.gpus[0])
        assert gpu is not None, profile.name
        for name, wanted in profile.figures.items():
            if name.startswith("matmul-"):
                precision = name.removeprefix("matmul-")
                assert wanted.value <= 1.01 * gpu.peak_flops(precision, tf32=precision == "tf32"), (
                    profile.name,
                    name,
                )
        assert profile.figures["memory"].value <= 1.01e9 * gpu.memory_gb_per_second


def check(**more: Any) -> Check:
    return Check("a", "?", lambda _, __: iter(()), **more)


@pytest.mark.parametrize(
    ("made", "device", "count", "why"),
    [
        (check(), "cuda", 0, None),
        (check(least_gpus=2), "cuda", 2, None),
        (check(least_gpus=2), "cuda", 1, "needs two GPUs"),
        (check(least_gpus=4), "cuda", 3, "needs 4 GPUs"),
        (check(least_gpus=1), "cuda", 0, "needs 1 GPUs"),
        (check(), "cpu", 0, "is about a GPU"),  # nothing is measured, so GPUs are asked
        (check(measure=lambda _, __: {}), "cpu", 0, None),
        (check(measure=lambda _, __: {}, about_gpus=True), "cpu", 0, "is about a GPU"),
        (check(measure=lambda _, __: {}, about_gpus=True), "cuda", 0, None),
    ],
)
def test_a_check_is_refused_without_enough_gpus_or_on_a_cpu_if_it_is_about_gpus(
    made: Check, device: Any, count: int, why: str | None
) -> None:
    assert made.refuse(device, (), count) == why


@pytest.mark.parametrize(
    ("made", "asked", "at"),
    [
        (check(), "passive prolog quick standard soak", "quick standard soak nodes"),
        (
            check(passive=True),
            "passive prolog quick standard soak",
            "passive prolog quick standard soak nodes",
        ),
        (check(prolog=True), "passive prolog quick standard soak", "prolog quick standard soak nodes"),
        (check(thorough=True), "passive prolog quick standard soak", "standard soak nodes"),
        (check(workers="nodes", between_nodes=True), "nodes", "quick standard soak nodes"),
        (check(between_nodes=True), "passive prolog quick standard soak nodes", "quick standard soak nodes"),
    ],
)
def test_the_depth_decides_which_checks_are_asked_and_made(made: Check, asked: str, at: str) -> None:
    assert [depth for depth in DEPTHS if made.is_asked_at(depth)] == asked.split()
    assert [depth for depth in DEPTHS if made.is_made_at(depth)] == at.split()


def test_the_names_of_the_checks_are_known_without_importing_them() -> None:
    assert tuple(known_checks()) == NAMES
