"""A Debian package gives the tars of its control data and of its files, however they are compressed."""

from __future__ import annotations

import gzip
import io
import lzma

import pytest

from bench.packages.deb_file import Section, package_tars


def deb(*members: tuple[str, bytes]) -> io.BytesIO:
    """Make a Debian package of these members."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data
        out += b"\n" * (len(data) % 2)
    return io.BytesIO(out)


def test_control_data_and_files_are_uncompressed_and_other_members_left_out() -> None:
    file = deb(
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", gzip.compress(b"control")),
        ("_gpgorigin", b"odd"),
        ("data.tar.xz/", lzma.compress(b"files")),
        ("data.tar", b"plain"),
    )
    found = [(name, stream.read()) for name, stream in package_tars(file)]
    assert found == [("control.tar.gz", b"control"), ("data.tar.xz", b"files"), ("data.tar", b"plain")]
    assert not file.closed


def test_a_tar_that_is_read_in_part_does_not_move_the_next() -> None:
    streams = package_tars(deb(("control.tar", b"control"), ("data.tar", b"files")))
    _, control = next(streams)
    assert control.read(3) == b"con"
    _, data = next(streams)
    assert data.read() == b"files"


def test_another_file_is_no_package() -> None:
    for data in (b"", b"!<arch>", b"PK\x03\x04" + bytes(100)):
        with pytest.raises(ValueError, match=r"^not a Debian package$"):
            list(package_tars(io.BytesIO(data)))


def test_a_section_is_read_to_its_end_and_no_further() -> None:
    section = Section(io.BytesIO(b"0123456789"), 5)
    assert [section.read(0), section.read(2), section.read(), section.read(), section.read(3)] == [
        b"", b"01", b"234", b"", b"",
    ]  # fmt: skip
