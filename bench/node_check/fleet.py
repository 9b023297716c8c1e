"""Compare the checks of many nodes: which nodes lag behind the fleet, and which GPUs failed repeatedly.

Uses robust statistics: medians and median deviations, which a tenth of bad nodes does not move. A figure is
compared only with those of the same GPU model and, for collectives, the same algorithm and GPU count. Members
that the user trusts are the measure for all: checks by strangers do not change their medians. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from bench.base.sizes import bytes_text
from bench.base.stamps import sha256, utc
from bench.base.strict_json import INTERNAL
from bench.bundle.verdict import Assurance, Contents, assurance
from bench.bundle.verdict import Verdict as BundleVerdict
from bench.node_check.all_checks import known_checks
from bench.node_check.check_results import ALWAYS_SHOWN, CheckContents, shown_findings
from bench.node_check.judging.evidence import BEFORE, Evidence
from bench.node_check.judging.finding import (
    VERDICTS,
    Finding,
    Question,
    Verdict,
    overall,
    quantity,
    verdict_of,
    worst,
)
from bench.records.copied import originals, rounded

LEAST_VALUES = 4  # a median of fewer values does not show what is usual
MAJORITY = 2 / 3  # share of the nodes that must agree before a property counts as the fleet's usual one
LESS_MEMORY_PERCENT = 5.0  # below the hosts' median: more than kernels reserve, less than a module
DEVIATIONS = 4.0  # an outlier is this number of spreads under the median, and at least WARN_PERCENT
WARN_PERCENT, FAIL_PERCENT = 4.0, 10.0  # under the median
MAD_TO_SIGMA = 1.4826
FIGURES = ("matmul", "memory", "copies", "peers", "all-reduce")


@dataclass(frozen=True, slots=True)
class Value:
    """One measured figure of one check."""

    check: str
    figure: str  # with the algorithm, for a collective
    unit: str
    rate: float
    gpu: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One check of one node, reduced to the values that the fleet comparison needs."""

    path: str
    run_id: str
    started_at: str
    identity: str  # digest of the UUIDs of its GPUs
    kind: str  # the model of its GPUs
    uuids: Mapping[str, str]  # of the GPUs that answered, by their index as text
    level: str
    simulated: bool
    findings: tuple[Finding, ...]
    values: tuple[Value, ...]
    gpu_count: int = 0
    driver: str = ""
    vbios: str = ""  # several, separated by commas, if its GPUs differ
    host_bytes: int = 0
    signed_level: str = "self"  # as a verifier of the bundle proved it
    trusted: bool = False
    signer: str = field(default="", metadata=INTERNAL)  # fingerprint of the key that signed or certified it
    dated_ahead: bool = field(default=False, metadata=INTERNAL)  # of the reader's clock

    @property
    def assurance(self) -> Assurance:
        """How well it is known who made the check and when; a larger value is worth more."""
        return assurance(self.signed_level, trusted=self.trusted)

    @property
    def name(self) -> str:
        """The bundle's file name without its ending, by which tables name the node."""
        return Path(self.path).stem


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of one figure over the nodes of one kind."""

    kind: str
    figure: str
    unit: str
    count: int
    median: float
    spread_percent: float  # robust: 1.4826 times the median deviation, in percent of the median


@dataclass(frozen=True, slots=True)
class RepeatOffender:
    """A GPU that failed by its own fault in more than one check."""

    uuid: str
    times: tuple[str, ...]  # "GPU 5 of r7-n01 on 2026-06-02: matmul"


@dataclass(frozen=True, slots=True)
class RankedNode:
    """One node with its verdict in the comparison, and the findings behind it."""

    seen: FleetMember
    verdict: Verdict  # of its own check, or a worse one by comparison
    findings: tuple[Finding, ...]  # those of its own check that are not passes, then those of the comparison
    worst: Finding | None
    deviation_percent: float | None  # of its worst figure, from the fleet's median


@dataclass(frozen=True, slots=True)
class Fleet:
    """The comparison of many nodes: the document of `bench compare --json` for node checks."""

    nodes: tuple[RankedNode, ...]  # the worst first
    spreads: tuple[Spread, ...]
    lemons: tuple[RepeatOffender, ...]
    older: tuple[str, ...]  # paths of bundles that a newer one of their node replaces
    verdict: Verdict
    schema: Literal["bench/fleet/v1"] = field(default="bench/fleet/v1", kw_only=True)


def fleet_member(path: Path, verdict: BundleVerdict[Contents], check: CheckContents) -> FleetMember:
    """Reduce a verified bundle of a node check to the values that `compare_fleet` needs."""
    results, evidence = check.results, check.evidence
    # A lost GPU has no UUID, only a placeholder that is the same on every node.
    uuids = {str(gpu.index): gpu.uuid for gpu in results.node.gpus if gpu.memory_bytes}
    identity = " ".join(sorted(uuids.values())) or f"run {results.run.id}"
    vbios = {str(gpu.get("VbiosVersion") or "") for gpu in evidence.inventory(BEFORE)}
    return FleetMember(
        path=str(path),
        run_id=results.run.id,
        started_at=utc(results.run.started_at),
        identity=sha256(identity.encode())[:12],
        kind=results.node.gpus[0].name if results.node.gpus else results.node.cpu,
        uuids=uuids,
        level=results.level,
        simulated=results.simulated,
        findings=results.findings,
        values=tuple(_values(evidence)),
        gpu_count=len(results.node.gpus),
        driver=str((evidence.data(BEFORE) or {}).get("driver") or ""),
        vbios=", ".join(sorted(vbios - {""})),
        host_bytes=results.node.memory_bytes,
        signed_level=verdict.level,
        trusted=verdict.trusted,
        signer=verdict.certified_by or verdict.fingerprint,
        dated_ahead=check.dated_ahead,
    )


def _values(evidence: Evidence) -> Iterator[Value]:
    data = evidence.data("all-reduce") or {}
    for check in FIGURES:
        for figure in evidence.figures(check):
            gpu = evidence.gpu(figure.gpu)
            name = figure.kind or figure.name
            if check == "all-reduce":
                chosen = {str(name) for name in data.get("algorithms", {}).values()} or {"unknown"}
                name = f"{figure.name} by {'/'.join(sorted(chosen))}"
            yield Value(check, name, figure.unit, figure.rate, figure.gpu, gpu.uuid if gpu else None)


# Property: (check that reports it, how to read it, advice)
SAME: Mapping[str, tuple[str, Callable[[FleetMember], str], str]] = {
    "number of GPUs": (
        "present",
        lambda member: str(member.gpu_count or ""),
        'set "gpus" in the manifest, so that fewer GPUs fail',
    ),
    "driver": ("alike", lambda member: member.driver, "install the driver that the fleet has"),
    "VBIOS": ("alike", lambda member: member.vbios, "bring it to the fleet's with the vendor's tool"),
}


def compare_fleet(members: Sequence[FleetMember]) -> Fleet:
    """Rank the newest check of each node; older checks count for repeat offenders only.

    The order of the members decides nothing.
    """
    members = sorted(members, key=lambda member: (member.started_at, member.run_id, member.path))
    newest, older = _newest(members)
    copied = _copied(members)
    by_kind: dict[str, list[FleetMember]] = {}
    for member in newest:
        by_kind.setdefault(member.kind, []).append(member)
    measure = {kind: _decisive(alike) for kind, alike in by_kind.items()}
    spreads = _spreads([m for alike in measure.values() for m in alike if id(m) not in copied])
    findings = {
        id(member): (
            *_unusual(member, measure[member.kind]),
            *copied.get(id(member), ()),
            *_dated_ahead(member),
            *_not_replaced(member, newest),
            *_not_settled(member, newest),
        )
        for member in newest
    }
    nodes = sorted((_rank(member, spreads, findings[id(member)]) for member in newest), key=_order)
    return Fleet(
        nodes=tuple(nodes),
        spreads=tuple(sorted(spreads.values(), key=lambda s: (s.kind, s.figure))),
        lemons=_lemons(members, {id(node.seen): node.findings for node in nodes}),
        older=tuple(member.path for member in older),
        verdict=next((v for v in VERDICTS if v in {node.verdict for node in nodes}), "not-run"),
    )


def _decisive(members: Sequence[FleetMember]) -> list[FleetMember]:
    """Select the members whose values show what is usual: those that the user trusts, or else all."""
    return [member for member in members if member.trusted] or list(members)


def _newest(members: Sequence[FleetMember]) -> tuple[list[FleetMember], list[FleetMember]]:
    """Split into the newest check of each node and the older ones, each in the order of their time.

    A check that was replaced still settles what it asked: a check without load may follow it within minutes.
    """
    by_time = sorted(members, key=_time, reverse=True)
    kept = [
        member
        for number, member in enumerate(by_time)
        if not any(_replaces(newer, member) for newer in by_time[:number])
    ]
    newest = {id(member) for member in kept}
    return [m for m in members if id(m) in newest], [m for m in members if id(m) not in newest]


def _time(member: FleetMember) -> tuple[str, str, Assurance, str]:
    """Return the key by which checks are ordered by their time; those of one second have an order too."""
    return member.started_at, member.run_id, member.assurance, member.signer


def _replaces(newer: FleetMember, older: FleetMember) -> bool:
    """Whether the newer of two checks stands for both: of the same GPUs, from no worse source, and settling.

    A check states its time and its GPUs itself, so a stranger could otherwise end any failure.
    """
    return (
        _is_one_node(older, newer)
        and not newer.dated_ahead
        and newer.assurance >= older.assurance
        and not _by_strangers(newer, older)
        and not _unasked(newer, older)
    )


def _by_strangers(newer: FleetMember, older: FleetMember) -> bool:
    """Whether nothing says that two checks are of one owner: other keys, and the newer one not trusted."""
    return newer.signer != older.signer and not newer.trusted


def _unasked(newer: FleetMember, older: FleetMember) -> list[str]:
    """Return the checks that an older one did not pass, and of which a newer one says nothing.

    A check without load, or one that skips a part, would otherwise end every failure that it does not see.
    """
    failed = [f.check for f in older.findings if f.counts and f.verdict in ("fail", "not-run")]
    asked = {f.check for f in newer.findings if f.counts or f.verdict != "not-run"}
    return list(dict.fromkeys(check for check in failed if check not in asked))


def _not_settled(member: FleetMember, newest: Sequence[FleetMember]) -> Iterator[Finding]:
    """Report an older check of the same GPUs that failed where this one did not ask."""
    for other in newest:
        is_earlier = _time(other) < _time(member) and _is_one_node(member, other)
        if is_earlier and (unasked := _unasked(member, other)):
            yield Question("alike").judged(
                "warn",
                f"does not replace {other.name}, an older check of the same GPUs, which did not pass "
                f"{', '.join(unasked)}: at level {member.level}, this was not asked",
                expected="an answer to what failed before",
                basis="fleet",
                source=f"{other.name}, of {other.started_at}",
                advice=f"check the node again at level {other.level}",
            )


def _not_replaced(member: FleetMember, newest: Sequence[FleetMember]) -> Iterator[Finding]:
    """Report the latest older check of the same GPUs that this one does not replace because of its signer."""
    older = [other for other in newest if _time(other) < _time(member) and _is_one_node(member, other)]
    for other in sorted(older, key=_time, reverse=True):
        if other.assurance > member.assurance:
            reason, expected = "is trusted more", "a check that is trusted as much"
        elif _by_strangers(member, other):
            reason, expected = "another key signed: neither key is trusted", "the same key, or a trusted one"
        else:
            continue
        yield Question("alike").judged(
            "warn",
            f"does not replace {other.name}, an older check of the same GPUs, which {reason}",
            expected=expected,
            basis="fleet",
            source="the signer of a check states its time and its GPUs",
            advice="bench keys trust adds a key; bench check --challenge proves when a check ran",
        )
        return


def _dated_ahead(member: FleetMember) -> Iterator[Finding]:
    """Report a check that says it ran after this moment: it would be the newest for years."""
    if member.dated_ahead:
        yield Question("alike").judged(
            "warn",
            f"says that it ran on {member.started_at}, which lies in the future: it replaces no other check",
            expected="a date that this machine's clock has reached",
            basis="fleet",
            source="this machine's clock, with a day's tolerance",
            advice="set the clocks of the node and of this machine, then check the node again",
        )


def _spreads(members: Sequence[FleetMember]) -> Mapping[tuple[str, str], Spread]:
    """Describe each figure of a kind of GPU that enough values were measured of."""
    pools: dict[tuple[str, str], list[Value]] = {}
    for member in members:
        for value in member.values:
            pools.setdefault((member.kind, value.figure), []).append(value)
    return {key: _spread(*key, pool) for key, pool in pools.items() if len(pool) >= LEAST_VALUES}


def _is_one_node(a: FleetMember, b: FleetMember) -> bool:
    """Whether two checks share most GPUs: between two checks one GPU may be lost or replaced."""
    uuids, others = set(a.uuids.values()), set(b.uuids.values())
    return a.identity == b.identity or 2 * len(uuids & others) > max(len(uuids), len(others))


def _spread(kind: str, figure: str, pool: Sequence[Value]) -> Spread:
    middle = median(v.rate for v in pool)
    deviation = MAD_TO_SIGMA * median(abs(v.rate - middle) for v in pool)
    return Spread(kind, figure, pool[0].unit, len(pool), middle, 100 * deviation / middle)


def _unusual(member: FleetMember, fleet: Sequence[FleetMember]) -> Iterator[Finding]:
    """Report properties in which a node differs from most of the fleet, though its own check may pass."""
    source = f"{len(fleet)} nodes of {member.kind} in this comparison"
    for what, (check, read, advice) in SAME.items():
        value, usual = read(member), _usual([read(other) for other in fleet])
        if value and usual and value != usual:
            yield Question(check).judged(
                "warn",
                f"{what} {value}, where most of the fleet have {usual}",
                expected=f"{what} {usual}",
                basis="fleet",
                source=source,
                advice=advice,
            )
    # Compare only nodes with as many GPUs: a machine rented with half of them has half of the memory.
    sizes = [other.host_bytes for other in fleet if other.gpu_count == member.gpu_count]
    if not sizes:  # a stranger's shape, which no trusted node has
        return
    middle = median(sizes)
    least = middle * (1 - LESS_MEMORY_PERCENT / 100)
    if member.host_bytes < least and _usual([str(size >= least) for size in sizes]) == "True":
        memory = f"{bytes_text(member.host_bytes)} of memory"
        yield Question("host-memory", "the host").judged(
            "warn",
            f"{memory}, where most of the fleet have {bytes_text(middle)}",
            expected=f"at most {LESS_MEMORY_PERCENT:g}% less",
            basis="fleet",
            source=source,
            advice="check for a memory module that is missing or switched off, and for a container's limit",
        )


def _copied(members: Sequence[FleetMember]) -> Mapping[int, tuple[Finding, ...]]:
    """Make findings, by id(), for members that share most of their figures with another run.

    It is not known which of them measured and which copied, so each gets a finding; only a member that
    is worth more than all others gets none.
    """
    measured = [member for member in members if len(member.values) >= LEAST_VALUES and not member.simulated]
    measured.sort(key=lambda member: member.assurance, reverse=True)
    alike: dict[int, list[FleetMember]] = {}
    runs = [
        ((member.run_id, member.identity), [frozenset((v.figure, rounded(v.rate)) for v in member.values)])
        for member in measured
    ]
    for member, original in zip(measured, originals(runs), strict=True):
        alike.setdefault(original, []).append(member)
    return {
        id(member): (_copy(member, others),)
        for group in alike.values()
        for member in group
        if (others := [other for other in group if not _is_one_check(member, other)])
        and any(other.assurance >= member.assurance for other in others)
    }


def _is_one_check(a: FleetMember, b: FleetMember) -> bool:
    """Whether two bundles are of one check, such as the same bundle given twice."""
    return (a.run_id, a.identity) == (b.run_id, b.identity)


def _copy(member: FleetMember, others: Sequence[FleetMember]) -> Finding:
    return Question("alike").judged(
        "fail",
        f"most of its {len(member.values)} figures are those of {', '.join(other.name for other in others)}",
        expected="figures of its own",
        basis="fleet",
        source="no two runs measure the same in eight digits",
        advice="check these nodes again, with bench push or bench check --challenge",
    )


def _usual(values: Sequence[str]) -> str | None:
    """Find the value that over two thirds of the nodes share; None if there is no such value."""
    reported = [value for value in values if value]
    if len(reported) < LEAST_VALUES:
        return None
    ((most, count),) = Counter(reported).most_common(1)
    return most if count > MAJORITY * len(reported) else None


def _rank(
    member: FleetMember, spreads: Mapping[tuple[str, str], Spread], unusual: tuple[Finding, ...]
) -> RankedNode:
    """Judge one node by its own findings that count and by its distance from the fleet's medians."""
    own = shown_findings(member.findings)
    fleet, unders = list(unusual), []
    for value in member.values:
        if spread := spreads.get((member.kind, value.figure)):
            unders.append(under := 100 * (1 - value.rate / spread.median))
            if under >= max(WARN_PERCENT, DEVIATIONS * spread.spread_percent):
                fleet.append(_outlier(value, spread, under))
    findings = (*own, *fleet)
    verdict = overall([*member.findings, *fleet])
    return RankedNode(member, verdict, findings, worst(findings), -max(unders) if unders else None)


