"""Find the slow node, cable, path or leaf switch behind the rates of all pairs of nodes. Pure.

In: the rate of each pair, 0 if nothing came through, and optionally which nodes share a leaf switch. A pair
is as slow as the slowest part between its nodes, so a part is named if every pair that uses it is slow. Names
are taken one after the other, from the part that explains most to the part that explains least: a leaf
switch, the links above it, a node, and last a single pair. The pairs that a name explains say nothing about
other parts. What is usual is the rate of healthy nodes: more than half of all, or all under one leaf switch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from math import ceil, sqrt
from statistics import median
from typing import Literal

from bench.node_check.judging.round_robin import Pair, pair_of

NODE_SHARE = 0.12  # below the usual rate, from which a node or a leaf is named: several pairs agree on it
PAIR_SHARE = 0.25  # below the usual rate, from which a pair is named: it was measured once
NODE_DEVIATIONS, PAIR_DEVIATIONS = 3.0, 6.0  # of the noise, if that is more
NEAR = 0.25  # of the usual rate: pairs within it are taken for healthy when the noise is estimated
LEAST_NOISE, UNKNOWN_NOISE = 0.01, 0.05  # the second if there are FEW_PAIRS or fewer
FEW_PAIRS = 4  # fewer of them have to be as slow as a single pair, to be named
MAD_TO_SIGMA = 1.4826
MEDIAN_ERROR = 1.25  # standard error of a median, as a multiple of that of a mean
# Slow paths that are named at most, and as a share of the pairs that no other part explains. More of them
# have a cause in common that is not known here: busy nodes, or switches that the manifest does not list.
FEW_PATHS, PATHS_SHARE = 2, 0.1
LEAF_PAIRS_SLOW = 0.8  # of the pairs between two leaves, so that the path between the leaves is named

PartKind = Literal["leaf", "uplinks", "node", "pair"]


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A part of the fabric that is slow.

    leaf: a leaf switch. uplinks: the links above one leaf, or between two. node: a node, its port or its
    cable. pair: the path between two nodes that are fast with others.
    """

    kind: PartKind
    nodes: tuple[int, ...]  # under the leaves, if it is not a node or a pair
    share: float  # of the usual rate that it reaches
    leaves: tuple[str, ...] = ()
    lanes: tuple[int, ...] = ()  # on which it is slow; empty: on all of them


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of one lane, from the rates of its pairs."""

    usual: float  # rate of a healthy pair; 0 if no pair exchanged anything
    noise: float  # standard deviation of healthy pairs, as a share of the usual rate
    parts: tuple[SlowPart, ...]
    scattered: tuple[Pair, ...] = ()  # slow pairs without a part in common, too many for a path each

    def limit(self, pairs: int) -> float:
        """Return the share of the usual rate below which `pairs` pairs together are slow.

        A single pair was measured once; more pairs agree with each other, and their noise averages out.
        """
        if pairs < FEW_PAIRS:
            return 1 - max(PAIR_SHARE, PAIR_DEVIATIONS * self.noise)
        return 1 - max(NODE_SHARE, NODE_DEVIATIONS * MEDIAN_ERROR * self.noise / sqrt(pairs / 2))


def diagnose(rates: Mapping[Pair, float], leaves: Mapping[str, Collection[int]] | None = None) -> Diagnosis:
    """Name the slow parts of one lane. `leaves`: the nodes under each leaf switch, by its name."""
    leaves = leaves or {}
    usual = _usual(rates, leaves)
    if usual == 0:
        return Diagnosis(0.0, 0.0, ())
    shares = {pair: rate / usual for pair, rate in rates.items()}
    blank = Diagnosis(usual, _noise(shares.values()), ())
    search = _Search(shares, blank.limit, leaves)
    search.find()
    return Diagnosis(usual, blank.noise, tuple(search.parts), search.scattered)


def _usual(rates: Mapping[Pair, float], leaves: Mapping[str, Collection[int]]) -> float:
    """Estimate the rate of a healthy pair: that of most nodes, or that within the best leaf if it is higher.

    Only the better half of each node's pairs counts, so that slow partners do not matter.
    """
    if not rates:
        return 0.0
    usual = median(map(_better_half, _by_node(rates).values()))
    for under in leaves.values():
        inside = [rate for pair, rate in rates.items() if {*under}.issuperset(pair)]
        usual = max(usual, median(inside or [0.0]))
    for _ in range(3):  # these estimates lie above the middle: move to the middle of what is near
        usual = median([rate for rate in rates.values() if abs(rate - usual) <= NEAR * usual] or [usual])
    return usual


def _noise(shares: Iterable[float]) -> float:
    near = [share for share in shares if abs(share - 1) <= NEAR]
    if len(near) <= FEW_PAIRS:
        return UNKNOWN_NOISE
    return max(LEAST_NOISE, MAD_TO_SIGMA * median(abs(share - 1) for share in near))


def _by_node(rates: Mapping[Pair, float]) -> dict[int, list[float]]:
    """Return the rates of each node with its partners."""
    found: dict[int, list[float]] = {}
    for (a, b), rate in rates.items():
        found.setdefault(a, []).append(rate)
        found.setdefault(b, []).append(rate)
    return found


def _better_half(values: Sequence[float]) -> float:
    """Return the median of the larger half: a node's rate, even if a few of its partners are slow."""
    return median(sorted(values, reverse=True)[: ceil(len(values) / 2)])


