"""Each threshold of the checks by NVML and of the host, just inside and just outside, from bare readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bench.node_check.all_checks import known_checks
from bench.node_check.judging.evidence import AFTER, BEFORE, IDLE, Evidence, GpuSample, Reading, Sample
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, Past, Profile, Standards
from bench.records.trial import Gpu
from tests.node_check.checks.answers import answers

PROFILE = Profile(
    "a card", ("a GPU",), "SXM", ("the vendor",), {}, pcie_generation=5, pcie_width=16, power_watts=700
)
UNSAID = {"error": "NVMLError_NotSupported", "value": 3}


def judged(
    check: str,
    before: Sequence[Mapping[str, Any]] = (),
    after: Sequence[Mapping[str, Any]] | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    idle: Mapping[str, Any] | None = None,
    standards: Standards | None = None,
    level: Any = "quick",
    course: tuple[Sample, ...] = (),
    **inventory: Any,
) -> list[Finding]:
    """Judge GPUs by NVML's answers before the load and after it, or the reading of the check itself."""
    readings = {}
    if before:
        readings[BEFORE] = Reading(BEFORE, {"gpus": [*before], **inventory})
    if after is not None:
        readings[AFTER] = Reading(AFTER, {"gpus": [*after]})
    if data is not None:
        readings[check] = Reading(check, data)
    if idle is not None:
        readings[IDLE] = Reading(IDLE, {"gpus": [{"gpu": 0, **idle}]})
    if course:
        readings["soak"] = Reading("soak", {"gpus": []}, started_at=10.0, ended_at=20.0)
    gpus = tuple(Gpu(i, "a GPU", f"GPU-{i}", 1 << 30, "9.0") for i in range(len(before)))
    evidence = Evidence(level, "cuda", gpus, readings, course)
    return answers(check, known_checks()[check].judge(evidence, standards or Standards(None)))


def gpu(**said: Any) -> dict[str, Any]:
    return {"Name": "a GPU", "UUID": "GPU-0", **said}


def rate(check: str, gigabytes: float) -> dict[str, Any]:
    return {
        "figures": [{"name": check, "gpu": None, "unit": "B/s", "work": gigabytes * 1e9, "samples": [1.0]}]
    }


@pytest.mark.parametrize(
    ("state", "status", "error", "virtual", "verdict", "found"),
    [
        (0, 0, 0.5, False, "pass", "synchronised, off by at most 0.5 s"),
        (0, 0, 0.501, False, "warn", "synchronised, off by at most 0.501 s"),
        (0, 0x40, 0.1, False, "warn", "not synchronised as far as the kernel knows"),
        (0, 0x20, 0.1, False, "pass", "synchronised, off by at most 0.1 s"),
        (4, 0, 0.1, False, "pass", "synchronised, off by at most 0.1 s"),
        (5, 0, 0.1, False, "warn", "not synchronised as far as the kernel knows"),
        (0, 0, 0.6, True, "warn", "synchronised, off by at most 0.6 s"),
        (5, 0, 0.1, True, "not-run", "not synchronised as far as the kernel knows; in a virtual machine the"
                                     " host may keep the time"),
    ],
)  # fmt: skip
def test_a_clock_is_off_by_at_most_half_a_second(
    state: int, status: int, error: float, virtual: bool, verdict: str, found: str
) -> None:
    data = {"state": state, "status": status, "max_error_seconds": error, "virtual": virtual}
    evidence = Evidence("quick", "cpu", (), {"clock": Reading("clock", data)})
    (finding,) = known_checks()["clock"].judge(evidence, Standards(None))
    assert (finding.verdict, finding.found) == (verdict, found)
    assert finding.counts is (verdict != "not-run")
    assert (finding.expected, finding.source) == ("synchronised, off by at most 0.5 s", "adjtimex(2)")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(50 * GIB, "pass"), (50 * GIB - 1, "warn"), (5 * GIB, "warn"), (5 * GIB - 1, "fail")],
)
def test_a_scratch_disk_has_room(free: int, verdict: str) -> None:
    (finding,) = judged("disk", data={"free_bytes": free})
    assert (finding.verdict, finding.expected) == (verdict, "at least 50 GiB")
    assert finding.found == f"{free / GIB:.0f} GiB"


