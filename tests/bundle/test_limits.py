"""The limits of a machine: figures just below each are accepted, and figures just above are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from bench.base.errors import VerificationFailed
from bench.base.gpu_catalogue import gpu_models
from bench.base.strict_json import canonical_json
from bench.bundle import telemetry_limits
from bench.bundle.physical_limits import Peak, require_ceiling, require_memory, require_names, require_rate
from bench.bundle.telemetry_limits import ClaimedRate, require_telemetry
from bench.records.estimate import estimate
from bench.records.slowdown import trial_reading
from bench.records.trial import Ceiling, Gpu, NodeFacts, StepSample, Trial
from bench.training.models import Flops
from tests.builders import MODEL, RECIPE, measurement, trial

H200, A100, L4, UNKNOWN = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "Accelerator 9000"
BELOW, ABOVE = 0.999, 1.001
GIB = 2**30


def node(*gpus: str, cores: int = 16, gib: float = 24) -> NodeFacts:
    """Describe a machine with GPUs of these names, each with so much memory; the host has 64 GiB."""
    known = tuple(Gpu(i, name, f"GPU-{i}", int(gib * GIB), "9.0") for i, name in enumerate(gpus))
    return NodeFacts("a CPU", cores, 64 * GIB, "Debian", "6.1", "3.12", known)


def best(figure: str) -> float:
    return max(getattr(gpu, figure) or 0.0 for gpu in gpu_models())


# --- rates ----------------------------------------------------------------------------------------------


def measured(node: NodeFacts, figure: str, rate: float, device: int = 0) -> None:
    """Hold a measured limit against its device; the unit follows from the figure."""
    unit: Literal["FLOP/s", "B/s"] = "FLOP/s" if figure.startswith("matmul") else "B/s"
    require_ceiling(node, node.gpus, Ceiling(figure, device, unit, round(rate), (1.0,)))


@pytest.mark.parametrize(("figure", "core_flops"), [("matmul-fp32", 1e12), ("matmul-bf16", 5e12)])
@pytest.mark.parametrize(("cores", "counted"), [(2047, 2047), (2048, 2048), (2049, 2048), (10**9, 2048)])
def test_no_machine_has_more_than_2048_cores(
    cores: int, counted: int, figure: str, core_flops: float
) -> None:
    cpu = node(cores=cores)
    measured(cpu, figure, BELOW * counted * core_flops)
    with pytest.raises(VerificationFailed, match=f"the most that {counted:,} cores can do"):
        measured(cpu, figure, ABOVE * counted * core_flops)


@pytest.mark.parametrize(
    ("machine", "figure", "most"),
    [
        (node(H200), "matmul-bf16", 1.5 * 989.4e12),
        (node(H200), "matmul-fp16", 1.5 * 989.4e12),
        (node(H200), "matmul-fp8", 1.5 * 1978.9e12),
        (node(H200), "matmul-tf32", 1.5 * 494.7e12),
        (node(H200), "matmul-fp32", 1.5 * 66.9e12),
        (node(H200), "matmul-of-a-later-version", 1.5 * 1978.9e12),
        (node(H200), "memory-bandwidth", 1.5 * 4800e9),
        (node(H200), "all-reduce", 1.5 * 900e9),
        (node(A100), "matmul-bf16", 1.5 * 312e12),
        (node(A100), "matmul-fp8", 1.5 * 312e12),  # it has no units for fp8
        (node(A100), "memory-bandwidth", 1.5 * 2039e9),
        (node(A100), "all-reduce", 1.5 * 600e9),
        (node(L4), "host-to-device", 1.5 * 128e9),
        (node(UNKNOWN), "matmul-bf16", 4 * best("bf16_tflops") * 1e12),
        (node(UNKNOWN), "memory-bandwidth", 4 * best("memory_gb_per_second") * 1e9),
        (node(UNKNOWN), "all-reduce", 4 * best("link_gb_per_second") * 1e9),
        (node(cores=64), "matmul-bf16", 64 * 5e12),
        (node(cores=64), "matmul-fp32", 64 * 1e12),
        (node(cores=4096), "matmul-bf16", 2048 * 5e12),
        (node(cores=64), "memory-bandwidth", 4e12),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_measured_limit_of_a_device(machine: NodeFacts, figure: str, most: float) -> None:
    measured(machine, figure, BELOW * most)
    with pytest.raises(VerificationFailed, match=f"its limit {figure} is "):
        measured(machine, figure, ABOVE * most)


def test_a_rate_may_be_as_high_as_its_limit() -> None:
    peak = Peak(100.0, "the most that anything can do", margin=1.5)
    peak.require("the rate", 150.0, "B/s")
    with pytest.raises(VerificationFailed, match="the rate is 0 GB/s; the most that anything can do is 0"):
        peak.require("the rate", 150.1, "B/s")


@pytest.mark.parametrize("name", ["NVIDIA H200\0", "NVIDIA\x1bH200", "NVIDIA H200\x7f"])
def test_the_name_of_a_gpu_has_no_control_characters(name: str) -> None:
    require_names(node(H200, UNKNOWN))
    with pytest.raises(VerificationFailed, match=r"the name of GPU 1 is .*; drivers write names in ASCII"):
        require_names(node(H200, name))


def test_each_gpu_of_a_node_is_held_to_its_own_model() -> None:
    machine = node(A100, H200, UNKNOWN)
    measured(machine, "matmul-bf16", 1400e12, device=1)
    measured(machine, "matmul-bf16", 5000e12, device=2)
    for device, name in ((0, A100), (3, A100), (4, H200)):  # those from 3 on are of another node like it
        with pytest.raises(VerificationFailed, match=f"the vendor's peak of an {name} is "):
            measured(machine, "matmul-bf16", 1500e12, device)


@pytest.mark.parametrize(
    ("machine", "gpus", "precision", "most"),
    [
        (node(H200), 1, "bf16", 1484.1e12),
        (node(H200), 1, "fp8", 2968.35e12),
        (node(H200), 1, "fp32", 742.05e12),  # a method may multiply in tf32
        (node(A100), 1, "fp8", 468e12),
        (node(H200, A100), 1, "bf16", 1484.1e12),
        (node(H200, A100), 2, "bf16", 1952.1e12),
        (node(H200, A100), 3, "bf16", 1.5 * 1952.1e12),  # on more GPUs than one node has
        (node(A100, A100), 4, "bf16", 4 * 468e12),
        (node(cores=16), 1, "bf16", 80e12),
        (node(cores=16), 4, "bf16", 80e12),  # processes on a CPU share it
        (node(cores=16), 1, "fp32", 16e12),
    ],
)
def test_the_rate_of_all_devices_of_a_trial(
    machine: NodeFacts, gpus: int, precision: Any, most: float
) -> None:
    one = trial(model=replace(MODEL, recipe=replace(RECIPE, precision=precision)), gpus=gpus)
    found = estimate(trial(), measurement([StepSample(2, 1.0)] * 3), measurement([]).flops, ())
    assert found is not None
    require_rate(machine, machine.gpus, one, replace(found, flops_per_second=BELOW * most))
    with pytest.raises(
        VerificationFailed, match=r"the rate of trial .*; the most that its devices can do is"
    ):
        require_rate(machine, machine.gpus, one, replace(found, flops_per_second=ABOVE * most))


# --- memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "most_gib", "has"),
    [
        (H200, 1.1 * 140.4, f"an {H200} has 140"),
        (A100, 1.1 * 80, f"an {A100} has 80"),
        (UNKNOWN, 4 * best("memory_gib"), "the largest known GPU has"),
    ],
)
def test_a_gpu_has_about_the_memory_of_its_data_sheet(name: str, most_gib: float, has: str) -> None:
    inside, outside = node(name, gib=BELOW * most_gib), node(name, gib=ABOVE * most_gib)
    require_memory(inside, inside.gpus, trial(), 1)
    with pytest.raises(VerificationFailed, match=f"GPU 0 has .* GiB; {has}"):
        require_memory(outside, outside.gpus, trial(), 1)


def test_a_gpu_that_nobody_knows_may_have_four_times_the_largest_known_memory() -> None:
    exactly = node(UNKNOWN, gib=4 * best("memory_gib"))
    require_memory(exactly, exactly.gpus, trial(), 1)


SMALL, LARGE = (node(H200, gib=gib).gpus[0] for gib in (20, 80))


@pytest.mark.parametrize(
    ("gpus", "most_gib"),
    [((SMALL,), 20), ((SMALL, LARGE), 80), ((), 64), ((replace(SMALL, memory_bytes=0),), 64)],
    ids=["one", "mixed", "none", "shared with the host"],
)
def test_a_trial_uses_no_more_memory_than_its_largest_device_has(gpus: Sequence[Gpu], most_gib: int) -> None:
    one: Trial = trial()
    require_memory(node(), gpus, one, most_gib * GIB)
    with pytest.raises(VerificationFailed, match=f"trial {one.id} used .*; its device has {most_gib}.0"):
        require_memory(node(), gpus, one, most_gib * GIB + 1)


# --- telemetry ------------------------------------------------------------------------------------------

Reading = Callable[[float], dict[str, float]]
TIMES = (0.0, 10.0, 20.0)  # seconds of readings; the steps of the trial were timed from 10 to 20


def report(*gpus: Reading, names: Sequence[str] = (H200,), times: Sequence[float] = TIMES) -> frozenset[str]:
    """Hold a trial of 500 TFLOP/s on each GPU, of a peak of 1,000, against readings; an H200 draws 700 W.

    Returns the trial, "t", if a GPU reported nothing that bounds it.
    """
    lines = (canonical_json({"at": at, "trial": "t", "gpus": [gpu(at) for gpu in gpus]}) for at in times)
    claimed = ClaimedRate(10.0, 20.0, 500e12, (1000e12,) * len(names))
    readings = filter(None, map(trial_reading, lines))
    return require_telemetry(readings, {"t": claimed}, node(*names).gpus)


def clock(timed: float, before: float = 0.0) -> Reading:
    return lambda at: {"sm_mhz": timed if at >= 10 else before}


def power(watts: float) -> Reading:
    return lambda at: {"power_watts": watts}


def energy(watts: float) -> Reading:
    return lambda at: {"energy_joules": watts * at}


@pytest.mark.parametrize(
    ("inside", "outside", "told"),
    [
        (
            clock(660, before=1980),
            clock(659, before=1980),
            "computed 500 TFLOP/s at 659 MHz, which it cannot",
        ),
        (clock(400), clock(399), "computed 500 TFLOP/s at 399 MHz, which it cannot"),
        (power(87.5), power(87.4), "computed 500 TFLOP/s with 87 W, which it cannot"),
        (energy(87.5), energy(87.4), "computed 500 TFLOP/s with 87 W, which it cannot"),
        (energy(1050), energy(1051), f"drew 1,051 W; the limit of an {H200} is 700"),
        (energy(10_000), energy(9_999), f"drew 9,999 W; the limit of an {H200} is 700"),
    ],
    ids=["clock", "low clock all the time", "power", "energy as power", "energy", "broken counter"],
)
def test_readings_that_a_rate_contradicts(inside: Reading, outside: Reading, told: str) -> None:
    report(inside)
    with pytest.raises(VerificationFailed, match=f"trial t: GPU 0 {told}"):
        report(outside)


def test_each_gpu_is_judged_by_its_own_readings() -> None:
    idle, busy = clock(100), clock(1980)
    report(busy, busy, names=(H200, A100))
    with pytest.raises(VerificationFailed, match="trial t: GPU 1 computed 500 TFLOP/s at 100 MHz"):
        report(busy, idle, names=(H200, A100))


def test_a_gpu_that_did_not_train_or_that_nobody_knows_is_not_judged() -> None:
    idle, busy = clock(100), clock(1980)
    report(busy, idle, names=(H200,))
    report(busy, idle, names=(H200, UNKNOWN))


def test_only_readings_during_the_timed_steps_or_within_a_second_and_a_half_are_judged() -> None:
    """A GPU is read once a second, and a trial may be shorter."""
    report(energy(2000), times=(0.0, 8.4, 21.6, 30.0))
    with pytest.raises(VerificationFailed, match="drew 2,000 W"):
        report(energy(2000), times=(0.0, 8.5, 21.5, 30.0))


def test_energy_counts_from_readings_three_seconds_apart() -> None:
    """The counters advance in steps."""
    report(energy(2000), times=(10.0, 12.9))
    with pytest.raises(VerificationFailed, match="drew 2,000 W"):
        report(energy(2000), times=(10.0, 13.0))


@pytest.mark.parametrize("tells", [clock(1980), power(600), energy(600)], ids=["clock", "power", "energy"])
def test_any_of_clock_power_and_energy_bounds_a_trial(tells: Reading) -> None:
    assert report(tells) == frozenset()
    assert report(lambda at: {"celsius": 60}) == {"t"}


def test_each_gpu_that_trained_must_report_something() -> None:
    """The readings of one GPU bound no other GPU."""
    silent: Reading = lambda at: {}  # noqa: E731
    assert report(clock(1980), clock(1980), names=(H200, H200)) == frozenset()
    assert report(clock(1980), silent, names=(H200, H200)) == {"t"}
    assert report(clock(1980), names=(H200, H200)) == {"t"}


def test_energy_counts_only_where_it_is_reported() -> None:
    """A counter that begins late did not begin at nothing."""
    late: Reading = lambda at: {"energy_joules": 700 * at} if at >= 20 else {}  # noqa: E731
    report(late)


def test_a_counter_that_stands_still_says_nothing_and_one_that_moves_says_what_was_drawn() -> None:
    assert report(energy(0)) == {"t"}
    with pytest.raises(VerificationFailed, match="computed 500 TFLOP/s with 0 W, which it cannot"):
        report(energy(1e-3))


def test_a_reported_power_counts_however_low_it_is() -> None:
    with pytest.raises(VerificationFailed, match="computed 500 TFLOP/s with 0 W, which it cannot"):
        report(power(0.4))


def test_a_gpu_that_is_no_object_in_a_reading_reported_nothing() -> None:
    lost: Any = lambda at: "lost"  # noqa: E731
    assert report(lost) == {"t"}
    assert report(clock(1980), lost, names=(H200, H200)) == {"t"}


def test_a_gpu_without_a_known_power_limit_is_judged_by_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (model,) = (model for model in gpu_models() if model.name == H200)
    monkeypatch.setattr(telemetry_limits, "gpu_named", lambda _: replace(model, watts=None))
    assert report(power(20)) == report(energy(5000)) == frozenset()
    with pytest.raises(VerificationFailed, match="computed 500 TFLOP/s at 399 MHz, which it cannot"):
        report(clock(399))


@pytest.mark.parametrize(
    ("unit", "rate", "said"),
    [
        ("FLOP/s", 2.2e12, "its rate is 2 TFLOP/s; the limit is 2"),
        ("B/s", 3.1e12, "its rate is 3,100 GB/s; the limit is 2,000"),
    ],
)
def test_a_rate_above_its_peak_is_told_in_the_unit_of_its_kind(unit: Any, rate: float, said: str) -> None:
    peak = Peak(2e12, "the limit", 1.1)
    peak.require("its rate", 2.2e12 * (1 - 1e-12), unit)
    with pytest.raises(VerificationFailed) as caught:
        peak.require("its rate", rate * (1 + 1e-9), unit)
    assert caught.value.message == said


def test_a_claimed_rate_is_told_in_tflops() -> None:
    found = estimate(trial(), measurement([StepSample(2, 1.0)] * 3), Flops(1), ())
    assert found is not None
    said = r"^the rate of trial \w+ is 9,000,000 TFLOP/s; the most that its devices can do is 742$"
    with pytest.raises(VerificationFailed, match=said):
        require_rate(node(H200), node(H200).gpus, trial(), replace(found, flops_per_second=9e18))
