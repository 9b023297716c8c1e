"""Assemble an image's layers on a node from package files that it downloads, byte for byte.

    python3 -m bench.images.assemble fetch PLAN SECONDS    download for a while; print how far it is
    python3 -m bench.images.assemble missing PLAN          print which contents no file on this node has
    python3 -m bench.images.assemble archive PLAN          write the image's archive to standard output

`fetch` is called until all files are there. Blobs and packages are in the working folder, which other
assemblies may share; files that only this one needs are beside PLAN. `archive` hashes each layer while it
writes it. At a layer that is not the plan's, it ends before the archive's manifest, without which no engine
loads it. Imports the standard library only, and runs on Python 3.9: `bench push` sends this file to nodes.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from bench.packages.apt_sources import read_mirrors
from bench.packages.deb_file import Section, package_tars
from bench.packages.download import WantedFile, fetch_all
from bench.packages.errors import CannotDownload
from bench.packages.package_index import PackageFile, PackageIndex
from bench.packages.pip_settings import read_settings

BLOCK = 512  # bytes of a tar
# Head of a skeleton's piece: bytes that follow; then size and crc32 of the next content, or 0.
PIECE = struct.Struct("<QQI")
_CHUNK = 2**20  # bytes
Key = tuple[int, int]  # size and crc32 of a file's content
Open = Callable[[], BinaryIO]  # opens a content for reading


class LayerPlan(NamedTuple):
    """A layer, and where a node has it from: its skeleton or a blob that was sent; neither if it is there."""

    diff_id: str  # sha256 of the layer's tar, in hexadecimal, as all digests of a plan
    size: int  # bytes of the tar
    skeleton: str | None
    blob: str | None


class AssemblyPlan(NamedTuple):
    """An image, and how a node assembles it. Files are named by their digest, below blobs/ and packages/."""

    tag: str
    config: str
    layers: tuple[LayerPlan, ...]
    files: tuple[PackageFile, ...]  # to download
    contents: tuple[str, ...]  # files of contents that were sent
    index_url: str  # package index; empty: those of the node's own settings
    mirror_url: str  # mirror of Debian; empty: those of the node's own settings


def read_plan(path: Path) -> AssemblyPlan:
    """Read the plan that `bench push` wrote as JSON."""
    fields = json.loads(path.read_bytes())
    fields["layers"] = tuple(LayerPlan(*layer) for layer in fields["layers"])
    fields["files"] = tuple(PackageFile(*file) for file in fields["files"])
    fields["contents"] = tuple(fields["contents"])
    return AssemblyPlan(**fields)


class LayerDiffers(Exception):
    """A layer that was assembled is not the one that the image's configuration names."""


class PackageContents:
    """The wanted file contents that package files of this node provide."""

    def __init__(self, wanted: set[Key], work: Path) -> None:
        self._wanted, self._sizes = wanted, {size for size, _ in wanted}
        self._found: dict[Key, Open] = {}
        self._work = work

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def open(self, key: Key) -> BinaryIO:
        """Open a content that is here; KeyError for one that is not."""
        return self._found[key]()

    def add_wheel(self, path: Path) -> None:
        """Add the files of a wheel, whose directory lists size and crc32 of each."""
        self._add_zip(zipfile.ZipFile(path))

    def add_sent(self, path: Path) -> None:
        """Add contents that were sent: a .zip that is compressed as a whole."""
        unpacked = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115  # stays open, like the wheels
        with lzma.open(path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked, _CHUNK)
        self._add_zip(zipfile.ZipFile(unpacked))

    def _add_zip(self, archive: zipfile.ZipFile) -> None:
        for member in archive.infolist():
            key = (member.file_size, member.CRC)
            if key in self._wanted:
                self._found.setdefault(key, cast(Open, partial(archive.open, member)))

    def add_debs(self, paths: Sequence[Path]) -> None:
        """Add the files of Debian packages, including those in their control archives.

        They are unpacked into one file, which later processes use again if they want the same packages: the
        unpacking takes most of the time of an assembly.
        """
        unpacked, listed = self._work / "unpacked", self._work / "unpacked.json"
        names = [path.name for path in paths]
        known = json.loads(listed.read_bytes()) if listed.exists() else {}
        if known.get("packages") != names:
            listed.unlink(missing_ok=True)
            with unpacked.open("wb") as out:
                contents = self._unpack(paths, out)
            known = {"packages": names, "contents": [[*key, start] for key, start in contents.items()]}
            listed.write_bytes(json.dumps(known).encode())
        file = unpacked.open("rb")  # stays open, like the wheels
        for size, crc, start in known["contents"]:
            self._found.setdefault((size, crc), partial(_section, file, start, size))

    def _unpack(self, paths: Iterable[Path], out: BinaryIO) -> Mapping[Key, int]:
        """Write the wanted contents of Debian packages one after another; return where each begins."""
        found: dict[Key, int] = {}
        for path in paths:
            with path.open("rb") as file:
                for _, stream in package_tars(file):
                    self._unpack_tar(stream, out, found)
        return found

    def _unpack_tar(self, stream: IO[bytes], out: BinaryIO, found: dict[Key, int]) -> None:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                source = (
                    archive.extractfile(member) if member.isreg() and member.size in self._sizes else None
                )
                if source is None:
                    continue
                data = source.read()
                key = (len(data), zlib.crc32(data))
                if key in self._wanted and key not in found:
                    found[key] = out.tell()
                    out.write(data)


def _section(file: BinaryIO, start: int, size: int) -> BinaryIO:
    file.seek(start)
    return cast(BinaryIO, Section(file, size))