@pytest.mark.parametrize(
    ("expected", "megabytes", "verdict", "source"),
    [
        (None, 100, "pass", "bench"),
        (None, 99.9, "warn", "bench"),
        (2.0, 2000, "pass", "the manifest"),
        (2.0, 1999, "fail", "the manifest"),
    ],
)
def test_a_scratch_disk_has_its_rate(
    expected: float | None, megabytes: float, verdict: str, source: str
) -> None:
    size = round(megabytes * 2e6)
    data = {"free_bytes": 99 * GIB, "written_bytes": size, "write_seconds": 2.0, "read_bytes": size,
            "read_seconds": 2.0}  # fmt: skip
    standards = Standards(None, Expectations(disk_gb_per_second=expected))
    _, write, read = judged("disk", data=data, standards=standards)
    assert (write.subject, read.subject) == ("write", "read")
    for finding in (write, read):
        assert (finding.verdict, finding.source, finding.unit) == (verdict, source, "B/s")
        assert (finding.value, finding.reference) == (megabytes * 1e6, 2e9 if expected else 100e6)
    (_,) = judged("disk", data={**data, "written_bytes": 0, "read_bytes": 0})


@pytest.mark.parametrize(
    ("expected", "gigabytes", "verdict", "source"),
    [
        (None, 8, "pass", "bench: half a channel of DDR4"),
        (None, 7.99, "warn", "bench: half a channel of DDR4"),
        (200, 200, "pass", "the manifest"),
        (200, 199, "fail", "the manifest"),
    ],
)
def test_the_hosts_memory_has_its_rate(
    expected: float | None, gigabytes: float, verdict: str, source: str
) -> None:
    standards = Standards(None, Expectations(host_gb_per_second=expected))
    (finding,) = judged("host-memory", data=rate("host-memory", gigabytes), standards=standards)
    assert (finding.verdict, finding.source, finding.subject) == (verdict, source, "the host")
    assert (finding.value, finding.reference) == (gigabytes * 1e9, (expected or 8) * 1e9)
    assert (finding.figure, finding.unit) == ("host-memory", "B/s")


@pytest.mark.parametrize(
    ("said", "standards", "verdict", "found", "expected", "source", "basis"),
    [
        (699_000, Standards(PROFILE), "pass", "699 W", "700 W", "the vendor", "reference"),
        (698_999, Standards(PROFILE), "fail", "699 W", "700 W", "the vendor", "reference"),
        (499_000, Standards(PROFILE, Expectations(power_watts=500)), "pass", "499 W", "500 W", "the manifest",
         "rule"),
        (349_000, Standards(None), "pass", "349 W", "350 W", "NVML: the card's default", "rule"),
        (348_000, Standards(None), "fail", "348 W", "350 W", "NVML: the card's default", "rule"),
    ],
)  # fmt: skip
def test_a_power_limit_is_at_most_a_watt_too_low(
    said: int, standards: Standards, verdict: str, found: str, expected: str, source: str, basis: str
) -> None:
    for limit in ("EnforcedPowerLimit", "PowerManagementLimit"):
        card = gpu(**{limit: said, "PowerManagementDefaultLimit": 350_000, "PersistenceMode": 1})
        finding, persistence = judged("power", [card], standards=standards)
        assert (finding.verdict, finding.found, finding.expected) == (verdict, found, expected)
        assert (finding.source, finding.basis, finding.subject) == (source, basis, "GPU 0 limit")
        assert finding.value == said / 1000
        assert (persistence.verdict, persistence.found, persistence.expected) == ("pass", "on", "on")


