"""`bench image build`: build an image whose every byte follows from the locks and the source.

1. Make the base, a Debian of the locked packages. 2. Fetch the locked wheels by digest. 3. Build the
Dockerfile with buildah in a temporary store. 4. Normalise the layers, and write a configuration without
traces of the builder. Steps 1 and 2 are cached; a build with an empty cache gives the same image. Needs root,
buildah and mmdebstrap.
"""

from __future__ import annotations

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
from bench.base.distribution import DISTRIBUTION
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import replacing
from bench.base.names import GIB, IMAGE_SBOM
from bench.base.operating_system import require_linux, user_and_group
from bench.base.sizes import bytes_text
from bench.base.source import PACKAGE
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import pretty_json
from bench.images.archive import Blob, ImageFacts, extract, facts_of, write_archive
from bench.images.debian_base import build_base
from bench.images.debian_packages import fetch_debs, read_debs
from bench.images.fetch import wheels
from bench.images.locks import BUILDER, DEBIAN, Pin, read_pins, write_pins
from bench.images.normalise import configuration, normalise
from bench.images.package_list import write_list
from bench.images.revision import BUILD_FILES, REVISION, SOURCE_FILES, revision_of, source_url
from bench.images.sbom import python_versions
from bench.images.variants import Variant, images

Say = Callable[[str], None]
CREATED = "org.opencontainers.image.created"  # label of an image
STAGES = ("base", "libraries", "torch", "rest", "image")  # of the Dockerfile, one for each layer
# Disk space for the cache, buildah's store and the result, by whether the variant has CUDA.
NEEDS_BYTES = {True: 40 * GIB, False: 6 * GIB}


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """The inputs of a build, and its cache."""

    root: Path  # folder of bench's repository
    variant: Variant
    cache: Path
    mirrors: tuple[str, ...] = ()  # of Debian; empty: those of this machine's apt

    @property
    def lock(self) -> Path:
        """Path of the lock of the variant's wheels."""
        return self.root / self.variant.lock

    @property
    def without(self) -> tuple[str, ...]:
        """Names of the lock's packages that are left out: a kernel layer has their compiled wheels."""
        return tuple(sorted(self.variant.kernels))

    def pins(self) -> Mapping[str, Pin]:
        """Return the pins to install: those of the lock, without the compiled kernels."""
        return {name: pin for name, pin in read_pins(self.lock).items() if name not in self.without}


def build(inputs: BuildInputs, out: Path, tag: str, say: Say) -> ImageFacts:
    """Build the image and write its archive to `out`; return the archive's facts."""
    check_prerequisites(inputs)
    if REVISION not in labels(inputs):
        say("these files match no commit, so the image will not name one")
    pins = inputs.pins()
    with context(inputs, [*pins.values(), read_pins(inputs.root / BUILDER)["pip"]], say) as folder:
        write_pins(folder / "pins.txt", pins.values())
        (folder / "image.json").write_bytes(described(inputs))
        wheels_of_image = (folder / "wheels").iterdir()  # without pip, which installs the others
        installed = [path for path in wheels_of_image if not path.name.startswith("pip-")]
        (folder / "packages.json").write_bytes(write_list(installed, read_debs(inputs.root / DEBIAN)))
        _copy_source(inputs.root, folder / "source")
        say("building the layers")
        with tempfile.TemporaryDirectory(prefix="layers-", dir=inputs.cache) as work:
            saved = Path(work) / "saved.tar"
            buildah(folder, inputs, saved)
            facts = _finish(inputs, saved, Path(work), out, tag, say)
    _check_installed(inputs, pins, out, facts)
    return facts


@contextmanager
def context(inputs: BuildInputs, pins: Sequence[Pin], say: Say) -> Iterator[Path]:
    """Yield the build's temporary context folder: links to the base and the wheels, copies of the scripts."""
    say("fetching the locked files")
    files = wheels(pins, inputs.cache / "wheels", images().python)
    base = _base(inputs, say)
    with tempfile.TemporaryDirectory(prefix="context-", dir=inputs.cache) as name:
        folder = Path(name)
        (folder / "wheels").mkdir()
        for path in files.values():
            os.link(path, folder / "wheels" / path.name)
        os.link(base, folder / "base.tar")
        for script in BUILD_FILES:
            shutil.copy(inputs.root / script, folder)
        yield folder


def _base(inputs: BuildInputs, say: Say) -> Path:
    lock = inputs.root / DEBIAN
    code = Path(__file__).with_name("debian_base.py")
    inputs_of_base = b"".join([lock.read_bytes(), code.read_bytes(), b"%d" % images().epoch])
    base = inputs.cache / f"base-{sha256(inputs_of_base)[:16]}.tar"
    if not base.exists():
        debs, epoch = read_debs(lock), images().epoch
        say("fetching Debian's packages")
        packages = fetch_debs(debs, inputs.mirrors, epoch, inputs.cache / "debs")
        say("making the base of Debian packages")
        with replacing(base) as part:
            build_base(debs, packages, images().suite, part, epoch)
    return base


