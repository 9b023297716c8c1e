"""Memory modules in tables that are built as DSP0134 describes them, whole and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bench.base.smbios import MemoryModule, modules_of, read_modules


def structure(kind: int, body: bytes, *texts: str) -> bytes:
    end = b"".join(text.encode() + b"\0" for text in texts) if texts else b"\0"
    return bytes([kind, 4 + len(body)]) + b"\1\0" + body + end + b"\0"


def module(
    slot: str, bank: str, megabytes: int = 0x7FFF, speed: int = 5600, configured: int = 4800, kind: int = 34
) -> bytes:
    """Return a structure of type 17, of SMBIOS 2.8."""
    body = struct.pack("<HHHHH", 0x1000, 0xFFFE, 80, 64, megabytes)
    body += bytes([9, 0, 1, 2, kind]) + struct.pack("<HH", 0x80, speed) + bytes([3, 0, 0, 0, 2])
    body += struct.pack("<IH", 65536, configured)
    return structure(17, body, slot, bank, "a maker")


OTHER = structure(1, b"\0" * 20, "a product")
END = structure(127, b"")


def test_modules_are_read_and_empty_slots_left_out() -> None:
    tables = OTHER + module("DIMM_A1", "P0 CHANNEL A") + module("DIMM_B1", "P0 CHANNEL B", 0) + END
    assert modules_of(tables) == (MemoryModule("DIMM_A1", "P0 CHANNEL A", 64 << 30, "DDR5", 4.8e9, 8),)


def test_a_size_below_32_gib_and_an_older_table() -> None:
    (small,) = modules_of(module("A1", "-", 16384, configured=0, kind=26))
    assert (small.size_bytes, small.kind, small.transfers_per_second) == (16 << 30, "DDR4", 5.6e9)
    (unknown,) = modules_of(module("A1", "-", 16384, speed=0, configured=0, kind=7))  # QEMU's
    assert (unknown.kind, unknown.transfers_per_second) == ("", None)


@pytest.mark.parametrize(
    ("slot", "bank", "channel"),
    [
        ("DIMM 0", "P0 CHANNEL A", "P0 CHANNEL A"),
        ("P1_DIMM", "P0_Node0_Channel2_Dimm0", "P0_Node0_Channel2"),
        ("CPU0_DIMM_A1", "NODE 1", "CPU0_DIMM_A"),
        ("A2", "-", "A"),
        ("DIMM 7", "BANK 7", None),
    ],
)
def test_the_channel_is_in_the_names_of_the_boards_maker(slot: str, bank: str, channel: str | None) -> None:
    assert modules_of(module(slot, bank))[0].channel == channel


def test_tables_that_end_early_have_what_came_before() -> None:
    tables = module("A1", "-") + module("B1", "-")
    whole = [len(modules_of(tables[:end])) for end in range(len(tables) + 1)]
    assert whole == sorted(whole) and set(whole) == {0, 1, 2}
    assert modules_of(b"\x11\x02\0\0" * 9) == ()
    assert modules_of(structure(17, b"\0" * 4, "short")) == ()


def test_a_machine_without_tables_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_modules(tmp_path)