@pytest.mark.parametrize(("wanted", "verdict"), [(None, "warn"), (True, "fail"), (False, "pass")])
def test_persistence_that_is_off_is_a_fault_where_it_is_expected(wanted: bool | None, verdict: str) -> None:
    standards = Standards(None, Expectations(persistence=wanted))
    finding = judged("power", [gpu(PersistenceMode=0)], standards=standards)[-1]
    assert (finding.verdict, finding.found, finding.subject) == (verdict, "off", "GPU 0 persistence")


@pytest.mark.parametrize(
    ("reasons", "found"),
    [(0x04, "not held back"), (0x20, "software thermal slowdown"),
     (0x48, "hardware slowdown and hardware thermal slowdown")],
)  # fmt: skip
def test_a_gpu_that_is_held_back_at_rest_is_a_warning(reasons: int, found: str) -> None:
    card = gpu(CurrentClocksEventReasons=reasons)
    (finding,) = [f for f in judged("power", [card], level="passive") if f.subject == "GPU 0 clocks"]
    assert (finding.verdict, finding.found) == ("pass" if reasons == 0x04 else "warn", found)
    assert "GPU 0 clocks" not in {f.subject for f in judged("power", [card], level="quick")}
    assert "GPU 0 clocks" not in {f.subject for f in judged("power", [gpu()], level="passive")}


NONE_UNCORRECTED = "0 of them for uncorrected errors"


@pytest.mark.parametrize(
    ("rows", "then", "past", "verdict", "found"),
    [
        ((0, 0, 0, 0), None, None, "pass", "0 remapped, 0 of them for uncorrected errors"),
        ((2, 0, 0, 0), (2, 0, 0, 0), None, "pass", "2 remapped, 0 of them for uncorrected errors"),
        ((2, 0, 0, 0), (1, 0, 0, 0), None, "warn", "2 remapped, 0 of them for uncorrected errors"),
        ((1, 1, 0, 0), (1, 1, 0, 0), None, "warn", "2 remapped, 1 of them for uncorrected errors"),
        ((2, 0, 0, 0), None, 2, "pass", "2 remapped, 0 of them for uncorrected errors"),
        ((2, 0, 0, 0), None, 3, "pass", "2 remapped, 0 of them for uncorrected errors"),
        ((2, 0, 0, 0), None, 1, "warn", f"2 remapped, {NONE_UNCORRECTED}, 1 more than at its last check"),
        ((0, 0, 1, 0), None, None, "fail", f"0 remapped, {NONE_UNCORRECTED}; one waits for a reset"),
        ((0, 0, 0, 1), None, None, "fail", f"0 remapped, {NONE_UNCORRECTED}; remapping failed"),
        (
            (0, 0, 1, 1),
            None,
            None,
            "fail",
            f"0 remapped, {NONE_UNCORRECTED}; one waits for a reset; remapping failed",
        ),
    ],
)
def test_rows_that_were_remapped(
    rows: Sequence[int], then: Sequence[int] | None, past: int | None, verdict: str, found: str
) -> None:
    history = {"GPU-0": Past(("r",), {}, {"remapped rows": past})} if past is not None else {}
    before = gpu(RemappedRows=then or rows)
    (finding,) = judged(
        "rows", [before], [gpu(RemappedRows=rows)], standards=Standards(None, history=history)
    )
    assert (finding.verdict, finding.found) == (verdict, found)
    assert finding.basis == ("history" if "more than" in found else "rule")
    assert ("return it" in finding.advice) is bool(rows[3])
    assert ("drain the node" in finding.advice) is (bool(rows[2]) and not rows[3])


