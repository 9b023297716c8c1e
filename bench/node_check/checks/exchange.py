"""Judge all-reduce and all-to-all over 2, 4, ... and all nodes by the rates of the nodes' links.

The bytes that leave a node follow from the algorithm: 2 (k - 1) / k S for an all-reduce of S bytes over k
nodes; (k - 1) / k S for each GPU in an all-to-all in which each GPU has S bytes. These are the factors of
nccl-tests (doc/PERFORMANCE.md), counted in nodes. Sums in the switches (SHARP) send less, so they look
faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from bench.base.strict_json import from_json
from bench.node_check.checks import Check
from bench.node_check.checks.pairs import LINK_SOURCE, MOST_LANES, MOST_RATE, link_rates, without_link
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, quantity
from bench.node_check.judging.judge_figures import shortfall
from bench.node_check.judging.standards import Standards

ALL_REDUCE, ALL_TO_ALL = "all-reduce", "all-to-all"
# Tolerated shortfall from the links' rate, in percent. For all-to-all nobody publishes figures: half.
WARN_PERCENT, FAIL_PERCENT = {ALL_REDUCE: 28.0, ALL_TO_ALL: 50.0}, {ALL_REDUCE: 50.0, ALL_TO_ALL: 75.0}
SOURCES = {ALL_REDUCE: LINK_SOURCE, ALL_TO_ALL: "half of the links' rate; nobody publishes figures"}
MOST_EXCHANGES = 32


@dataclass(frozen=True, slots=True)
class NodeExchange:
    """A collective over some nodes: the bytes that leave each node in one piece, and each piece's seconds."""

    kind: str  # ALL_REDUCE or ALL_TO_ALL
    nodes: tuple[int, ...]
    lanes: int
    piece_bytes: float
    seconds: tuple[float, ...] = ()
    why: str = ""  # there are no times

    @property
    def name(self) -> str:
        """Kind and number of nodes, for findings: "all-reduce 4 nodes"."""
        return f"{self.kind} {len(self.nodes)} nodes"

    @property
    def rate(self) -> float:
        """The bytes that leave each node in a second, in the usual piece."""
        return self.piece_bytes / median(self.seconds)


def bytes_out(kind: str, nodes: int, lanes: int, size: int) -> float:
    """Return the bytes that leave each node; `size` is that of the tensor on each GPU."""
    across = (nodes - 1) / nodes
    return 2 * across * size if kind == ALL_REDUCE else lanes * across * size


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Hold each collective's rate against the slowest link of its nodes; ValueError for impossible rates."""
    if "exchange" not in evidence.readings:
        yield Question("exchange").unread("the nodes exchanged nothing")
        return
    data = evidence.data("exchange")
    exchanges = from_json(tuple[NodeExchange, ...], data["exchanges"]) if data else ()
    if len(exchanges) > MOST_EXCHANGES:
        raise ValueError(f"more than {MOST_EXCHANGES} exchanges")
    for exchange in exchanges:
        question = Question("exchange", exchange.name, figure=exchange.name, unit="B/s")
        if not exchange.seconds:
            yield question.unread(exchange.why or "it was not made")
            continue
        if min(exchange.seconds) <= 0 or not 0 < exchange.rate <= MOST_RATE * MOST_LANES:
            raise ValueError(f"{exchange.name} cannot be that fast")
        yield _judged(question, exchange, evidence)


def _judged(question: Question, exchange: NodeExchange, evidence: Evidence) -> Finding:
    links = link_rates(evidence, exchange.lanes)
    found = f"{quantity(exchange.rate, 'B/s')} out of each node"
    if not all(node in links for node in exchange.nodes):
        return without_link(question, found, exchange.rate)
    link = min(links[node] for node in exchange.nodes) * exchange.lanes
    warn, fail = WARN_PERCENT[exchange.kind], FAIL_PERCENT[exchange.kind]
    return question.judged(
        shortfall(exchange.rate, link, warn, fail),
        found,
        expected=f"at least {100 - warn:g}% of its links, {quantity(link, 'B/s')}",
        basis="reference",
        source=SOURCES[exchange.kind],
        advice="look at check pairs first: the slowest node holds all back",
        value=exchange.rate,
        reference=link,
    )


CHECK = Check(
    "exchange",
    "do all nodes together exchange data at the speed of their links?",
    judge,
    workers="nodes",
    blames="node",
    between_nodes=True,
)
