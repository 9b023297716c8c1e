"""Each part of the program that assembles an image on a node: what it reads, writes, prints and refuses."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.images import assemble
from bench.images.assemble import AssemblyPlace, AssemblyPlan, LayerDiffers, LayerPlan, PackageContents
from bench.packages import deb_file
from bench.packages.errors import CannotDownload
from bench.packages.package_index import PackageFile


def key(data: bytes) -> tuple[int, int]:
    return len(data), zlib.crc32(data)


def tar_of(*members: tuple[str, bytes | str]) -> bytes:
    """Make a tar of files, for bytes, and of links, for texts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, content, 0
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def ar_of(*members: tuple[str, bytes]) -> bytes:
    """Make an archive of Unix's ar, as a Debian package is one."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data
        out += b"\n" * (len(data) % 2)
    return out


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# --- files ------------------------------------------------------------------------------------------------


def test_a_debian_package_is_a_list_of_members_at_even_places() -> None:
    data = ar_of(("debian-binary/", b"2.0\n"), ("odd", b"abc"), ("data.tar.xz", b"de"))
    members = list(deb_file._members(io.BytesIO(data)))
    assert [name for name, _, _ in members] == ["debian-binary", "odd", "data.tar.xz"]
    assert [data[start : start + size] for _, start, size in members] == [b"2.0\n", b"abc", b"de"]
    assert members[0][1] == 68
    for missing, count in ((2, 3), (3, 2)):  # bytes of the last content, and of its header too
        assert len(list(deb_file._members(io.BytesIO(data[:-missing])))) == count
    assert list(deb_file._members(io.BytesIO(ar_of()))) == []
    with pytest.raises(ValueError, match="not a Debian package"):
        list(deb_file._members(io.BytesIO(b"!<arch>x" + data[8:])))


@pytest.mark.parametrize("size", [b"-60", b"-1", b"1_0", b"+1", b"", b"\xb2"])
def test_a_package_whose_member_has_no_size_is_none(size: bytes) -> None:
    """The size -60 led back to the same member without an end."""
    header = b"debian-binary".ljust(48) + size.ljust(10) + b"`\n"
    with pytest.raises(ValueError, match="a member has no size"):
        next(deb_file._members(io.BytesIO(b"!<arch>\n" + header + bytes(100))))


@pytest.mark.parametrize(
    ("name", "pack"),
    [("data.tar.xz", lzma.compress), ("data.tar.gz", gzip.compress), ("data.tar", lambda data: data)],
)
def test_a_member_is_decompressed_by_its_name(name: str, pack: Any) -> None:
    assert deb_file._decompressed(name, io.BytesIO(pack(b"content"))).read() == b"content"


def test_a_section_of_a_file_ends_where_it_ends() -> None:
    file = io.BytesIO(b"0123456789")
    file.seek(2)
    section = deb_file.Section(file, 5)
    assert (section.read(2), section.read(0), section.read(9), section.read(), section.read(1)) == (
        b"23", b"", b"456", b"", b"",
    )  # fmt: skip
    with assemble._section(file, 1, 3) as again:
        assert again.read() == b"123"
    assert not file.closed


def test_a_file_is_added_with_its_size_and_padded() -> None:
    out = io.BytesIO()
    digest = assemble._add_stream(out, "a/b", 5, [b"he", b"llo"])
    assert digest == hashlib.sha256(b"hello").hexdigest()
    assert len(out.getvalue()) == 1024
    assemble._add_stream(out, "c", 512, [bytes(512)])
    assert len(out.getvalue()) == 2048
    with tarfile.open(fileobj=io.BytesIO(out.getvalue() + bytes(1024))) as archive:
        assert [(member.name, member.size) for member in archive] == [("a/b", 5), ("c", 512)]


@pytest.mark.parametrize(("chunks", "bytes_written"), [([b"hell"], 4), ([b"hel", b"lo!"], 3), ([], 0)])
def test_a_layer_of_another_size_is_another_layer(chunks: list[bytes], bytes_written: int) -> None:
    """The archive ends at once: no byte beyond the size is written."""
    out = io.BytesIO()
    with pytest.raises(LayerDiffers, match=r"^abc$"):
        assemble._add_stream(out, "blobs/sha256/abc", 5, chunks)
    assert len(out.getvalue()) == 512 + bytes_written


def test_a_file_is_read_in_pieces(tmp_path: Path) -> None:
    size, chunks = assemble._file(written(tmp_path / "x", bytes(2**20 + 5)))
    assert (size, [len(chunk) for chunk in chunks]) == (2**20 + 5, [2**20, 5])


def test_a_skeleton_is_bytes_each_followed_by_the_key_of_a_content(tmp_path: Path) -> None:
    heads = [(b"head", key(b"content")), (b"", key(b"x")), (b"end", (0, 0))]
    packed = b"".join(struct.pack("<QQI", len(literal), *of) + literal for literal, of in heads)
    path = written(tmp_path / "skeleton.xz", lzma.compress(packed))
    assert list(assemble.pieces(path)) == heads
    contents = PackageContents({key(b"content"), key(b"x")}, tmp_path)
    contents.add_wheel(wheel(tmp_path, {"a": b"content", "b": b"x"}))
    assert b"".join(assemble.fill(path, contents)) == b"headcontentxend"


# --- contents ---------------------------------------------------------------------------------------------


def wheel(folder: Path, files: Mapping[str, bytes], name: str = "a.whl") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return folder / name


def test_only_wanted_contents_are_known_by_size_and_checksum(tmp_path: Path) -> None:
    contents = PackageContents({key(b"wanted")}, tmp_path)
    contents.add_wheel(wheel(tmp_path, {"a": b"wanted", "b": b"other!", "c": b"else"}))
    assert [key(data) in contents for data in (b"wanted", b"other!", b"else")] == [True, False, False]
    with contents.open(key(b"wanted")) as file:
        assert file.read() == b"wanted"


def test_contents_that_were_sent_are_a_zip_in_xz(tmp_path: Path) -> None:
    sent = written(tmp_path / "sent", lzma.compress(wheel(tmp_path, {"0": b"wanted"}).read_bytes()))
    contents = PackageContents({key(b"wanted")}, tmp_path)
    contents.add_sent(sent)
    with contents.open(key(b"wanted")) as file:
        assert file.read() == b"wanted"


def deb(path: Path, data: Mapping[str, bytes | str], control: Mapping[str, bytes]) -> Path:
    return written(
        path,
        ar_of(
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", gzip.compress(tar_of(*control.items()))),
            ("data.tar.xz", lzma.compress(tar_of(*data.items()))),
            ("other.tar", tar_of(("x", b"not of a package"))),
        ),
    )


def test_debian_packages_give_files_of_data_and_control_and_nothing_unwanted(tmp_path: Path) -> None:
    """Links are no files, and a content that two packages have is unpacked once."""
    wanted = [b"tool", b"sums!", b"not of a package"]
    first = deb(
        tmp_path / "1", {"t": b"tool", "same size": b"else", "l": "t", "big": b"bigger"}, {"s": b"sums!"}
    )
    second = deb(tmp_path / "2", {"again": b"tool"}, {})
    contents = PackageContents({key(data) for data in wanted}, tmp_path / "work")
    (tmp_path / "work").mkdir()
    contents.add_debs([first, second])
    assert [key(data) in contents for data in wanted] == [True, True, False]
    for data in wanted[:2]:
        with contents.open(key(data)) as file:
            assert file.read() == data
    assert (tmp_path / "work/unpacked").read_bytes() == b"sums!tool"
    assert json.loads((tmp_path / "work/unpacked.json").read_bytes()) == {
        "packages": ["1", "2"], "contents": [[*key(b"sums!"), 0], [*key(b"tool"), 5]],
    }  # fmt: skip


def test_what_a_wheel_has_is_not_taken_from_a_debian_package(tmp_path: Path) -> None:
    contents = PackageContents({key(b"tool")}, tmp_path)
    contents.add_wheel(wheel(tmp_path, {"a": b"tool"}))
    contents.add_debs([deb(tmp_path / "1", {"t": b"tool"}, {})])
    (tmp_path / "unpacked").write_bytes(b"****")
    with contents.open(key(b"tool")) as file:
        assert file.read() == b"tool"


def test_packages_that_were_unpacked_for_others_are_unpacked_again(tmp_path: Path) -> None:
    """An assembly that ends while it unpacks leaves no list."""
    wanted = {key(b"tool"), key(b"next")}
    first, second = deb(tmp_path / "1", {"t": b"tool"}, {}), deb(tmp_path / "2", {"t": b"next"}, {})
    PackageContents(wanted, tmp_path).add_debs([first])
    second.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="not a Debian package"):
        PackageContents(wanted, tmp_path).add_debs([second])
    assert not (tmp_path / "unpacked.json").exists()
    contents = PackageContents(wanted, tmp_path)
    contents.add_debs([first])
    assert key(b"tool") in contents and key(b"next") not in contents


# --- the place ----------------------------------------------------------------------------------------------

CONFIG = b"{}"
FILES = (PackageFile("a-1-py3-none-any.whl", "1" * 64, 10), PackageFile("p/b.deb", "2" * 64, None))


def place(folder: Path, *layers: LayerPlan, **changes: Any) -> AssemblyPlace:
    """A place with these layers; its configuration is called config."""
    written(folder / "blobs/config", CONFIG)
    plan = AssemblyPlan("bench:x", "config", layers, FILES, (), "https://i", "https://m")._replace(**changes)
    return AssemblyPlace(folder, plan, folder / "work")


def test_a_place_makes_its_folders(tmp_path: Path) -> None:
    place(tmp_path / "a/b")
    place(tmp_path / "a/b")
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == ["blobs", "packages", "work"]


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let downloads happen without a network: half of a file in two seconds; the other file is nowhere."""
    seen = SimpleNamespace(asked=[], clock=[50.0], arrives=lambda folder: None, nowhere={})

    def fetch_all(wanted: list[Any], index: Any, folder: Path) -> tuple[Any, dict[str, str]]:
        seen.asked.append((wanted, index))
        seen.arrives(folder)
        seen.clock[0] += 2.0
        return None, seen.nowhere

    monkeypatch.setattr(assemble, "read_settings", lambda *words: ("settings", *words))
    monkeypatch.setattr(assemble, "read_mirrors", lambda url: ("mirrors", url))
    monkeypatch.setattr(assemble, "PackageIndex", lambda *words: words)
    monkeypatch.setattr(assemble.WantedFile, "of", lambda file, index: file.name)
    monkeypatch.setattr(assemble, "fetch_all", fetch_all)
    monkeypatch.setattr(assemble.time, "monotonic", lambda: seen.clock[0])
    return seen


