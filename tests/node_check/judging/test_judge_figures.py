"""A rate is judged by a reference, by the node's other GPUs and by the same GPU's past, each in digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.judge_figures import Tolerances, by_usual, judge_figures, shortfall
from bench.node_check.judging.standards import (
    Expectations,
    FileSystemRates,
    Past,
    Profile,
    Reference,
    Standards,
    profile_for,
    profile_of,
)
from bench.records.trial import Gpu

TOLERANCES = Tolerances(peers_warn=3.0, peers_fail=8.0, history_warn=5.0, advice="look at its cooling")
REFERENCE = Reference(4e12, "B/s", 25.0, 50.0, "a data sheet")
PROFILE = Profile("H200 SXM", ("NVIDIA H200",), "SXM", (), {"memory": REFERENCE})
MEMORY = {"check": "memory", "figure": "memory", "unit": "B/s"}


def gpu(index: int, name: str = "NVIDIA H200", memory_bytes: int = 1 << 37) -> Gpu:
    return Gpu(index, name, f"GPU-{index}", memory_bytes, "9.0")


def rate(value: float, index: int | None = 0, name: str = "memory", kind: str = "") -> Figure:
    return Figure(name, index, "B/s", value, (1.0,), kind)


def judged(
    *figures: Figure,
    profile: Profile | None = None,
    history: Mapping[str, Past] | None = None,
    device: Any = "cuda",
    gpus: tuple[Gpu, ...] = (gpu(0), gpu(1), gpu(2)),
) -> list[Finding]:
    evidence = Evidence("quick", device, gpus, {})
    return list(
        judge_figures("memory", figures, evidence, Standards(profile, history=history or {}), TOLERANCES)
    )


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(95.0, "pass"), (94.99, "warn"), (90.0, "warn"), (89.99, "fail"), (100.0, "pass"), (200.0, "pass")],
)
def test_a_value_may_lie_less_than_two_shares_under_its_reference(value: float, verdict: str) -> None:
    assert shortfall(value, 100.0, 5.0, 10.0) == verdict


def test_a_rate_is_judged_by_the_reference_of_its_kind() -> None:
    (found,) = judged(rate(2.9e12), profile=PROFILE)
    assert found == Finding(
        **MEMORY, subject="GPU 0 memory", gpu=0, verdict="warn", found="2.9 TB/s",
        expected="at least 3 TB/s (4 TB/s - 25%)", basis="reference", source="a data sheet",
        advice="look at its cooling", value=2.9e12, reference=4e12,
    )  # fmt: skip
    (found,) = judged(rate(1.9e12, name="memory of all", kind="memory"), profile=PROFILE)
    assert (found.subject, found.verdict, found.reference) == ("GPU 0 memory of all", "fail", 4e12)
    (found,) = judged(rate(3.1e12, None), profile=PROFILE)
    assert (found.subject, found.verdict, found.advice) == ("memory", "pass", "")


@pytest.mark.parametrize(
    ("profile", "source"),
    [(None, "no profile of this device"), (PROFILE, "H200 SXM has no such figure")],
)
def test_a_rate_without_a_reference_is_told_and_does_not_count(profile: Profile | None, source: str) -> None:
    (found,) = judged(rate(3.7e12, name="copies"), profile=profile)
    assert found == Finding(
        check="memory", subject="GPU 0 copies", figure="copies", unit="B/s", gpu=0, verdict="not-run",
        found="3.7 TB/s", expected="no reference figure", basis="reference", source=source,
        advice="it is still compared with its peers and its history", value=3.7e12, counts=False,
    )  # fmt: skip


def of_basis(basis: str, found: list[Finding]) -> list[tuple[int | None, str, float | None]]:
    return [(one.gpu, one.verdict, one.reference) for one in found if one.basis == basis]


def test_each_gpu_is_compared_with_the_median_of_the_others() -> None:
    found = judged(rate(96.5, 0), rate(100.0, 1), rate(110.0, 2))
    assert of_basis("peers", found) == [(0, "fail", 105.0), (1, "warn", 103.25), (2, "pass", 98.25)]
    assert next(one for one in found if one.basis == "peers") == Finding(
        **MEMORY, subject="GPU 0 memory", gpu=0, verdict="fail",
        found="96.5 B/s, -8.1% of the others' median", expected="at most 3% under 105 B/s",
        basis="peers", source="the other GPUs of this node", advice="look at its cooling",
        value=96.5, reference=105.0,
    )  # fmt: skip


def test_only_equal_figures_of_equal_gpus_are_compared() -> None:
    assert of_basis("peers", judged(rate(100.0, 0))) == []
    assert of_basis("peers", judged(rate(100.0, 0), rate(50.0, 1, "copies"))) == []
    assert of_basis("peers", judged(rate(100.0, 0), rate(50.0, 9))) == [], "no such GPU"
    assert of_basis("peers", judged(rate(100.0, None), rate(50.0, None))) == [], "of the node"
    mixed = (gpu(0), gpu(1, "NVIDIA L4"))
    assert of_basis("peers", judged(rate(100.0, 0), rate(50.0, 1), gpus=mixed)) == []
    assert of_basis("peers", judged(rate(100.0, 0), rate(50.0, 1), device="cpu")) == []
    assert of_basis("peers", judged(rate(100.0, 0), rate(50.0, 1))) == [(0, "pass", 50.0), (1, "fail", 100.0)]


def test_a_gpu_is_compared_with_its_own_past_which_only_warns() -> None:
    past = {"GPU-1": Past(("first", "second", "last"), {"memory": (90.0, 100.0, 120.0), "copies": ()})}
    assert of_basis("history", judged(rate(95.0, 1), history=past)) == [(1, "pass", 100.0)]
    found = judged(rate(94.9, 1), history=past)
    assert of_basis("history", found) == [(1, "warn", 100.0)]
    assert found[-1].found == "94.9 B/s, -5.1% of its own past"
    assert found[-1].expected == "at most 5% under 100 B/s"
    assert found[-1].source == "this GPU in 3 earlier checks, the last last"
    assert of_basis("history", judged(rate(1e-9, 1), history=past)) == [(1, "warn", 100.0)]
    for unknown in (rate(94.9, 0), rate(94.9, None), rate(94.9, 1, "copies"), rate(94.9, 1, "matmul")):
        assert of_basis("history", judged(unknown, history=past)) == []


def test_a_comparison_tells_by_how_much_and_advises_unless_it_passes() -> None:
    for value, verdict, advice in (
        (106.0, "pass", ""),
        (97.0, "pass", ""),
        (96.9, "warn", TOLERANCES.advice),
    ):
        found = by_usual("memory", rate(value), 100.0, "its twin", "peers", "a twin", TOLERANCES)
        assert found == Finding(
            **MEMORY, subject="GPU 0 memory", gpu=0, verdict=verdict,  # type: ignore[arg-type]
            found=f"{value:.3g} B/s, {value - 100:+.1f}% of its twin", expected="at most 3% under 100 B/s",
            basis="peers", source="a twin", advice=advice, value=value, reference=100.0,
        )  # fmt: skip


def test_the_least_rates_of_a_file_system_are_bytes_in_a_second() -> None:
    rates = FileSystemRates(write_gb_per_second=1.5, read_gb_per_second=2.5, random_reads_per_second=1000.0)
    assert [rates.least(kind, 4096) for kind in ("write", "read", "random read")] == [
        1.5e9,
        2.5e9,
        4_096_000.0,
    ]
    assert [FileSystemRates().least(kind, 4096) for kind in ("write", "read", "random read")] == [None] * 3


def test_the_profile_of_a_node_is_that_of_its_only_model_of_gpus_that_answer() -> None:
    h200, h100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
    assert profile_of(h200) is not None
    assert profile_of("NVIDIA X900") is None
    assert profile_for([gpu(0, h200), gpu(1, h200)]) == profile_of(h200)
    assert profile_for([gpu(0, h200), gpu(1, h100)]) is None
    assert profile_for([gpu(0, h200), gpu(1, h100, memory_bytes=0)]) == profile_of(h200)
    assert profile_for([]) is None


def test_nothing_is_expected_of_a_node_unless_its_owner_says_so() -> None:
    assert Expectations() == Expectations(
        None, None, None, None, None, None, None, None, None, None, {}, None, None, None
    )
    assert Profile("mine", (), "SXM", (), {}) == Profile(
        "mine", (), "SXM", (), {}, None, None, None, True, None, ""
    )
