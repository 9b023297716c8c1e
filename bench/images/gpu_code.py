"""Read for which GPUs a shared library has code, without NVIDIA's tools.

nvcc puts fat binaries into the section .nv_fatbin of an ELF file. Each has a header of 16 bytes (magic,
version, size of the header, bytes that follow) and entries, whose heads say kind, size, compute capability
and flags. The layout was compared with what nvcc 13.0 wrote for 8.0, 9.0a, 10.0, 12.0, 12.0f and PTX.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from bench.base.errors import BadInput

_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTIONS = struct.Struct("<Q10xHHH")  # from byte 40: offset, size of each, count, number of their names' one
_SECTION = struct.Struct("<II16xQQ24x")  # name, type, offset, size
_NO_BITS = 8  # type of a section that occupies no bytes of the file
_FAT = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<HHIQ12xI8xQ")  # kind, version, bytes of head and of code, capability, flags
_PTX, _MACHINE_CODE = 1, 2  # kinds of entries
_ARCHITECTURE_ONLY, _FAMILY = 0x100000, 0x200000  # flags


def gpu_code(path: Path) -> tuple[str, ...]:
    """Return for which GPUs a library has code, as in "8.0", "9.0a" or "ptx 9.0"; BadInput if damaged."""
    with path.open("rb") as file:
        if path.stat().st_size < 64 or file.read(len(_ELF)) != _ELF:
            return ()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                codes = set(_codes(data))
            except (struct.error, ValueError) as error:
                raise BadInput(f"has fat binaries that cannot be read: {error}", where=path.name) from None
    return tuple(sorted(codes, key=by_capability))


def by_capability(code: str) -> tuple[bool, float, str]:
    """Return the key by which codes are sorted: machine code first, then by compute capability."""
    return code.startswith("ptx"), float(code.strip("ptx af")), code


def _codes(data: mmap.mmap) -> Iterator[str]:
    for start, size in _fat_sections(data):
        at, end = start, start + size
        while at < end:
            magic, _, head, count = _FAT.unpack_from(data, at)
            if magic != _MAGIC:  # padding between fat binaries
                at += 8
                continue
            if head < _FAT.size or at + head + count > end:
                raise ValueError("one is longer than its section")
            yield from _entries(data, at + head, at + head + count)
            at += head + count


def _entries(data: mmap.mmap, at: int, end: int) -> Iterator[str]:
    while at < end:
        kind, _, head, count, capability, flags = _ENTRY.unpack_from(data, at)
        if head < _ENTRY.size or at + head + count > end or not 10 <= capability < 1000:
            raise ValueError("an entry is malformed")
        only = "a" if flags & _ARCHITECTURE_ONLY else "f" if flags & _FAMILY else ""
        if kind in (_PTX, _MACHINE_CODE):
            ptx = "ptx " if kind == _PTX else ""
            yield f"{ptx}{capability // 10}.{capability % 10}{only}"
        at += head + count


def _fat_sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield start and size of the sections with fat binaries."""
    offset, size, count, names = _SECTIONS.unpack_from(data, 40)
    sections = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
    if not sections:
        return
    names_at = sections[names][2] if names < len(sections) else 0
    for name, kind, start, length in sections:
        end = data.find(b"\0", names_at + name)
        if data[names_at + name : end] == b".nv_fatbin" and kind != _NO_BITS:
            yield start, length
