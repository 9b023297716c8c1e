"""`python -m release`, called by `make release`: make all files of a release of the checked-out commit.

The same commit, images, kernels and key give the same bytes. Needs no root: images are built before, by
`bench image build`. setuptools and the wheels of the Debian package are downloaded by their locked digests,
unless the cache of image builds has them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import BadInput, BenchError
from bench.base.names import IMAGE_SBOM
from bench.base.paths import cache_path
from bench.base.stamps import file_sha256
from bench.images.archive import ImageFacts, extract, facts_of, manifest_digest, pack_layers, write_archive
from bench.images.attestation import Attested, attest_contents, attest_provenance
from bench.images.build_image import BuildInputs
from bench.images.fetch import accepted_files
from bench.images.kernel_layer import below_kernels
from bench.images.locks import read_built, read_pins
from bench.images.revision import REVISION, commit_of, git
from bench.images.variants import find_variant, images
from bench.signing.key_file import UserKey, load_key
from release import debian_package, operator_lock, python_packages, signatures

ROOT = Path(__file__).resolve().parents[1]
NAME = f"bench_appliance-{__version__}"


@dataclass(frozen=True, slots=True)
class ReleaseArguments:
    """The options of `make release`."""

    out: Path
    key: Path
    image: tuple[Path, ...]
    kernels: Path | None
    builder: str | None


def main(words: Sequence[str]) -> int:
    """Parse the options and make the release; return an exit code, with an error on stderr."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Make a release of this commit.")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/release"), help="a new folder")
    parser.add_argument("--key", type=Path, required=True, help="the release's Ed25519 SSH key")
    image = "an image of this commit, as bench image build wrote it; repeatable"
    parser.add_argument("--image", type=Path, action="append", default=[], help=image)
    kernels = "folder of the compiled wheels that docker/VARIANT.built.lock names"
    parser.add_argument("--kernels", type=Path, help=kernels)
    parser.add_argument("--builder", help="URI of who builds (default: a URN of the key)")
    values = vars(parser.parse_args(words))
    try:
        make(ReleaseArguments(**values | {"image": tuple(values["image"])}))
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def make(request: ReleaseArguments) -> None:
    """Write a release into a new folder, which appears when it is complete."""
    commit, key = clean_commit(ROOT), load_key(request.key)
    if request.out.exists():
        raise BadInput("exists", where=str(request.out), advice="name a new folder with --out")
    built = [(path, _image_of(path, commit)) for path in request.image]
    request.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=request.out.parent) as work:
        folder = Path(work) / "files"
        folder.mkdir(mode=0o755)
        inputs = [*_packages(folder, Path(work), commit), *_kernels(folder, request.kernels)]
        for archive, facts in built:
            _write_image(folder, Path(work), archive, facts, key, request.builder)
        signatures.write_signed(folder, key, inputs, request.builder)
        folder.replace(request.out)
    for path in sorted(request.out.rglob("*")):
        print(path)


def clean_commit(root: Path) -> str:
    """Return the checked-out commit; BadInput if any file of the checkout differs from it."""
    commit = commit_of(root)
    if changed := git(root, "status", "--porcelain"):
        first = changed.splitlines()[0][3:]
        raise BadInput(f"{first} differs from the commit", where=str(root), advice="release a clean checkout")
    return commit


