"""A fleet of made-up checks: each limit of the comparison just inside and just outside, each rule alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.node_check.fleet import Fleet, FleetMember, RankedNode, Value, compare_fleet
from bench.node_check.judging.finding import Finding

TERA = 1e12


def value(rate: float, **changes: Any) -> Value:
    return replace(Value("matmul", "matmul-bf16", "FLOP/s", rate * TERA, 0, "GPU-0"), **changes)


def member(number: int, *values: Value, **changes: Any) -> FleetMember:
    """Make a check of the node of this number, which passed."""
    seen = FleetMember(
        f"rack/n{number}.tar", f"run{number}", f"2026-06-{number + 1:02}T00:00:00Z", f"id{number}",
        "NVIDIA H100", {"0": f"GPU-{number}"}, "quick", simulated=False, findings=(passed(),),
        values=tuple(values), gpu_count=8, driver="580.1", vbios="96.1", host_bytes=2**40,
    )  # fmt: skip
    return replace(seen, **changes)


def passed() -> Finding:
    return Finding("matmul", "GPU 0", "pass", "good", "good", "rule", "bench")


def failed(check: str, gpu: int | None = 0, **changes: Any) -> Finding:
    return replace(Finding(check, "GPU 0", "fail", "bad", "good", "rule", "bench", gpu=gpu), **changes)


def node(fleet: Fleet, name: str) -> RankedNode:
    (found,) = (node for node in fleet.nodes if node.seen.name == name)
    return found


def said(fleet: Fleet, name: str) -> list[str]:
    return [finding.found for finding in node(fleet, name).findings]


# --- figures --------------------------------------------------------------------------------------------


def rates(*rates: float) -> list[FleetMember]:
    """Make a node for each rate. All but the last digits differ, so that none is a copy."""
    return [member(number, value(rate)) for number, rate in enumerate(rates)]


def test_a_figure_is_described_by_its_median_and_its_median_deviation() -> None:
    (spread,) = compare_fleet(rates(90, 95, 100, 105, 120)).spreads
    assert (spread.kind, spread.figure, spread.unit) == ("NVIDIA H100", "matmul-bf16", "FLOP/s")
    assert (spread.count, spread.median) == (5, 100 * TERA)
    assert spread.spread_percent == pytest.approx(1.4826 * 5)


def test_a_figure_of_fewer_than_four_values_is_compared_with_nothing() -> None:
    assert compare_fleet(rates(100, 101, 50)).spreads == ()
    (spread,) = compare_fleet(rates(100, 101, 102, 50)).spreads
    assert spread.count == 4


@pytest.mark.parametrize(
    ("rate", "verdict", "found"),
    [
        (96.01, "pass", []),
        (95.99, "warn", ["96 TFLOP/s, 4.0% under the fleet's median"]),
        (90.01, "warn", ["90 TFLOP/s, 10.0% under the fleet's median"]),
        (89.99, "fail", ["90 TFLOP/s, 10.0% under the fleet's median"]),
        (200.0, "pass", []),
    ],
)
def test_a_node_is_4_percent_under_the_median_or_10(rate: float, verdict: str, found: list[str]) -> None:
    fleet = compare_fleet(rates(100, 100.001, 99.999, 100.002, 99.998, 100, rate))
    assert (node(fleet, "n6").verdict, said(fleet, "n6")) == (verdict, found)
    assert {one.verdict for one in fleet.nodes if one.seen.name != "n6"} == {"pass"}
    assert fleet.verdict == verdict


@pytest.mark.parametrize(("rate", "verdict"), [(88.2, "pass"), (88.1, "fail")])
def test_a_node_is_an_outlier_beyond_four_spreads(rate: float, verdict: str) -> None:
    """The median deviation is 2, so a spread is 2.9652% of the median, and the limit 11.86% under it."""
    fleet = compare_fleet(rates(100, 98, 102, 97.9, 102.1, 100, rate))
    assert node(fleet, "n6").verdict == verdict


def test_an_outlier_says_what_was_expected_of_which_values() -> None:
    fleet = compare_fleet(rates(100, 100.001, 99.999, 100.002, 80))
    (finding,) = node(fleet, "n4").findings
    assert finding == Finding(
        "matmul", "GPU 0 matmul-bf16", "fail", "80 TFLOP/s, 20.0% under the fleet's median",
        "at most 4.0% under 100 TFLOP/s", "fleet", "5 values of NVIDIA H100 in this comparison",
        "check that node again; if it stays behind, its GPU or its slot is worse than the others",
        gpu=0, figure="matmul-bf16", value=80 * TERA, reference=100 * TERA, unit="FLOP/s",
    )  # fmt: skip
    assert node(fleet, "n4").worst == finding
    assert node(fleet, "n4").deviation_percent == pytest.approx(-20)


def test_a_nodes_deviation_is_that_of_its_worst_figure() -> None:
    second = {"figure": "memory", "check": "memory", "unit": "B/s"}
    fleet = compare_fleet(
        [member(n, value(100 + n / 1000), value(4 + n / 1e5, **second)) for n in range(4)]
        + [member(4, value(99), value(3.9, **second)), member(5)]
    )
    assert node(fleet, "n4").deviation_percent == pytest.approx(-2.5, abs=0.01)
    assert node(fleet, "n5").deviation_percent is None
    assert [spread.figure for spread in fleet.spreads] == ["matmul-bf16", "memory"]


def test_kinds_of_gpus_are_compared_apart() -> None:
    others = [
        member(10 + number, value(rate), kind="NVIDIA A100")
        for number, rate in enumerate((30, 30.001, 29.999, 30.002))
    ]
    fleet = compare_fleet([*rates(100, 100.001, 99.999, 100.002), *others])
    assert fleet.verdict == "pass"
    assert [(spread.kind, spread.count) for spread in fleet.spreads] == [
        ("NVIDIA A100", 4),
        ("NVIDIA H100", 4),
    ]


# --- order ----------------------------------------------------------------------------------------------


def test_worse_verdicts_come_first_then_larger_shortfalls_then_names() -> None:
    fleet = compare_fleet(rates(100.004, 100, 89, 95, 94, 100.003, 99.999, 100.002, 80))
    assert [one.seen.name for one in fleet.nodes][:4] == ["n8", "n2", "n4", "n3"]
    assert [one.seen.name for one in fleet.nodes][4:] == ["n6", "n1", "n7", "n5", "n0"]
    plain = compare_fleet([member(3), member(1), member(2)])
    assert [one.seen.name for one in plain.nodes] == ["n1", "n2", "n3"]


def test_a_fleet_without_nodes_was_not_run() -> None:
    assert compare_fleet([]) == Fleet((), (), (), (), "not-run")


# --- one node, several checks ---------------------------------------------------------------------------


def gpus(*names: str) -> dict[str, str]:
    return {str(index): name for index, name in enumerate(names)}


@pytest.mark.parametrize(
    ("before", "now", "is_one"),
    [
        (gpus("a", "b", "c"), gpus("a", "b", "x"), True),
        (gpus("a", "b"), gpus("a", "x"), False),
        (gpus("a", "b", "c"), gpus("a", "b"), True),
        (gpus("a", "b", "c", "d"), gpus("a", "b"), False),
        (gpus("a"), gpus("b"), False),
        ({}, {}, False),
    ],
)
def test_checks_that_share_more_than_half_of_the_larger_ones_gpus_are_of_one_node(
    before: dict[str, str], now: dict[str, str], is_one: bool
) -> None:
    fleet = compare_fleet([member(1, uuids=before), member(2, uuids=now)])
    assert fleet.older == (("rack/n1.tar",) if is_one else ())
    assert len(fleet.nodes) == (1 if is_one else 2)


def test_checks_of_equal_identity_are_of_one_node() -> None:
    fleet = compare_fleet([member(2, uuids={}), member(1, uuids={}, identity="id2")])
    assert [one.seen.name for one in fleet.nodes] == ["n2"]
    assert fleet.older == ("rack/n1.tar",)


@pytest.mark.parametrize(
    ("older", "newer", "kept"),
    [
        ({}, {}, ["n2"]),
        ({"trusted": True}, {"trusted": True}, ["n2"]),
        ({}, {"trusted": True}, ["n2"]),
        ({"trusted": True}, {}, ["n1", "n2"]),
        ({"signed_level": "operator", "trusted": True}, {"trusted": True}, ["n1", "n2"]),
    ],
)
def test_a_newer_check_replaces_one_that_is_worth_as_much_or_less(
    older: dict[str, Any], newer: dict[str, Any], kept: list[str]
) -> None:
    same = {"identity": "one"}
    fleet = compare_fleet([member(1, **same, **older), member(2, **same, **newer)])
    assert sorted(one.seen.name for one in fleet.nodes) == kept
    remarks = said(fleet, "n2")
    told = "does not replace n1, an older check of the same GPUs, which is trusted more"
    assert remarks == ([told] if len(kept) == 2 else [])
    if len(kept) == 2:
        assert said(fleet, "n1") == []
        assert node(fleet, "n2").verdict == "warn"


OTHER_KEY = "which another key signed: neither key is trusted"
TRUSTED_MORE = "which is trusted more"


@pytest.mark.parametrize(
    ("older", "newer", "reason"),
    [
        ({"signer": "a"}, {"signer": "a"}, None),
        ({"signer": "a"}, {"signer": "b"}, OTHER_KEY),
        ({"signer": "a"}, {"signer": "b", "trusted": True}, None),
        ({"signer": "a", "trusted": True}, {"signer": "b", "trusted": True}, None),
        ({"signer": "a", "trusted": True}, {"signer": "b"}, TRUSTED_MORE),
        ({"signer": "a", "run_id": "same", "started_at": "2026-06-09T00:00:00Z"},
         {"signer": "b", "run_id": "same", "started_at": "2026-06-09T00:00:00Z"}, OTHER_KEY),
    ],
)  # fmt: skip
def test_a_newer_check_by_another_key_replaces_one_only_if_it_is_trusted(
    older: dict[str, Any], newer: dict[str, Any], reason: str | None
) -> None:
    same = {"identity": "one"}
    fleet = compare_fleet([member(1, **same, **older), member(2, **same, **newer)])
    told = f"does not replace n1, an older check of the same GPUs, {reason}"
    assert (said(fleet, "n2"), len(fleet.nodes)) == (([told], 2) if reason else ([], 1))


def test_only_the_latest_of_many_older_checks_by_other_keys_is_named() -> None:
    """A node whose key changes with every check would else get a line for each check before."""
    fleet = compare_fleet([member(number, identity="one", signer=f"key {number}") for number in range(1, 5)])
    assert [len(said(fleet, f"n{number}")) for number in range(1, 5)] == [0, 1, 1, 1]
    assert said(fleet, "n4")[0].startswith("does not replace n3,")


@pytest.mark.parametrize("trusted", [False, True])
def test_a_check_of_the_future_replaces_no_other_and_no_other_replaces_it(trusted: bool) -> None:
    ahead = member(2, identity="one", trusted=trusted, dated_ahead=True)
    fleet = compare_fleet([member(1, identity="one"), ahead])
    assert said(fleet, "n2") == [
        "says that it ran on 2026-06-03T00:00:00Z, which lies in the future: it replaces no other check"
    ]
    assert (said(fleet, "n1"), len(fleet.nodes)) == ([], 2)


# --- what most nodes have -------------------------------------------------------------------------------


@pytest.mark.parametrize(("alike", "odd", "told"), [(5, 2, True), (4, 2, False), (4, 1, True), (3, 1, True)])
def test_more_than_two_thirds_of_four_nodes_or_more_are_the_usual_ones(
    alike: int, odd: int, told: bool
) -> None:
    others = [member(20 + number, driver=f"57{number}.1") for number in range(odd)]
    fleet = compare_fleet([*(member(number) for number in range(alike)), *others])
    assert bool(said(fleet, "n20")) is told
    assert said(fleet, "n0") == []


def test_three_nodes_have_nothing_usual() -> None:
    fleet = compare_fleet([member(1), member(2), member(3, driver="570.1")])
    assert fleet.verdict == "pass"
    silent = compare_fleet([member(1), member(2), member(3), member(4, driver=""), member(5, driver="570.1")])
    assert said(silent, "n5") == ["driver 570.1, where most of the fleet have 580.1"]
    assert (
        said(compare_fleet([member(1), member(2), member(4, driver=""), member(5, driver="570.1")]), "n5")
        == []
    )


def test_a_node_that_differs_says_from_how_many() -> None:
    fleet = compare_fleet([*(member(number) for number in range(5)), member(9, driver="570.1")])
    assert node(fleet, "n9").findings == (
        Finding(
            "alike", "the node", "warn", "driver 570.1, where most of the fleet have 580.1",
            "driver 580.1", "fleet", "6 nodes of NVIDIA H100 in this comparison",
            "install the driver that the fleet has",
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("share", "told"), [(0.951, False), (0.949, True), (2.0, False)])
def test_a_host_has_at_most_5_percent_less_memory_than_the_others(share: float, told: bool) -> None:
    odd = member(9, host_bytes=int(share * 2**40))
    fleet = compare_fleet([*(member(number) for number in range(5)), odd])
    assert said(fleet, "n9") == (
        ["971.8 GiB of memory, where most of the fleet have 1,024.0 GiB"] if told else []
    )


@pytest.mark.parametrize(("size", "told"), [(950, False), (949, True)])
def test_a_host_with_exactly_5_percent_less_memory_is_like_the_others(size: int, told: bool) -> None:
    others = [member(number, host_bytes=1000) for number in range(5)]
    assert bool(said(compare_fleet([*others, member(9, host_bytes=size)]), "n9")) is told


def test_memory_is_compared_with_nodes_of_as_many_gpus() -> None:
    half = member(9, host_bytes=2**39, gpu_count=4)
    fleet = compare_fleet([*(member(number) for number in range(5)), half])
    assert said(fleet, "n9") == ["number of GPUs 4, where most of the fleet have 8"]
    some = [member(number, host_bytes=2**39) for number in range(4, 7)]
    assert compare_fleet([*(member(number) for number in range(4)), *some]).verdict == "pass"


# --- trust ----------------------------------------------------------------------------------------------


def test_trusted_nodes_are_the_measure_for_all() -> None:
    ours = [replace(one, trusted=True) for one in rates(100, 100.001, 99.999, 100.002)]
    theirs = [member(20 + number, value(150 + number), driver="999.1") for number in range(9)]
    fleet = compare_fleet([*ours, *theirs])
    (spread,) = fleet.spreads
    assert (spread.count, spread.median) == (4, pytest.approx(100 * TERA, rel=1e-4))
    assert all(one.verdict == "pass" for one in fleet.nodes if one.seen.trusted)
    assert said(fleet, "n20") == ["driver 999.1, where most of the fleet have 580.1"]


# --- copies ---------------------------------------------------------------------------------------------

FOUR = tuple(value(100.123456 + number, figure=f"figure {number}") for number in range(4))


def copies(*members: FleetMember) -> dict[str, list[str]]:
    return {
        one.seen.name: said(compare_fleet(members), one.seen.name) for one in compare_fleet(members).nodes
    }


def test_nodes_with_the_figures_of_another_run_fail() -> None:
    found = compare_fleet([member(1, *FOUR), member(2, *FOUR)])
    assert said(found, "n1") == ["most of its 4 figures are those of n2"]
    assert said(found, "n2") == ["most of its 4 figures are those of n1"]
    assert (found.verdict, found.spreads) == ("fail", ())
    (finding,) = node(found, "n1").findings
    assert (finding.check, finding.expected, finding.basis) == ("alike", "figures of its own", "fleet")


def test_three_figures_are_too_few_to_tell_a_copy() -> None:
    assert copies(member(1, *FOUR[:3]), member(2, *FOUR[:3])) == {"n1": [], "n2": []}


def test_figures_are_equal_in_eight_digits() -> None:
    def changed(by: float) -> FleetMember:
        return member(2, *(replace(one, rate=one.rate * (1 + by)) for one in FOUR))

    assert copies(member(1, *FOUR), changed(1e-11))["n2"] != []
    assert copies(member(1, *FOUR), changed(1e-6))["n2"] == []


def test_simulated_checks_copy_nothing_and_the_same_bundle_is_no_copy() -> None:
    assert copies(member(1, *FOUR), member(2, *FOUR, simulated=True)) == {"n1": [], "n2": []}
    again = member(1, *FOUR, path="again/n1.tar")
    fleet = compare_fleet([member(1, *FOUR), again])
    assert fleet.verdict == "pass"


def test_an_original_that_is_worth_more_than_its_copies_passes() -> None:
    found = copies(member(1, *FOUR, trusted=True), member(2, *FOUR))
    assert found == {"n1": [], "n2": ["most of its 4 figures are those of n1"]}
    both = copies(member(1, *FOUR, trusted=True), member(2, *FOUR, trusted=True))
    assert all(both.values())


# --- repeat offenders -----------------------------------------------------------------------------------


def lemons(*members: FleetMember) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.uuid, one.times) for one in compare_fleet(members).lemons]


def checks(*findings: Sequence[Finding], **changes: Any) -> list[FleetMember]:
    """Make a check of one node for each list of findings, one after the other."""
    one = {"identity": "one", "uuids": {"0": "GPU-a", "1": "GPU-b"}}
    return [
        member(number, findings=tuple(found), **one | changes) for number, found in enumerate(findings, 1)
    ]


def test_a_gpu_that_failed_in_two_checks_is_named_with_both() -> None:
    twice = checks([failed("xid"), failed("ecc")], [failed("xid")])
    first, second = "GPU 0 of n1 on 2026-06-02: xid, ecc", "GPU 0 of n2 on 2026-06-03: xid"
    assert lemons(*twice) == lemons(*reversed(twice)) == [("GPU-a", (first, second))]


@pytest.mark.parametrize(
    "second",
    [
        [],
        [failed("xid", gpu=1)],
        [failed("xid", gpu=None)],
        [failed("xid", gpu=7)],
        [failed("xid", verdict="warn")],
        [failed("strangers")],
        [failed("power")],
    ],
)
def test_a_gpu_whose_second_check_blames_no_card_is_none(second: list[Finding]) -> None:
    assert lemons(*checks([failed("xid")], second)) == []


def test_two_failures_in_one_check_are_one() -> None:
    assert lemons(*checks([failed("xid"), failed("ecc")])) == []
    same = checks([failed("xid")], [failed("xid")])
    assert lemons(same[0], replace(same[1], run_id=same[0].run_id)) == []


def test_a_slow_figure_beside_another_process_counts_against_nobody() -> None:
    slow = failed("matmul", figure="matmul-bf16")
    assert len(lemons(*checks([slow], [slow]))) == 1
    assert lemons(*checks([slow, failed("strangers")], [slow])) == []
    assert len(lemons(*checks([slow, failed("strangers", gpu=1)], [slow]))) == 1
    assert len(lemons(*checks([failed("xid"), failed("strangers")], [slow]))) == 1


def test_only_trusted_checks_count_against_a_gpu_of_a_trusted_check() -> None:
    one, two, three = checks([failed("xid")], [failed("xid")], [failed("xid")])
    assert lemons(replace(one, trusted=True), two, three) == []
    ((_, times),) = lemons(replace(one, trusted=True), two, replace(three, trusted=True))
    assert [time.partition(" on ")[0] for time in times] == ["GPU 0 of n1", "GPU 0 of n3"]


def test_a_card_that_lags_behind_the_fleet_counts_as_one_that_failed() -> None:
    slow = [replace(one, uuids={"0": "GPU-a"}) for one in rates(80)]
    before = member(
        30, uuids={"0": "GPU-a"}, identity="id0", findings=(failed("xid"),), started_at="2026-05-01"
    )
    good = [member(10 + n, value(100 + n / 1000)) for n in range(6)]
    ((uuid, times),) = lemons(before, *slow, *good)
    assert (uuid, times[1]) == ("GPU-a", "GPU 0 of n0 on 2026-06-01: matmul")