def test_downloads_tell_what_arrived_how_fast_and_what_is_nowhere(
    tmp_path: Path, fetching: SimpleNamespace
) -> None:
    here = place(tmp_path)
    written(tmp_path / f"packages/{'1' * 64}.part", b"12")
    fetching.arrives = lambda folder: written(folder / f"{'1' * 64}.part", b"123456789")
    environment = {"HOME": "/home/me"}
    index = (("settings", environment, Path("/home/me"), "https://i"), ("mirrors", "https://m"), 7.0)
    assert here.fetch(7.0, environment) == {
        "arrived_bytes": 9, "bytes_per_second": 3, "done": False, "nowhere": [],
    }  # fmt: skip
    assert fetching.asked == [([FILES[0].name, FILES[1].name], index)]
    fetching.arrives = lambda folder: written(folder / ("1" * 64), b"1234567890")
    (tmp_path / f"packages/{'1' * 64}.part").unlink()
    fetching.nowhere = {FILES[1].name: "no mirror has it", "p/other.deb": "x"}
    assert here.fetch(7.0, {}) == {
        "arrived_bytes": 10, "bytes_per_second": 5, "done": True,
        "nowhere": [[FILES[1].name, "no mirror has it"]],
    }  # fmt: skip
    here.fetch(7.0, {})
    assert fetching.asked[2][0] == [FILES[1].name]
    assert fetching.asked[2][1][0][2] == Path("/")


