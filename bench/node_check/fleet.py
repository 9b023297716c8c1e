"""Many nodes' checks against each other: who lags behind the fleet, and which GPU was bad before. Pure.

Robust statistics: medians, and deviations from them, which a tenth of bad nodes does not move. A figure is
held only against those of the same GPU model and, for collectives, the same algorithm and GPU count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from bench.node_check.checks import known_checks
from bench.node_check.fleet_member import FleetMember, Value
from bench.node_check.judging.finding import VERDICTS, Finding, Verdict, overall, quantity, worst
from bench.records.text import bytes_text

LEAST_VALUES = 4  # or there is no fleet
MOST = 2 / 3  # of the nodes: what fewer have in common is no fleet's usual
LESS_MEMORY_PERCENT = 5.0  # of the hosts': kernels keep back a little, a missing module is more
DEVIATIONS = 4.0  # of the fleet's own spread
WARN_PERCENT, FAIL_PERCENT = 4.0, 10.0  # and at least so much under the median
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the fleet."""

    kind: str
    figure: str
    unit: str
    count: int
    median: float
    spread_percent: float  # robust: 1.4826 times the median deviation, of the median


@dataclass(frozen=True, slots=True)
class RepeatOffender:
    """A GPU that failed by its own fault in more than one check."""

    uuid: str
    times: tuple[str, ...]  # "GPU 5 of r7-n01 on 2026-06-02: matmul"


@dataclass(frozen=True, slots=True)
class RankedNode:
    seen: FleetMember
    verdict: Verdict  # its own, or worse by the fleet's
    findings: tuple[Finding, ...]  # its own that are not passes, and the fleet's
    worst: Finding | None
    deviation_percent: float | None  # of its worst figure, from the fleet's median


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: tuple[RankedNode, ...]  # the worst first
    spreads: tuple[Spread, ...]
    lemons: tuple[RepeatOffender, ...]
    older: tuple[str, ...]  # bundles of nodes of which there is a newer one
    verdict: Verdict
    schema: Literal["bench/fleet/v1"] = field(default="bench/fleet/v1", kw_only=True)


SAME: Mapping[str, tuple[str, Callable[[FleetMember], str], str]] = {  # whose check it is, and what to do
    "number of GPUs": (
        "present", lambda seen: str(seen.gpu_count or ""), 'with "gpus" in the manifest fewer fail',
    ),
    "driver": ("alike", lambda seen: seen.driver, "install the driver that the fleet has"),
    "VBIOS": ("alike", lambda seen: seen.vbios, "bring it to the fleet's with the vendor's tool"),
}  # fmt: skip


def compare_fleet(every: Sequence[FleetMember]) -> Fleet:
    newest, older = _newest(every)
    copied = _copied(every)
    pools: dict[tuple[str, str], list[Value]] = {}
    for seen in newest:
        for value in () if id(seen) in copied else seen.values:
            pools.setdefault((seen.kind, value.figure), []).append(value)
    spreads = {key: _spread(*key, pool) for key, pool in pools.items() if len(pool) >= LEAST_VALUES}
    alike: dict[str, list[FleetMember]] = {}
    for seen in newest:
        alike.setdefault(seen.kind, []).append(seen)
    strange = {id(s): (*_strange(s, alike[s.kind]), *copied.get(id(s), ())) for s in newest}
    nodes = sorted((_rank(seen, spreads, strange[id(seen)]) for seen in newest), key=_order)
    outliers = {node.seen.run_id: node.findings for node in nodes}
    return Fleet(
        tuple(nodes),
        tuple(sorted(spreads.values(), key=lambda s: (s.kind, s.figure))),
        _lemons(every, outliers),
        tuple(seen.path for seen in older),
        next((v for v in VERDICTS if v in {node.verdict for node in nodes}), "not-run"),
    )


def _newest(every: Sequence[FleetMember]) -> tuple[list[FleetMember], list[FleetMember]]:
    kept: list[FleetMember] = []
    for seen in sorted(every, key=lambda seen: (seen.started_at, seen.run_id), reverse=True):
        if not any(_is_one_node(seen, newer) for newer in kept):
            kept.append(seen)
    chosen = {id(seen) for seen in kept}
    return [s for s in every if id(s) in chosen], [s for s in every if id(s) not in chosen]


def _is_one_node(one: FleetMember, other: FleetMember) -> bool:
    """By most of its GPUs: since the last check one may be lost, or another may stand in its place."""
    a, b = set(one.uuids.values()), set(other.uuids.values())
    return one.identity == other.identity or 2 * len(a & b) > max(len(a), len(b))


def _spread(kind: str, figure: str, pool: Sequence[Value]) -> Spread:
    middle = median(v.rate for v in pool)
    deviation = MAD_TO_SIGMA * median(abs(v.rate - middle) for v in pool)
    return Spread(kind, figure, pool[0].unit, len(pool), middle, 100 * deviation / middle)


