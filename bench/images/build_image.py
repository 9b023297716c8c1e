"""`bench image build`: from locks to an image whose every byte follows from them and from our source.

1. The base: a Debian of the locked packages. 2. The wheels of the lock, by digest. 3. The Dockerfile, by
buildah, in a store of its own that is thrown away. 4. The layers, normalised, and a configuration without a
trace of the builder. Steps 1 and 2 are kept in a cache; a build with an empty cache gives the same image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BadInput, EnvironmentCannot, nearest
from bench.base.files import replacing
from bench.base.sbom import PLACE, python_versions
from bench.base.strict_json import pretty_json
from bench.images.archive import Blob, ImageFacts, extract, opened, read_facts, write_archive
from bench.images.debian_base import build_base, read_debs
from bench.images.fetch import digest, wheels
from bench.images.locks import BUILDER, DEBIAN, Pin, read_pins
from bench.images.normalise import configuration, normalise
from bench.images.variants import Variant, images

Say = Callable[[str], None]
STAGES = ("base", "libraries", "torch", "rest", "kernels", "image")  # a layer each, as in the Dockerfile
OURS = ("pyproject.toml", "README.md", "LICENSE", "bench")
# With CUDA, and without: the cache, buildah's store, the result.
NEEDS_BYTES = {True: 40 * 2**30, False: 6 * 2**30}


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """Where everything is that goes into a build."""

    root: Path  # of our repository
    variant: Variant
    cache: Path
    mirror: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # kernels left out; the image says so in a label

    @property
    def lock(self) -> Path:
        return self.root / self.variant.lock

    @property
    def built(self) -> Path:
        """The lock of the wheels that we compile ourselves."""
        return self.root / f"docker/{self.variant.name}.built.lock"

    def pins(self) -> Mapping[str, Pin]:
        """What gets installed: the lock, with the compiled wheels' digests in place of their sources'."""
        pins, built = dict(read_pins(self.lock)), read_pins(self.built) if self.built.exists() else {}
        if unknown := sorted(set(self.without) - set(self.variant.kernels)):
            raise BadInput(
                f'"{unknown[0]}" cannot be left out', advice=nearest(unknown[0], self.variant.kernels)
            )
        for name in self.variant.kernels:
            if name in self.without:
                del pins[name]
            elif name in built:
                pins[name] = built[name]
            else:
                raise EnvironmentCannot(
                    f"{self.built.name} has no wheel of {name}, which is compiled ahead",
                    advice=f"bench image kernels {self.variant.name}, or --without {name}",
                )
        return pins


def build(recipe: BuildInputs, out: Path, tag: str, say: Say) -> ImageFacts:
    """Writes the image's archive to `out`."""
    check_place(recipe)
    pins = recipe.pins()
    with context(recipe, [*pins.values(), _pip(recipe)], say) as folder:
        (folder / "pins.txt").write_text("".join(f"{pin.line}\n" for pin in pins.values()))
        (folder / "image.json").write_bytes(described(recipe))
        _copy_ours(recipe.root, folder / "source")
        say("building the layers")
        with tempfile.TemporaryDirectory(prefix="layers-", dir=recipe.cache) as work:
            saved = Path(work) / "saved.tar"
            buildah(folder, recipe, saved)
            facts = _finish(recipe, saved, Path(work), out, tag, say)
    _check_installed(recipe, pins, out, facts)
    return facts


@contextmanager
def context(recipe: BuildInputs, pins: Sequence[Pin], say: Say) -> Iterator[Path]:
    """A folder with what every stage needs: the base, the wheels, and the scripts. Links, not copies."""
    say("fetching what the locks name")
    files = wheels(pins, recipe.cache / "wheels", images().python)
    base = _base(recipe, say)
    with tempfile.TemporaryDirectory(prefix="context-", dir=recipe.cache) as name:
        folder = Path(name)
        (folder / "wheels").mkdir()
        for path in files.values():
            os.link(path, folder / "wheels" / path.name)
        os.link(base, folder / "base.tar")
        for script in ("Dockerfile", "docker/install.py", "docker/kernels.py"):
            shutil.copy(recipe.root / script, folder)
        yield folder


def _base(recipe: BuildInputs, say: Say) -> Path:
    lock = recipe.root / DEBIAN
    code = Path(__file__).with_name("debian_base.py")
    key = hashlib.sha256(
        b"".join([lock.read_bytes(), code.read_bytes(), b"%d" % images().epoch])
    ).hexdigest()[:16]
    base = recipe.cache / f"base-{key}.tar"
    if not base.exists():
        say("making the base of Debian packages")
        with replacing(base) as part:
            build_base(read_debs(lock), images().suite, part, recipe.mirror, images().epoch)
    return base


def _pip(recipe: BuildInputs) -> Pin:
    return read_pins(recipe.root / BUILDER)["pip"]


