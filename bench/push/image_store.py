"""Prepare everything that this machine sends to nodes: images, layer by layer, and bench's own code.

Hashed archives, compressed layers and images from a local engine are cached by digest in ~/.cache/bench/push,
so that each is made only once for all nodes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench
from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.base.files import replacing, write_whole
from bench.base.paths import cache_path
from bench.base.shipped_data import locks_folder
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import canonical_json, from_json, strict_loads
from bench.images.archive import (
    Blob,
    Identity,
    ImageFacts,
    Layer,
    add_file,
    extract,
    facts_of,
    open_layer,
    pack_layer,
    read_configuration,
)
from bench.images.engines import find_engine
from bench.images.package_list import LIST, read_list
from bench.images.skeleton import LayerParts, split, write_contents
from bench.images.standalone_python import StandalonePython, make_python
from bench.images.variants import Variant, images, variant_for
from bench.packages.package_index import PackageFile

_BUILT = Path("out/images")  # where `bench image build` puts its archives
_KEPT_DAYS = 30  # a compressed layer that was not used for this long is deleted
_PACKED_SHARE = 0.3  # of a layer's bytes, after compression: what was measured with the images of bench
# The program that assembles layers on a node, and the packages that its modules are in.
_ASSEMBLER = (
    "__init__.py", "images/__init__.py", "images/assemble.py", "packages/__init__.py",
    "packages/apt_sources.py", "packages/connection.py", "packages/deb_file.py", "packages/download.py",
    "packages/errors.py", "packages/package_index.py", "packages/pip_settings.py",
)  # fmt: skip
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shippable:
    """An image as an archive on this machine."""

    path: Path
    facts: ImageFacts

    @property
    def config(self) -> str:
        """Digest of the image's configuration, sha256:..., which is its identity."""
        return self.facts.identity.config

    @property
    def variant(self) -> Variant:
        """The variant that the image's label names; BadInput if it is not an image of bench."""
        name = self.facts.labels.get("bench.variant", "")
        if name not in images().by_name:
            raise BadInput(
                "is not an image of bench", where=str(self.path), advice="bench image build makes one"
            )
        return images().by_name[name]

    @property
    def unpacked_bytes(self) -> int:
        """Size of the image on a node's disk, rather too large than too small."""
        return int(sum(layer.size * (3.5 if layer.compressed else 1.3) for layer in self.facts.layers))


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A layer's skeleton as a file on this machine, and the parts of the layer."""

    blob: Blob
    parts: LayerParts


