"""Judge a tournament in which every pair of nodes exchanged data: which node, cable, path or leaf is slow.

bench/runner/check/between_nodes.py runs the tournament: in each round every node meets one other node, and
each of its GPUs (a lane) sends to the GPU of the same number, first in one direction, then in the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from bench.base.strict_json import from_json
from bench.node_check.checks import Check
from bench.node_check.checks.ports import MOST_NODES, nodes_of
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.judge_figures import shortfall
from bench.node_check.judging.round_robin import Pair, pair_of
from bench.node_check.judging.slow_parts import Diagnosis, SlowPart, diagnose, over_lanes
from bench.node_check.judging.standards import Standards

MOST_LANES = 64
MOST_RATE = 1e12  # bytes a second of one lane: twenty times the fastest link of today
FAIL_SHARE = 0.75  # of the usual rate: a slow part below it fails, a slow part above it is a warning
# What Azure requires of NCCL through the InfiniBand adapters of one node: 40 of 50 GB/s, and 18 of 25 GB/s.
LINK_WARN_PERCENT, LINK_FAIL_PERCENT = 28.0, 50.0
LINK_SOURCE = "check_nccl_allreduce_ib_loopback: Azure/azurehpc-health-checks, nd96isr_h100_v5 and nd96asr_v4"
MOST_SHOWN = 6  # pairs in a finding
SCATTERED_FAIL_SHARE = 0.6  # of the usual rate
OTHERS = "the other pairs of this tournament"
SWAP = "swap its cable with that of a fast node: if the other node becomes slow, replace the cable; if not, "
ADVICE = {
    "node": SWAP + "look at its adapter (check ports), its slot and what else loads this node",
    "cable": SWAP + "look at the adapter of this lane and its slot",
    "pair": "both nodes are fast with others: look at the route between them and at cables of switches",
    "leaf": "look at this leaf switch: its ports, its temperature, its log, its buffers",
    "uplinks": "look for links between these switches that are down or slow; fewer uplinks than nodes "
    "are slower by design",
}


Rates = Mapping[int, Mapping[Pair, float]]  # of the pairs, by lane


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer from one node to another in one lane: the seconds of equal pieces."""

    lane: int
    sender: int
    receiver: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FailedPair:
    """A pair of nodes that exchanged nothing in one lane."""

    lane: int
    a: int
    b: int
    why: str


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that did not come to the meeting, or stopped answering."""

    node: int
    why: str


@dataclass(frozen=True, slots=True)
class Tournament:
    """The reading of a tournament."""

    nodes: int  # that were to take part
    lanes: int
    rounds: int  # that all pairs need
    made: int
    piece_bytes: float
    transfers: tuple[Transfer, ...] = ()
    failed: tuple[FailedPair, ...] = ()
    lost: tuple[LostNode, ...] = ()

    def rate(self, transfer: Transfer) -> float:
        """Return the rate of the median piece: one pause of a host says nothing about the link."""
        return self.piece_bytes / median(transfer.seconds)

    def rates(self, lane: int) -> dict[Pair, float]:
        """Return the rate of each pair's slower direction in one lane; 0 if the pair exchanged nothing.

        If a pair met twice, its better rate counts, so that a pair is slow only if it was slow twice.
        """
        best: dict[Pair, float] = {}
        for transfer in self.transfers:
            if transfer.lane == lane:
                way = (transfer.sender, transfer.receiver)
                best[way] = max(self.rate(transfer), best.get(way, 0.0))
        rates: dict[Pair, float] = {}
        for (sender, receiver), rate in best.items():
            pair = pair_of(sender, receiver)
            rates[pair] = min(rate, rates.get(pair, rate))
        lost = {gone.node for gone in self.lost}
        for pair in (pair_of(failed.a, failed.b) for failed in self.failed if failed.lane == lane):
            if not lost & {*pair}:
                rates.setdefault(pair, 0.0)
        return rates

    def diagnoses(self, leaves: Mapping[str, tuple[int, ...]]) -> dict[int, Diagnosis]:
        """Return the diagnosis of each lane in which a pair met."""
        by_lane = {lane: self.rates(lane) for lane in range(self.lanes)}
        return {lane: diagnose(rates, leaves) for lane, rates in by_lane.items() if rates}


def tournament_of(evidence: Evidence) -> Tournament | None:
    """Decode the tournament; None if there is none. ValueError for numbers that no tournament can have."""
    data = evidence.data("pairs")
    if data is None:
        return None
    found = from_json(Tournament, data)
    if not (1 < found.nodes <= MOST_NODES and 0 < found.lanes <= MOST_LANES):
        raise ValueError(f"no tournament has {found.nodes} nodes with {found.lanes} lanes")
    met = [(transfer.lane, transfer.sender, transfer.receiver) for transfer in found.transfers]
    met += [(failed.lane, failed.a, failed.b) for failed in found.failed]
    for lane, one, other in met:
        if not (0 <= lane < found.lanes and one != other and {one, other} <= {*range(found.nodes)}):
            raise ValueError(f"no pair of this tournament is {one} and {other} in lane {lane}")
    for transfer in found.transfers:
        timed = transfer.seconds and min(transfer.seconds) > 0
        if not (timed and 0 < found.rate(transfer) <= MOST_RATE):
            raise ValueError(f"no link between nodes {transfer.sender} and {transfer.receiver} is that fast")
    return found


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Name lost nodes and slow parts, then give each node's rate; ValueError for impossible readings."""
    if "pairs" not in evidence.readings:
        yield Question("pairs").unread("the nodes did not meet")
        return
    tournament = tournament_of(evidence)
    if tournament is None:
        return
    under = [node for nodes in standards.expect.leaves.values() for node in nodes]
    if len(standards.expect.leaves) > MOST_NODES or len({*under}) < len(under) or len(under) > MOST_NODES:
        raise ValueError("a node is under two leaf switches, or there are too many")
    for gone in tournament.lost:
        yield Question("pairs", f"node {gone.node}").judged(
            "fail",
            gone.why,
            expected="an answer in every round",
            source="bench",
            advice="look whether the node runs and reaches node 0; then check again",
        )
    if tournament.made < tournament.rounds:
        reason = f"{tournament.made} of {tournament.rounds} rounds were made in the time of this level"
        yield Question("pairs", "the tournament").unread(reason, advice='"levels" in the manifest gives more')
    by_lane = {lane: tournament.rates(lane) for lane in range(tournament.lanes)}
    diagnoses = tournament.diagnoses(standards.expect.leaves)
    if not diagnoses:
        return
    parts = over_lanes(diagnoses)
    for part in parts:
        yield _slow(part, diagnoses, tournament.nodes)
    yield from _scattered(diagnoses, by_lane)
    yield from _nowhere(diagnoses, by_lane)
    named = {node for part in parts if part.kind != "pair" for node in part.nodes}
    links = link_rates(evidence, tournament.lanes)
    for node in sorted({node for rates in by_lane.values() for pair in rates for node in pair}):
        yield from _node(node, by_lane, diagnoses, links.get(node), named=node in named)


