"""What is sent, on this machine: an image's layers, each compressed once and kept; and our own code.

Kept in ~/.cache/bench/push, by digest: the second node, and the second push, compress nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.base.files import replacing
from bench.base.strict_json import canonical_json
from bench.images.archive import Blob, Identity, ImageFacts, Layer, opened, pack_layer, read_facts
from bench.images.engines import find_engine
from bench.images.variants import find_variant, images, variant_for

_BUILT = Path("out/images")  # where `bench image build` puts what it makes
_KEPT_DAYS = 30  # a layer that nobody asked for so long is not worth its room
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shippable:
    """An image as a file of this machine."""

    path: Path
    facts: ImageFacts

    @property
    def config(self) -> str:
        return self.facts.identity.config

    @property
    def unpacked_bytes(self) -> int:
        """On the node's disk: at most, where nothing is there yet."""
        factor = 3.5 if all(layer.compressed for layer in self.facts.layers) else 1.3
        return int(factor * sum(layer.size for layer in self.facts.layers))

    @property
    def packed_bytes(self) -> int:
        """About; exactly, once the layers are compressed."""
        return sum(layer.size for layer in self.facts.layers)


class ImageStore:
    """Images are found and hashed once, layers compressed once, however many nodes there are."""

    def __init__(self, say: Say) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.place = cache / "bench/push"
        self._say = say
        self._lock = threading.Lock()
        self._images: dict[str, Shippable] = {}
        self._code: tuple[str, bytes] | None = None

    def image(self, name: str | None, driver: str | None) -> Shippable:
        """The one that was asked for, or the variant that fits the driver."""
        with self._lock:
            path = Path(name) if name else self._fitting(driver)
            found = self._images.get(str(path))
            if found is None:
                if not path.exists() and name:
                    path = self._out_of_engine(name)
                found = self._images[str(path)] = Shippable(path, self._facts(path))
            return found

    def layer(self, image: Shippable, number: int) -> Blob:
        """One layer as a compressed file."""
        layer = image.facts.layers[number]
        kept = self.place / "blobs" / layer.diff_id.removeprefix("sha256:")
        told = kept.with_suffix(".digest")
        with self._lock:
            if not (kept.exists() and told.exists()):
                kept.parent.mkdir(parents=True, exist_ok=True)
                self._say(f"compressing layer {number + 1} of {len(image.facts.layers)}, once")
                with replacing(kept) as part:
                    told.write_text(pack_layer(image.path, layer, part))
            os.utime(kept)
            return Blob(kept, layer.diff_id, told.read_text(), compressed=True)

    def code(self) -> tuple[str, bytes]:
        """This very version of ours for nodes without an image: its digest, and a .tar.gz of it."""
        with self._lock:
            if self._code is None:
                data = _packed_code(Path(bench.__file__).parent)
                self._code = hashlib.sha256(data).hexdigest(), data
            return self._code

    def tidy(self, now: float) -> None:
        """Forgets what was not asked for in a month."""
        for path in (self.place / "blobs").glob("*"):
            with suppress(OSError):
                if now - path.stat().st_mtime > _KEPT_DAYS * 86400 and path.suffix != ".digest":
                    path.unlink()
                    path.with_suffix(".digest").unlink(missing_ok=True)

    def _fitting(self, driver: str | None) -> Path:
        variant = variant_for(driver)
        if variant is None:  # too old for every one of them; preflight says so, by the oldest
            variant = [v for v in images().variants if v.driver][-1]
        path = _BUILT / f"bench-{variant.name}.tar"
        if path.exists():
            return path
        with suppress(BenchError):
            return self._out_of_engine(f"bench:{variant.name}")
        raise EnvironmentCannot(
            f"the image for {f'driver {driver}' if driver else 'no GPU'} is not here: {path}",
            advice=f"bench image build {variant.name}, or --image FILE",
        )

    def _out_of_engine(self, name: str) -> Path:
        """Saved once, by its identity."""
        if name.endswith(".tar"):
            raise BadInput("no such file", where=name)
        engine = find_engine("auto")
        found = engine.inspect(name)
        assert found is not None
        path = self.place / "saved" / f"{found.identity.config.removeprefix('sha256:')}.tar"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._say(f"saving {name} from {engine.name}, once")
            with replacing(path) as part:
                engine.save(name, part)
        return path

    def _facts(self, path: Path) -> ImageFacts:
        """Every byte is hashed, once: an archive that has not changed since is known."""
        try:
            status = path.stat()
        except OSError:
            raise BadInput("no such file", where=str(path)) from None
        known = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
        kept = self.place / "known" / f"{hashlib.sha256(repr(known).encode()).hexdigest()}.json"
        with suppress(OSError, ValueError, KeyError):
            return _facts_from(json.loads(kept.read_bytes()))
        self._say(f"reading {path}, once")
        with opened(path) as file:
            facts = read_facts(file, str(path))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(canonical_json(_facts_to(facts)))
        return facts


def variant_name(facts: ImageFacts, where: str) -> str:
    name = facts.labels.get("bench.variant", "")
    if name not in images().by_name:
        raise BadInput("is no image of bench", where=where, advice="bench image build makes one")
    return find_variant(name).name


def _facts_to(facts: ImageFacts) -> Mapping[str, Any]:
    return {
        "config": b2a_base64(facts.config_bytes, newline=False).decode(),
        "layers": [[layer.name, layer.size, layer.diff_id, layer.compressed] for layer in facts.layers],
        "tags": list(facts.tags),
    }


def _facts_from(value: Mapping[str, Any]) -> ImageFacts:
    data = a2b_base64(value["config"])
    layers = tuple(Layer(*fields) for fields in value["layers"])
    identity = Identity(
        f"sha256:{hashlib.sha256(data).hexdigest()}", tuple(layer.diff_id for layer in layers)
    )
    return ImageFacts(identity, json.loads(data), data, layers, tuple(value["tags"]))


def _packed_code(root: Path) -> bytes:
    """The same bytes for the same code."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 6, packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            entry = tarfile.TarInfo(f"bench/{path.relative_to(root)}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return packed.getvalue()
