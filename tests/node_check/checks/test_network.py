"""Network cards as sysfs shows them, from trees of files, and the card of this machine by its driver."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks import network
from bench.node_check.checks.network import NETWORK, NetworkCard, judge, read_cards
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from tests.node_check.checks.answers import answers

GOOD = NetworkCard(
    "eth0", "mlx5_core", "28.39.1002", "up", 100_000, "full", 9000, 2, {"rx_packets": 10**9, "rx_errors": 4}
)


def judged(cards: Sequence[NetworkCard]) -> list[Finding]:
    reading = Reading("network", {"cards": to_json(cards)})
    found = judge(Evidence("passive", "cpu", (), {"network": reading}), Standards(None))
    return answers("network", found)


def test_a_card_is_read_from_its_files(tmp_path: Path) -> None:
    files = {"operstate": "up", "speed": "25000", "duplex": "full", "mtu": "1500", "carrier_changes": "4",
             "statistics/rx_packets": "70", "statistics/tx_packets": "60", "statistics/rx_errors": "1",
             "statistics/tx_errors": "none"}  # fmt: skip
    for name in ("no-such-card0", "br0"):
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(f"{text}\n")
    (tmp_path / "drivers/mlx5_core").mkdir(parents=True)
    (tmp_path / "no-such-card0/device").mkdir()
    (tmp_path / "no-such-card0/device/driver").symlink_to(tmp_path / "drivers/mlx5_core")
    (card,) = read_cards(tmp_path)  # a bridge has no device
    counters = {"rx_packets": 70, "tx_packets": 60, "rx_errors": 1}
    assert card == NetworkCard("no-such-card0", "mlx5_core", "", "up", 25_000, "full", 1500, 4, counters)


def test_the_cards_of_this_machine_are_read() -> None:
    """The cards' firmware comes from the kernel by an ioctl, which must accept the form of its request."""
    with_device = sorted(folder.name for folder in NETWORK.glob("*") if (folder / "device").exists())
    cards = read_cards(NETWORK)
    assert [card.name for card in cards] == with_device
    assert all(card.driver for card in cards)


@pytest.mark.parametrize(
    ("told", "firmware"),
    [(b"28.39.1002", "28.39.1002"), (b"N/A", ""), (b"n/a", ""), (b"na", "na"), (b"\xff28", "\ufffd28")],
)
def test_the_driver_is_asked_for_the_firmware_of_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bytes, firmware: str
) -> None:
    """SIOCETHTOOL takes a struct ifreq: the card's name, and the address of a struct ethtool_drvinfo."""

    def ioctl(_: object, number: int, request: Any) -> int:
        raw = ctypes.string_at(ctypes.addressof(request), ctypes.sizeof(request))
        name, address = struct.unpack_from("16sQ", raw)
        command, *_names = struct.unpack("I32s32s", ctypes.string_at(address, 68))
        assert (number, name.rstrip(b"\0"), command) == (0x8946, b"a-card-of-15-ch", 3)
        assert len(raw) == 40 and ctypes.sizeof(network._DriverInfo) == 196  # as the kernel's structures
        ctypes.memmove(address + 68, told, len(told))  # after the driver's name and version
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    (tmp_path / "a-card-of-15-chars/device").mkdir(parents=True)
    (card,) = read_cards(tmp_path)
    assert card.firmware == firmware


def test_the_cards_of_sysfs_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(NETWORK) == "/sys/class/net"
    (tmp_path / "eth0/device").mkdir(parents=True)
    monkeypatch.setattr(network, "NETWORK", tmp_path)
    assert network.measure(None, None) == {"cards": to_json([NetworkCard("eth0")])}  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", ["-1", "0", ""])
def test_a_speed_that_the_driver_does_not_know_is_none(tmp_path: Path, speed: str) -> None:
    (tmp_path / "eth0/device").mkdir(parents=True)
    (tmp_path / "eth0/speed").write_text(f"{speed}\n")
    (card,) = read_cards(tmp_path)
    assert (card.speed_mbit, card.words) == (None, "unknown speed (unknown driver)")