def _slow(part: SlowPart, diagnoses: Mapping[int, Diagnosis], nodes: int) -> Finding:
    """Name a slow part of a fabric of `nodes` nodes, with its share of the usual rate."""
    lanes = part.lanes or tuple(diagnoses)
    usual = median(diagnoses[lane].usual for lane in lanes)
    limit = diagnoses[lanes[0]].limit(1 if part.kind == "pair" else nodes - 1)
    found = f"{100 * part.share:.0f}% of the usual rate, {quantity(part.share * usual, 'B/s')}"
    if part.share == 0:
        found = "no data came through"
    return Question("pairs", _subject(part), unit="B/s").judged(
        verdict_of(fail=part.share < FAIL_SHARE, warn=True),
        f"{found} {_with_whom(part)}",
        expected=f"at least {100 * limit:.0f}% of {quantity(usual, 'B/s')}",
        basis="peers",
        source=OTHERS,
        advice=ADVICE["cable" if part.kind == "node" and part.lanes else part.kind],
        value=part.share * usual,
        reference=usual,
    )


def _subject(part: SlowPart) -> str:
    lanes = f" lane {', '.join(map(str, part.lanes))}" if part.lanes else ""
    match part.kind:
        case "node":
            return f"node {part.nodes[0]}{lanes}"
        case "pair":
            return f"node {part.nodes[0]} - node {part.nodes[1]}{lanes}"
        case "leaf":
            return f"leaf {part.leaves[0]}{lanes}"
        case "uplinks":
            return f"uplinks of leaf {' and leaf '.join(part.leaves)}{lanes}"


