"""A layer's skeleton: the bytes in it, the contents outside of it, and what it tells of the layer."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from bench.images.skeleton import LayerParts, split, write_contents


def tar_of(*members: tuple[str, bytes | str | None], form: int = tarfile.GNU_FORMAT) -> bytes:
    """Make a tar of files, for bytes, of links, for texts, and of folders; headers and contents only."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
                continue
            entry.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
            entry.linkname = content or ""
            archive.addfile(entry)
        return out.getvalue()


def pieces(path: Path) -> list[tuple[bytes, int, int]]:
    """Read a skeleton: bytes of the tar, and size and checksum of the content after them."""
    data, found = lzma.decompress(path.read_bytes()), list[tuple[bytes, int, int]]()
    while data:
        count, size, crc = struct.unpack("<QQI", data[:20])
        found.append((data[20 : 20 + count], size, crc))
        data = data[20 + count :]
    return found


def parts(folder: Path, layer: bytes) -> tuple[LayerParts, list[tuple[bytes, int, int]]]:
    made = split(io.BytesIO(layer), folder / "skeleton")
    return made, pieces(folder / "skeleton")


def test_contents_of_100_bytes_and_more_are_outside(tmp_path: Path) -> None:
    small, large, huge = b"s" * 99, b"l" * 100, b"h" * (2**20 + 1)
    layer = tar_of(("small", small), ("large", large), ("huge", huge), ("empty", b""))
    made, found = parts(tmp_path, layer)
    assert made == LayerParts(len(layer), (100, 2**20 + 1), (), False)
    assert [(size, crc) for _, size, crc in found] == [
        (100, zlib.crc32(large)), (2**20 + 1, zlib.crc32(huge)), (0, 0),
    ]  # fmt: skip
    assert small in found[0][0] and found[1][0].startswith(bytes(412))
    assert (
        b"".join(
            part
            for pair in zip((literal for literal, _, _ in found), (large, huge, b""), strict=True)
            for part in pair
        )
        == layer
    )


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_any_length_and_what_is_no_file_stay_in_the_skeleton(tmp_path: Path, form: int) -> None:
    """A long name is data of its own before the header; a folder and a link have none."""
    name, data = "d/" * 120 + "name", b"x" * 200
    layer = tar_of(("folder", None), ("link", name), (name, data), ("größe", data), form=form)
    made, found = parts(tmp_path, layer)
    assert made.contents == (200, 200)
    assert sum(len(literal) for literal, _, _ in found) == len(layer) - 400


def test_a_layer_tells_its_python_distributions_and_whether_it_has_dpkg(tmp_path: Path) -> None:
    files = [
        "usr/lib/A_b.C-1.0.dist-info/METADATA", "z-1.dist-info/METADATA",
        "usr/lib/A_b.C-1.0.dist-info/RECORD", "x/dist-info/METADATA", "x-1.dist-info/sub/METADATA",
    ]  # fmt: skip
    made, _ = parts(tmp_path, tar_of(*((name, b"x") for name in files)))
    assert (made.projects, made.has_debs) == (("a-b-c", "z"), False)
    made, _ = parts(tmp_path, tar_of(("var/lib/dpkg/status", b"x"), ("usr/x", b"x")))
    assert (made.projects, made.has_debs) == ((), True)
    assert not parts(tmp_path, tar_of(("x/var/lib/dpkg/status", b"x")))[0].has_debs


def test_contents_are_numbered_as_in_the_skeleton(tmp_path: Path) -> None:
    contents = [bytes([65 + number]) * (100 + number) for number in range(4)]
    layer = tar_of(
        ("a", contents[0]), ("small", b"x"), ("b", contents[1]), ("c", contents[2]), ("d", contents[3])
    )
    write_contents(io.BytesIO(layer), (0, 2, 3), tmp_path / "sent")
    with lzma.open(tmp_path / "sent") as unpacked, zipfile.ZipFile(unpacked) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            str(number): contents[number] for number in (0, 2, 3)
        }
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


def test_a_content_may_be_larger_than_4_gib(tmp_path: Path) -> None:
    """The header before a content has room for 8 bytes of each size, in a field of 20 bytes."""
    write_contents(io.BytesIO(tar_of(("a", b"x" * 100))), (0,), tmp_path / "sent")
    header = lzma.decompress((tmp_path / "sent").read_bytes())[:30]
    assert struct.unpack("<4s22xHH", header) == (b"PK\x03\x04", 1, 20)


def test_the_size_of_a_link_is_of_no_data(tmp_path: Path) -> None:
    """Some programs write a hard link with the size of its file."""
    link = tarfile.TarInfo("link")
    link.type, link.linkname, link.size = tarfile.LNKTYPE, "a", 700
    file = tar_of(("a", b"x" * 200))
    layer = link.tobuf(tarfile.GNU_FORMAT) + file
    made, found = parts(tmp_path, layer)
    assert (made.size, made.contents) == (len(layer), (200,))
    assert found[0][0] == layer[:1024]


def test_a_layer_that_ends_inside_of_a_file_is_an_error(tmp_path: Path) -> None:
    layer = tar_of(("a", b"x" * 1000))
    for end in (512, 600):
        with pytest.raises(EOFError, match="the layer ends inside of a file"):
            split(io.BytesIO(layer[:end]), tmp_path / "skeleton")
