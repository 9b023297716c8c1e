"""Read a machine's memory modules from its SMBIOS tables, which root alone may read.

DMTF DSP0134, "Memory Device (Type 17)". The tables of virtual machines have no rates.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.base.sysfs import short_line

TABLES = Path("sys/firmware/dmi/tables/DMI")
MOST_BYTES = 1 << 20
_MEMORY_DEVICE, _END = 17, 127
_KINDS = {24: "DDR3", 26: "DDR4", 30: "LPDDR4", 32: "HBM", 33: "HBM2", 34: "DDR5", 35: "LPDDR5", 36: "HBM3"}
_UNKNOWN, _EXTENDED = 0xFFFF, 0x7FFF
# "P0 CHANNEL A", "P0_Node0_Channel2_Dimm0": up to the channel's letter or number.
_IN_BANK = re.compile(r"^(.*channel[ _]?[A-Z0-9]+)", re.IGNORECASE)
# "CPU0_DIMM_A1", "A1": a letter for the channel, a digit for the slot.
_IN_LOCATOR = re.compile(r"^(.*[A-Z])\d$")


@dataclass(frozen=True, slots=True)
class MemoryModule:
    """A memory module and its slot, as the SMBIOS tables describe them."""

    slot: str
    bank: str
    size_bytes: int
    kind: str  # DDR5; empty for a kind that `_KINDS` lacks
    transfers_per_second: float | None  # as configured; None: the tables do not say
    data_bytes: int  # width of one transfer

    @property
    def channel(self) -> str | None:
        """The channel of the module, by the board maker's name of the slot; None if the name has none."""
        match = _IN_BANK.match(self.bank) or _IN_LOCATOR.match(self.slot)
        return match[1] if match else None


def read_modules(root: Path = Path("/")) -> tuple[MemoryModule, ...]:
    """Return the modules of the machine below `root`. OSError if the tables cannot be read."""
    with (root / TABLES).open("rb") as file:
        return modules_of(file.read(MOST_BYTES))


def modules_of(tables: bytes) -> tuple[MemoryModule, ...]:
    """Decode the modules; if the tables were cut off, those before the cut."""
    return tuple(module for data, texts in _structures(tables) if (module := _module(data, texts)))


def _structures(tables: bytes) -> Iterator[tuple[bytes, list[str]]]:
    """Yield the formatted part and the texts of each structure of type 17."""
    at = 0
    while at + 4 <= len(tables):
        kind, length = tables[at], tables[at + 1]
        end = tables.find(b"\0\0", at + length)
        if kind == _END or length < 4 or end < 0:
            return
        if kind == _MEMORY_DEVICE:
            texts = [
                short_line(text.decode("utf-8", "replace")) for text in tables[at + length : end].split(b"\0")
            ]
            yield tables[at : at + length], texts
        at = end + 2


def _module(data: bytes, texts: list[str]) -> MemoryModule | None:
    """Decode one structure; None for an empty slot, and for a structure that is too short."""
    if len(data) < 0x17:
        return None
    width, size = struct.unpack_from("<HH", data, 0x0A)
    if size in (0, _UNKNOWN):
        return None
    if size == _EXTENDED and len(data) >= 0x20:
        size_bytes = (struct.unpack_from("<I", data, 0x1C)[0] & 0x7FFFFFFF) << 20
    else:
        size_bytes = (size & 0x7FFF) << (10 if size & 0x8000 else 20)
    (speed,) = struct.unpack_from("<H", data, 0x15)
    if len(data) >= 0x22:
        speed = struct.unpack_from("<H", data, 0x20)[0] or speed
    return MemoryModule(
        slot=_text(texts, data[0x10]),
        bank=_text(texts, data[0x11]),
        size_bytes=size_bytes,
        kind=_KINDS.get(data[0x12], ""),
        transfers_per_second=speed * 1e6 if speed not in (0, _UNKNOWN) else None,
        data_bytes=width // 8 if width != _UNKNOWN else 8,
    )


def _text(texts: list[str], number: int) -> str:
    return texts[number - 1] if 0 < number <= len(texts) else ""