def _with_whom(part: SlowPart) -> str:
    match part.kind:
        case "node":
            return "with its partners, which are fast with each other"
        case "pair":
            return "between them"
        case "leaf":
            return "under it and beyond it"
        case "uplinks":
            return "between them" if len(part.leaves) == 2 else "beyond it, and fast under it"


def _scattered(diagnoses: Mapping[int, Diagnosis], by_lane: Rates) -> Iterator[Finding]:
    """Report slow pairs that have no known part in common; no link is named for them."""
    shares = {
        (lane, pair): by_lane[lane][pair] / diagnosis.usual
        for lane, diagnosis in diagnoses.items()
        for pair in diagnosis.scattered
    }
    if not shares:
        return
    pairs = sorted({pair for _, pair in shares})
    shown = ", ".join(f"{a} - {b}" for a, b in pairs[:MOST_SHOWN])
    more = f" and {len(pairs) - MOST_SHOWN} more" if len(pairs) > MOST_SHOWN else ""
    share = median(shares.values())
    yield Question("pairs", "the tournament").judged(
        verdict_of(fail=share < SCATTERED_FAIL_SHARE, warn=True),
        f"{len(pairs)} pairs have {100 * share:.0f}% of the usual rate, and no part in common: {shown}{more}",
        expected="slow pairs that share a node, a path or a switch",
        basis="peers",
        source=OTHERS,
        advice='look what else loads these nodes; if they are under several switches, list these as "leaves"',
    )


def _nowhere(diagnoses: Mapping[int, Diagnosis], by_lane: Rates) -> Iterator[Finding]:
    """Report the lanes in which no pair of nodes exchanged anything."""
    for lane, diagnosis in diagnoses.items():
        if diagnosis.usual == 0:
            yield Question("pairs", f"lane {lane}").judged(
                "fail",
                f"no data came through between any of {len(by_lane[lane])} pairs",
                expected="data between all pairs",
                source=OTHERS,
                advice="is a firewall between the nodes? NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose a network",
            )


def _node(
    node: int, by_lane: Rates, diagnoses: Mapping[int, Diagnosis], link: float | None, *, named: bool
) -> Iterator[Finding]:
    """Yield the rate of one node with its partners, held against the others and against its link."""
    rates = [rate for lane in diagnoses for pair, rate in by_lane[lane].items() if node in pair]
    rate, usual = median(rates), median(diagnosis.usual for diagnosis in diagnoses.values())
    question = Question("pairs", f"node {node}", figure=f"pairs node {node}", unit="B/s")
    found = f"{quantity(rate, 'B/s')} with its partners"
    if not named:
        # With one partner there is nothing to compare with but the link.
        yield question.judged(
            "pass" if rate else "fail",
            found,
            expected=f"about {quantity(usual, 'B/s')}",
            basis="peers",
            source=OTHERS,
            value=rate,
            reference=usual or None,
        )
    if link is None:
        yield without_link(question, found, rate)
        return
    yield question.judged(
        shortfall(rate, link, LINK_WARN_PERCENT, LINK_FAIL_PERCENT),
        found,
        expected=f"at least {100 - LINK_WARN_PERCENT:g}% of its link, {quantity(link, 'B/s')}",
        basis="reference",
        source=LINK_SOURCE,
        advice="look at the checks ports and gpudirect, and at what else uses the fabric",
        value=rate,
        reference=link,
    )


def without_link(question: Question, found: str, rate: float) -> Finding:
    """Report a rate that cannot be compared with a link's. It does not count."""
    return question.judged(
        "not-run",
        found,
        expected="no reference figure",
        basis="reference",
        source="the links' rates are not known, or traffic went by TCP",
        value=rate,
        counts=False,
    )


def link_rates(evidence: Evidence, lanes: int) -> dict[int, float]:
    """Return the bytes a second that each node's links provide to one lane; only for GPUs on real ports.

    The lanes of a node share its active ports, and a lane uses one port at most.
    """
    if evidence.device != "cuda":  # gloo uses TCP
        return {}
    found: dict[int, float] = {}
    for node in nodes_of(evidence):
        rates = [port.bytes_per_second for port in node.ports if port.bytes_per_second]
        if rates:
            found[node.node] = min(max(rates), sum(rates) / lanes)
    return found


CHECK = Check(
    "pairs",
    "does every node exchange data with every other at the speed of its link?",
    judge,
    workers="nodes",
    blames="node",
    between_nodes=True,
)
