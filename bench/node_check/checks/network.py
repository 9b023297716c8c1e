"""Read the network cards of a machine: driver, firmware, speed, errors, and how often their links went down.

All facts come from sysfs (Documentation/ABI/testing/sysfs-class-net), except the firmware's version, which
the driver reports through ethtool's ioctl. Neither needs root, and nothing is sent. Bridges and other cards
without a device are left out.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import first_line, short_line, whole
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

NETWORK = Path("/sys/class/net")
SOURCE = "sysfs: Documentation/ABI/testing/sysfs-class-net"
ERRORS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped", "tx_dropped")
PACKETS = ("rx_packets", "tx_packets")
BAD_SHARE = 1e-6  # of the packets; a link at the limit of Ethernet's bit errors has one in 10^8 of 1500 bytes
DROPPED_SHARE = 1e-2  # of the packets; protocols that nobody listens to count as dropped too
# Changes of the carrier since the driver was loaded: each flap is two, and a start of the machine some.
CARRIER_WARN = 20
MOST_CARDS = 64
CABLE = "reseat or replace its cable or transceiver, and look at the switch's port"
_SIOCETHTOOL, _ETHTOOL_GDRVINFO = 0x8946, 3


@dataclass(frozen=True, slots=True)
class NetworkCard:
    """A network card as the kernel shows it; a text is empty, and a number None, where it is not known."""

    name: str  # eth0
    driver: str = ""
    firmware: str = ""
    state: str = ""  # up, down
    speed_mbit: int | None = None
    duplex: str = ""  # full, half
    mtu: int | None = None
    carrier_changes: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether the kernel calls the card's state up: it is switched on and has a link."""
        return self.state == "up"

    @property
    def words(self) -> str:
        """Speed, driver and firmware in one text, for findings."""
        speed = f"{self.speed_mbit / 1000:g} Gbit/s" if self.speed_mbit else "unknown speed"
        firmware = f", firmware {self.firmware}" if self.firmware else ""
        return f"{speed} ({self.driver or 'unknown driver'}{firmware})"


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return every card that has a device, with its counters since the driver was loaded."""
    return {"cards": to_json(read_cards(NETWORK))}


def read_cards(root: Path) -> tuple[NetworkCard, ...]:
    """Read every card below `root` that has a device, in the order of their names."""
    found = sorted(folder for folder in root.glob("*") if (folder / "device").exists())
    return tuple(_read_card(folder) for folder in found[:MOST_CARDS])


def _read_card(folder: Path) -> NetworkCard:
    counters = {
        name: count
        for name in (*PACKETS, *ERRORS)
        if (count := whole(first_line(folder / "statistics" / name))) is not None
    }
    driver = folder / "device" / "driver"
    return NetworkCard(
        name=short_line(folder.name),
        driver=short_line(driver.resolve().name) if driver.exists() else "",
        firmware=_firmware(folder.name),
        state=first_line(folder / "operstate"),
        speed_mbit=whole(first_line(folder / "speed")) or None,  # -1 where the driver does not know it
        duplex=first_line(folder / "duplex"),
        mtu=whole(first_line(folder / "mtu")),
        carrier_changes=whole(first_line(folder / "carrier_changes")),
        counters=counters,
    )


class _DriverInfo(ctypes.Structure):
    """struct ethtool_drvinfo of linux/ethtool.h."""

    _fields_ = (
        ("cmd", ctypes.c_uint32),
        *((name, ctypes.c_char * 32) for name in ("driver", "version", "fw_version", "bus", "erom")),
        ("rest", ctypes.c_char * 32),
    )


class _Request(ctypes.Structure):
    """struct ifreq of linux/if.h, with a pointer."""

    _fields_ = (("name", ctypes.c_char * 16), ("data", ctypes.c_void_p), ("rest", ctypes.c_char * 16))


def _firmware(name: str) -> str:
    """Ask the driver for the version of a card's firmware; empty if the driver does not report it."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    import fcntl

    info = _DriverInfo(cmd=_ETHTOOL_GDRVINFO)
    address = ctypes.cast(ctypes.pointer(info), ctypes.c_void_p)
    try:
        request = _Request(name=name.encode()[:15], data=address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _SIOCETHTOOL, request)
    except (OSError, ValueError):
        return ""
    text = short_line(info.fw_version.decode("utf-8", "replace"))
    return "" if text in ("N/A", "n/a") else text


def cards_of(evidence: Evidence) -> tuple[NetworkCard, ...] | None:
    """Decode the cards; None if they were not read. ValueError for more cards than any machine has."""
    data = evidence.data("network")
    cards = from_json(tuple[NetworkCard, ...], data["cards"]) if data else None
    if cards is not None and len(cards) > MOST_CARDS:
        raise ValueError(f"more than {MOST_CARDS} network cards")
    return cards


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail half duplex; warn of slow cards, flapping links and errors. Cards that are down are not judged."""
    cards = cards_of(evidence)
    if cards is None:
        return
    up = [card for card in cards if card.up]
    if not up:
        what = "no network card of this machine is up" if cards else "no network card has a device here"
        yield Question("network").unread(f"{what}: a container or a virtual network", counts=False)
        return
    for card in up:
        bad = [*_link(card, up), *_errors(card)]
        yield from bad or [
            Question("network", card.name).judged(
                "pass", card.words, expected="full duplex, the speed of its peers, no errors", source=SOURCE
            )
        ]


def _link(card: NetworkCard, up: Sequence[NetworkCard]) -> Iterator[Finding]:
    question = Question("network", card.name)
    if card.duplex == "half":
        yield question.judged(
            "fail",
            f"half duplex: {card.words}",
            expected="full duplex",
            source=SOURCE,
            advice="let card and switch negotiate alike, by themselves",
        )
    # Cards of one driver and firmware are of one kind; a machine may have slow ports beside fast ones.
    alike = [one.speed_mbit or 0 for one in up if (one.driver, one.firmware) == (card.driver, card.firmware)]
    usual = max(set(alike), key=alike.count)
    if card.speed_mbit and card.speed_mbit < usual and alike.count(usual) > len(alike) / 2:
        yield question.judged(
            "warn",
            card.words,
            expected=f"{usual / 1000:g} Gbit/s, as most of its kind here have",
            basis="peers",
            source="the other cards of this machine with its driver and firmware",
            advice=CABLE,
        )
    if (card.carrier_changes or 0) >= CARRIER_WARN:
        yield question.judged(
            "warn",
            f"its carrier changed {card.carrier_changes} times since its driver was loaded",
            expected=f"fewer than {CARRIER_WARN} times",
            source=SOURCE,
            advice=CABLE,
        )


def _errors(card: NetworkCard) -> Iterator[Finding]:
    """Compare errors and drops with the packets of their direction."""
    for direction, packets in (("rx", "rx_packets"), ("tx", "tx_packets")):
        carried = card.counters.get(packets, 0)
        for name in ERRORS:
            count = card.counters.get(name, 0)
            most = DROPPED_SHARE if name.endswith("_dropped") else BAD_SHARE
            if name.startswith(direction) and count > max(10.0, most * carried):
                yield Question("network", card.name).judged(
                    verdict_of(fail=False, warn=True),
                    f"{name} {count:,} of {carried:,} packets",
                    expected=f"at most {most:g} of the packets",
                    source=SOURCE,
                    advice=CABLE if name.endswith("errors") else "look at ethtool -S and at its ring sizes",
                )


CHECK = Check(
    "network",
    "are the network cards up at full speed, without errors?",
    judge,
    measure,
    torch=False,
    limit_seconds=15,
    blames="node",
    passive=True,
    has_older_bundles=True,
)
