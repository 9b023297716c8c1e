"""Read and write container images as archive files.

Reading hashes an archive that Docker, Podman or `write_archive` saved, and returns its identity and layers.
Writing makes one reproducible tar of a configuration and layers: Docker and Podman load it, and it is an OCI
image layout too. An image's identity is the digest of its configuration, which names the digest of each
uncompressed layer; so it depends neither on compression nor on the engine that saved the archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from bench.base.errors import BadInput, VerificationFailed
from bench.base.files import open_regular, replacing
from bench.base.kinds_of_file import IMAGE, LEAST_BYTES, kind_of, require_kind
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads
from bench.images.normalise import Hashing

_KEPT_BYTES = 4 * 2**20  # files up to this size (configuration, manifest) are kept; larger ones only hashed
_CHUNK = 2**20  # bytes
_GZIP = b"\x1f\x8b"
_WRITTEN_BY = "bench image save, docker save and podman save write such files"
_ZSTD = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The digests that identify an image."""

    config: str  # sha256 of the configuration, which names the layers; `image` in a manifest of bench
    diff_ids: tuple[str, ...]  # sha256 of each layer's uncompressed tar


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image in an archive."""

    name: str  # name of the layer's blob in the archive
    size: int  # bytes of the blob in the archive
    diff_id: str
    compressed: bool


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields of an image's configuration that bench reads."""

    diff_ids: tuple[str, ...]
    labels: Mapping[str, str]
    stages: tuple[str, ...]  # commands in the image's history, oldest first


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The contents of an archive, verified against the image's configuration."""

    identity: Identity
    config: Configuration
    config_bytes: bytes
    layers: tuple[Layer, ...]
    tags: tuple[str, ...]

    @property
    def labels(self) -> Mapping[str, str]:
        """The image's labels by name, such as bench.variant."""
        return self.config.labels


def facts_of(path: Path, where: str | None = None) -> ImageFacts:
    """Read a saved image's file as `read_facts` does; errors name `where`, by default the path."""
    with open_regular(path) as file:
        require_kind(IMAGE, kind_of(file.peek(LEAST_BYTES)), where or str(path))
        return read_facts(file, where or str(path))


def read_facts(stream: BinaryIO, where: str) -> ImageFacts:
    """Read a saved image in one pass and hash all of it.

    Raises VerificationFailed if the configuration names other layers; BadInput if `stream` is not an image.
    """
    blobs: dict[str, Layer] = {}
    small: dict[str, bytes] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.issym() or member.islnk():
                    links[name] = _resolved(name, member)
                elif member.isfile() and (file := archive.extractfile(member)):
                    blobs[name], small[name] = _hashed(name, member.size, file)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise BadInput(f"is not a saved image: {error}", where=where, advice=_WRITTEN_BY) from None
    config, layers, tags = _parts(small, where)
    return _checked(config, [links.get(name, name) for name in layers], tags, blobs, small, where)


def _resolved(name: str, member: tarfile.TarInfo) -> str:
    """Return the name of the archive member that a link points to."""
    if member.islnk():
        return member.linkname.removeprefix("./")
    parts: list[str] = []
    for part in [*name.split("/")[:-1], *member.linkname.split("/")]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _hashed(name: str, size: int, file: Any) -> tuple[Layer, bytes]:
    """Return a file's layer, hashed decompressed, and its bytes if the file is small and not compressed."""
    magic = file.peek(4)
    if magic.startswith(_ZSTD):
        advice = "save it again: bench image save"
        raise BadInput(f"{name} is compressed with zstd, which is not supported", advice=advice)
    compressed = magic.startswith(_GZIP)
    reader = gzip.GzipFile(fileobj=file) if compressed else file
    total, kept = hashlib.sha256(), b""
    with suppress(EOFError):  # a stream that was cut off fails the later comparison of digests
        while chunk := reader.read(_CHUNK):
            total.update(chunk)
            kept += chunk if size <= _KEPT_BYTES and not compressed else b""
    return Layer(name, size, f"sha256:{total.hexdigest()}", compressed), kept


def _field(kind: type[T], value: Any, name: str, empty: T | None = None) -> T:
    """Return one field of a JSON object as `kind`; DecodeError if the object or the field has another type.

    Engines leave an empty field out or write null: `empty` is returned then, and without `empty` DecodeError.
    """
    found = from_json(dict[str, Any], value).get(name)
    return empty if found is None and empty is not None else from_json(kind, found)