@pytest.mark.parametrize(
    ("by_corrected", "by_uncorrected", "pending", "verdict", "found"),
    [
        (59, 0, 0, "pass", "59 pages retired"),
        (60, 0, 0, "fail", "60 pages retired"),
        (30, 29, 0, "warn", "59 pages retired"),
        (30, 30, 0, "fail", "60 pages retired"),
        (1, None, 1, "fail", "1 pages retired; one waits for a reset"),
    ],
)
def test_pages_that_were_retired(
    by_corrected: int, by_uncorrected: int | None, pending: int, verdict: str, found: str
) -> None:
    pages = [None if count is None else [0] * count for count in (by_corrected, by_uncorrected)]
    card = gpu(
        **{"RetiredPages.0": pages[0], "RetiredPages.1": pages[1], "RetiredPagesPendingStatus": pending}
    )
    (finding,) = judged("rows", [card])
    assert (finding.verdict, finding.found) == (verdict, found)


@pytest.mark.parametrize(("said", "counts"), [({}, True), ({"RemappedRows": UNSAID}, False)])
def test_a_card_that_tells_neither_rows_nor_pages(said: dict[str, Any], counts: bool) -> None:
    (finding,) = judged("rows", [gpu(**said)])
    assert (finding.verdict, finding.counts) == ("not-run", counts)


@pytest.mark.parametrize(
    ("mode", "profile", "verdict", "found", "expected"),
    [
        ([1, 1], PROFILE, "pass", "on", "on"),
        ([1, 0], PROFILE, "warn", "on, off after the next reset", "on"),
        ([0, 0], PROFILE, "fail", "off", "on"),
        ([0, 1], PROFILE, "fail", "off, on after the next reset", "on"),
        ([0, 0], None, "pass", "off", "as its owner wants it"),
        ([0, 1], None, "warn", "off, on after the next reset", "as its owner wants it"),
    ],
)
def test_ecc_is_on_where_the_profile_has_it(
    mode: list[int], profile: Profile | None, verdict: str, found: str, expected: str
) -> None:
    finding = judged("ecc", [gpu(EccMode=mode)], standards=Standards(profile))[0]
    assert (finding.verdict, finding.found, finding.expected) == (verdict, found, expected)
    assert (finding.basis, finding.source) == (("reference", "the vendor") if profile else ("rule", "NVML"))
    assert ("nvidia-smi -e 1" in finding.advice) is (verdict == "fail")


@pytest.mark.parametrize(
    ("then", "now", "corrected", "ever", "verdict", "found"),
    [
        (0, 0, 999, 0, "pass", "0 uncorrected since boot, 999 corrected; 0 uncorrected ever"),
        (0, 0, 1000, 0, "warn", "0 uncorrected since boot, 1000 corrected; 0 uncorrected ever"),
        (0, 0, None, None, "pass", "0 uncorrected since boot, 0 corrected; 0 uncorrected ever"),
        (0, 0, 0, 1, "warn", "0 uncorrected since boot, 0 corrected; 1 uncorrected ever"),
        (2, 2, 0, 2, "fail", "2 uncorrected since boot, 0 corrected; 2 uncorrected ever"),
        (1, 3, 0, 3, "fail", "3 uncorrected since boot, 2 of them now, 0 corrected; 3 uncorrected ever"),
        (None, 1, 0, 1, "fail", "1 uncorrected since boot, 0 corrected; 1 uncorrected ever"),
    ],
)
def test_memory_errors_of_a_gpu(
    then: int | None, now: int, corrected: int | None, ever: int | None, verdict: str, found: str
) -> None:
    def card(uncorrected: int | None) -> dict[str, Any]:
        counts = {
            "TotalEccErrors.1.0": uncorrected,
            "TotalEccErrors.0.0": corrected,
            "TotalEccErrors.1.1": ever,
        }
        return gpu(EccMode=[1, 1], **counts)

    (finding,) = [f for f in judged("ecc", [card(then)], [card(now)]) if f.subject == "GPU 0 errors"]
    assert (finding.verdict, finding.found) == (verdict, found)
    off = judged("ecc", [card(then) | {"EccMode": [0, 0]}])
    assert [f.subject for f in off] == ["GPU 0 mode"]


def field(value: int) -> list[dict[str, Any]]:
    return [{"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": value, "ullVal": value}}]