def pieces(skeleton: Path) -> Iterator[tuple[bytes, Key]]:
    """Yield the pieces of a skeleton: bytes of the tar, and the key of the content that follows them."""
    with lzma.open(skeleton, "rb") as file:
        while header := file.read(PIECE.size):
            count, size, crc = PIECE.unpack(header)
            yield file.read(count), (size, crc)


def fill(skeleton: Path, contents: PackageContents) -> Iterator[bytes]:
    """Yield the bytes of a layer's tar."""
    for literal, key in pieces(skeleton):
        yield literal
        if key[0]:
            with contents.open(key) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk


class AssemblyPlace:
    """The folder of a node in which an image is assembled."""

    def __init__(self, place: Path, plan: AssemblyPlan, work: Path) -> None:
        self.plan, self._blobs, self._packages = plan, place / "blobs", place / "packages"
        self._work = work  # of this assembly alone, while others may share the place
        for folder in (self._packages, self._work):
            folder.mkdir(parents=True, exist_ok=True)

    def fetch(self, seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
        """Download for a while; return the progress, and the files that no place offers."""
        plan = self.plan
        settings = read_settings(environment, Path(environment.get("HOME", "/")), plan.index_url)
        before, began = self._arrived(), time.monotonic()
        index = PackageIndex(settings, read_mirrors(plan.mirror_url), seconds)
        wanted = [WantedFile.of(file, index) for file in self._lacking]
        _, nowhere = fetch_all(wanted, index, self._packages)
        took, arrived = time.monotonic() - began, self._arrived()
        lacking = self._lacking
        return {
            "arrived_bytes": arrived,
            "bytes_per_second": int((arrived - before) / max(took, 0.01)),
            "done": all(file.name in nowhere for file in lacking),
            "nowhere": [[file.name, nowhere[file.name]] for file in lacking if file.name in nowhere],
        }

    @property
    def _lacking(self) -> list[PackageFile]:
        return [file for file in self.plan.files if not (self._packages / file.sha256).exists()]

    def _arrived(self) -> int:
        """Return how many bytes of the plan's files are here."""
        paths = [self._packages / f"{file.sha256}{end}" for file in self.plan.files for end in ("", ".part")]
        return sum(path.stat().st_size for path in paths if path.exists())

    def missing(self) -> list[list[int]]:
        """Return for each layer the numbers of the contents that no file here has."""
        contents = self._contents()
        return [
            [number for number, key in enumerate(self._keys(layer)) if key not in contents]
            for layer in self.plan.layers
        ]

    def _keys(self, layer: LayerPlan) -> list[Key]:
        """Return the keys of a layer's contents, in their order; none for a layer without a skeleton."""
        if layer.skeleton is None:
            return []
        return [key for _, key in pieces(self._blobs / layer.skeleton) if key[0]]

    def _contents(self) -> PackageContents:
        contents = PackageContents(
            {key for layer in self.plan.layers for key in self._keys(layer)}, self._work
        )
        for name in self.plan.contents:
            contents.add_sent(self._blobs / name)
        here = [file for file in self.plan.files if (self._packages / file.sha256).exists()]
        for file in here:
            if file.is_wheel:
                contents.add_wheel(self._packages / file.sha256)
        contents.add_debs([self._packages / file.sha256 for file in here if not file.is_wheel])
        return contents

    def archive(self, out: BinaryIO) -> None:
        """Write the image's archive; LayerDiffers before its manifest if a layer is not the right one."""
        contents, plan = self._contents(), self.plan
        _add_stream(out, f"blobs/sha256/{plan.config}", *_file(self._blobs / plan.config))
        names = []
        for layer in plan.layers:
            names.append(f"blobs/sha256/{layer.blob or layer.diff_id}")
            if layer.blob is not None:
                _add_stream(out, names[-1], *_file(self._blobs / layer.blob))
            elif layer.skeleton is not None:
                chunks = fill(self._blobs / layer.skeleton, contents)
                if _add_stream(out, names[-1], layer.size, chunks) != layer.diff_id:
                    raise LayerDiffers(layer.diff_id)
        image = {"Config": f"blobs/sha256/{plan.config}", "RepoTags": [plan.tag], "Layers": names}
        manifest = json.dumps([image]).encode()
        _add_stream(out, "manifest.json", len(manifest), [manifest])
        out.write(bytes(2 * BLOCK))
        out.flush()


def _file(path: Path) -> tuple[int, Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    return path.stat().st_size, chunks()


def _add_stream(out: BinaryIO, name: str, size: int, chunks: Iterable[bytes]) -> str:
    """Add a file to a tar on a stream; return the sha256 of its bytes. LayerDiffers for another size."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    out.write(entry.tobuf(tarfile.GNU_FORMAT))
    total, count = hashlib.sha256(), 0
    for chunk in chunks:
        count += len(chunk)
        if count > size:
            raise LayerDiffers(name.rpartition("/")[2])
        total.update(chunk)
        out.write(chunk)
    if count != size:
        raise LayerDiffers(name.rpartition("/")[2])
    out.write(bytes(-size % BLOCK))
    return total.hexdigest()


def main(verb: str, plan: str, *rest: str) -> int:
    """Do what `verb` says, one of the three commands above; return an exit code."""
    node = AssemblyPlace(Path.cwd(), read_plan(Path(plan)), Path(plan).parent)
    try:
        if verb == "archive":
            node.archive(sys.stdout.buffer)
        else:
            answer = node.missing() if verb == "missing" else node.fetch(float(rest[0]), os.environ)
            print(json.dumps(answer))
    except CannotDownload as error:
        print(error, file=sys.stderr)
        return 1
    except LayerDiffers as error:
        print(f"the layer sha256:{error} was assembled with other bytes", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the engine ended, and has said why
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