class ImageStore:
    """The images and the code that one push sends, prepared on demand."""

    def __init__(self, say: Say) -> None:
        self.folder = cache_path("push")
        self._say = say
        self._lock = threading.Lock()
        self._images: dict[str, Shippable] = {}
        self._code: tuple[str, bytes] | None = None
        self._python: StandalonePython | None = None

    def _file_of(self, folder: str, digest: str) -> Path:
        """Return where a file that is named by a digest is cached, and make its folder."""
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        return self.folder / folder / digest.removeprefix("sha256:")

    def image(self, name: str | None, driver: str | None) -> Shippable:
        """Return the image `name` (a file, or an image in a local engine); None: the driver's variant."""
        with self._lock:
            path = Path(name) if name else self._variant_for(driver)
            image = self._images.get(str(path))
            if image is None:
                if not path.exists() and name:
                    path = self._exported(name)
                image = self._images[str(path)] = Shippable(path, self._facts(path))
            return image

    def layer(self, image: Shippable, number: int) -> Blob:
        """Return one layer of an image as a compressed file."""
        layer = image.facts.layers[number]
        blob = self._file_of("blobs", layer.diff_id)
        digest = blob.with_suffix(".digest")
        with self._lock:
            if not (blob.exists() and digest.exists()):
                self._say(f"compressing layer {number + 1} of {len(image.facts.layers)}, once")
                with replacing(blob) as part:
                    digest.write_text(pack_layer(image.path, layer, part), encoding="utf-8", newline="\n")
            os.utime(blob)
            return Blob(blob, layer.diff_id, digest.read_text(encoding="utf-8"), compressed=True)

    def packed_bytes(self, image: Shippable, number: int) -> int:
        """Return the size of a layer as it is sent; an estimate, if it has not been compressed yet."""
        layer = image.facts.layers[number]
        with suppress(OSError):
            return self._file_of("blobs", layer.diff_id).stat().st_size
        return layer.size if layer.compressed else int(layer.size * _PACKED_SHARE)

    def skeleton(self, image: Shippable, number: int) -> Skeleton:
        """Return a layer's skeleton; it is made at its first use."""
        layer = image.facts.layers[number]
        path = self._file_of("skeletons", f"{layer.diff_id}.xz")
        known = path.with_suffix(".json")
        with self._lock:
            with suppress(OSError, ValueError):
                parts = from_json(LayerParts, strict_loads(known.read_bytes()))
                return Skeleton(_blob_of(path, layer.diff_id), parts)
            self._say(f"splitting layer {number + 1} of {len(image.facts.layers)}, once")
            with replacing(path) as part, open_layer(image.path, layer) as tar:
                parts = split(tar, part)
            write_whole(known, canonical_json(asdict(parts)))
            return Skeleton(_blob_of(path, layer.diff_id), parts)

    def contents(self, image: Shippable, number: int, numbers: Collection[int]) -> Blob:
        """Return some of a layer's contents, numbered as in its skeleton, as one compressed file."""
        layer = image.facts.layers[number]
        name = sha256(canonical_json([layer.diff_id, sorted(numbers)]))
        path = self._file_of("contents", f"{name}.zip")
        with self._lock:
            if not path.exists():
                with replacing(path) as part, open_layer(image.path, layer) as tar:
                    write_contents(tar, numbers, part)
            return _blob_of(path, layer.diff_id)

    def configuration(self, image: Shippable) -> Blob:
        """Return an image's configuration as a file."""
        path = self._file_of("configurations", image.config)
        write_whole(path, image.facts.config_bytes)
        return Blob(path, image.config, image.config, compressed=False)

    def package_files(self, image: Shippable) -> tuple[PackageFile, ...]:
        """Return the package files that an image was made of; none if the image does not list them."""
        with suppress(BadInput, ValueError):
            return read_list(extract(image.path, image.facts, LIST))
        return ()

    def assembler(self) -> bytes:
        """Return the program that assembles layers on a node as a .tar.gz."""
        return _packed_code(_ASSEMBLER)

    def code(self) -> tuple[str, bytes]:
        """Return bench's own code as a .tar.gz with its sha256, for nodes that run without an image."""
        with self._lock:
            if self._code is None:
                data = _packed_code()
                self._code = sha256(data), data
            return self._code

    def python(self, source: Path | None, mirror: str | None) -> StandalonePython:
        """Return bench's own Python, made of packages on a mirror, for nodes without a fitting one."""
        with self._lock:
            if self._python is None:
                folder = cache_path("images/pythons")
                self._python = make_python(source or locks_folder(), mirror or "", folder)
            return self._python

    def tidy(self, now: float) -> None:
        """Delete layers, skeletons and contents that were not used for 30 days."""
        folders = ("blobs", "skeletons", "contents", "configurations")
        for path in (path for folder in folders for path in (self.folder / folder).glob("*")):
            with suppress(OSError):
                if now - path.stat().st_mtime > _KEPT_DAYS * 86400 and path.suffix != ".digest":
                    path.unlink()
                    path.with_suffix(".digest").unlink(missing_ok=True)

    def _variant_for(self, driver: str | None) -> Path:
        variant = variant_for(driver)
        if variant is None:  # too old a driver for all: preflight reports that, judging the oldest variant
            variant = images().oldest_cuda
        path = _BUILT / f"bench-{variant.name}.tar"
        if path.exists():
            return path
        with suppress(BenchError):
            return self._exported(f"bench:{variant.name}")
        message = f"the image for {f'driver {driver}' if driver else 'no GPU'} is not on this machine: {path}"
        advice = f"bench image build {variant.name}, or --image FILE"
        raise EnvironmentCannot(message, advice=advice)

    def _exported(self, name: str) -> Path:
        """Export an image from a local engine, once for each identity; return the archive's path."""
        if name.endswith(".tar"):
            advice = "bench image build makes one; a name without .tar is an image in the engine"
            raise BadInput("no such file", where=name, advice=advice)
        engine = find_engine("auto")
        image = engine.inspect(name)
        assert image is not None
        path = self._file_of("saved", f"{image.identity.config}.tar")
        if not path.exists():
            self._say(f"saving {name} from {engine.name}, once")
            with replacing(path) as part:
                engine.save(name, part)
        return path

    def _facts(self, path: Path) -> ImageFacts:
        """Hash an archive; return the cached result if the file has not changed since it was hashed."""
        try:
            status = path.stat()
        except OSError:
            raise BadInput("no such file", where=str(path)) from None
        file_identity = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
        key = sha256(repr(file_identity).encode())
        cached = self._file_of("known", f"{key}.json")
        with suppress(OSError, ValueError, KeyError):
            return _facts_from(json.loads(cached.read_bytes()))
        self._say(f"reading {path}, once")
        facts = facts_of(path)
        cached.write_bytes(canonical_json(_facts_to(facts)))
        return facts


def _facts_to(facts: ImageFacts) -> Mapping[str, Any]:
    return {
        "config": b2a_base64(facts.config_bytes, newline=False).decode(),
        "layers": [[layer.name, layer.size, layer.diff_id, layer.compressed] for layer in facts.layers],
        "tags": list(facts.tags),
    }


def _facts_from(value: Mapping[str, Any]) -> ImageFacts:
    data = a2b_base64(value["config"])
    layers = tuple(Layer(*fields) for fields in value["layers"])
    identity = Identity(f"sha256:{sha256(data)}", tuple(layer.diff_id for layer in layers))
    return ImageFacts(identity, read_configuration(data), data, layers, tuple(value["tags"]))


def _blob_of(path: Path, diff_id: str) -> Blob:
    os.utime(path)
    return Blob(path, diff_id, f"sha256:{file_sha256(path)}", compressed=True)


def _packed_code(names: Collection[str] = ()) -> bytes:
    """Pack bench's code, or the files of `names` in it, reproducibly: the same code gives the same bytes."""
    root, packed = Path(bench.__file__).parent, io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 6, packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            name = path.relative_to(root).as_posix()
            if not names or name in names:
                add_file(archive, f"bench/{name}", path)
    return packed.getvalue()