@pytest.mark.parametrize(
    ("changes", "verdict", "found"),
    [
        ({}, "pass", "100 Gbit/s (mlx5_core, firmware 28.39.1002)"),
        ({"duplex": "half"}, "fail", "half duplex"),
        ({"speed_mbit": 10_000}, "warn", "10 Gbit/s"),
        ({"speed_mbit": 99_999}, "warn", "99.999 Gbit/s"),
        ({"speed_mbit": 200_000}, "pass", "200 Gbit/s"),
        ({"speed_mbit": None}, "pass", "unknown speed"),
        ({"speed_mbit": 10_000, "firmware": "28.40"}, "pass", "10 Gbit/s"),
        ({"speed_mbit": 10_000, "driver": "ixgbe"}, "pass", "10 Gbit/s"),
        ({"carrier_changes": 19}, "pass", "100 Gbit/s"),
        ({"carrier_changes": 20}, "warn", "its carrier changed 20 times"),
        ({"carrier_changes": None}, "pass", "100 Gbit/s"),
        (
            {"counters": {"rx_packets": 10**6, "rx_crc_errors": 11}},
            "warn",
            "rx_crc_errors 11 of 1,000,000 packets",
        ),
        ({"counters": {"rx_packets": 10**6, "rx_crc_errors": 10}}, "pass", ""),
        ({"counters": {"rx_packets": 10**8, "rx_errors": 100}}, "pass", ""),
        ({"counters": {"rx_packets": 10**8, "rx_errors": 101}}, "warn", "rx_errors 101 of 100,000,000"),
        ({"counters": {"tx_packets": 1000, "tx_dropped": 11}}, "warn", "tx_dropped 11 of 1,000 packets"),
        ({"counters": {"tx_packets": 10_000, "tx_dropped": 100}}, "pass", ""),
        ({"counters": {"tx_packets": 10_000, "tx_dropped": 101}}, "warn", "tx_dropped 101 of 10,000"),
        (
            {"counters": {"rx_packets": 10**9, "tx_packets": 9, "tx_errors": 11}},
            "warn",
            "tx_errors 11 of 9 p",
        ),
        (
            {"counters": {"tx_packets": 10**9, "rx_packets": 9, "rx_errors": 11}},
            "warn",
            "rx_errors 11 of 9 p",
        ),
        ({"counters": {"rx_missed_errors": 11}}, "warn", "rx_missed_errors 11 of 0 packets"),
        ({"counters": {"rx_packets": 10**9, "rx_dropped": 10**6}}, "pass", ""),
    ],
)
def test_a_card_is_judged(changes: dict[str, Any], verdict: str, found: str) -> None:
    others = [replace(GOOD, name=f"eth{number}") for number in (1, 2)]
    finding = judged([replace(GOOD, **changes), *others])[0]
    assert (finding.subject, finding.verdict) == ("eth0", verdict)
    assert found in finding.found


LINK = "reseat or replace its cable or transceiver, and look at the switch's port"


@pytest.mark.parametrize(
    ("changes", "basis", "expected", "advice"),
    [
        ({"duplex": "half"}, "rule", "full duplex", "let card and switch negotiate alike, by themselves"),
        ({"speed_mbit": 10_000}, "peers", "100 Gbit/s, as most of its kind here have", LINK),
        ({"carrier_changes": 20}, "rule", "fewer than 20 times", LINK),
        ({"counters": {"rx_errors": 11}}, "rule", "at most 1e-06 of the packets", LINK),
        ({"counters": {"tx_dropped": 11}}, "rule", "at most 0.01 of the packets",
         "look at ethtool -S and at its ring sizes"),
    ],
)  # fmt: skip
def test_a_fault_says_what_was_expected_and_what_to_do(
    changes: dict[str, Any], basis: str, expected: str, advice: str
) -> None:
    first, *others = judged([replace(GOOD, **changes), *(replace(GOOD, name=f"eth{n}") for n in (1, 2))])
    assert (first.basis, first.expected, first.advice) == (basis, expected, advice)
    assert [finding.verdict for finding in others] == ["pass", "pass"]