def check_place(recipe: BuildInputs) -> None:
    if not (recipe.root / "Dockerfile").exists():
        raise BadInput(
            "holds no Dockerfile", where=str(recipe.root), advice="run it in bench's repository, or --source"
        )
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            raise EnvironmentCannot(f"there is no {program} here", advice=f"apt-get install {program}")
    if os.geteuid() != 0:
        raise EnvironmentCannot("the files of a Debian can only be made by root", advice="sudo")
    recipe.cache.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(recipe.cache).free, NEEDS_BYTES[recipe.variant.cuda is not None]
    if free < needed:
        raise EnvironmentCannot(
            f"{free / 2**30:.0f} GiB are free, a build takes {needed / 2**30:.0f}",
            where=str(recipe.cache),
            advice="--cache with more room",
        )


def described(recipe: BuildInputs) -> bytes:
    """What the image says of itself, to the runner inside it."""
    return pretty_json(
        {
            "schema": "bench/image/v1",
            "variant": recipe.variant.name,
            "lock": f"sha256:{digest(recipe.lock)}",
            "debian": f"sha256:{digest(recipe.root / DEBIAN)}",
        }
    )


def _copy_ours(root: Path, folder: Path) -> None:
    folder.mkdir()
    for name in OURS:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, folder)


def buildah(
    folder: Path,
    recipe: BuildInputs,
    saved: Path | None,
    *,
    target: str = "image",
    arguments: Mapping[str, str] | None = None,
    volumes: Sequence[str] = (),
) -> None:
    """Builds one stage of the Dockerfile, and saves it, in a store that nothing was in before.

    In a network namespace of its own, which holds no network: what no lock names cannot get in.
    """
    store = Path(tempfile.mkdtemp(prefix="store-", dir=recipe.cache))
    program = ["unshare", "--net", "buildah", f"--root={store}/root", f"--runroot={store}/run"]
    options = [
        "--isolation=chroot",
        f"--target={target}",
        "--identity-label=false",
        "--quiet",
        "--format=docker",
    ]
    options += [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
    try:
        _run([*program, "build", *options, *(f"--volume={v}" for v in volumes), "--tag=bench", str(folder)])
        if saved:
            _run([*program, "push", "--quiet", "bench", f"docker-archive:{saved}"])
    finally:
        subprocess.run(["umount", "-q", f"{store}/root/overlay"], check=False)
        shutil.rmtree(store, ignore_errors=True)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        tail = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise EnvironmentCannot(f"buildah failed:\n  {tail}")


def _finish(recipe: BuildInputs, saved: Path, work: Path, out: Path, tag: str, say: Say) -> ImageFacts:
    """The built image with everything taken out that is the builder's, as an archive."""
    epoch = images().epoch
    blobs = []
    with tarfile.open(saved) as archive:
        (manifest,) = json.load(_member(archive, "manifest.json"))
        built = json.load(_member(archive, manifest["Config"]))
        if len(manifest["Layers"]) != len(STAGES):
            raise EnvironmentCannot(f"buildah made {len(manifest['Layers'])} layers, not {len(STAGES)}")
        for stage, name in zip(STAGES, manifest["Layers"], strict=True):
            say(f"layer {stage}")
            path = work / f"{stage}.tar"
            with path.open("wb") as file:
                diff_id = normalise(_member(archive, name), file, epoch)
            blobs.append(Blob(path, diff_id, diff_id, compressed=False))
    saved.unlink()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    config = configuration(built, [b.diff_id for b in blobs], labels(recipe), STAGES, created)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_archive(out, config, blobs, tag)
    with opened(out) as file:
        return read_facts(file, str(out))


def _member(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    if file is None:  # a link to another layer of the same content
        raise EnvironmentCannot(f"buildah's archive holds no {name}")
    return file


def labels(recipe: BuildInputs) -> Mapping[str, str]:
    oci, variant = "org.opencontainers.image", recipe.variant
    found = {
        f"{oci}.title": "bench",
        f"{oci}.description": "How long would it take to pre-train this model on this machine?",
        f"{oci}.version": __version__,
        f"{oci}.licenses": "Apache-2.0",
        f"{oci}.base.name": f"debian:{images().suite}",
        "bench.variant": variant.name,
        "bench.lock": f"sha256:{digest(recipe.lock)}",
        "bench.debian": f"sha256:{digest(recipe.root / DEBIAN)}",
    }
    more = {"cuda": variant.cuda, "driver": variant.driver, "without": " ".join(sorted(recipe.without))}
    return found | {f"bench.{name}": value for name, value in more.items() if value}


def _check_installed(recipe: BuildInputs, pins: Mapping[str, Pin], out: Path, facts: ImageFacts) -> None:
    """The image must hold what the lock says, no more and no less."""
    installed = python_versions(json.loads(extract(out, facts, str(PLACE).lstrip("/"))))
    ours = {"bench": __version__}
    wanted = {name: pin.version for name, pin in pins.items()} | ours
    if differing := sorted(dict(installed.items() ^ wanted.items())):
        raise EnvironmentCannot(
            f"the image and {recipe.variant.lock} disagree about {', '.join(differing[:5])}",
            advice="a defect of bench",
        )
