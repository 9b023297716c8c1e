"""Read the InfiniBand and RoCE ports of a node from sysfs: state, rate, width, errors, and PCIe link.

The kernel documents the files in Documentation/ABI/stable/sysfs-class-infiniband. Nothing is sent, and
reading needs no root. A check between nodes reads the ports of every node before and after its traffic.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import first_line, whole
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

INFINIBAND = Path("/sys/class/infiniband")
SOURCE = "sysfs: Documentation/ABI/stable/sysfs-class-infiniband"
# Counters of broken links, and of packets that were lost or sent again. Others count ordinary traffic.
LINK_ERRORS = ("link_downed", "link_error_recovery", "local_link_integrity_errors")
PACKET_ERRORS = (
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "excessive_buffer_overrun_errors", "VL15_dropped", "packet_seq_err", "local_ack_timeout_err",
    "rnr_nak_retry_err", "rx_icrc_encapsulated",
)  # fmt: skip
COUNTERS = {*LINK_ERRORS, *PACKET_ERRORS}
FLAPS = "link_downed"
FLAPS_WARN = 6  # times; a few restarts of switches and nodes are ordinary
MOST_NODES, MOST_PORTS = 128, 64  # of one check, and of one node
MAJORITY = 2 / 3  # of the ports of one kind, whose rate the others must have
_RATE = re.compile(r"([\d.]+) Gb/sec \((\d+)X")
_PCIE = re.compile(r"[\d.]+")
WAITS_FOR = {
    "INIT": "its link is up, and no subnet manager has configured it: start one, or look at its log",
    "ARMED": "no subnet manager has activated it: look at the subnet manager's log",
}
CABLE = "reseat or replace its cable, and look at the switch's port"


@dataclass(frozen=True, slots=True)
class Port:
    """A port as sysfs shows it; a text is empty, and a number None, where the driver has no such file."""

    device: str  # mlx5_0
    number: int
    state: str = ""  # ACTIVE, INIT, DOWN
    physical: str = ""  # LinkUp, Polling, Disabled
    layer: str = ""  # InfiniBand, or Ethernet for RoCE
    rate: str = ""  # 400 Gb/sec (4X NDR)
    counters: Mapping[str, int] = field(default_factory=dict)
    pcie_gt: float | None = None  # gigatransfers a second and lane, of the adapter's own link
    pcie_gt_most: float | None = None
    pcie_width: int | None = None
    pcie_width_most: int | None = None

    @property
    def name(self) -> str:
        """Device and number, such as "mlx5_0 port 1", which is equal on nodes of one kind."""
        return f"{self.device} port {self.number}"

    @property
    def active(self) -> bool:
        """Whether traffic can pass: the link is up and a subnet manager has configured it."""
        return self.state == "ACTIVE"

    @property
    def bytes_per_second(self) -> float:
        """The rate of the link in one direction; 0 if the port is not active or its rate is unknown."""
        match = _RATE.search(self.rate)
        return float(match[1]) * 1e9 / 8 if match and self.active else 0.0


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of one node, before its traffic and after it."""

    node: int
    ports: tuple[Port, ...] = ()
    after: tuple[Port, ...] | None = None  # None: there was no traffic, or the node was lost
    missing: bool = False  # the node has no /sys/class/infiniband


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the ports of this machine as node 0; a check between nodes collects one entry of each."""
    return {"nodes": to_json([node_ports(0)])}


def node_ports(node: int, root: Path = INFINIBAND) -> NodePorts:
    """Read the ports of this machine, which is number `node` of the check."""
    return NodePorts(node, read_ports(root), missing=not root.is_dir())


def read_ports(root: Path = INFINIBAND) -> tuple[Port, ...]:
    """Read every port below `root`, in the order of devices and numbers."""
    found = [folder for folder in root.glob("*/ports/*") if folder.name.isdigit()]
    found.sort(key=lambda folder: (len(folder.parts[-3]), folder.parts[-3], int(folder.name)))
    return tuple(map(_read_port, found[:MOST_PORTS]))


def _read_port(folder: Path) -> Port:
    adapter = folder.parent.parent / "device"
    counters: dict[str, int] = {}
    for path in (*folder.glob("counters/*"), *folder.glob("hw_counters/*")):
        if path.name in COUNTERS and (count := whole(first_line(path))) is not None:
            counters[path.name] = count
    return Port(
        device=folder.parts[-3],
        number=int(folder.name),
        state=_after_colon(first_line(folder / "state")),
        physical=_after_colon(first_line(folder / "phys_state")),
        layer=first_line(folder / "link_layer"),
        rate=first_line(folder / "rate"),
        counters=dict(sorted(counters.items())),
        pcie_gt=_number(first_line(adapter / "current_link_speed")),
        pcie_gt_most=_number(first_line(adapter / "max_link_speed")),
        pcie_width=whole(first_line(adapter / "current_link_width")),
        pcie_width_most=whole(first_line(adapter / "max_link_width")),
    )


def _after_colon(text: str) -> str:
    """Return ACTIVE for "4: ACTIVE"."""
    return text.rpartition(":")[2].strip()


def _number(text: str) -> float | None:
    match = _PCIE.match(text)
    return float(match[0]) if match else None


def nodes_of(evidence: Evidence) -> tuple[NodePorts, ...]:
    """Decode the ports of each node; empty if they were not read. ValueError for more than any check has."""
    data = evidence.data("ports")
    nodes = from_json(tuple[NodePorts, ...], data["nodes"]) if data else ()
    if len(nodes) > MOST_NODES or any(len(node.ports) > MOST_PORTS for node in nodes):
        raise ValueError(f"more than {MOST_NODES} nodes, or more than {MOST_PORTS} ports of a node")
    return nodes


@dataclass(frozen=True, slots=True)
class UsualPorts:
    """The properties that most ports of a check share."""

    count: Mapping[str, int]  # of nodes that have a port, by its name
    active: Mapping[str, int]  # of nodes on which it is active
    rates: Mapping[str, float | None]  # by link layer, in bytes a second
    pcie: Mapping[str, float | None]  # by link layer: gigatransfers a second times lanes, of the adapters

    @classmethod
    def of(cls, everyone: Sequence[Port]) -> UsualPorts:
        """Return what most of the ports of all nodes share."""
        layers: dict[str, list[Port]] = {}
        for port in everyone:
            if port.active:
                layers.setdefault(port.layer, []).append(port)
        return cls(
            Counter(port.name for port in everyone),
            Counter(port.name for port in everyone if port.active),
            {layer: _usual(ports, lambda one: one.bytes_per_second) for layer, ports in layers.items()},
            {layer: _usual(ports, _pcie_rate) for layer, ports in layers.items()},
        )

    def is_used(self, port: Port) -> bool:
        """Whether a port that is not active is active on most of the other nodes."""
        others = self.count[port.name] - 1
        return self.active.get(port.name, 0) > MAJORITY * others


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Compare each node's ports with most nodes' and with the manifest; an unused port only warns."""
    nodes = nodes_of(evidence)
    everyone = [port for node in nodes for port in node.ports]
    usual = UsualPorts.of(everyone)
    for node in nodes:
        where = f"node {node.node} " if len(nodes) > 1 else ""
        if not node.ports:
            yield from _without_ports(node, where, everyone)
            continue
        findings = [*_count(node, where, standards)]
        for port in node.ports:
            question = Question("ports", f"{where}{port.name}")
            findings += (*_state(question, port, usual), *_link(question, port, usual))
        findings += _errors(node, where)
        yield from findings or [_healthy(node, where)]


