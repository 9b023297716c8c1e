"""`bench image push` and `pull`: images of a registry, signed and verified as cosign does."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, VerificationFailed
from bench.base.files import read_bounded, replacing
from bench.base.paths import making_folders
from bench.base.stamps import sha256
from bench.cli.image import as_archive, load_into, progress, show, tag_of
from bench.cli.image_trust import MAX_ENVELOPE_BYTES
from bench.images.archive import facts_of, write_archive
from bench.images.engines import find_engine
from bench.images.registry import ImageReference, Registry, parse_reference
from bench.images.registry_logins import find_login
from bench.images.transfer import (
    pull_layers,
    push_attestations,
    push_image,
    push_signature,
    read_image,
    verify_signature,
)
from bench.images.variants import images
from bench.signing.key_file import load_or_make_key, public_half


@dataclass(frozen=True, slots=True)
class PushImageArguments:
    """The options of `bench image push`; `reference` has no digest, which follows from the image."""

    image: str
    reference: str
    engine: str
    key: Path | None
    attestation: tuple[Path, ...]
    plain_http: bool


@dataclass(frozen=True, slots=True)
class PullImageArguments:
    """The options of `bench image pull`; one of the public keys in `key` must have signed the image."""

    reference: str
    key: tuple[Path, ...]
    out: Path | None
    load: str | None
    plain_http: bool
    as_json: bool


def push(request: PushImageArguments) -> int:
    """Upload an image, sign it, attach its attestations, and only then give it its tag."""
    reference, say = parse_reference(request.reference), progress()
    if reference.digest:
        raise BadInput(
            "a digest follows from the image", where=request.reference, advice="give a tag, or none"
        )
    key = load_or_make_key(request.key)
    too_large = "is too large to be an attestation"
    envelopes = {
        str(path): read_bounded(path, MAX_ENVELOPE_BYTES, what="the attestation", too_large=too_large)
        for path in request.attestation
    }
    registry = _registry(reference, plain_http=request.plain_http)
    with (
        as_archive(request.image, request.engine) as (path, facts),
        tempfile.TemporaryDirectory(prefix="bench-push-") as work,
    ):
        manifest = push_image(path, facts, registry, Path(work), say)
    digest = f"sha256:{sha256(manifest)}"
    registry.put_manifest(manifest, digest)
    push_signature(registry, reference.name, digest, key.private)
    if envelopes:
        push_attestations(registry, digest, envelopes)
    if reference.tag:
        registry.put_manifest(manifest, reference.tag)
    print(f"{reference.name}@{digest}")
    print(f"image {facts.identity.config}, signed by {key.public.fingerprint}", file=sys.stderr)
    return 0


def pull(request: PullImageArguments) -> int:
    """Download an image after checking that one of the keys signed it."""
    reference, say = parse_reference(request.reference), progress()
    if reference.digest is None:
        advice = f"write {request.reference}@sha256:..., as bench image push prints it"
        raise BadInput(
            "names no digest: a tag can be moved to an older image", where=reference.name, advice=advice
        )
    keys = [public_half(path) for path in request.key]
    registry = _registry(reference, plain_http=request.plain_http)
    signer = verify_signature(registry, reference.name, reference.digest, keys)
    say(f"signed by {signer.fingerprint}")
    image = read_image(registry, reference.name, reference.digest)
    variant = image.config.labels.get("bench.variant")
    if variant not in images().by_name:
        raise VerificationFailed("is not an image of bench", where=reference.name)
    out = request.out or Path(f"out/images/bench-{variant}.tar")
    with making_folders(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pull-", dir=out.parent) as work, replacing(out) as part:
            blobs = pull_layers(registry, image, Path(work), say)
            write_archive(part, image.config_bytes, blobs, f"bench:{variant}")
            facts = facts_of(part, reference.name)
    if request.load:
        load_into(find_engine(request.load), out)
        print(f"loaded into {request.load} as {tag_of(facts)}", file=sys.stderr)
    show(facts, str(out), as_json=request.as_json)
    return 0


def _registry(reference: ImageReference, *, plain_http: bool) -> Registry:
    login = find_login(reference.host, os.environ, Path.home())
    return Registry(reference, login, plain_http=plain_http)
