"""Make small images as archives, without an engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.images.archive import Blob, write_archive
from bench.images.normalise import configuration, normalise

EPOCH = 1_700_000_000
LABELS = {"bench.variant": "cpu", "bench.lock": "sha256:" + "1" * 64}


def layer(files: dict[str, bytes | None], **changes: Any) -> bytes:
    """Make a tar; content None makes a directory. `changes`, such as another time, apply to every header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            entry.size = len(data or b"")
            for field, value in changes.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(data or b""))
    return out.getvalue()


def normalised(data: bytes) -> tuple[bytes, str]:
    out = io.BytesIO()
    digest = normalise(io.BytesIO(data), out, EPOCH)
    return out.getvalue(), digest


def make_image(
    folder: Path,
    layers: list[dict[str, bytes | None]],
    name: str = "image.tar",
    labels: Mapping[str, str] = LABELS,
    tag: str = "bench:test",
) -> Path:
    blobs = []
    for number, files in enumerate(layers):
        data, digest = normalised(layer(files))
        path = folder / f"{name}.{number}"
        path.write_bytes(data)
        blobs.append(Blob(path, digest, digest, compressed=False))
    made = [f"layer {number}" for number in range(len(layers))]
    config = configuration(
        {"config": {"User": "65534:65534"}}, [b.diff_id for b in blobs], labels, made, "2026-01-01T00:00:00Z"
    )
    write_archive(folder / name, config, blobs, tag)
    return folder / name


def kinds_of_layers(image: Path) -> list[str]:
    """Return the media types of an image's layers, as its OCI manifest has them."""
    with tarfile.open(image) as archive:

        def document(name: str) -> Any:
            file = archive.extractfile(name)
            assert file is not None
            return json.load(file)

        digest = document("index.json")["manifests"][0]["digest"]
        return [layer["mediaType"] for layer in document(f"blobs/{digest.replace(':', '/')}")["layers"]]


def as_docker_saves(source: Path, target: Path) -> Path:
    """Rewrite an image as `docker save` before version 25 does, with other names and another order."""
    with tarfile.open(source) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    (entry,) = json.loads(members["manifest.json"])
    config = members[entry["Config"]]
    names = [f"{hashlib.sha256(name.encode()).hexdigest()}/layer.tar" for name in entry["Layers"]]
    docker = [{"Config": "c.json", "RepoTags": ["bench:test"], "Layers": names}]
    with tarfile.open(target, "w") as out:
        for name, old in zip(names, entry["Layers"], strict=True):
            _add(out, name, members[old])
        _add(out, "c.json", config)
        _add(out, "manifest.json", json.dumps(docker).encode())
    return target


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(data), 99
    out.addfile(entry, io.BytesIO(data))


def archive_of(path: Path, **documents: object) -> Path:
    """Write an archive of JSON documents and bytes by name; "__" stands for a dot in a name."""
    with tarfile.open(path, "w") as archive:
        for name, value in documents.items():
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            _add(archive, name.replace("__", "."), data)
    return path