def _without_ports(node: NodePorts, where: str, everyone: Sequence[Port]) -> Iterator[Finding]:
    """Report a node without any port: a fault if other nodes have ports."""
    question = Question("ports", where.strip() or "the node")
    what = "/sys/class/infiniband is missing" if node.missing else "no port in /sys/class/infiniband"
    if not everyone:
        yield question.unread(f"no InfiniBand or RoCE ({what}): nodes exchange data by TCP", counts=False)
        return
    yield question.judged(
        "fail",
        f"no InfiniBand or RoCE port ({what}), where other nodes have some",
        expected="ports as the other nodes have",
        basis="peers",
        source=SOURCE,
        advice="look for the adapter with lspci and for its driver in the kernel's log",
    )


def _healthy(node: NodePorts, where: str) -> Finding:
    rates = Counter(port.rate for port in node.ports if port.active)
    texts = ", ".join(f"{count} x {rate}" for rate, count in rates.items())
    return Question("ports", where.strip() or "the node").judged(
        "pass", f"{texts}, no errors", expected="active ports at full rate, without errors", source=SOURCE
    )


def _count(node: NodePorts, where: str, standards: Standards) -> Iterator[Finding]:
    """Compare the number of active ports with the manifest's; without one, at least one must be active."""
    active, wanted = sum(port.active for port in node.ports), standards.expect.ports
    if active < (wanted or 1):
        yield Question("ports", where.strip() or "the node").judged(
            "fail",
            f"{active} of {len(node.ports)} ports active",
            expected=f"{wanted or 'at least 1'} active",
            source="the manifest" if wanted else SOURCE,
            advice=CABLE,
        )