def _outlier(value: Value, spread: Spread, under: float) -> Finding:
    limit = max(WARN_PERCENT, DEVIATIONS * spread.spread_percent)
    return Question.of_figure(value.check, value.gpu, value.figure, value.unit).judged(
        verdict_of(fail=under >= FAIL_PERCENT, warn=True),
        f"{quantity(value.rate, value.unit)}, {under:.1f}% under the fleet's median",
        expected=f"at most {limit:.1f}% under {quantity(spread.median, value.unit)}",
        basis="fleet",
        source=f"{spread.count} values of {spread.kind} in this comparison",
        advice="check that node again; if it stays behind, its GPU or its slot is worse than the others",
        value=value.rate,
        reference=spread.median,
    )


def _order(node: RankedNode) -> tuple[int, bool, float, str]:
    """Return a sort key: within one verdict, nodes with a finding that every summary shows come first."""
    plain = all(finding.check not in ALWAYS_SHOWN for finding in node.findings)
    return VERDICTS.index(node.verdict), plain, node.deviation_percent or 0.0, node.seen.path


def _lemons(
    members: Sequence[FleetMember], outliers: Mapping[int, tuple[Finding, ...]]
) -> tuple[RepeatOffender, ...]:
    """Find GPUs that failed in more than one check, by UUID, which a GPU keeps when it is moved.

    `outliers` has findings by id() of members. For a GPU that is in a trusted check, only trusted checks
    count.
    """
    ours = {uuid for member in members if member.trusted for uuid in member.uuids.values()}
    times: dict[str, dict[str, str]] = {}
    for member in sorted(members, key=lambda member: member.started_at):
        findings = _against_cards([*member.findings, *outliers.get(id(member), ())])
        for index in dict.fromkeys(f.gpu for f in findings):
            uuid = member.uuids.get(str(index))
            checks = ", ".join(dict.fromkeys(f.check for f in findings if f.gpu == index))
            if uuid is not None and (member.trusted or uuid not in ours):
                times.setdefault(uuid, {})[member.run_id] = (
                    f"GPU {index} of {member.name} on {member.started_at[:10]}: {checks}"
                )
    return tuple(RepeatOffender(uuid, tuple(runs.values())) for uuid, runs in times.items() if len(runs) > 1)


def _against_cards(findings: Sequence[Finding]) -> list[Finding]:
    """Select failures of the card itself; slow figures count only if no other process used the GPU."""
    failed = [
        (known_checks()[f.check].blames, f) for f in findings if f.verdict == "fail" and f.gpu is not None
    ]
    shared = {f.gpu for blamed, f in failed if blamed == "guests"}
    return [f for blamed, f in failed if blamed == "card" and not (f.figure and f.gpu in shared)]