@dataclass(slots=True)
class _Search:
    """Names parts one after the other; `left` has the pairs that no named part explains."""

    left: dict[Pair, float]
    limit: Callable[[int], float]  # the share below which this number of pairs together is slow
    leaves: Mapping[str, Collection[int]]
    parts: list[SlowPart] = field(default_factory=list)
    scattered: tuple[Pair, ...] = ()

    def find(self) -> None:
        """Name every slow part. What is left then and is slow has a path of its own, or is scattered."""
        leaf, uplinks = partial(self._worst_leaf, "leaf"), partial(self._worst_leaf, "uplinks")
        for find_worst in (leaf, uplinks, self._uplinks_between, self._node):
            while (part := find_worst()) is not None:
                self.parts.append(part)
        slow = {pair: share for pair, share in sorted(self.left.items()) if share < self.limit(1)}
        if len(slow) > max(FEW_PATHS, PATHS_SHARE * len(self.left)):
            self.scattered = tuple(slow)
        else:
            self.parts += [SlowPart("pair", pair, share) for pair, share in slow.items()]

    def _worst_leaf(self, kind: PartKind) -> SlowPart | None:
        """Find the worst leaf switch ("leaf"), or the worst links above one ("uplinks").

        Nodes under a slow leaf are slow with each other and with all others; if only the uplinks are slow,
        they are fast with each other.
        """
        found = [part for name in self.leaves if (part := self._slow_leaf(name)) and part.kind == kind]
        if not found:
            return None
        part = min(found, key=lambda part: part.share)
        if kind == "leaf":
            self._explain([pair for pair in self.left if {*part.nodes} & {*pair}])
        else:
            one, *other = part.leaves
            self._explain(self._between(one, *other) if other else self._crossing(part.nodes))
        return part

    def _slow_leaf(self, name: str) -> SlowPart | None:
        """Judge one leaf by the pairs of its nodes with each other and with all others."""
        nodes = {*self.leaves[name]}
        inside = [share for pair, share in self.left.items() if nodes.issuperset(pair)]
        crossing = self._crossing(nodes)
        beyond = {node for pair in crossing for node in pair} - nodes
        outside = [_better_half(shares) for node, shares in _by_node(crossing).items() if node in nodes]
        if not inside or len(beyond) < 2 or max(outside) >= self.limit(len(beyond)):
            return None
        share = median(crossing.values())
        if median(inside) < (1 + share) / 2:  # nearer to the pairs that cross the leaf than to a healthy pair
            return SlowPart("leaf", tuple(sorted(nodes - beyond)), share, (name,))
        for other, others in self.leaves.items():  # either side may be slow if there is only one other leaf
            if beyond <= {*others}:
                return SlowPart("uplinks", tuple(sorted(nodes | beyond)), share, (name, other))
        return SlowPart("uplinks", tuple(sorted(nodes)), share, (name,))

    def _uplinks_between(self) -> SlowPart | None:
        """Find two leaves between which nearly all pairs are slow."""
        for one, other in combinations(self.leaves, 2):
            shares = self._between(one, other)
            slow = [share for share in shares.values() if share < self.limit(len(shares))]
            if len(shares) >= 4 and len(slow) >= LEAF_PAIRS_SLOW * len(shares):
                self._explain(shares)
                nodes = tuple(sorted({node for pair in shares for node in pair}))
                return SlowPart("uplinks", nodes, median(shares.values()), (one, other))
        return None

    def _node(self) -> SlowPart | None:
        """Find the worst node that is slow with nearly all of its partners; it needs two partners."""
        worst: tuple[float, float, int] | None = None
        for node, shares in _by_node(self.left).items():
            if len(shares) > 1 and _better_half(shares) < self.limit(len(shares)):
                rank = (_better_half(shares), median(shares), node)
                worst = min(worst or rank, rank)
        if worst is None:
            return None
        self._explain([pair for pair in self.left if worst[2] in pair])
        return SlowPart("node", (worst[2],), worst[1])

    def _crossing(self, nodes: Collection[int]) -> dict[Pair, float]:
        """Return the pairs with exactly one node among these."""
        return {pair: share for pair, share in self.left.items() if (pair[0] in nodes) != (pair[1] in nodes)}

    def _between(self, one: str, other: str) -> dict[Pair, float]:
        pairs = {pair_of(a, b) for a in self.leaves[one] for b in self.leaves[other]}
        return {pair: share for pair, share in self.left.items() if pair in pairs}

    def _explain(self, pairs: Iterable[Pair]) -> None:
        for pair in list(pairs):
            self.left.pop(pair, None)


def over_lanes(by_lane: Mapping[int, Diagnosis]) -> tuple[SlowPart, ...]:
    """Join the parts of all lanes: one that is slow on every lane is named once, without lanes."""
    joined: dict[tuple[PartKind, tuple[int, ...], tuple[str, ...]], dict[int, float]] = {}
    for lane, diagnosis in by_lane.items():
        for part in diagnosis.parts:
            joined.setdefault((part.kind, part.nodes, part.leaves), {})[lane] = part.share
    return tuple(
        SlowPart(
            kind, nodes, min(shares.values()), leaves, () if len(shares) == len(by_lane) else tuple(shares)
        )
        for (kind, nodes, leaves), shares in joined.items()
    )