@pytest.mark.parametrize(
    ("name", "count", "verdict", "found"),
    [
        ("PCIE_REPLAY_COUNTER", 9, "pass", "9 replays"),
        ("PCIE_REPLAY_COUNTER", 10, "warn", "10 replays"),
        ("PCIE_COUNT_CORRECTABLE_ERRORS", 10, "warn", "10 corrected errors"),
        ("PCIE_COUNT_BAD_TLP", 10, "warn", "10 bad packets"),
        ("PCIE_COUNT_BAD_DLLP", 10, "warn", "10 bad link packets"),
        ("PCIE_COUNT_NON_FATAL_ERROR", 1, "fail", "1 non-fatal errors"),
        ("PCIE_COUNT_FATAL_ERROR", 1, "fail", "1 fatal errors"),
        ("PCIE_REPLAY_COUNTER", 0, "pass", "none while it was checked"),
    ],
)
def test_errors_of_the_bus_while_a_gpu_was_checked(name: str, count: int, verdict: str, found: str) -> None:
    key = f"field.NVML_FI_DEV_{name}"
    before, after = gpu(**{key: field(5)}), gpu(**{key: field(5 + count)})
    (finding,) = [f for f in judged("pcie", [before], [after]) if f.subject == "GPU 0 bus errors"]
    assert (finding.verdict, finding.found) == (verdict, found)
    assert len(judged("pcie", [before])) == len(judged("pcie", [gpu()], [gpu()])) == 1


def moments(*links: tuple[int | None, int | None], at: float = 15.0) -> tuple[Sample, ...]:
    return tuple(Sample(at, (GpuSample(pcie_generation=g, pcie_width=w),)) for g, w in links)


MANIFEST = Standards(PROFILE, Expectations(pcie_generation=4, pcie_width=8))


@pytest.mark.parametrize(
    ("links", "standards", "verdict", "found", "expected", "source"),
    [
        ([(1, 16), (5, 16)], Standards(PROFILE), "pass", "gen5 x16 under load", "gen5 x16", "the vendor"),
        ([(4, 16)], Standards(PROFILE), "fail", "gen4 x16 under load", "gen5 x16", "the vendor"),
        ([(5, 8)], Standards(PROFILE), "fail", "gen5 x8 under load", "gen5 x16", "the vendor"),
        ([(4, 8)], MANIFEST, "pass", "gen4 x8 under load", "gen4 x8", "the manifest"),
        ([(3, 8)], Standards(None), "pass", "gen3 x8 under load", "gen3 x8",
         "NVML: the most that card and slot can do"),
        ([(2, 8)], Standards(None), "fail", "gen2 x8 under load", "gen3 x8",
         "NVML: the most that card and slot can do"),
    ],
)  # fmt: skip
def test_a_link_is_judged_by_the_best_sample_under_load(
    links: list[tuple[int, int]], standards: Standards, verdict: str, found: str, expected: str, source: str
) -> None:
    card = gpu(MaxPcieLinkGeneration=3, MaxPcieLinkWidth=8)
    (finding,) = judged("pcie", [card], standards=standards, course=moments(*links))
    assert (finding.verdict, finding.found, finding.expected) == (verdict, found, expected)
    assert (finding.source, finding.basis) == (source, "reference" if standards.profile else "rule")


def test_a_link_without_a_sample_under_load_is_not_judged() -> None:
    for course in ((), moments((5, 16), at=25.0)):
        (finding,) = judged("pcie", [gpu()], standards=Standards(PROFILE), course=course)
        assert (finding.verdict, finding.counts) == ("not-run", True)
        assert finding.found == "GPU 0 has no sample under load"
    (finding,) = judged("pcie", [gpu()], standards=Standards(PROFILE), course=moments((5, None), (None, 16)))
    assert (finding.found, finding.counts) == ("GPU 0 does not report its link's speed", False)