def _packages(folder: Path, work: Path, commit: str) -> Iterator[dict[str, Any]]:
    """Build sdist, wheel, Debian package, the lock and the list of what they install; yield the inputs."""
    pin = read_pins(ROOT / "docker/cpu.lock")["setuptools"]  # the one that images are built with
    setuptools = python_packages.unpacked_wheel(pin, work)
    source = work / "source"
    source.mkdir()
    python_packages.export(ROOT, commit, source)
    _, wheel = python_packages.build(source, folder, python_packages.commit_time(ROOT), setuptools)
    lock = (source / operator_lock.LOCK).read_text(encoding="utf-8")
    own = operator_lock.with_own_wheel(lock, __version__, file_sha256(wheel))
    (folder / f"{NAME}.operator.lock").write_text(own, encoding="utf-8", newline="\n")
    listed = operator_lock.sbom(operator_lock.read_lock(lock), __version__, (wheel.name, file_sha256(wheel)))
    (folder / f"{NAME}.cdx.json").write_bytes(listed)
    found = debian_package.locked_wheels(
        operator_lock.read_lock(lock), cache_path("images") / "operator-wheels"
    )
    stated = debian_package.Stated(
        __version__, python_packages.commit_author(ROOT), python_packages.commit_time(ROOT)
    )
    debian_package.write(folder, stated, own, {**found, wheel.name: wheel})
    yield {"uri": "git+file:.", "digest": {"gitCommit": commit}}
    yield {
        "uri": f"file:{operator_lock.LOCK}",
        "digest": {"sha256": file_sha256(source / operator_lock.LOCK)},
    }
    for value in sorted(pin.sha256):
        yield {"uri": f"pkg:pypi/{pin.name}@{pin.version}", "digest": {"sha256": value}}


def _kernels(folder: Path, given: Path | None) -> Iterator[dict[str, Any]]:
    """Copy the compiled wheels of each variant into a separate folder; yield the locks that name them.

    BadInput if the given folder has none, since a user who names it expects some.
    """
    if given is None:
        return
    found = False
    for variant in images().variants:
        pins = read_built(ROOT, variant)
        if not pins:
            continue
        for path in accepted_files(given, pins).values():
            target = folder / f"kernels-{variant.name}"
            target.mkdir(exist_ok=True)
            shutil.copyfile(path, target / path.name)
            found = True
        digest = file_sha256(ROOT / variant.built_lock)
        yield {"uri": f"file:{variant.built_lock}", "digest": {"sha256": digest}}
    if not found:
        raise BadInput("has no wheel that docker/VARIANT.built.lock names", where=str(given))


def _image_of(archive: Path, commit: str) -> ImageFacts:
    """Read an image; BadInput unless it was built from this commit."""
    facts = facts_of(archive)
    found = facts.labels.get(REVISION, "no commit")
    if found != commit:
        message = f"was built from {found:.12}, not from {commit:.12}"
        raise BadInput(message, where=str(archive), advice="build it again: bench image build VARIANT")
    if below_kernels(facts):
        advice = "release the image below it; the wheels of the layer go with --kernels"
        raise BadInput("has a kernel layer", where=str(archive), advice=advice)
    return facts


def _write_image(
    folder: Path, work: Path, archive: Path, facts: ImageFacts, key: UserKey, builder: str | None
) -> None:
    """Write an image as a compressed OCI archive, with its list of contents, attestations and digests."""
    variant = find_variant(facts.labels.get("bench.variant", ""))
    name = f"bench-{variant.name}-{__version__}"
    out = folder / f"{name}.tar"
    with tempfile.TemporaryDirectory(dir=work) as layers:
        blobs = pack_layers(archive, facts, Path(layers), recompress=True)
        write_archive(out, facts.config_bytes, blobs, f"bench:{variant.name}")
    saved = facts_of(out)
    contents = extract(out, saved, IMAGE_SBOM)
    image = Attested(saved, contents, (out.name, file_sha256(out)), manifest_digest(out, saved))
    inputs = BuildInputs(ROOT, variant, Path())
    files = {
        "cdx.json": contents,
        "config.json": saved.config_bytes,
        "contents.dsse.json": attest_contents(image, key.private),
        "provenance.dsse.json": attest_provenance(image, inputs, key.private, builder),
        "digests.txt": f"identity {saved.identity.config}\nregistry {image.manifest}\n".encode(),
    }
    for suffix, data in files.items():
        (folder / f"{name}.{suffix}").write_bytes(data)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
