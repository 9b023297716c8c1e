"""A tournament between nodes and the exchanges of many are judged from their readings alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks.exchange import ALL_REDUCE, ALL_TO_ALL, NodeExchange, bytes_out
from bench.node_check.checks.exchange import judge as judge_exchange
from bench.node_check.checks.pairs import FailedPair, LostNode, Tournament, Transfer, judge
from bench.node_check.checks.ports import NodePorts, Port
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, Standards

NDR = Port("mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)")
RATE = 44e9  # of a healthy lane, whose link has 50 GB/s
PIECE_BYTES = RATE * 0.05


def played(
    nodes: int,
    share: Callable[[int, int, int], float] = lambda a, b, lane: 1.0,
    lanes: int = 1,
    **changes: Any,
) -> Tournament:
    """Play a tournament; `share` is the rate from a to b in a lane, as a share of a healthy one."""
    transfers = tuple(
        Transfer(lane, a, b, tuple(each / share(a, b, lane) for each in (0.05, 0.05, 0.3)))
        for lane in range(lanes)
        for a in range(nodes)
        for b in range(nodes)
        if a != b and share(a, b, lane)
    )
    return replace(Tournament(nodes, lanes, nodes - 1, nodes - 1, PIECE_BYTES, transfers), **changes)


def judged(
    tournament: Tournament, ports: Mapping[int, Sequence[Port]] | None = None, **expect: Any
) -> list[Finding]:
    nodes = [NodePorts(node, tuple(found)) for node, found in (ports or {}).items()]
    readings = {
        "pairs": Reading("pairs", to_json(tournament)),
        "ports": Reading("ports", {"nodes": to_json(nodes)}),
    }
    evidence = Evidence("nodes", "cuda", (), readings)
    return list(judge(evidence, Standards(None, Expectations(**expect))))


def named(findings: Sequence[Finding]) -> dict[str, str]:
    return {f.subject: f.verdict for f in findings if f.verdict in ("warn", "fail")}


def test_healthy_nodes_pass_with_a_rate_each() -> None:
    findings = judged(played(4), {node: [NDR] for node in range(4)})
    assert {f.verdict for f in findings} == {"pass"}
    assert {f.found for f in findings} == {"44 GB/s with its partners"}
    assert {f.expected for f in findings if f.basis == "reference"} == {"at least 72% of its link, 50 GB/s"}


@pytest.mark.parametrize(
    ("share", "lanes", "expected"),
    [
        (lambda a, b, lane: 0.5 if 5 in (a, b) else 1.0, 1, {"node 5": "fail"}),
        (lambda a, b, lane: 0.8 if 5 in (a, b) else 1.0, 1, {"node 5": "warn"}),
        (lambda a, b, lane: 0.5 if a == 5 else 1.0, 1, {"node 5": "fail"}),
        (lambda a, b, lane: 0.5 if 5 in (a, b) else 1.0, 2, {"node 5": "fail"}),
        (lambda a, b, lane: 0.5 if 5 in (a, b) and lane == 1 else 1.0, 2, {"node 5 lane 1": "fail"}),
        (lambda a, b, lane: 0.5 if {a, b} == {2, 6} else 1.0, 1, {"node 2 - node 6": "fail"}),
    ],
)
def test_what_is_slow_is_named_as_a_node_a_cable_or_a_path(
    share: Callable[[int, int, int], float], lanes: int, expected: dict[str, str]
) -> None:
    findings = judged(played(8, share, lanes))
    assert named(findings) == expected
    (finding,) = [f for f in findings if f.verdict in ("warn", "fail")]
    assert finding.expected in ("at least 88% of 44 GB/s", "at least 75% of 44 GB/s")


@pytest.mark.parametrize(
    ("share", "subject"),
    [
        (lambda a, b, _: 0.5 if a > 3 or b > 3 else 1.0, "leaf b"),
        (lambda a, b, _: 0.5 if (a > 3) != (b > 3) else 1.0, "uplinks of leaf a and leaf b"),
    ],
)
def test_with_the_leaves_of_the_manifest_a_switch_is_named(
    share: Callable[[int, int, int], float], subject: str
) -> None:
    leaves = {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}
    findings = judged(played(8, share), leaves=leaves)
    assert [*named(findings)] == [subject]
    passing = {f.subject for f in findings if f.verdict == "pass"}
    assert passing <= {f"node {node}" for node in range(4)}  # no node under a slow switch passes


def test_a_pair_that_was_slow_once_and_fast_when_it_met_again_is_not_named() -> None:
    slow = played(8, lambda a, b, _: 0.5 if {a, b} == {2, 6} else 1.0)
    again = tuple(Transfer(0, a, b, (0.05,)) for a, b in ((2, 6), (6, 2)))
    assert named(judged(replace(slow, transfers=slow.transfers + again))) == {}
    failed = (FailedPair(0, 2, 6, "nothing came through in time"),)
    assert named(judged(played(8, failed=failed))) == {}


@pytest.mark.parametrize(("share", "verdict"), [(0.68, "warn"), (0.5, "fail")])
def test_scattered_slow_pairs_are_told_without_a_name(share: float, verdict: str) -> None:
    slow = ({0, 1}, {0, 2}, {1, 3}, {3, 5}, {5, 6})
    findings = judged(played(8, lambda a, b, _: share if {a, b} in slow else 1.0))
    assert named(findings) == {"the tournament": verdict}
    (finding,) = [f for f in findings if f.verdict == verdict]
    assert finding.found.endswith("in common: 0 - 1, 0 - 2, 1 - 3, 3 - 5, 5 - 6")


def test_two_nodes_that_exchange_nothing_fail_and_neither_is_accused() -> None:
    cut = (FailedPair(0, 0, 1, "nothing came through in time"),)
    findings = judged(Tournament(2, 1, 1, 1, PIECE_BYTES, failed=cut))
    assert named(findings)["lane 0"] == "fail"
    assert {f.verdict for f in findings if f.counts} == {"fail"}


def test_a_slow_pair_of_only_two_nodes_is_seen_by_its_link_rate() -> None:
    findings = judged(played(2, lambda *_: 0.4), {0: [NDR], 1: [NDR]})
    assert named(findings) == {"node 0": "fail", "node 1": "fail"}


def test_a_node_that_was_lost_is_named_and_its_failed_pairs_accuse_nobody() -> None:
    lost = (LostNode(3, "it was lost in round 2 of 3"),)
    failed = (FailedPair(0, 2, 3, "a node was lost"),)
    findings = judged(played(4, lambda a, b, _: 0.0 if 3 in (a, b) else 1.0, lost=lost, failed=failed))
    assert named(findings) == {"node 3": "fail"}


def test_rounds_without_time_are_not_a_pass() -> None:
    findings = judged(played(4, made=2))
    (finding,) = [f for f in findings if f.verdict == "not-run" and f.counts]
    assert finding.found == "2 of 3 rounds were made in the time of this level"


@pytest.mark.parametrize(
    "changes",
    [
        {"lanes": 10**9},
        {"nodes": 10**9},
        {"nodes": 2},
        {"piece_bytes": 0.0},
        {"piece_bytes": float("nan")},
        {"transfers": (Transfer(0, 0, 1, ()),)},
        {"transfers": (Transfer(0, 0, 1, (0.0,)),)},
        {"transfers": (Transfer(0, 0, 1, (1e-6,)),)},
        {"transfers": (Transfer(0, 1, 1, (0.1,)),)},
        {"transfers": (Transfer(5, 0, 1, (0.1,)),)},
        {"failed": (FailedPair(0, 0, 99, ""),)},
    ],
)
def test_numbers_that_no_tournament_has_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no "):
        judged(replace(played(4), **changes))


@pytest.mark.parametrize("leaves", [{"a": (0, 1), "b": (1, 2)}, {"a": tuple(range(129))}])
def test_leaves_that_no_manifest_may_have_are_refused(leaves: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="leaf"):
        judged(played(4), leaves=leaves)


@pytest.mark.parametrize(
    ("kind", "lanes", "expected"),
    [(ALL_REDUCE, 8, 1.5 * 2**30), (ALL_TO_ALL, 8, 6 * 2**30), (ALL_TO_ALL, 1, 0.75 * 2**30)],
)
def test_what_leaves_a_node_follows_from_the_algorithm(kind: str, lanes: int, expected: float) -> None:
    assert bytes_out(kind, 4, lanes, 2**30) == expected


@pytest.mark.parametrize(
    ("kind", "rate", "verdict"),
    [
        (ALL_REDUCE, 330e9, "pass"),
        (ALL_REDUCE, 250e9, "warn"),
        (ALL_REDUCE, 150e9, "fail"),
        (ALL_TO_ALL, 250e9, "pass"),
        (ALL_TO_ALL, 150e9, "warn"),
        (ALL_TO_ALL, 90e9, "fail"),
    ],
)
def test_an_exchange_is_held_against_the_links_of_its_nodes(kind: str, rate: float, verdict: str) -> None:
    ports = [NodePorts(node, (NDR,) * 8) for node in (0, 1)]
    exchange = NodeExchange(kind, (0, 1), 8, rate, (1.0,))
    readings = {
        "exchange": Reading("exchange", {"exchanges": to_json([exchange])}),
        "ports": Reading("ports", {"nodes": to_json(ports)}),
    }
    (finding,) = judge_exchange(Evidence("nodes", "cuda", (), readings), Standards(None))
    assert (finding.verdict, finding.reference) == (verdict, 400e9)
    (by_tcp,) = judge_exchange(Evidence("nodes", "cpu", (), readings), Standards(None))
    assert (by_tcp.verdict, by_tcp.counts) == ("not-run", False)