@pytest.mark.parametrize(("width", "verdict"), [(16, "pass"), (15, "fail"), (None, "not-run")])
def test_at_rest_a_link_is_judged_by_its_width(width: int | None, verdict: str) -> None:
    card = gpu(CurrPcieLinkWidth=width, CurrPcieLinkGeneration=1)
    (finding,) = judged("pcie", [card], standards=Standards(PROFILE), level="passive")
    assert finding.verdict == verdict
    if width:
        assert (finding.found, finding.expected) == (f"x{width} without load", "x16")


QUIET: dict[str, list[float]] = {
    "used_bytes": [0.0] * 8,
    "busy_percent": [0.0] * 8,
    "bus_bytes_per_second": [0.0] * 8,
}


@pytest.mark.parametrize(
    ("rates", "verdict", "found"),
    [
        ({}, "pass", "idle: no process, no load, no traffic"),
        ({"used_bytes": [1.0 * GIB, 9.0 * GIB]}, "pass", "idle: no process, no load, no traffic"),
        ({"used_bytes": [1.1 * GIB]}, "warn", "1.1 GiB of memory are in use"),
        ({"used_bytes": [2.0 * GIB]}, "warn", "2 GiB of memory are in use"),
        ({"used_bytes": [2.1 * GIB]}, "fail", "2.1 GiB of memory are in use"),
        ({"busy_percent": [100.0, 1.0, 1.0, 1.0]}, "pass", "idle: no process, no load, no traffic"),
        ({"busy_percent": [0.0, 2.0, 2.0, 2.0]}, "warn", "it is busy 2% of the time"),
        ({"busy_percent": [4.0] * 4}, "warn", "it is busy 4% of the time"),
        ({"busy_percent": [4.0, 4.0, 4.0, 5.0]}, "fail", "it is busy 4% of the time"),
        ({"bus_bytes_per_second": [9e9, 50e6, 50e6, 50e6]}, "pass", "idle: no process, no load, no traffic"),
        ({"bus_bytes_per_second": [51e6] * 4}, "warn", "51 MB/s cross its bus"),
        ({"bus_bytes_per_second": [500e6] * 4}, "warn", "500 MB/s cross its bus"),
        ({"bus_bytes_per_second": [501e6] * 4}, "fail", "501 MB/s cross its bus"),
        ({"used_bytes": [3.0 * GIB], "busy_percent": [2.0]}, "fail",
         "3 GiB of memory are in use; it is busy 2% of the time"),
        ({"used_bytes": [], "bus_bytes_per_second": []}, "pass", "idle: no process, no load"),
        ({"used_bytes": [], "busy_percent": []}, "pass", "idle: no process, no traffic"),
    ],
)  # fmt: skip
def test_a_gpu_is_idle_up_to_a_limit(rates: dict[str, Any], verdict: str, found: str) -> None:
    (finding,) = judged("strangers", [gpu(ComputeRunningProcesses=[])], idle=QUIET | rates)
    assert (finding.verdict, finding.found) == (verdict, found)


def processes(*numbers: int) -> list[dict[str, int]]:
    return [{"pid": number} for number in numbers]


@pytest.mark.parametrize(
    ("said", "verdict", "found"),
    [
        ({"Compute": processes(1, 2, 3, 4, 5)}, "fail", "5 processes compute there (pid 1, 2, 3, 4)"),
        ({"Graphics": processes(7)}, "warn", "1 graphics processes run there (pid 7)"),
        ({"MPSCompute": processes(8)}, "warn", "1 graphics processes run there (pid 8)"),
        ({"Graphics": processes(7), "MPSCompute": processes(8)}, "warn", "2 graphics processes run there"
                                                                         " (pid 7, 8)"),
        ({"Compute": processes(1), "Graphics": processes(7)}, "fail", "1 processes compute there (pid 1)"),
    ],
)  # fmt: skip
def test_processes_on_a_gpu(said: dict[str, Any], verdict: str, found: str) -> None:
    card = gpu(**{f"{kind}RunningProcesses": each for kind, each in said.items()})
    (finding,) = judged("strangers", [card], idle=QUIET)
    assert (finding.verdict, finding.found) == (verdict, found)


