"""Split a layer into its skeleton and the contents of its files, which a node can get from package files.

A skeleton is an .xz file of pieces: bytes of the layer's tar as they are, and size and crc32 of the file
content that follows them in the tar. `assemble.fill` makes the same tar again, whichever program wrote it,
from the skeleton and from contents found in wheels and Debian packages. The layer's digest shows whether it
succeeded.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bench.images.assemble import BLOCK, PIECE
from bench.packages.package_index import normal

_DPKG = "var/lib/dpkg/status"  # path in a layer; the layer that has it is made of Debian packages
_LEAST_BYTES = 100  # of a content; a smaller one costs less as a part of the skeleton
_CHUNK = 2**20  # bytes
_PRESET = 4  # of xz: higher ones take longer, and save little
# Types of headers that data follows.
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DISTRIBUTION = re.compile(r"(?:.*/)?([^/]+)-[^/-]+\.dist-info/METADATA")


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The parts of a layer from which its skeleton was made."""

    size: int  # bytes of the layer's tar
    contents: tuple[int, ...]  # sizes of the contents outside of the skeleton, in the order of the tar
    projects: tuple[str, ...]  # Python distributions installed in this layer, normalised
    has_debs: bool  # whether this layer has Debian's packages


def split(layer: BinaryIO, out: Path) -> LayerParts:
    """Write a layer's skeleton to `out`; return the layer's parts."""
    size, contents, projects, has_debs = 0, [], set(), False
    literal = bytearray()
    with lzma.open(out, "wb", preset=_PRESET) as skeleton:
        for block, entry, content in _entries(layer):
            literal += block
            size += len(block)
            if entry is None:
                continue
            if match := _DISTRIBUTION.fullmatch(entry.name):
                projects.add(normal(match[1]))
            has_debs = has_debs or entry.name == _DPKG
            count, crc, kept = 0, 0, b""
            for chunk in content:
                count, crc = count + len(chunk), zlib.crc32(chunk, crc)
                kept = chunk if entry.size < _LEAST_BYTES else b""
            size += count
            literal += kept
            if entry.size >= _LEAST_BYTES:
                skeleton.write(PIECE.pack(len(literal), count, crc))
                skeleton.write(literal)
                contents.append(count)
                literal = bytearray()
        skeleton.write(PIECE.pack(len(literal), 0, 0))
        skeleton.write(literal)
    return LayerParts(size, tuple(contents), tuple(sorted(projects)), has_debs)


def write_contents(layer: BinaryIO, numbers: Collection[int], out: Path) -> None:
    """Write some contents of a layer, numbered as in its skeleton, into a .zip within an .xz."""
    number = -1
    with lzma.open(out, "wb", preset=_PRESET) as packed, zipfile.ZipFile(packed, "w") as archive:
        for _, entry, content in _entries(layer):
            is_outside = entry is not None and entry.size >= _LEAST_BYTES
            number += is_outside
            if is_outside and number in numbers:
                with archive.open(zipfile.ZipInfo(str(number)), "w", force_zip64=True) as member:
                    member.writelines(content)
            else:
                deque(content, maxlen=0)  # skips it


def _entries(layer: BinaryIO) -> Iterator[tuple[bytes, tarfile.TarInfo | None, Iterator[bytes]]]:
    """Yield a tar block by block; the header of a regular file comes parsed, with the file's content.

    The content must be read before the next block is asked for. Everything but the content of a regular
    file, such as a header, an extended name or padding, is a block of its own.
    """
    while block := layer.read(BLOCK):
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape") if any(block) else None
        if entry is not None and entry.isreg() and entry.size:
            yield block, entry, _chunks(layer, entry.size)
            if padding := -entry.size % BLOCK:
                yield layer.read(padding), None, iter(())
        else:
            yield block, None, iter(())
            if entry is not None and entry.size and entry.type in _EXTENDED:
                yield layer.read(entry.size + -entry.size % BLOCK), None, iter(())


def _chunks(layer: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = layer.read(min(size, _CHUNK))
        if not chunk:
            raise EOFError("the layer ends inside of a file")
        size -= len(chunk)
        yield chunk
