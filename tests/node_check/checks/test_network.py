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
from bench.node_check.checks.network import NETWORK, NetworkCard, judge, read_cards
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

GOOD = NetworkCard(
    "eth0", "mlx5_core", "28.39.1002", "up", 100_000, "full", 9000, 2, {"rx_packets": 10**9, "rx_errors": 4}
)


def judged(cards: Sequence[NetworkCard]) -> list[Finding]:
    reading = Reading("network", {"cards": to_json(cards)})
    return list(judge(Evidence("passive", "cpu", (), {"network": reading}), Standards(None)))


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


@pytest.mark.parametrize(("told", "firmware"), [(b"28.39.1002", "28.39.1002"), (b"N/A", "")])
def test_the_driver_is_asked_for_the_firmware_of_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bytes, firmware: str
) -> None:
    """SIOCETHTOOL takes a struct ifreq: the card's name, and the address of a struct ethtool_drvinfo."""

    def ioctl(_: object, number: int, request: Any) -> int:
        raw = ctypes.string_at(ctypes.addressof(request), ctypes.sizeof(request))
        name, address = struct.unpack_from("16sQ", raw)
        command, *_names = struct.unpack("I32s32s", ctypes.string_at(address, 68))
        assert (number, name.rstrip(b"\0"), command) == (0x8946, b"a-card-of-15-ch", 3)
        ctypes.memmove(address + 68, told, len(told))  # after the driver's name and version
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    (tmp_path / "a-card-of-15-chars/device").mkdir(parents=True)
    (card,) = read_cards(tmp_path)
    assert card.firmware == firmware


def test_a_speed_that_the_driver_does_not_know_is_none(tmp_path: Path) -> None:
    (tmp_path / "eth0/device").mkdir(parents=True)
    (tmp_path / "eth0/speed").write_text("-1\n")
    (card,) = read_cards(tmp_path)
    assert (card.speed_mbit, card.words) == (None, "unknown speed (unknown driver)")


@pytest.mark.parametrize(
    ("changes", "verdict", "found"),
    [
        ({}, "pass", "100 Gbit/s (mlx5_core, firmware 28.39.1002)"),
        ({"duplex": "half"}, "fail", "half duplex"),
        ({"speed_mbit": 10_000}, "warn", "10 Gbit/s"),
        ({"speed_mbit": 10_000, "driver": "ixgbe"}, "pass", "10 Gbit/s"),
        ({"carrier_changes": 20}, "warn", "its carrier changed 20 times"),
        (
            {"counters": {"rx_packets": 10**6, "rx_crc_errors": 11}},
            "warn",
            "rx_crc_errors 11 of 1,000,000 packets",
        ),
        ({"counters": {"rx_packets": 10**6, "rx_crc_errors": 10}}, "pass", ""),
        ({"counters": {"rx_packets": 10**8, "rx_errors": 100}}, "pass", ""),
        ({"counters": {"rx_packets": 10**8, "rx_errors": 101}}, "warn", "rx_errors 101 of 100,000,000"),
        ({"counters": {"tx_packets": 1000, "tx_dropped": 11}}, "warn", "tx_dropped 11 of 1,000 packets"),
        ({"counters": {"rx_packets": 10**9, "rx_dropped": 10**6}}, "pass", ""),
    ],
)
def test_a_card_is_judged(changes: dict[str, Any], verdict: str, found: str) -> None:
    others = [replace(GOOD, name=f"eth{number}") for number in (1, 2)]
    finding = judged([replace(GOOD, **changes), *others])[0]
    assert (finding.subject, finding.verdict) == ("eth0", verdict)
    assert found in finding.found


def test_a_card_that_is_down_may_be_unused() -> None:
    assert [finding.subject for finding in judged([replace(GOOD, state="down", duplex="half"), GOOD])] == [
        "eth0"
    ]


@pytest.mark.parametrize("cards", [[], [replace(GOOD, state="down")]])
def test_without_a_card_that_is_up_there_is_no_answer(cards: list[NetworkCard]) -> None:
    (finding,) = judged(cards)
    assert (finding.verdict, finding.counts) == ("not-run", False)


def test_more_cards_than_any_machine_has_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 64"):
        judged([GOOD] * 65)