def check_prerequisites(inputs: BuildInputs) -> None:
    """Refuse a build without bench's repository, buildah, mmdebstrap, root or enough free disk space."""
    require_linux("building an image", "build it on Linux, in a virtual machine for instance")
    if not (inputs.root / "Dockerfile").exists():
        advice = "run in bench's repository, or name it with --source"
        raise BadInput("holds no Dockerfile", where=str(inputs.root), advice=advice)
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            raise EnvironmentCannot(f"{program} is not installed", advice=f"apt-get install {program}")
    if user_and_group() not in (None, (0, 0)):
        raise EnvironmentCannot("building the Debian base needs root", advice="sudo")
    inputs.cache.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(inputs.cache).free, NEEDS_BYTES[inputs.variant.cuda is not None]
    if free < needed:
        message = f"{bytes_text(free)} are free, a build needs {bytes_text(needed)}"
        advice = "--cache on a larger disk"
        raise EnvironmentCannot(message, where=str(inputs.cache), advice=advice)


def described(inputs: BuildInputs) -> bytes:
    """Return the contents of image.json, from which a run in the container reads its variant and locks."""
    return pretty_json(
        {
            "schema": "bench/image/v1",
            "variant": inputs.variant.name,
            "lock": f"sha256:{file_sha256(inputs.lock)}",
            "debian": f"sha256:{file_sha256(inputs.root / DEBIAN)}",
        }
    )


def _copy_source(root: Path, folder: Path) -> None:
    folder.mkdir()
    for name in SOURCE_FILES:
        source = root / name
        if name == PACKAGE.name and not source.exists():  # a wheel carries the rest beside the package
            source = PACKAGE
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, folder)


def buildah(
    folder: Path,
    inputs: BuildInputs,
    saved: Path | None,
    *,
    target: str = "image",
    arguments: Mapping[str, str] | None = None,
    volumes: Sequence[str] = (),
) -> None:
    """Build one stage of the Dockerfile in an empty store; save it as an archive if `saved` is given.

    The build has no network, so that the image contains nothing besides the locked files and the source.
    """
    store = Path(tempfile.mkdtemp(prefix="store-", dir=inputs.cache))
    program = ["unshare", "--net", "buildah", f"--root={store}/root", f"--runroot={store}/run"]
    options = ["--isolation=chroot", "--identity-label=false", "--quiet", "--format=docker"]
    options += [f"--target={target}"]
    options += [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
    try:
        _run([*program, "build", *options, *(f"--volume={v}" for v in volumes), "--tag=bench", str(folder)])
        if saved:
            _run([*program, "push", "--quiet", "bench", f"docker-archive:{saved}"])
    finally:
        subprocess.run(["umount", "-q", f"{store}/root/overlay"], check=False)
        shutil.rmtree(store, ignore_errors=True)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    if done.returncode:
        tail = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise EnvironmentCannot(f"buildah failed:\n  {tail}")


def _finish(inputs: BuildInputs, saved: Path, work: Path, out: Path, tag: str, say: Say) -> ImageFacts:
    """Write the built image as an archive without traces of the builder; return the archive's facts."""
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
    own_labels = labels(inputs)
    config = configuration(built, [b.diff_id for b in blobs], own_labels, STAGES, own_labels[CREATED])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_archive(out, config, blobs, tag)
    return facts_of(out)


def _member(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    if file is None:  # buildah may link a layer to another one with the same content
        raise EnvironmentCannot(f"buildah's archive lacks {name} as a file")
    return file


def labels(inputs: BuildInputs) -> Mapping[str, str]:
    """Return the labels of the image: OCI annotations, the variant, and the digests of its locks.

    `created` is the time of the locks, and `revision` the commit, if the files are those of one.
    """
    oci, variant = "org.opencontainers.image", inputs.variant
    always = {
        CREATED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(images().epoch)),
        f"{oci}.title": "bench",
        f"{oci}.description": "How long would it take to pre-train this model on this machine?",
        f"{oci}.version": __version__,
        f"{oci}.licenses": "Apache-2.0",
        f"{oci}.base.name": f"debian:{images().suite}",
        "bench.variant": variant.name,
        "bench.lock": f"sha256:{file_sha256(inputs.lock)}",
        "bench.debian": f"sha256:{file_sha256(inputs.root / DEBIAN)}",
    }
    optional = {
        "bench.cuda": variant.cuda,
        "bench.driver": variant.driver,
        "bench.without": " ".join(sorted(inputs.without)),
        f"{oci}.source": source_url(inputs.root),
        REVISION: revision_of(inputs.root),
    }
    return always | {name: value for name, value in optional.items() if value}


def _check_installed(inputs: BuildInputs, pins: Mapping[str, Pin], out: Path, facts: ImageFacts) -> None:
    """Compare the packages installed in the image with the lock; EnvironmentCannot if they differ."""
    installed = python_versions(json.loads(extract(out, facts, IMAGE_SBOM)))
    locked = {name: pin.version for name, pin in pins.items()} | {DISTRIBUTION: __version__}
    if differing := sorted(dict(installed.items() ^ locked.items())):
        message = f"the image and {inputs.variant.lock} disagree about {', '.join(differing[:5])}"
        advice = "a defect of bench: please report it"
        raise EnvironmentCannot(message, advice=advice)