def test_a_gpu_whose_use_is_not_known_is_not_called_idle() -> None:
    nothing: dict[str, list[float]] = {name: [] for name in QUIET}
    (finding,) = judged("strangers", [gpu()], idle=nothing)
    assert (finding.verdict, finding.found) == ("not-run", "reports neither memory use, load nor traffic")
    (finding,) = judged("strangers", [gpu()])
    assert (finding.verdict, finding.found) == ("not-run", "it was not measured")


@pytest.mark.parametrize(
    ("query", "values", "verdict", "found", "expected"),
    [
        ("MigMode", ([0, 0], [0, 0], [1, 1]), "fail", "MIG mode on",
         "MIG mode off, as on most GPUs of this node"),
        ("MigMode", ([0, 0], [0, 1]), "fail", "MIG mode off, on after the next reset",
         "MIG mode off, as another GPU has it"),
        ("ComputeMode", (0, 0, 1), "warn", "compute mode exclusive thread",
         "compute mode default, as on most GPUs of this node"),
        ("ComputeMode", (0, 9), "warn", "compute mode 9", "compute mode default, as another GPU has it"),
        ("PowerManagementLimit", (700_000, 650_400), "fail", "power limit 650 W",
         "power limit 700 W, as another GPU has it"),
        ("InforomImageVersion", ("a", "b"), "warn", "InfoROM b", "InfoROM a, as another GPU has it"),
        ("BoardPartNumber", ("a", "b"), "warn", "part number b", "part number a, as another GPU has it"),
        ("VbiosVersion", ("a", "b"), "warn", "VBIOS b", "VBIOS a, as another GPU has it"),
    ],
)  # fmt: skip
def test_a_gpu_unlike_the_others(
    query: str, values: Sequence[Any], verdict: str, found: str, expected: str
) -> None:
    findings = judged("alike", [gpu(**{query: value}) for value in values])
    (other,) = [f for f in findings if f.verdict != "pass"]
    assert (other.gpu, other.verdict, other.found, other.expected) == (
        len(values) - 1,
        verdict,
        found,
        expected,
    )
    assert (other.basis, other.source) == ("peers", "the other GPUs of this node")


def test_what_is_equal_on_all_gpus_is_told_once() -> None:
    for count, found in ((1, "a GPU"), (2, "a GPU on all")):
        (finding,) = judged("alike", [gpu() for _ in range(count)])
        assert (finding.subject, finding.verdict, finding.found) == ("model", "pass", found)


@pytest.mark.parametrize(
    ("inventory", "expect", "verdict", "found", "expected"),
    [
        ({"driver": "580.1", "kernel_module": "580.2"}, None, "fail",
         "libraries of 580.1, kernel module 580.2", "one version"),
        ({"driver": "580.1", "kernel_module": "580.1"}, "580.", "pass", "580.1", "580...."),
        ({"driver": "580.1"}, "575.", "fail", "580.1", "575...."),
    ],
)  # fmt: skip
def test_the_driver_is_one_and_as_ordered(
    inventory: dict[str, Any], expect: str | None, verdict: str, found: str, expected: str
) -> None:
    standards = Standards(None, Expectations(driver=expect))
    findings = judged("alike", [gpu()], standards=standards, **inventory)
    (finding,) = [f for f in findings if f.subject == "driver"]
    assert (finding.verdict, finding.found, finding.expected) == (verdict, found, expected)


@pytest.mark.parametrize(("vbios", "verdict"), [("96.1", "pass"), ("96.2", "fail")])
def test_the_vbios_is_as_ordered(vbios: str, verdict: str) -> None:
    standards = Standards(None, Expectations(vbios="96.1"))
    finding = judged("alike", [gpu(VbiosVersion=vbios)], standards=standards)[-1]
    assert (finding.verdict, finding.found, finding.expected) == (verdict, f"VBIOS {vbios}", "VBIOS 96.1")