def _strange(seen: FleetMember, fleet: Sequence[FleetMember]) -> Iterator[Finding]:
    """What a node has that most others do not: alone it may pass, and yet it is not what they are."""
    source = f"{len(fleet)} nodes of {seen.kind} in this comparison"
    for what, (check, of, advice) in SAME.items():
        own, usual = of(seen), _usual([of(other) for other in fleet])
        if own and usual and own != usual:
            yield Finding(
                check, "the node", "warn", f"{what} {own}, where most of the fleet have {usual}",
                f"{what} {usual}", "fleet", source, advice,
            )  # fmt: skip
    # Of one shape: a machine that is lent with half of the GPUs has half of the memory.
    sizes = [other.host_bytes for other in fleet if other.gpu_count == seen.gpu_count]
    middle = median(sizes)
    least = middle * (1 - LESS_MEMORY_PERCENT / 100)
    if seen.host_bytes < least and _usual([str(size >= least) for size in sizes]) == "True":
        yield Finding(
            "host-memory", "the host", "warn",
            f"{bytes_text(seen.host_bytes)} of memory, where most of the fleet have {bytes_text(middle)}",
            f"at most {LESS_MEMORY_PERCENT:g}% less", "fleet", source,
            "is a memory module missing or switched off, or does a container give less?",
        )  # fmt: skip


def _copied(every: Sequence[FleetMember]) -> Mapping[int, tuple[Finding, ...]]:
    """Whose figures another run has, to the last digit: nobody can tell here which of them measured."""
    alike: dict[frozenset[tuple[str, float]], list[FleetMember]] = {}
    for seen in every:
        if len(seen.values) >= LEAST_VALUES and not seen.simulated:
            alike.setdefault(frozenset((v.figure, v.rate) for v in seen.values), []).append(seen)
    return {
        id(seen): (_copy(seen, others),)
        for same in alike.values()
        for seen in same
        if (others := [other.name for other in same if other.run_id != seen.run_id])
    }


def _copy(seen: FleetMember, others: Sequence[str]) -> Finding:
    return Finding(
        "alike", "the node", "fail", f"all {len(seen.values)} figures are those of {', '.join(others)}",
        "figures of its own", "fleet", "no two runs measure the same to the last digit",
        "check these nodes again, with bench push or bench check --challenge",
    )  # fmt: skip


def _usual(values: Sequence[str]) -> str | None:
    """What most of them are, of those that say it, if they are enough to speak of."""
    known = [value for value in values if value]
    if len(known) < LEAST_VALUES:
        return None
    ((most, count),) = Counter(known).most_common(1)
    return most if count > MOST * len(known) else None


def _rank(
    seen: FleetMember, spreads: Mapping[tuple[str, str], Spread], strange: tuple[Finding, ...]
) -> RankedNode:
    own = tuple(f for f in seen.findings if f.verdict != "pass" and f.counts)
    fleet = list(strange)
    lowest: float | None = None
    for value in seen.values:
        spread = spreads.get((seen.kind, value.figure))
        if spread is None:
            continue
        under = 100 * (1 - value.rate / spread.median)
        lowest = under if lowest is None else max(lowest, under)
        if under >= max(WARN_PERCENT, DEVIATIONS * spread.spread_percent):
            fleet.append(_outlier(value, spread, under))
    findings = (*own, *fleet)
    verdict = overall([*seen.findings, *fleet])
    return RankedNode(seen, verdict, findings, worst(findings), -lowest if lowest is not None else None)


def _outlier(value: Value, spread: Spread, under: float) -> Finding:
    where = "" if value.gpu is None else f"GPU {value.gpu} "
    return Finding(
        value.check,
        f"{where}{value.figure}",
        "fail" if under >= FAIL_PERCENT else "warn",
        f"{quantity(value.rate, value.unit)}, {under:.1f}% under the fleet's median",
        f"at most {max(WARN_PERCENT, DEVIATIONS * spread.spread_percent):.1f}% under "
        f"{quantity(spread.median, value.unit)}",
        "fleet",
        f"{spread.count} values of {spread.kind} in this comparison",
        "check that node again; if it stays behind, its GPU or its slot is worse than the others",
        value.gpu,
        value.figure,
        value.rate,
        spread.median,
        value.unit,
    )


def _order(node: RankedNode) -> tuple[int, float, str]:
    deviation = node.deviation_percent if node.deviation_percent is not None else 0.0
    return VERDICTS.index(node.verdict), deviation, node.seen.path


def _lemons(
    every: Sequence[FleetMember], outliers: Mapping[str, tuple[Finding, ...]]
) -> tuple[RepeatOffender, ...]:
    """By UUID, over all bundles: a GPU keeps its name when it moves to another node."""
    times: dict[str, dict[str, str]] = {}
    for seen in sorted(every, key=lambda s: s.started_at):
        findings = _against_cards([*seen.findings, *outliers.get(seen.run_id, ())])
        for index in dict.fromkeys(f.gpu for f in findings):
            uuid = seen.uuids.get(str(index))
            checks = ", ".join(dict.fromkeys(f.check for f in findings if f.gpu == index))
            if uuid is not None:
                times.setdefault(uuid, {})[seen.run_id] = (
                    f"GPU {index} of {seen.name} on {seen.started_at[:10]}: {checks}"
                )
    return tuple(RepeatOffender(uuid, tuple(runs.values())) for uuid, runs in times.items() if len(runs) > 1)


def _against_cards(findings: Sequence[Finding]) -> list[Finding]:
    """Failures that are a GPU's own: neither its node's, nor of whoever else was at work on it."""
    failed = [
        (known_checks()[f.check].blames, f) for f in findings if f.verdict == "fail" and f.gpu is not None
    ]
    shared = {f.gpu for blamed, f in failed if blamed == "guests"}
    return [f for blamed, f in failed if blamed == "card" and not (f.figure and f.gpu in shared)]