def _parts(small: Mapping[str, bytes], where: str) -> tuple[str, Sequence[str], Sequence[str]]:
    """Return the names of configuration and layers, and the tags, from Docker's manifest or an OCI index."""
    try:
        if "manifest.json" in small:
            (image,) = from_json(tuple[Any, ...], strict_loads(small["manifest.json"]))
            layers = _field(tuple[str, ...], image, "Layers")
            return _field(str, image, "Config"), layers, _field(tuple[str, ...], image, "RepoTags", ())
        (image,) = _field(tuple[Any, ...], strict_loads(small["index.json"]), "manifests")
        manifest = strict_loads(small[_blob(_field(str, image, "digest"))])
        blobs = _field(tuple[Any, ...], manifest, "layers")
        config = _field(dict[str, Any], manifest, "config")
        return (
            _blob(_field(str, config, "digest")),
            [_blob(_field(str, blob, "digest")) for blob in blobs],
            [],
        )
    except (KeyError, ValueError):  # a file is missing, there are several images, or a DecodeError
        raise BadInput("does not hold exactly one image", where=where, advice=_WRITTEN_BY) from None


def read_configuration(data: bytes) -> Configuration:
    """Parse the configuration of an image; DecodeError if it has another form."""
    document = strict_loads(data)
    root = _field(dict[str, Any], document, "rootfs")
    defaults = _field(dict[str, Any], document, "config", {})
    history = _field(tuple[Any, ...], document, "history", ())
    return Configuration(
        diff_ids=_field(tuple[str, ...], root, "diff_ids"),
        labels=_field(dict[str, str], defaults, "Labels", {}),
        stages=tuple(_field(str, entry, "created_by", "") for entry in history),
    )


def _blob(digest: str) -> str:
    return digest.replace("sha256:", "blobs/sha256/")


def _checked(
    config_name: str,
    layer_names: Sequence[str],
    tags: Sequence[str],
    blobs: Mapping[str, Layer],
    small: Mapping[str, bytes],
    where: str,
) -> ImageFacts:
    if missing := [name for name in (config_name, *layer_names) if name not in blobs]:
        raise VerificationFailed(f"lacks {missing[0]}, which its manifest names", where=where)
    data = small[config_name]
    try:
        config = read_configuration(data)
    except DecodeError:
        raise VerificationFailed("its configuration is not that of an image", where=where) from None
    layers = tuple(blobs[name] for name in layer_names)
    for number, (layer, diff_id) in enumerate(zip(layers, config.diff_ids, strict=False), 1):
        if layer.diff_id != diff_id:
            raise VerificationFailed(
                f"layer {number} is not the one that its configuration names: {layer.diff_id}", where=where
            )
    if len(layers) != len(config.diff_ids):
        raise VerificationFailed(
            f"has {len(layers)} layers, its configuration names {len(config.diff_ids)}", where=where
        )
    identity = Identity(f"sha256:{sha256(data)}", config.diff_ids)
    return ImageFacts(identity, config, data, layers, tuple(tags))


def _open_blob(archive: tarfile.TarFile, layer: Layer) -> Any:
    """Open the file that `read_facts` hashed as this layer."""
    return archive.extractfile(_member_of(archive, layer))


def _member_of(archive: tarfile.TarFile, layer: Layer) -> tarfile.TarInfo:
    """Return the member that `read_facts` hashed as this layer: the last of its name, with or without ./."""
    named = (m for m in archive.getmembers() if m.isfile() and m.name.removeprefix("./") == layer.name)
    return list(named)[-1]


@contextmanager
def open_layer(path: Path, layer: Layer) -> Iterator[BinaryIO]:
    """Open the tar of one layer of an archive, without its compression."""
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
        blob = _open_blob(archive, layer)
        yield cast(BinaryIO, gzip.GzipFile(fileobj=blob)) if layer.compressed else blob


def extract(path: Path, facts: ImageFacts, name: str) -> bytes:
    """Return one file of the image, from the last layer that has it. `facts` must describe the archive."""
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
        for layer in reversed(facts.layers):
            blob = _open_blob(archive, layer)
            with tarfile.open(fileobj=blob, mode="r|*") as files:
                for member in files:
                    if member.name.removeprefix("./") == name and (content := files.extractfile(member)):
                        return content.read()
    raise BadInput(f"has no file /{name}", where=str(path), advice="rebuild it with bench image build")


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer to be written into an archive."""

    path: Path
    diff_id: str
    digest: str  # sha256 of the blob's bytes
    compressed: bool
    start: int = 0  # of the bytes in the file at `path`
    length: int | None = None  # None: to the end of the file

    @property
    def name(self) -> str:
        """The digest in hexadecimal, by which a node names the blob's file."""
        return self.digest.removeprefix("sha256:")

    @property
    def size(self) -> int:
        """Bytes of the blob, of which `path` may hold more."""
        return self.path.stat().st_size - self.start if self.length is None else self.length


