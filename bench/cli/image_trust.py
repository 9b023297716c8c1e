"""`bench image attest`, `verify` and `scan`: an image's origin, contents and known vulnerabilities."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.base.errors import VerificationFailed, one_line
from bench.base.files import read_bounded, replacing
from bench.base.names import IMAGE_SBOM
from bench.base.paths import making_folders
from bench.base.stamps import file_sha256
from bench.base.strict_json import to_json
from bench.base.terminal import print_json
from bench.cli.image import as_archive
from bench.images.archive import extract, manifest_digest
from bench.images.attestation import Attested, attest_contents, attest_provenance, verify_attestation
from bench.images.build_image import BuildInputs
from bench.images.kernel_layer import below_kernels, sbom_of
from bench.images.variants import find_variant
from bench.images.vex import read_vex
from bench.images.vulnerabilities import MAX_SBOM_BYTES, FoundVulnerability, packages_of, scan
from bench.signing.key_file import load_or_make_key, public_half

MAX_ENVELOPE_BYTES = 128 * 2**20  # an SBOM in base64, in JSON


@dataclass(frozen=True, slots=True)
class AttestArguments:
    """The options of `bench image attest`; `source` is the checkout that the image was built from."""

    image: str
    engine: str
    source: Path
    out: Path
    key: Path | None
    builder: str | None


@dataclass(frozen=True, slots=True)
class VerifyImageArguments:
    """The options of `bench image verify`; one of the public keys in `key` must have signed each file."""

    image: str
    attestation: tuple[Path, ...]
    engine: str
    key: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ScanArguments:
    """The options of `bench image scan`: vulnerabilities in OSV's format, and which of them do not apply."""

    image: str  # an image, or the SBOM of one
    engine: str
    feed: Path
    vex: tuple[Path, ...]
    as_json: bool


def attest(request: AttestArguments) -> int:
    """Write the signed provenance and contents of an image, and the files that other verifiers need."""
    key = load_or_make_key(request.key)
    with _attested(request.image, request.engine) as image:
        labels = image.facts.labels
        variant = find_variant(labels.get("bench.variant", ""))
        inputs = BuildInputs(request.source.resolve(), variant, Path())
        files = {
            "provenance.dsse.json": attest_provenance(image, inputs, key.private, request.builder),
            "contents.dsse.json": attest_contents(image, key.private),
            "config.json": image.facts.config_bytes,
            "key.pem": key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        }
    with making_folders(request.out):
        request.out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            path = request.out / f"bench-{variant.name}.{name}"
            with replacing(path) as part:
                part.write_bytes(data)
            print(path)
    print(f"signed by {key.public.fingerprint}: {key.public.line()}", file=sys.stderr)
    return 0


def verify(request: VerifyImageArguments) -> int:
    """Verify attestations of an image; the first that fails ends the command with exit code 4."""
    keys = [public_half(path) for path in request.key]
    with _attested(request.image, request.engine) as image:
        print(f"image      {image.facts.identity.config}")
        for path in request.attestation:
            data = read_bounded(
                path,
                MAX_ENVELOPE_BYTES,
                what="the attestation",
                too_large="is too large to be an attestation",
            )
            try:
                print(one_line(verify_attestation(data, image, keys)))
            except VerificationFailed as error:
                raise VerificationFailed(error.message, where=str(path)) from None
    return 0


def find_vulnerabilities(request: ScanArguments) -> int:
    """Print the feed's vulnerabilities of an image's packages; exit code 1 if any applies."""
    sbom, identity = _contents(request)
    packages = packages_of(sbom, request.image)
    statements = tuple(statement for path in request.vex for statement in read_vex(path, identity))
    found = sorted(
        scan(packages, request.feed, statements),
        key=lambda flaw: (flaw.dismissed is not None, flaw.name, flaw.id),
    )
    applies = [flaw for flaw in found if flaw.dismissed is None]
    if request.as_json:
        document = {"image": identity, "packages": len(packages), "vulnerabilities": to_json(found)}
        print_json(document)
        return int(bool(applies))
    for flaw in found:
        print(one_line(_line(flaw)))
    dismissed = f", not applicable: {len(found) - len(applies)}" if len(found) > len(applies) else ""
    print(f"packages: {len(packages)}, vulnerabilities: {len(applies)}{dismissed}", file=sys.stderr)
    return int(bool(applies))


def _line(flaw: FoundVulnerability) -> str:
    names = " ".join((flaw.id, *flaw.aliases))
    state = f"does not apply: {flaw.dismissed}" if flaw.dismissed else flaw.severity or "no severity"
    fixed = f"fixed in {', '.join(dict.fromkeys(flaw.fixed))}" if flaw.fixed else "no fixed version"
    doubt = f"; {flaw.undecided}, so it counts as affected" if flaw.undecided else ""
    return f"{flaw.name} {flaw.version}   {names}   {state}   {fixed}{doubt}   {flaw.summary:.100}"


def _contents(request: ScanArguments) -> tuple[bytes, str | None]:
    """Return the SBOM, and the digest of the image unless the SBOM was given as a file."""
    path = Path(request.image)
    if path.suffix == ".json":
        too_large = f"has more than {MAX_SBOM_BYTES:,} bytes"
        return read_bounded(path, MAX_SBOM_BYTES, what="the SBOM", too_large=too_large), None
    with as_archive(request.image, request.engine) as (path, facts):
        return sbom_of(path, facts), facts.identity.config


@contextmanager
def _attested(name: str, engine: str) -> Iterator[Attested]:
    with as_archive(name, engine) as (path, facts):
        sbom = extract(path, facts, IMAGE_SBOM)
        if (below := below_kernels(facts)) is not None:
            print(f"{name}: the kernel layer {facts.identity.diff_ids[-1]} is not attested", file=sys.stderr)
            yield Attested(below, sbom, None)
            return
        given = Path(name).exists()
        archive = (path.name, file_sha256(path)) if given else None
        yield Attested(facts, sbom, archive, manifest_digest(path, facts))
