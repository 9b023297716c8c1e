"""Write bench/data/wheels.json: what the wheels that the locks accept contain.

A wheel is downloaded whole from where pip's configuration looks, checked by the lock's digest, and hashed
file by file, one wheel at a time. Wheels that the file knows already are not downloaded again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.base.shipped_data import DATA
from bench.environment.contents import LockedPackage
from bench.environment.identity import tree_digest
from bench.environment.on_node import fitting
from bench.environment.unpack import wheel_contents
from bench.images.locked_wheels import DATA as NAME
from bench.images.locked_wheels import interpreter_for
from bench.images.locks import Pin, read_pins
from bench.images.variants import Variant, images
from bench.packages.download import WantedFile, fetch_all
from bench.packages.package_index import OfferedFile, PackageIndex
from bench.packages.pip_settings import read_settings

_SOURCE = (
    "the wheels that the locks of the images accept, downloaded whole from the Python Package Index and the "
    "index of torch without CUDA, each checked by the sha256 in its lock"
)


def refresh(root: Path, folder: Path | None = None) -> None:
    """Write the file for the locks below `root`; `folder` has wheels already, named by their sha256."""
    path = DATA / NAME
    known = json.loads(path.read_text(encoding="utf-8"))["wheels"] if path.exists() else {}
    index = PackageIndex(read_settings(os.environ, Path.home()))
    wheels = {}
    with tempfile.TemporaryDirectory() as work:
        for variant in images().variants:
            for pin in read_pins(root / variant.lock).values():
                for offer in _offers(pin, variant, index):
                    if offer.sha256 in known:
                        wheels[offer.sha256] = known[offer.sha256]
                        continue
                    wheel = _fetch(pin, offer, index, folder or Path(work))
                    wheels[wheel.name] = {
                        "file": offer.name,
                        "bytes": wheel.stat().st_size,
                        "contents": tree_digest(wheel_contents(wheel)),
                    }
                    if folder is None:
                        wheel.unlink()
    wheels = dict(sorted(wheels.items(), key=lambda each: (each[1]["file"], each[0])))
    day = time.strftime("%Y-%m-%d", time.gmtime())
    document = {"schema": "bench/wheels/v1", "source": _SOURCE, "dated": day, "wheels": wheels}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _offers(pin: Pin, variant: Variant, index: PackageIndex) -> Iterator[OfferedFile]:
    """Yield the wheels of a pin for the Pythons of a variant; none of a kernel, which is on no index."""
    package = LockedPackage(pin.name, pin.version, pin.sha256)
    files = index.files(pin.name) if pin.name not in variant.kernels else []
    offers = (fitting(package, files, interpreter_for(python))[0] for python in variant.pythons)
    yield from dict.fromkeys(offer for found in offers for offer in found)


def _fetch(pin: Pin, offer: OfferedFile, index: PackageIndex, folder: Path) -> Path:
    accepted = frozenset({offer.sha256}) if offer.sha256 else pin.sha256
    paths, refused = fetch_all([WantedFile(offer.name, accepted, (offer,))], index, folder)
    if refused:
        raise SystemExit(f"{offer.name}: {refused[offer.name]}")
    return paths[offer.name]