def test_a_round_without_time_has_a_rate(tmp_path: Path, fetching: SimpleNamespace) -> None:
    fetching.arrives = lambda folder: (
        fetching.clock.__setitem__(0, 48.0) or written(folder / ("1" * 64), b"1234")
    )
    assert place(tmp_path).fetch(7.0, {})["bytes_per_second"] == 400


def skeleton(folder: Path, name: str, *contents: bytes) -> str:
    """Write the skeleton of a layer that is nothing but these contents."""
    packed = b"".join(struct.pack("<QQI", 0, *key(data)) for data in contents) + struct.pack("<QQI", 0, 0, 0)
    written(folder / "blobs" / name, lzma.compress(packed))
    return name


def test_each_layer_tells_which_of_its_contents_are_nowhere(tmp_path: Path) -> None:
    layers = [
        LayerPlan("d1", 3, skeleton(tmp_path, "s1", b"one", b"two!", b"one"), None),
        LayerPlan("d2", 0, None, None),
        LayerPlan("d3", 0, None, "blob"),
        LayerPlan("d4", 5, skeleton(tmp_path, "s2", b"two!", b"three"), None),
    ]
    sent = written(tmp_path / "blobs/sent", lzma.compress(wheel(tmp_path, {"0": b"three"}).read_bytes()))
    here = place(tmp_path, *layers, contents=(sent.name,))
    assert here.missing() == [[0, 1, 2], [], [], [0]]
    wheel(tmp_path / "packages", {"x": b"one"}, "1" * 64)
    deb(tmp_path / "packages" / ("2" * 64), {"x": b"two!"}, {})
    assert here.missing() == [[], [], [], []]