def _state(question: Question, port: Port, usual: UsualPorts) -> Iterator[Finding]:
    """Report a port that is not active. A port that is down may be unused, unless other nodes use theirs."""
    if port.active:
        return
    used = usual.is_used(port)
    yield question.judged(
        verdict_of(fail=used or port.state in WAITS_FOR, warn=True),
        f"{port.state or 'no state'} ({port.physical or 'no physical state'})",
        expected="ACTIVE, as on the other nodes" if used else "ACTIVE, or a port that nobody uses",
        basis="peers" if used else "rule",
        source=SOURCE,
        advice=WAITS_FOR.get(port.state, f"{CABLE}; if the port is unused, nothing is wrong"),
    )


def _link(question: Question, port: Port, usual: UsualPorts) -> Iterator[Finding]:
    """Compare the rate of an active port, and the PCIe link of its adapter, with those of most ports."""
    if not port.active:
        return
    rate, lanes = usual.rates[port.layer], usual.pcie[port.layer]
    if rate is not None and port.bytes_per_second < rate:
        yield question.judged(
            "fail",
            f"{port.rate or 'no rate'}, where most ports have {rate * 8e-9:g} Gb/sec",
            expected=f"{rate * 8e-9:g} Gb/sec",
            basis="peers",
            source="the other ports of this check",
            advice=f"some of its lanes may be down: {CABLE}",
        )
    most = (port.pcie_gt_most or 0.0) * (port.pcie_width_most or 0)
    own = _pcie_rate(port)
    if own and own < max(most, lanes or 0.0):
        yield question.judged(
            verdict_of(fail=lanes is not None and own < lanes, warn=True),
            f"its adapter's PCIe link has {port.pcie_gt:g} GT/s x {port.pcie_width}",
            expected=f"{port.pcie_gt_most or 0:g} GT/s x {port.pcie_width_most}, or as most adapters have",
            source="sysfs: current_link_speed and current_link_width of the adapter",
            advice="reseat the adapter; a slot with fewer lanes than the adapter is slower forever",
        )


def _pcie_rate(port: Port) -> float:
    return (port.pcie_gt or 0.0) * (port.pcie_width or 0)


def _usual(ports: Sequence[Port], rate: Callable[[Port], float]) -> float | None:
    """Return the rate that more than two thirds of the ports have; None if there is none."""
    ((value, count),) = Counter(map(rate, ports)).most_common(1)
    return value if count > MAJORITY * len(ports) else None


def _errors(node: NodePorts, where: str) -> Iterator[Finding]:
    """Report links that failed often, and counters that rose during the check."""
    after = {port.name: port for port in node.after or ()}
    for port in node.ports:
        question = Question("ports", f"{where}{port.name}")
        if node.after is not None and port.active and not (port.name in after and after[port.name].active):
            yield question.judged(
                "fail",
                "was active before the traffic, and is not after it",
                expected="ACTIVE all the time",
                source=SOURCE,
                advice=CABLE,
            )
        now = after.get(port.name, port).counters
        rose = {name: now[name] - port.counters.get(name, 0) for name in now}
        new = {name: count for name, count in rose.items() if count > 0}
        if new:
            yield question.judged(
                verdict_of(fail=new.keys() & {*LINK_ERRORS}, warn=True),
                f"{', '.join(f'{name} +{count}' for name, count in new.items())} during the check",
                expected="no new errors",
                source=SOURCE,
                advice=CABLE,
            )
        elif now.get(FLAPS, 0) >= FLAPS_WARN:
            yield question.judged(
                "warn",
                f"its link went down {now[FLAPS]} times since the counters were reset",
                expected=f"fewer than {FLAPS_WARN} times",
                source="bench",
                advice=f"{CABLE}; perfquery -R resets the counters",
            )


CHECK = Check(
    "ports",
    "are the InfiniBand and RoCE ports up, at full rate, without errors?",
    judge,
    measure,
    torch=False,
    limit_seconds=15,
    blames="node",
    passive=True,
    between_nodes=True,
    has_older_bundles=True,
)
