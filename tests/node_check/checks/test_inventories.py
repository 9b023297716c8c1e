"""Links, peers and presence of GPUs by NVML's inventories: each state and each reason by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks import alike, fabric, nvlink, peers
from bench.node_check.checks import present as present_check
from bench.node_check.judging.evidence import AFTER, BEFORE, Evidence, GpuSample, Reading, Sample
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, Standards
from bench.records.trial import Gpu, KernelGpus
from tests.node_check.checks.test_thresholds import PROFILE, UNSAID, gpu, judged

GONE: dict[str, Any] = {"Name": {"error": "NVMLError_GpuIsLost"}, "UUID": {"error": "NVMLError_GpuIsLost"}}
FORBIDDEN = {"error": "NVMLError_NoPermission"}
BY_BRIDGE = replace(PROFILE, form_factor="PCIe")


def linked(up: int, of: int = 2, **said: Any) -> dict[str, Any]:
    """Make the answers of a GPU with `of` links, `up` of them up."""
    return gpu(**{f"NvLinkState.{link}": int(link < up) for link in range(of)}, **said)


def speed(megabytes: int) -> dict[str, Any]:
    field = {"nvmlReturn": 0, "valueType": 1, "value": {"uiVal": megabytes}}
    return {"field.NVML_FI_DEV_NVLINK_GET_SPEED": [field]}


def nvlinks(*before: dict[str, Any], after: Any = None, standards: Standards | None = None) -> list[Finding]:
    return judged("nvlink", before, after, standards=standards)


def test_gpus_without_nvlink_are_told_and_do_not_count() -> None:
    for answer in (UNSAID, {"error": "NVMLError_InvalidArgument"}):
        (found,) = nvlinks(*[gpu(**{"NvLinkState.0": answer})] * 2)
        assert (found.subject, found.found, found.counts) == ("the node", "these GPUs have no NVLink", False)
    (found,) = nvlinks(linked(0))
    assert found.found == "these GPUs have no NVLink"
    assert nvlinks(GONE) == []


def test_links_that_are_not_reported_are_told_for_their_gpu() -> None:
    found = nvlinks(linked(2), gpu(**{"NvLinkState.0": FORBIDDEN}))
    assert [(one.gpu, one.verdict, one.found) for one in found] == [
        (0, "pass", "2 links up"), (1, "not-run", "GPU 1: NoPermission"),
    ]  # fmt: skip
    without = nvlinks(linked(2), gpu(**{"NvLinkState.0": UNSAID}))[1]
    assert (without.gpu, without.verdict, without.found) == (1, "warn", "0 links up")
    (found_one,) = nvlinks(gpu(), standards=Standards(None, Expectations(nvlinks=2)))
    assert (found_one.verdict, found_one.found) == ("not-run", "GPU 0: not asked")


@pytest.mark.parametrize(
    ("ups", "standards", "verdict", "expected", "basis", "source", "advice"),
    [
        ((2, 2), Standards(None), "pass", 2, "peers", "the other GPUs of this node", ""),
        ((2, 1), Standards(None), "fail", 2, "peers", "the other GPUs of this node", nvlink.ADVICE),
        ((2, 0), Standards(BY_BRIDGE), "warn", 2, "peers", "the other GPUs of this node", nvlink.BRIDGE),
        ((2, 0), Standards(PROFILE), "fail", 2, "peers", "the other GPUs of this node", nvlink.ADVICE),
        ((2, 0), Standards(None, Expectations(nvlinks=2)), "fail", 2, "reference", "the manifest",
         nvlink.ADVICE),
        ((2, 2), Standards(PROFILE, Expectations(nvlinks=4)), "fail", 4, "reference", "the manifest",
         nvlink.ADVICE),
        ((2, 2), Standards(replace(PROFILE, nvlinks=4)), "fail", 4, "reference", "the vendor", nvlink.ADVICE),
        ((2, 4), Standards(replace(PROFILE, nvlinks=4)), "pass", 4, "reference", "the vendor", ""),
    ],
)  # fmt: skip
def test_links_are_as_many_as_the_manifest_the_profile_or_the_best_gpu_has(
    ups: tuple[int, ...],
    standards: Standards,
    verdict: str,
    expected: int,
    basis: str,
    source: str,
    advice: str,
) -> None:
    found = nvlinks(*(linked(up, 4) for up in ups), standards=standards)[1]
    assert (found.gpu, found.verdict, found.found) == (1, verdict, f"{ups[1]} links up")
    assert (found.expected, found.basis) == (f"{expected} links up", basis)
    assert (found.source, found.advice) == (source, advice)


def test_a_single_gpu_whose_links_are_down_has_no_peer_unless_links_are_ordered() -> None:
    profile = Standards(replace(PROFILE, nvlinks=2))
    (found,) = nvlinks(linked(0), standards=profile)
    assert (found.found, found.counts) == ("a single GPU without links: there is no peer to reach", False)
    (found,) = nvlinks(linked(0), standards=replace(profile, expect=Expectations(nvlinks=2)))
    assert (found.verdict, found.found) == ("fail", "0 links up")
    assert [one.verdict for one in nvlinks(linked(0), linked(0), standards=profile)] == ["fail", "fail"]


@pytest.mark.parametrize(
    ("state", "advice"), [(1, nvlink.FABRIC), (2, nvlink.FABRIC), (3, nvlink.ADVICE), (0, nvlink.ADVICE)]
)
def test_links_of_a_fabric_that_is_not_up_are_no_fault_of_the_card(state: int, advice: str) -> None:
    found = nvlinks(linked(2), linked(1, FabricInfo={"state": state}))[1]
    assert found.advice == advice


def test_gpus_are_all_linked_by_a_switch_or_on_one_board() -> None:
    switched, alone = linked(2, **{"NvLinkRemoteDeviceType.0": 2}), linked(0)
    assert [one.verdict for one in nvlinks(switched, alone)] == ["pass", "fail"]
    assert [one.verdict for one in nvlinks(linked(2, **{"NvLinkRemoteDeviceType.0": 1}), alone)] == [
        "pass", "warn",
    ]  # fmt: skip


def counted(**counters: int | dict[str, Any]) -> dict[str, Any]:
    """Make the answers of a GPU whose counters of link errors are given as link and kind."""
    names = {f"NvLinkErrorCounter.{name[1]}.{name[3]}": count for name, count in counters.items()}
    return linked(2, **names)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "found"),
    [
        ({"l0k0": 5}, {"l0k0": 5}, "pass", "none while it was checked"),
        ({"l0k0": 5}, {"l0k0": 6}, "fail", "link 0: 1 replays"),
        ({"l1k1": 0}, {"l1k1": 2}, "fail", "link 1: 2 recoveries"),
        ({"l1k2": 0}, {"l1k2": 99}, "pass", "link 1: 99 CRC errors"),
        ({"l1k2": 0}, {"l1k2": 100}, "warn", "link 1: 100 CRC errors"),
        ({"l0k3": 0, "l0k0": 0}, {"l0k3": 900, "l0k0": 0}, "pass", "none while it was checked"),
    ],
)
def test_new_errors_of_links_are_told_by_link_and_kind(
    before: dict[str, int], after: dict[str, int], verdict: str, found: str
) -> None:
    _, errors = nvlinks(counted(**before), after=[counted(**after)])
    assert (errors.subject, errors.verdict, errors.found) == ("GPU 0 link errors", verdict, found)


def test_errors_of_links_that_are_not_reported_tell_why() -> None:
    for before, after, why, counts in (
        (counted(l0k0=UNSAID), counted(), "NotSupported", False),
        (counted(l0k0=0), counted(l0k0=FORBIDDEN), "NoPermission", True),
        (counted(), counted(), "not asked", True),
    ):
        _, errors = nvlinks(before, after=[after])
        assert (errors.verdict, errors.counts) == ("not-run", counts)
        assert errors.found == f"GPU 0 does not report its links' errors: {why}"


def test_a_link_slower_than_most_is_a_fault() -> None:
    found = nvlinks(*(linked(2, **speed(rate)) for rate in (26562, 26562, 26561, 30000)))
    (slow,) = (one for one in found if one.subject.endswith("link speed"))
    assert (slow.gpu, slow.verdict, slow.found, slow.expected, slow.basis, slow.source, slow.advice) == (
        2, "fail", "26.56 GB/s a link", "26.56 GB/s a link", "peers", "the other GPUs of this node",
        nvlink.ADVICE,
    )  # fmt: skip


def reached(
    direct: dict[str, bool], up: tuple[int, ...], standards: Standards | None = None
) -> Finding | None:
    """Return the answer about direct access; `up` are the GPUs with a link that is up."""
    figure = {"name": "peer 0-1", "gpu": None, "unit": "B/s", "work": 1e9, "samples": [1.0], "kind": "peer"}
    gpus = [gpu(**{"NvLinkState.0": int(index in up)}) for index in range(3)]
    readings = {
        BEFORE: Reading(BEFORE, {"gpus": gpus}),
        "peers": Reading("peers", {"figures": [figure], "direct": direct}),
    }
    cards = tuple(Gpu(index, "a GPU", f"GPU-{index}", 1 << 30, "9.0") for index in range(3))
    found = peers.judge(Evidence("quick", "cuda", cards, readings), standards or Standards(None))
    return next((one for one in found if one.expected == "direct access between GPUs with NVLink"), None)


@pytest.mark.parametrize(
    ("direct", "up", "standards", "verdict", "found"),
    [
        ({"0-1": True, "1-0": True}, (0, 1), PROFILE, "pass", "every GPU reaches every other directly"),
        ({"0-1": True, "1-0": False}, (0, 1), PROFILE, "fail", "no direct access: 1-0"),
        ({"0-1": False, "1-0": False}, (), PROFILE, "pass", "no direct access: 0-1, 1-0"),
        ({"0-1": True, "1-0": True}, (), PROFILE, "pass", "every GPU reaches every other directly"),
        # A bridge joins two cards: each linked one must reach another.
        ({"0-1": True, "0-2": False}, (0, 1), BY_BRIDGE, "pass", "no direct access: 0-2"),
        ({"0-1": True, "0-2": False}, (0, 1, 2), BY_BRIDGE, "fail", "no direct access: 0-2"),
        ({"0-1": False, "0-2": False}, (0,), BY_BRIDGE, "fail", "no direct access: 0-1, 0-2"),
    ],
)
def test_gpus_with_nvlink_reach_each_other_directly(
    direct: dict[str, bool], up: tuple[int, ...], standards: Any, verdict: str, found: str
) -> None:
    answer = reached(direct, up, Standards(standards))
    assert answer is not None
    assert (answer.check, answer.subject, answer.verdict, answer.found) == (
        "peers",
        "the node",
        verdict,
        found,
    )


def test_direct_access_that_was_not_asked_is_not_judged() -> None:
    assert reached({}, (0, 1)) is None


def present(
    *before: dict[str, Any],
    expect: Expectations | None = None,
    after: Any = (),
    course: Any = (),
    **more: Any,
) -> list[Finding]:
    standards = Standards(None, expect or Expectations())
    return judged("present", before, after, standards=standards, course=course, **more)


@pytest.mark.parametrize(
    ("gpus", "expect", "verdict", "found", "expected", "source"),
    [
        (1, Expectations(), "pass", "1 a GPU", "at least one GPU", "bench"),
        (2, Expectations(gpus=2), "pass", "2 a GPU", "2 GPUs", "the manifest"),
        (1, Expectations(gpus=2), "fail", "1 a GPU", "2 GPUs", "the manifest"),
        (1, Expectations(gpu="a GPU"), "pass", "1 a GPU", "only a GPU", "the manifest"),
        (1, Expectations(gpus=1, gpu="a GPU"), "pass", "1 a GPU", "1 a GPU", "the manifest"),
        (1, Expectations(gpus=1, gpu="b GPU"), "fail", "1 a GPU; a GPU is not what was ordered", "1 b GPU",
         "the manifest"),
    ],
)  # fmt: skip
def test_gpus_are_as_many_and_of_the_model_that_was_ordered(
    gpus: int, expect: Expectations, verdict: str, found: str, expected: str, source: str
) -> None:
    count = present(*[gpu()] * gpus, expect=expect, after=[gpu()] * gpus)[0]
    assert (count.verdict, count.found, count.source) == (verdict, found, source)
    assert count.expected == expected
    few = present_check.FEW_ADVICE if "ordered" not in found else present_check.OTHER_ADVICE
    assert count.advice == ("" if verdict == "pass" else few)


def test_the_kernels_list_is_told_if_it_cannot_be_seen_and_does_not_count() -> None:
    unseen = to_json(KernelGpus((), "no /proc/driver/nvidia"))
    found = present(gpu(), after=[gpu()], kernel_gpus=unseen)[1]
    assert (found.subject, found.verdict, found.found, found.counts) == (
        "the kernel's list", "not-run", "no /proc/driver/nvidia", False,
    )  # fmt: skip
    assert len(present(gpu(), after=[gpu()])) == 1, "older bundles have no list"
    listed = present(gpu(), after=[gpu()], kernel_gpus=to_json(KernelGpus()))[1]
    assert listed.verdict == "fail", "the kernel has no GPU"


def lost(*findings: Finding) -> list[tuple[int | None, str]]:
    return [(one.gpu, one.found) for one in findings if one.expected == "an answer to every query"]


def test_a_gpu_that_stops_answering_is_told_once_with_the_moment() -> None:
    at_once = "does not answer: GpuIsLost"
    assert lost(*present(gpu(), GONE, after=[gpu(), GONE])) == [(1, at_once)]
    later = "does not answer while it was checked: GpuIsLost"
    assert lost(*present(gpu(), gpu(), after=[gpu(), GONE])) == [(1, later)]
    samples = tuple(Sample(at, (GpuSample(), GpuSample(lost="GpuIsLost"))) for at in (11.0, 12.0))
    between = "did not answer in 2 samples: GpuIsLost"
    assert lost(*present(gpu(), gpu(), after=[gpu(), gpu()], course=samples)) == [(1, between)]
    assert lost(*present(gpu(), gpu(), after=[gpu(), GONE], course=samples)) == [(1, later)]
    few = (Sample(11.0, (GpuSample(),)),)
    assert lost(*present(gpu(), gpu(), after=[gpu(), gpu()], course=few)) == []


def test_a_last_look_that_was_not_taken_is_told() -> None:
    evidence = Evidence("quick", "cuda", (), {BEFORE: Reading(BEFORE, {"gpus": []})})
    unasked = present(gpu(), after=None)[-1]
    assert (unasked.verdict, unasked.found) == ("not-run", "at the end: NVML was not asked")
    failed = replace(evidence, readings=dict(evidence.readings) | {AFTER: Reading(AFTER, {}, "NVML crashed")})
    assert [*present_check.judge(failed, Standards(None))][-1].found == "at the end: NVML crashed"


def test_words_for_the_states_of_a_gpu() -> None:
    assert alike.COMPUTE_MODES == {
        0: "default",
        1: "exclusive thread",
        2: "prohibited",
        3: "exclusive process",
    }
    assert fabric.STATES == {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
    assert nvlink.COUNTERS == {0: "replays", 1: "recoveries", 2: "CRC errors"}
    verdicts = {query: verdict for query, (_, verdict, _) in alike.SAME.items()}
    assert verdicts == {
        "Name": "fail", "VbiosVersion": "warn", "InforomImageVersion": "warn", "BoardPartNumber": "warn",
        "MigMode": "fail", "ComputeMode": "warn", "PowerManagementLimit": "fail",
    }  # fmt: skip


def test_ecc_that_is_not_reported_counts_if_the_card_should_have_it() -> None:
    for answer, profile, counts in (
        (FORBIDDEN, PROFILE, True),
        (UNSAID, PROFILE, False),
        (FORBIDDEN, None, False),
    ):
        (found,) = judged("ecc", [gpu(EccMode=answer)], standards=Standards(profile))
        assert (found.verdict, found.counts) == ("not-run", counts)


def test_more_errors_of_sram_than_the_card_allows_are_a_fault() -> None:
    def told(**status: int) -> list[str]:
        said = gpu(EccMode=[1, 1], SramEccErrorStatus=status)
        return [one.verdict for one in judged("ecc", [said]) if one.subject == "GPU 0 SRAM"]

    assert (told(bThresholdExceeded=1), told(bThresholdExceeded=0), told()) == (["fail"], [], [])


def test_persistence_that_is_on_passes_also_where_it_is_ordered() -> None:
    ordered = Standards(None, Expectations(persistence=True))
    for said, standards, verdict in (
        (1, ordered, "pass"),
        (0, ordered, "fail"),
        (1, Standards(None), "pass"),
    ):
        limit, persistence = judged("power", [gpu(PersistenceMode=said)], standards=standards)
        assert (persistence.subject, persistence.verdict) == ("GPU 0 persistence", verdict)
        assert (limit.found, limit.counts) == ("GPU 0 does not report its power limit", False)


def under_load(standards: Standards, *samples: tuple[GpuSample, ...], **said: int) -> Finding:
    course = tuple(Sample(11.0 + number, gpus) for number, gpus in enumerate(samples))
    (found,) = judged("pcie", [gpu(**said)], standards=standards, course=course)
    return found


def test_the_source_of_what_a_link_should_be_is_the_manifest_if_it_orders_any_part() -> None:
    full = (GpuSample(pcie_generation=5, pcie_width=16),)
    for expect in (Expectations(pcie_generation=5), Expectations(pcie_width=16)):
        assert under_load(Standards(PROFILE, expect), full).source == "the manifest"
    assert under_load(Standards(PROFILE), full).source == "the vendor"
    assert under_load(Standards(PROFILE), (), (GpuSample(lost="GpuIsLost"),), full).verdict == "pass"
    best = "NVML: the most that card and slot can do"
    known = under_load(Standards(None), full, MaxPcieLinkGeneration=5, MaxPcieLinkWidth=16)
    assert (known.verdict, known.source) == ("pass", best)
    for part in ("MaxPcieLinkGeneration", "MaxPcieLinkWidth"):
        assert under_load(Standards(None), full, **{part: 16}).found == "GPU 0 has no sample under load"