@pytest.mark.parametrize(("fast", "slow", "named"), [(2, 1, 1), (3, 2, 2), (1, 1, 0), (2, 2, 0), (1, 2, 0)])
def test_a_speed_is_usual_if_more_than_half_of_a_kind_have_it(fast: int, slow: int, named: int) -> None:
    cards = [replace(GOOD, name=f"eth{n}", speed_mbit=100_000 if n < fast else 10_000)
             for n in range(fast + slow)]  # fmt: skip
    assert sum(finding.verdict == "warn" for finding in judged(cards)) == named


def test_one_faster_card_does_not_hide_a_slow_one() -> None:
    cards = [replace(GOOD, name=f"eth{n}", speed_mbit=speed)
             for n, speed in enumerate((200_000, 100_000, 100_000, 100_000, 10_000))]  # fmt: skip
    assert [f.subject for f in judged(cards) if f.verdict == "warn"] == ["eth4"]


def test_cards_of_unknown_speed_make_none_usual() -> None:
    unknown = [replace(GOOD, name=f"eth{n}", speed_mbit=None) for n in (1, 2)]
    assert [finding.verdict for finding in judged([GOOD, *unknown])] == ["pass"] * 3


def test_a_card_with_several_faults_has_a_line_for_each_and_no_pass() -> None:
    counters = {"rx_errors": 20, "tx_dropped": 30}
    several = judged([replace(GOOD, duplex="half", carrier_changes=90, counters=counters)])
    assert [finding.found for finding in several] == [
        "half duplex: 100 Gbit/s (mlx5_core, firmware 28.39.1002)",
        "its carrier changed 90 times since its driver was loaded",
        "rx_errors 20 of 0 packets",
        "tx_dropped 30 of 0 packets",
    ]


@pytest.mark.parametrize(
    "counter",
    ["rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped",
     "tx_dropped"],
)  # fmt: skip
def test_every_counter_is_read_and_judged_in_its_direction(tmp_path: Path, counter: str) -> None:
    (tmp_path / "eth0/device").mkdir(parents=True)
    (tmp_path / "eth0/statistics").mkdir()
    (tmp_path / f"eth0/statistics/{counter}").write_text("11\n")
    (card,) = read_cards(tmp_path)
    assert card.counters == {counter: 11}
    (finding,) = judged([replace(GOOD, counters=card.counters)])
    assert finding.verdict == ("pass" if counter.endswith("packets") else "warn")


def test_cards_are_read_in_the_order_of_their_names_and_at_most_64(tmp_path: Path) -> None:
    names = [f"eth{number:02}" for number in range(65)]
    for name in reversed(names):
        (tmp_path / name / "device").mkdir(parents=True)
    assert [card.name for card in read_cards(tmp_path)] == names[:64]
    assert len(judged([replace(GOOD, name=name) for name in names[:64]])) == 64


def test_a_machine_whose_cards_were_not_read_has_no_answer() -> None:
    assert list(judge(Evidence("passive", "cpu", (), {}), Standards(None))) == []


def test_a_card_that_is_down_may_be_unused() -> None:
    assert [finding.subject for finding in judged([replace(GOOD, state="down", duplex="half"), GOOD])] == [
        "eth0"
    ]


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        ([], "no network card has a device here: a container or a virtual network"),
        (
            [replace(GOOD, state="down")],
            "no network card of this machine is up: a container or a virtual network",
        ),
    ],
)
def test_without_a_card_that_is_up_there_is_no_answer(cards: list[NetworkCard], found: str) -> None:
    (finding,) = judged(cards)
    assert (finding.verdict, finding.counts, finding.found) == ("not-run", False, found)


def test_more_cards_than_any_machine_has_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 64"):
        judged([GOOD] * 65)