def blob_of(path: Path, layer: Layer) -> Blob:
    """Return a layer where it lies in an archive, as it can be written into another one."""
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
        member = _member_of(archive, layer)
        digest = layer.diff_id
        if layer.compressed:
            total = hashlib.sha256()
            with cast(BinaryIO, archive.extractfile(member)) as packed:
                while chunk := packed.read(_CHUNK):
                    total.update(chunk)
            digest = f"sha256:{total.hexdigest()}"
        return Blob(path, layer.diff_id, digest, layer.compressed, member.offset_data, member.size)


def pack_layer(path: Path, layer: Layer, out: Path, *, recompress: bool = False) -> str:
    """Write one layer of an archive as a compressed file; return the digest of its bytes.

    A layer that is compressed already is copied unchanged; with `recompress`, bench compresses it itself.
    """
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive, out.open("wb") as target:
        blob, counted = _open_blob(archive, layer), Hashing(target)
        if layer.compressed and not recompress:
            shutil.copyfileobj(blob, counted, _CHUNK)
        else:
            plain = gzip.GzipFile(fileobj=blob) if layer.compressed else blob
            with gzip.GzipFile("", "wb", 6, counted, mtime=0) as packed:  # the header has no name and no time
                shutil.copyfileobj(plain, packed, _CHUNK)
    return f"sha256:{counted.total.hexdigest()}"


def pack_layers(
    path: Path,
    facts: ImageFacts,
    folder: Path,
    *,
    recompress: bool,
    say: Callable[[str], None] = lambda _: None,
) -> list[Blob]:
    """Write the layers of an archive as compressed files, several at a time."""

    def packed(number: int) -> Blob:
        say(f"layer {number + 1} of {len(facts.layers)}")
        layer, target = facts.layers[number], folder / f"{number}.gz"
        digest = pack_layer(path, layer, target, recompress=recompress)
        return Blob(target, layer.diff_id, digest, compressed=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # zlib releases the GIL
        return list(pool.map(packed, range(len(facts.layers))))


def manifest_digest(path: Path, facts: ImageFacts) -> str | None:
    """Return the digest that an archive's image has in a registry; None if a layer is not compressed yet."""
    if not all(layer.compressed for layer in facts.layers):
        return None
    layers: list[ManifestLayer] = []
    with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
        for layer in facts.layers:
            packed = hashlib.file_digest(_open_blob(archive, layer), "sha256").hexdigest()
            layers.append(ManifestLayer(f"sha256:{packed}", layer.size))
    return f"sha256:{sha256(oci_manifest(facts.config_bytes, layers))}"


def write_archive(out: Path, config: bytes, layers: Sequence[Blob], tag: str) -> None:
    """Write an image as one tar: Docker and Podman read its manifest.json, OCI tools its index.json."""
    config_digest = f"sha256:{sha256(config)}"
    manifest = oci_manifest(config, [ManifestLayer(b.digest, b.size, b.compressed) for b in layers])
    digest = f"sha256:{sha256(manifest)}"
    image = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest,
        "size": len(manifest),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    index = {"schemaVersion": 2, "manifests": [image]}
    files = [_blob(blob.digest) for blob in layers]
    docker_manifest = [{"Config": _blob(config_digest), "RepoTags": [tag], "Layers": files}]
    sources: dict[str, bytes | Blob] = {
        _blob(config_digest): config,
        _blob(digest): manifest,
        **{_blob(blob.digest): blob for blob in layers},
        "index.json": canonical_json(index),
        "manifest.json": canonical_json(docker_manifest),
        "oci-layout": canonical_json({"imageLayoutVersion": "1.0.0"}),
    }
    with replacing(out) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, source in sorted(sources.items()):
            add_file(archive, name, source)


class ManifestLayer(NamedTuple):
    """A layer as a manifest names it."""

    digest: str  # of the blob
    size: int  # bytes
    compressed: bool = True


def oci_manifest(config: bytes, layers: Sequence[ManifestLayer]) -> bytes:
    """Return the manifest of an image, given its configuration and its layers."""
    kind = "application/vnd.oci.image"
    config_digest = f"sha256:{sha256(config)}"
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {"mediaType": f"{kind}.config.v1+json", "digest": config_digest, "size": len(config)},
            "layers": [
                {
                    "mediaType": f"{kind}.layer.v1.tar{'+gzip' if layer.compressed else ''}",
                    "digest": layer.digest,
                    "size": layer.size,
                }
                for layer in layers
            ],
        }
    )


def add_file(archive: tarfile.TarFile, name: str, source: bytes | Path | Blob) -> None:
    """Add a file with a mode of 644 and without owner or time, so that only its content matters."""
    entry = tarfile.TarInfo(name)
    if isinstance(source, bytes):
        entry.size = len(source)
        archive.addfile(entry, io.BytesIO(source))
        return
    blob = source if isinstance(source, Blob) else Blob(source, "", "", compressed=False)
    with blob.path.open("rb") as file:
        entry.size = blob.size
        file.seek(blob.start)
        archive.addfile(entry, file)