def test_an_archive_ends_with_its_manifest(tmp_path: Path) -> None:
    data = b"content"
    layer = LayerPlan(hashlib.sha256(data).hexdigest(), 7, skeleton(tmp_path, "s", data), None)
    written(tmp_path / "blobs/sent", b"compressed")
    wheel(tmp_path, {"x": data}).rename((tmp_path / "packages").mkdir() or tmp_path / "packages" / ("1" * 64))
    here = place(tmp_path, LayerPlan("held", 0, None, None), layer, LayerPlan("d", 0, None, "sent"))
    out = io.BytesIO()
    here.archive(out)
    assert out.getvalue().endswith(bytes(1024))
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    names = ["blobs/sha256/held", f"blobs/sha256/{layer.diff_id}", "blobs/sha256/sent"]
    manifest = [{"Config": "blobs/sha256/config", "RepoTags": ["bench:x"], "Layers": names}]
    assert list(read.items()) == [
        ("blobs/sha256/config", CONFIG), (names[1], data), (names[2], b"compressed"),
        ("manifest.json", json.dumps(manifest).encode()),
    ]  # fmt: skip


# --- the program --------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let the program work without a place: each of its commands prints its name, or raises `error`."""
    made = SimpleNamespace(error=None, places=[], out=io.BytesIO())

    class Place:
        def __init__(self, *given: Any) -> None:
            made.places.append(given)

        def _says(self, what: Any) -> Any:
            if made.error:
                raise made.error
            return what

        def archive(self, out: Any) -> None:
            out.write(self._says(b"archive"))

        def missing(self) -> Any:
            return self._says([[1]])

        def fetch(self, seconds: float, environment: Any) -> Any:
            assert environment is os.environ
            return self._says({"seconds": seconds})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assemble, "AssemblyPlace", Place)
    monkeypatch.setattr(assemble, "read_plan", lambda path: f"plan in {path}")
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [(("missing", "w/plan.json"), "[[1]]\n"), (("fetch", "w/plan.json", "2.5"), '{"seconds": 2.5}\n'),
     (("archive", "w/plan.json"), "archive")],
)  # fmt: skip
def test_each_command_of_the_program_answers_on_its_output(
    program: SimpleNamespace, tmp_path: Path, capfdbinary: Any, words: tuple[str, ...], said: str
) -> None:
    assert assemble.main(*words) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr() == (said.encode(), b"")
    assert program.places == [(tmp_path, "plan in w/plan.json", Path("w"))]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LayerDiffers("abc"), "the layer sha256:abc was assembled with other bytes\n"),
        (CannotDownload("no file", where="/x", advice="make it"), "/x: no file; make it\n"),
    ],
)
@pytest.mark.parametrize("words", [("archive", "p"), ("missing", "p"), ("fetch", "p", "1")])
def test_an_error_of_the_program_is_one_line(
    program: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    error: Exception,
    said: str,
) -> None:
    program.error = error
    assert assemble.main(*words) == 1
    assert capsys.readouterr() == ("", said)


def test_an_engine_that_has_ended_needs_no_second_word(
    program: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that Python still wants to flush go nowhere."""
    moved: list[Any] = []
    program.error = BrokenPipeError()
    with monkeypatch.context() as patch:
        patch.setattr(assemble.sys, "stdout", SimpleNamespace(buffer=io.BytesIO(), fileno=lambda: 77))
        patch.setattr(assemble.os, "open", lambda path, flags: (path, flags))
        patch.setattr(assemble.os, "dup2", lambda *given: moved.append(given))
        code = assemble.main("archive", "p")
    assert (code, moved) == (1, [((os.devnull, os.O_WRONLY), 77)])