@pytest.mark.parametrize(
    ("info", "verdict", "found"),
    [
        ({"state": 3, "status": 0, "healthMask": 0}, "pass", "completed, healthy"),
        ({"state": 3}, "pass", "completed, healthy"),
        ({"state": 3, "status": 7}, "fail", "it came up with error 7"),
        ({"state": 1, "status": 7}, "fail", "the fabric is not started"),
        ({"state": 2}, "fail", "the fabric is in progress"),
        ({"state": 9}, "fail", "the fabric is 9"),
        ({"state": 3, "healthMask": 0b01}, "fail", "degraded bandwidth"),
        ({"state": 3, "healthMask": 0b10}, "pass", "completed, healthy"),  # 2 means false
        ({"state": 3, "healthMask": 0b0100}, "fail", "route recovery"),
        ({"state": 3, "healthMask": 0b010000}, "fail", "unhealthy route"),
        ({"state": 3, "healthMask": 0b01000001}, "fail", "degraded bandwidth, access timeout recovery"),
    ],
)
def test_the_fabric_of_a_gpu(info: dict[str, int], verdict: str, found: str) -> None:
    (finding,) = judged("fabric", [gpu(FabricInfo=info)])
    assert (finding.verdict, finding.found, finding.expected) == (verdict, found, "completed, healthy")


@pytest.mark.parametrize(
    ("peers", "verdict", "found"),
    [
        ({"P2PStatus.1.0": 0, "P2PStatus.2.0": 0, "P2PStatus.1.1": 5}, "pass", "all peers are reachable"),
        ({"P2PStatus.1.0": 0, "P2PStatus.2.0": 1}, "fail", "some peers are not reachable"),
        ({}, "not-run", "GPU 0 does not report the fabric's state"),
    ],
)
def test_a_fabric_that_is_not_reported_is_judged_by_the_peers(
    peers: dict[str, int], verdict: str, found: str
) -> None:
    card = gpu(**{"NvLinkRemoteDeviceType.0": 2, "FabricInfo": UNSAID, **peers})
    (finding,) = judged("fabric", [card])
    assert finding.verdict == verdict and found in finding.found and "NotSupported" in finding.found
    (finding,) = judged("fabric", [gpu(**{"NvLinkRemoteDeviceType.0": 0, **peers})])
    assert (finding.verdict, finding.counts) == ("not-run", False)


@pytest.mark.parametrize(
    ("action", "found"),
    [(1, "a reset of the GPU"), (2, "a reboot of the node"), (3, "to be drained of peer traffic"),
     (4, "to be drained and reset"), (5, "recovery of its IMEX domain"), (6, "a reset of its bus"),
     (7, "a reboot of the system"), (8, "8")],
)  # fmt: skip
def test_a_gpu_that_needs_a_recovery_says_which(action: int, found: str) -> None:
    card = gpu(**{"field.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": field(action)})
    (finding,) = [f for f in judged("present", [card], [card]) if f.gpu == 0]
    assert (finding.verdict, finding.found) == ("fail", f"the driver says that it needs {found}")


@pytest.mark.parametrize(
    ("together", "verdict", "found"),
    [
        ((0.85, 0.9), "pass", "each of 2 GPUs keeps 85% of its rate or more while all work"),
        ((0.5, 0.5), "fail", ""),
    ],
)
def test_cards_keep_their_rate_while_all_work(
    together: tuple[float, float], verdict: str, found: str
) -> None:
    figures = [
        {"name": name, "gpu": index, "unit": "FLOP/s", "work": 1e15 * share, "samples": [1.0]}
        for index, one in enumerate(together)
        for name, share in (("matmul alone", 1.0), ("matmul together", one))
    ]
    (finding,) = judged("own-card", [gpu(), gpu()], data={"figures": figures})
    assert finding.verdict == verdict and finding.found.startswith(found)
    assert judged("own-card", [gpu(), gpu()], data={"figures": figures[:1]}) == []
