"""Every fault that can be injected is found, by the check that is for it, on the GPU that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from bench.node_check.checks import xid
from bench.node_check.judging.evidence import BEFORE, Evidence, Figure
from bench.node_check.judging.finding import Finding, overall
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import (
    Expectations,
    Past,
    Profile,
    Reference,
    Standards,
    profile_for,
    profile_of,
)
from bench.records.trial import Gpu
from tests.node_check.checks.node import HOST, bad, evidence, findings


class Fault(NamedTuple):
    check: str
    verdict: str
    gpu: int | None
    scenario: dict[str, Any]


def speed(value: int) -> list[dict[str, Any]]:
    """Encode a field's answer as NVML gives it."""
    return [{"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": value, "ullVal": value}}]


FAULTS = {
    "a GPU that is lost from the start": Fault("present", "fail", 3, {"lost": {"3": 1}}),
    "a GPU that is lost under load": Fault("present", "fail", 3, {"lost": {"3": 3}}),
    "a GPU that is lost at the end": Fault("present", "fail", 3, {"lost": {"3": 4}}),
    "a GPU that wants a reset": Fault(
        "present", "fail", 2, {"gpus": {"2": {"field.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": speed(1)}}}
    ),
    "a GPU that wants a reset after the load": Fault(
        "present", "fail", 2, {"later": {"2": {"field.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": speed(1)}}}
    ),
    "another model": Fault("alike", "fail", 6, {"gpus": {"6": {"Name": "NVIDIA H100 80GB HBM3"}}}),
    "another VBIOS": Fault("alike", "warn", 6, {"gpus": {"6": {"VbiosVersion": "96.00.00.00.01"}}}),
    "another power limit": Fault("alike", "fail", 6, {"gpus": {"6": {"PowerManagementLimit": 500000}}}),
    "GPUs on which no program may compute": Fault("alike", "fail", 0, {"all": {"ComputeMode": 2}}),
    "a GPU in MIG mode": Fault("alike", "fail", 6, {"gpus": {"6": {"MigMode": [1, 1]}}}),
    "a stranger's process": Fault(
        "strangers",
        "fail",
        1,
        {"gpus": {"1": {"ComputeRunningProcesses": [{"pid": 4711, "usedGpuMemory": None}]}}},
    ),
    "memory held by a stranger": Fault(
        "strangers",
        "fail",
        1,
        {"gpus": {"1": {"MemoryInfo": {"total": 150754820096, "free": 1, "used": 9 << 30}}}},
    ),
    "a tenth of the GPU taken": Fault(
        "strangers", "fail", 1, {"gpus": {"1": {"UtilizationRates": {"gpu": 10, "memory": 1}}}}
    ),
    "traffic on the bus": Fault("strangers", "fail", 1, {"gpus": {"1": {"PcieThroughput.0": 12_000_000}}}),
    "one card by eight names": Fault("own-card", "fail", None, {"rates": {"own-card": {"*": 0.125}}}),
    "two names of one card among others": Fault(
        "own-card", "fail", None, {"rates": {"own-card": {"3": 0.5, "6": 0.5}}}
    ),
    "a UUID of two GPUs": Fault(
        "present", "fail", None, {"gpus": {"1": {"UUID": "GPU-a"}, "2": {"UUID": "GPU-a"}}}
    ),
    "fewer GPUs in the kernel's list": Fault(
        "present",
        "fail",
        None,
        {"kernel": {"gpus": [{"bus": "0000:10:00.0", "uuid": None, "name": None}], "unseen": None}},
    ),
    "a card of another name": Fault(
        "present",
        "fail",
        None,
        {
            "count": 1,
            "kernel": {"gpus": [{"bus": "0000:10:00.0", "uuid": None, "name": "NVIDIA L4"}], "unseen": None},
        },
    ),
    "slow arithmetic": Fault("matmul", "fail", 5, {"rates": {"matmul": {"5": 0.884}}}),
    "slow arithmetic everywhere": Fault("matmul", "fail", 0, {"rates": {"matmul": {"*": 0.7}}}),
    "slow memory": Fault("memory", "fail", 4, {"rates": {"memory": {"4": 0.9}}}),
    "slow copies": Fault("copies", "fail", 0, {"rates": {"copies": {"0": 0.5}}}),
    "a slow pair": Fault("peers", "fail", None, {"rates": {"peers": {"2-5": 0.5}}}),
    "a slow all-reduce": Fault("all-reduce", "fail", None, {"rates": {"all-reduce": {"*": 0.6}}}),
    "NVLS that is slow as rings": Fault(
        "all-reduce", "fail", None, {"algorithm": "NVLS", "rates": {"all-reduce": {"*": 0.75}}}
    ),
    "passes that give other bits": Fault("agreement", "fail", 2, {"wrong": {"2": {"wrong_passes": 1}}}),
    "memory that forgets": Fault("agreement", "fail", 2, {"wrong": {"2": {"wrong_words": 3}}}),
    "a GPU that computes otherwise": Fault(
        "agreement", "fail", 2, {"wrong": {"2": {"digests": {"bf16": "b" * 32}}}}
    ),
    "a rate that sags": Fault("soak", "fail", 4, {"sag": {"4": 0.85}}),
    "thermal throttling": Fault("soak", "fail", 4, {"load": {"4": {"CurrentClocksEventReasons": 0x44}}}),
    "software thermal throttling": Fault(
        "soak", "fail", 4, {"load": {"4": {"CurrentClocksEventReasons": 0x24}}}
    ),
    "a power brake": Fault("soak", "fail", 4, {"load": {"4": {"CurrentClocksEventReasons": 0x80}}}),
    "heat": Fault("soak", "warn", 4, {"load": {"4": {"Temperature.GPU": 88}}}),
    "an older PCIe generation under load": Fault(
        "pcie", "fail", 2, {"load": {"2": {"CurrPcieLinkGeneration": 4}}}
    ),
    "half the PCIe lanes": Fault("pcie", "fail", 2, {"load": {"2": {"CurrPcieLinkWidth": 8}}}),
    "PCIe replays": Fault(
        "pcie", "warn", 2, {"later": {"2": {"field.NVML_FI_DEV_PCIE_REPLAY_COUNTER": speed(400)}}}
    ),
    "fatal PCIe errors": Fault(
        "pcie", "fail", 2, {"later": {"2": {"field.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR": speed(1)}}}
    ),
    "an NVLink that is down": Fault("nvlink", "fail", 7, {"gpus": {"7": {"NvLinkState.11": 0}}}),
    "NVLink replays": Fault("nvlink", "fail", 7, {"later": {"7": {"NvLinkErrorCounter.11.0": 4}}}),
    "NVLink CRC errors": Fault("nvlink", "warn", 7, {"later": {"7": {"NvLinkErrorCounter.11.2": 5000}}}),
    "a slow NVLink": Fault(
        "nvlink", "fail", 7, {"gpus": {"7": {"field.NVML_FI_DEV_NVLINK_GET_SPEED": speed(13281)}}}
    ),
    "a fabric that is not up": Fault(
        "fabric", "fail", 0, {"gpus": {"0": {"FabricInfo": {"state": 2, "status": 0, "healthMask": 0}}}}
    ),
    "a fabric with errors": Fault(
        "fabric", "fail", 0, {"gpus": {"0": {"FabricInfo": {"state": 3, "status": 999, "healthMask": 0}}}}
    ),
    "a degraded fabric": Fault(
        "fabric", "fail", 0, {"gpus": {"0": {"FabricInfo": {"state": 3, "status": 0, "healthMask": 1}}}}
    ),
    "a lowered power limit everywhere": Fault("power", "fail", 0, {"all": {"EnforcedPowerLimit": 500000}}),
    "no persistence": Fault("power", "warn", 0, {"all": {"PersistenceMode": 0}}),
    "ECC off": Fault("ecc", "fail", 1, {"gpus": {"1": {"EccMode": [0, 0]}}}),
    "ECC off after the next reset": Fault("ecc", "warn", 1, {"gpus": {"1": {"EccMode": [1, 0]}}}),
    "uncorrected errors since boot": Fault("ecc", "fail", 1, {"gpus": {"1": {"TotalEccErrors.1.0": 2}}}),
    "uncorrected errors under load": Fault("ecc", "fail", 1, {"later": {"1": {"TotalEccErrors.1.0": 1}}}),
    "uncorrected errors long ago": Fault("ecc", "warn", 1, {"gpus": {"1": {"TotalEccErrors.1.1": 7}}}),
    "very many corrected errors": Fault("ecc", "warn", 1, {"gpus": {"1": {"TotalEccErrors.0.0": 90000}}}),
    "more SRAM errors than the card allows": Fault(
        "ecc", "fail", 1, {"gpus": {"1": {"SramEccErrorStatus": {"bThresholdExceeded": 1}}}}
    ),
    "a row that waits for its remapping": Fault(
        "rows", "fail", 3, {"gpus": {"3": {"RemappedRows": [0, 1, 1, 0]}}}
    ),
    "remapping that failed": Fault("rows", "fail", 3, {"gpus": {"3": {"RemappedRows": [0, 9, 0, 1]}}}),
    "rows remapped for uncorrected errors": Fault(
        "rows", "warn", 3, {"gpus": {"3": {"RemappedRows": [0, 1, 0, 0]}}}
    ),
    "an Xid under load": Fault("xid", "fail", 5, {"xids": {"5": [79]}}),
    "a repaired memory error under load": Fault("xid", "warn", 5, {"xids": {"5": [63]}}),
    "a query that this driver cannot answer": Fault(
        "ecc",
        "not-run",
        1,
        {"gpus": {"1": {"TotalEccErrors.1.0": {"error": "NVMLError_Unknown", "value": 999}}}},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_by_its_check(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    every = findings(evidence(tmp_path, **fault.scenario))
    found = [f for f in bad(every) if f.check == fault.check and f.verdict == fault.verdict]
    assert any(f.gpu == fault.gpu for f in found), [f"{f.check}: {f.subject}: {f.found}" for f in bad(every)]
    assert all(f.expected and f.source for f in every)
    assert all(f.advice for f in found if f.verdict in ("warn", "fail"))
    assert overall(every) != "pass"


def test_a_kernel_that_shows_no_list_is_told_and_does_not_fail_the_node(tmp_path: Path) -> None:
    every = findings(evidence(tmp_path, kernel={"gpus": [], "unseen": "hidden here"}))
    (found,) = (f for f in every if f.subject == "the kernel's list")
    assert (found.verdict, found.found, found.counts, overall(every)) == (
        "not-run",
        "hidden here",
        False,
        "pass",
    )


def test_a_bundle_from_before_these_looks_is_judged_without_them(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    before = found.readings[BEFORE]
    data = {name: value for name, value in before.data.items() if name != "kernel_gpus"}
    older = {name: reading for name, reading in found.readings.items() if name != "own-card"}
    every = findings(replace(found, readings={**older, BEFORE: replace(before, data=data)}))
    assert not [f for f in every if f.subject == "the kernel's list"]
    (left,) = (f for f in every if f.check == "own-card")
    assert (left.found, left.counts, overall(every)) == ("the bundle is older than this check", False, "pass")


def test_a_gpu_without_its_power_cable_says_why_it_does_not_answer(tmp_path: Path) -> None:
    cable = {"3": {"error": "NVMLError_InsufficientPower", "value": 8}}
    every = bad(findings(evidence(tmp_path, handles=cable)))
    assert [(f.gpu, f.found) for f in every if f.check == "present"] == [
        (3, "does not answer: InsufficientPower")
    ]


def test_differences_are_reported_in_words_and_units(tmp_path: Path) -> None:
    other = {"MigMode": [0, 1], "ComputeMode": 3, "PowerManagementLimit": 650000}
    said = {f.found: f.expected for f in bad(findings(evidence(tmp_path, count=2, gpus={"1": other})))}
    assert said == {
        "MIG mode off, on after the next reset": "MIG mode off, as another GPU has it",
        "compute mode exclusive process": "compute mode default, as another GPU has it",
        "power limit 650 W": "power limit 700 W, as another GPU has it",
    }


def test_clocks_that_somebody_set_are_reported_and_not_a_fault(tmp_path: Path) -> None:
    every = findings(evidence(tmp_path, load={"4": {"CurrentClocksEventReasons": 0x06}}))
    assert not bad(every)
    said = {f.gpu: f.found for f in every if f.subject.endswith("throttling")}
    assert "clocks set by a user (in " in said.pop(4)
    assert set(said.values()) == {"only the power cap"}


def test_a_good_node_of_any_size_passes(tmp_path: Path) -> None:
    for count in (1, 2, 4, 8):
        every = findings(evidence(tmp_path, count=count))
        assert not bad(every), [f"{f.check}: {f.subject}: {f.found}" for f in bad(every)]
        assert overall(every) == "pass"


def test_a_node_does_not_fail_because_nvls_is_off(tmp_path: Path) -> None:
    by_rings = evidence(tmp_path, algorithm="RING")
    (finding,) = [f for f in findings(by_rings) if f.check == "all-reduce" and f.figure]
    assert finding.verdict == "pass"
    assert "370 GB/s" in finding.expected
    nvls = evidence(tmp_path, algorithm="NVLS")
    assert "480 GB/s" in next(f for f in findings(nvls) if f.check == "all-reduce" and f.figure).expected


HOST_FAULTS = {
    "clock": (
        {
            "state": 5,
            "status": 0x40,
            "max_error_seconds": 16.0,
            "estimated_error_seconds": 16.0,
            "virtual": False,
        },
        "warn",
    ),
    "disk": ({**HOST["disk"], "write_seconds": 60.0}, "warn"),
    "host-memory": ({"figures": [{**HOST["host-memory"]["figures"][0], "samples": [2.0, 2.0]}]}, "warn"),
    "xid": (
        {"lines": ["[ 12.3] NVRM: Xid (PCI:0000:12:00): 95, pid=4711, Uncontained ECC error"]},
        "fail",
    ),
}


@pytest.mark.parametrize("check", HOST_FAULTS)
def test_faults_of_the_host_are_found(check: str, tmp_path: Path) -> None:
    data, verdict = HOST_FAULTS[check]
    every = findings(evidence(tmp_path, host={check: data}))
    assert {f.check for f in bad(every)} == {check}
    assert {f.verdict for f in bad(every)} == {verdict}


def test_a_full_disk_fails(tmp_path: Path) -> None:
    every = findings(evidence(tmp_path, host={"disk": {**HOST["disk"], "free_bytes": 1 << 30}}))
    assert [(f.check, f.verdict) for f in bad(every)] == [("disk", "fail")]


def test_an_earlier_xid_is_attributed_to_its_own_gpu(tmp_path: Path) -> None:
    data, _ = HOST_FAULTS["xid"]
    every = findings(evidence(tmp_path, host={"xid": data}))
    assert [f.gpu for f in bad(every)] == [2]  # bus 12 in this machine


def log(*lines: str) -> dict[str, Any]:
    return {"xid": {"lines": [f"[ 12.3] {line}" for line in lines]}}


def test_an_xid_of_a_gpu_that_disappeared_fails_the_node(tmp_path: Path) -> None:
    gone = log("NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', GPU has fallen off the bus.")
    (finding,) = bad(findings(evidence(tmp_path, count=7, host=gone)))  # the eighth was at 17
    assert (finding.check, finding.verdict, finding.gpu) == ("xid", "fail", None)
    assert finding.line == (
        "xid: 0000:17:00, where no GPU answers: Xid 79 (fallen off the bus) since boot, in the kernel's log"
    )
    lost = bad(findings(evidence(tmp_path, lost={"7": 1}, host=gone)))
    assert "0000:17:00, where no GPU answers" in {f.subject for f in lost}


def test_an_xid_of_an_excluded_gpu_does_not_affect_the_others(tmp_path: Path) -> None:
    found = evidence(tmp_path, host=log("NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."))
    assert not bad(findings(replace(found, gpus=found.gpus[:4])))


def test_errors_of_nvswitches_are_found(tmp_path: Path) -> None:
    first = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress PRIV error"
    mild, fatal = log(first), log(first, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30")
    (finding,) = bad(findings(evidence(tmp_path, host=mild)))
    assert (finding.check, finding.verdict, finding.subject) == ("xid", "warn", "NVSwitch 0000:c1:00")
    (finding,) = bad(findings(evidence(tmp_path, host=fatal)))
    assert (finding.verdict, finding.advice != "") == ("fail", True)
    assert "20034 (fatal)" in finding.found


def test_repeated_xids_of_a_crashing_program_do_not_hide_other_xids() -> None:
    records = ["NVRM: Xid (PCI:0000:12:00): 95, Uncontained"]
    records += [f"NVRM: Xid (PCI:0000:12:00): 31, pid={i}" for i in range(5000)]
    records.append("usb 1-1: another driver's line, Xid ( no number")
    lines = xid.lines_of(records)
    assert lines[0] == "NVRM: Xid (PCI:0000:12:00): 95, Uncontained"
    assert lines[-1].endswith("pid=4999")
    assert len(lines) < 100


def test_a_crashed_program_is_not_a_hardware_fault(tmp_path: Path) -> None:
    assert not bad(findings(evidence(tmp_path, xids={"3": [13, 31, 43]})))


def test_a_node_must_match_the_ordered_hardware(tmp_path: Path) -> None:
    found = evidence(tmp_path, count=7)
    profile = profile_of("NVIDIA H200")
    for expect, check in (
        (Expectations(gpus=8), "present"),
        (Expectations(gpu="NVIDIA H100 80GB HBM3"), "present"),
        (Expectations(driver="999."), "alike"),
        (Expectations(vbios="0"), "alike"),
        (Expectations(power_watts=1000), "power"),
        (Expectations(pcie_generation=6), "pcie"),
        (Expectations(disk_gb_per_second=50), "disk"),
        (Expectations(host_gb_per_second=900), "host-memory"),
    ):
        assert {(f.check, f.verdict) for f in bad(findings(found, Standards(profile, expect)))} == {
            (check, "fail")
        }


def judged(
    basis: str, *rates: float, past: tuple[float, ...] = (), device: Literal["cpu", "cuda"] = "cuda"
) -> list[Finding]:
    """Judge the bandwidth of equal GPUs that all have one past; 5% less warns, 10% less fails."""
    gpus = tuple(Gpu(i, "a card", f"GPU-{i}", 2**34, "9.0") for i in range(len(rates)))
    figures = [Figure("memory", i, "B/s", rate, (1.0,)) for i, rate in enumerate(rates)]
    history = {gpu.uuid: Past(tuple("abcdefgh"[: len(past)]), {"memory": past}) for gpu in gpus if past}
    node, standards = Evidence("quick", device, gpus, {}), Standards(None, history=history)
    every = judge_figures("memory", figures, node, standards, Tolerances(5, 10, 5, "look at it"))
    return [finding for finding in every if finding.basis == basis]


@pytest.mark.parametrize(
    ("rates", "usual", "verdicts"),
    [
        ((100.0, 80.0), [80, 100], ["pass", "fail"]),
        ((100.0, 90.0, 40.0), [65, 70, 95], ["pass", "pass", "fail"]),
        ((100.0, 100.0, 100.0, 40.0), [100, 100, 100, 100], ["pass", "pass", "pass", "fail"]),
        ((100.0,), [], []),
    ],
)
def test_each_gpu_is_compared_with_the_median_of_the_others(
    rates: tuple[float, ...], usual: list[float], verdicts: list[str]
) -> None:
    found = judged("peers", *rates)
    assert [f.reference for f in found] == usual
    assert [f.verdict for f in found] == verdicts


@pytest.mark.parametrize(
    ("rate", "verdict"), [(95.0, "pass"), (94.9, "warn"), (90.0, "warn"), (89.9, "fail"), (200.0, "pass")]
)
def test_less_than_the_peers_by_5_percent_warns_and_by_10_percent_fails(rate: float, verdict: str) -> None:
    assert judged("peers", 100.0, 100.0, rate)[2].verdict == verdict


def test_processes_that_share_a_cpu_are_no_peers() -> None:
    assert judged("peers", 100.0, 10.0, device="cpu") == []


@pytest.mark.parametrize(
    ("past", "now", "usual", "verdict"),
    [
        ((100.0, 100.0, 80.0), 80.0, 100.0, "warn"),  # slow decay
        ((100.0, 80.0, 90.0), 90.0, 90.0, "pass"),
        ((100.0,), 95.0, 100.0, "pass"),
        ((100.0,), 94.9, 100.0, "warn"),
        ((100.0,), 1.0, 100.0, "warn"),  # its own past alone never fails a GPU
    ],
)
def test_a_gpu_is_compared_with_the_median_of_its_own_past(
    past: tuple[float, ...], now: float, usual: float, verdict: str
) -> None:
    (found,) = judged("history", now, past=past)
    assert (found.reference, found.verdict) == (usual, verdict)


def test_a_deviation_is_told_in_percent_and_advice_is_given_only_where_something_is_wrong() -> None:
    good, slow = judged("peers", 100.0, 80.0)
    assert (good.found, good.advice) == ("100 B/s, +25.0% of the others' median", "")
    assert (slow.found, slow.advice) == ("80 B/s, -20.0% of the others' median", "look at it")
    assert slow.expected == "at most 5% under 100 B/s"
    (older,) = judged("history", 100.0, past=(99.0, 80.0))
    assert (older.found, older.advice) == ("100 B/s, +11.7% of its own past", "")
    assert older.source == "this GPU in 2 earlier checks, the last b"


def test_a_gpu_that_was_faster_before_gets_a_warning(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    uuid = found.gpus[2].uuid
    usual = next(f.rate for f in found.figures("memory") if f.gpu == 2)
    past = {uuid: Past(("a", "b"), {"memory": (1.08 * usual, 1.09 * usual)})}
    (finding,) = bad(findings(found, Standards(profile_of("NVIDIA H200"), Expectations(), past)))
    assert (finding.check, finding.gpu, finding.basis) == ("memory", 2, "history")


def test_rows_remapped_since_the_last_check_give_a_warning(tmp_path: Path) -> None:
    found = evidence(tmp_path, gpus={"2": {"RemappedRows": [3, 0, 0, 0]}})
    past = {found.gpus[2].uuid: Past(("a",), {}, {"remapped rows": 1})}
    standards = Standards(profile_of("NVIDIA H200"), Expectations(), past)
    (finding,) = bad(findings(found, standards))
    assert (finding.check, finding.gpu, finding.basis) == ("rows", 2, "history")
    assert "2 more than at its last check" in finding.found


def test_two_differing_gpus_are_both_named_because_neither_is_known_good(tmp_path: Path) -> None:
    found = evidence(tmp_path, count=2, wrong={"1": {"digests": {"bf16": "b" * 32}}})
    assert {f.gpu for f in bad(findings(found)) if f.check == "agreement"} == {0, 1}


def test_a_required_check_counts_even_if_it_is_not_possible(tmp_path: Path) -> None:
    """An unreadable kernel log does not prevent a pass, unless the manifest requires the check."""
    found = evidence(tmp_path, host={"xid": {"closed": "/dev/kmsg: Operation not permitted"}})
    assert overall(findings(found)) == "pass"
    assert any("run as root" in f.advice for f in findings(found) if f.check == "xid")
    assert overall(findings(found, require=("xid",))) == "not-run"


def test_gpus_of_two_kinds_are_not_compared(tmp_path: Path) -> None:
    """A desktop may have a second card: the difference is reported, but the slower card is not faulty."""
    slow = {"rates": {"matmul": {"1": 0.3}, "memory": {"1": 0.2}, "soak": {"1": 0.3}}}
    names = {"1": {"Name": "NVIDIA RTX A6000", "CudaComputeCapability": [8, 6]}}
    found = evidence(tmp_path, count=2, gpus=names, **slow)
    assert profile_for(found.gpus) is None
    every = findings(found, Standards(profile_for(found.gpus)))
    assert {f.check for f in bad(every)} == {"alike"}
    one_kind = evidence(tmp_path, count=2, **slow)
    assert profile_for(one_kind.gpus) == profile_of("NVIDIA H200")
    assert {"matmul", "memory"} <= {f.check for f in bad(findings(one_kind))}


def test_a_gpu_that_is_lost_leaves_the_others_their_profile(tmp_path: Path) -> None:
    assert profile_for(evidence(tmp_path, lost={"0": 1}).gpus) == profile_of("NVIDIA H200")


def test_short_heat_is_a_warning(tmp_path: Path) -> None:
    """A card without cooling is too hot all the time; a warm card only now and then."""
    found = evidence(tmp_path, load={"4": {"CurrentClocksEventReasons": 0x24}})
    hot = list(found.during("soak"))
    cool = replace(hot[0], gpus=tuple(replace(gpu, throttle_reasons=0x04) for gpu in hot[0].gpus))
    for moments, verdict in ((len(hot) + 1, "warn"), (len(hot), "fail")):
        (finding,) = bad(findings(replace(found, course=(*found.course, *[cool] * moments))))
        assert (finding.check, finding.gpu, finding.verdict) == ("soak", 4, verdict)
        told = f"software thermal slowdown in {len(hot)} of {len(hot) + moments} samples"
        assert told in finding.found


def test_no_answer_is_not_a_pass(tmp_path: Path) -> None:
    found = evidence(tmp_path)
    for name in ("matmul", "soak", "inventory-before", "inventory-after", "idle"):
        readings = {k: v for k, v in found.readings.items() if k != name}
        assert overall(findings(replace(found, readings=readings))) == "not-run", name
    assert overall(findings(replace(found, course=()))) == "not-run"


NOT_SUPPORTED = {"error": "NVMLError_NotSupported", "value": 3}
# Values that a consumer card, a virtual card or a driver under WSL does not report, by check.
UNSAID = {
    "Xid events": ("xid", {"RegisterEvents": NOT_SUPPORTED}),
    "its link": ("pcie", {"CurrPcieLinkGeneration": NOT_SUPPORTED, "CurrPcieLinkWidth": NOT_SUPPORTED}),
    "why it slows down": ("soak", {"CurrentClocksEventReasons": NOT_SUPPORTED}),
    "its temperature": ("soak", {"Temperature.GPU": NOT_SUPPORTED}),
    "its power limit": (
        "power",
        {"EnforcedPowerLimit": NOT_SUPPORTED, "PowerManagementLimit": NOT_SUPPORTED},
    ),
    "ECC": ("ecc", {"EccMode": NOT_SUPPORTED}),
    "remapped rows": (
        "rows",
        {"RemappedRows": NOT_SUPPORTED, "RetiredPages.0": NOT_SUPPORTED, "RetiredPages.1": NOT_SUPPORTED},
    ),
    "errors of its NVLinks": (
        "nvlink",
        {f"NvLinkErrorCounter.{link}.{kind}": NOT_SUPPORTED for link in range(18) for kind in range(3)},
    ),
}


@pytest.mark.parametrize("what", UNSAID)
def test_a_value_that_a_card_never_reports_is_not_possible_and_not_a_pass(what: str, tmp_path: Path) -> None:
    check, unsaid = UNSAID[what]
    found = evidence(tmp_path, gpus={"3": unsaid}, load={"3": unsaid})
    every = findings(found)
    (silent,) = [f for f in every if f.check == check and f.gpu == 3 and f.verdict == "not-run"]
    assert not silent.counts
    assert overall(every) == "pass", [f"{f.check}: {f.subject}: {f.found}" for f in bad(every)]
    assert overall(findings(found, require=(check,))) == "not-run"
    others = [f for f in every if f.check == check and f.gpu not in (3, None)]
    assert {f.verdict for f in others} == {"pass"}


def test_a_limit_without_a_reference_is_not_a_pass(tmp_path: Path) -> None:
    found = evidence(tmp_path, all={"PowerManagementDefaultLimit": NOT_SUPPORTED})
    every = [f for f in findings(found, Standards(None)) if f.check == "power"]
    assert {f.verdict for f in every if "limit" in f.subject + f.found} == {"not-run"}


def test_only_observed_values_are_called_idle(tmp_path: Path) -> None:
    unsaid = dict.fromkeys(("ComputeRunningProcesses", "PcieThroughput.0", "PcieThroughput.1"), NOT_SUPPORTED)
    every = [f for f in findings(evidence(tmp_path, all=unsaid)) if f.check == "strangers"]
    assert {f.found for f in every} == {"idle: no load"}


def test_links_that_wait_for_fabric_manager_are_the_fabrics_fault(tmp_path: Path) -> None:
    """Links that wait for fabric manager are down, and do not report that they lead to a switch."""
    waiting = {f"NvLinkState.{link}": 0 for link in range(18)} | {
        "NvLinkRemoteDeviceType.0": {"error": "NVMLError_InvalidArgument", "value": 2},
        "FabricInfo": {"state": 1, "status": 0, "healthMask": 0},
    }
    every = bad(findings(evidence(tmp_path, all=waiting)))
    fabric = [f for f in every if f.check == "fabric"]
    assert {(f.verdict, f.found) for f in fabric} == {("fail", "the fabric is not started")}
    assert all("nvidia-fabricmanager" in f.advice for f in fabric)
    assert {"fabric" in f.advice and "return" not in f.advice for f in every if f.check == "nvlink"} == {True}


BRIDGED = {"Name": "NVIDIA GeForce RTX 3090", "NvLinkRemoteDeviceType.0": 0, "CurrPcieLinkGeneration": 4}
UNLINKED = {f"NvLinkState.{link}": 0 for link in range(18)}


def bridged(folder: Path, count: int, cut: set[str], **more: Any) -> list[Finding]:
    """Make cards that are bridged in pairs; a GeForce card reaches no other card directly."""
    pairs = {f"{a}-{b}" for a in range(count) for b in range(count) if a != b and a // 2 != b // 2}
    found = evidence(folder, count=count, all=BRIDGED, cut=sorted(pairs | cut), **more)
    return [f for f in findings(found) if f.check in ("peers", "nvlink") and f.verdict in ("warn", "fail")]


def test_cards_bridged_in_pairs_need_no_link_to_other_pairs(tmp_path: Path) -> None:
    assert bridged(tmp_path, 4, set()) == []
    (finding,) = bridged(tmp_path, 4, {"0-1", "1-0"})
    assert (finding.check, finding.verdict) == ("peers", "fail")
    # Cards on one baseboard do need links to all others.
    assert "no direct access: 0-2" in [f.found for f in bad(findings(evidence(tmp_path, cut=["0-2"])))]


def test_a_card_without_a_bridge_is_mentioned_and_does_not_fail(tmp_path: Path) -> None:
    (finding,) = bridged(tmp_path, 3, set(), gpus={"2": UNLINKED})
    assert (finding.check, finding.verdict, finding.gpu) == ("nvlink", "warn", 2)
    assert "bridge" in finding.advice
    on_a_board = findings(evidence(tmp_path, gpus={"2": UNLINKED}))
    assert {f.verdict for f in on_a_board if (f.check, f.gpu, f.found) == ("nvlink", 2, "0 links up")} == {
        "fail"
    }


def test_a_finding_by_the_reference_says_what_was_found_and_what_is_least() -> None:
    reference = Reference(100e12, "FLOP/s", warn_percent=5, fail_percent=10, source="the vendor")
    profile = Profile("a profile", ("a GPU",), "SXM", (), {"bf16": reference}, "2026-11-26")
    tolerances = Tolerances(5, 10, 5, "advice")
    on_a_cpu = Evidence("quick", "cpu", (), {})
    for rate, verdict in ((95e12, "pass"), (94.9e12, "warn"), (90e12, "warn"), (89.9e12, "fail")):
        (found,) = judge_figures(
            "matmul", [Figure("bf16", 0, "FLOP/s", rate, (1.0,))], on_a_cpu, Standards(profile), tolerances
        )
        assert (found.verdict, found.value, found.reference) == (verdict, rate, 100e12)
        assert found.expected == "at least 95 TFLOP/s (100 TFLOP/s - 5%)"
