"""Push an image to a registry with its signature and attestations; pull one that a known key signed."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.base.sizes import size_text
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, strict_loads
from bench.images import cosign
from bench.images.archive import (
    Blob,
    Configuration,
    ImageFacts,
    ManifestLayer,
    oci_manifest,
    pack_layers,
    read_configuration,
)
from bench.images.registry import Registry, parse_manifest
from bench.signing.ssh_keys import PublicKey, Signer

AT_ONCE = 4  # layers that are transferred at a time
_MAX_LAYERS = 127  # the most that engines accept
_MAX_CONFIG_BYTES = 4 * 2**20
Say = Callable[[str], None]


def push_image(archive: Path, facts: ImageFacts, registry: Registry, work: Path, say: Say) -> bytes:
    """Upload an image's layers, compressed, and its configuration; return its manifest.

    The manifest is not uploaded. A layer that is compressed already is sent as it is.
    """
    blobs = pack_layers(archive, facts, work, recompress=False, say=say)
    say("uploading")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda blob: registry.upload(blob.path, blob.digest), blobs))
    registry.upload(facts.config_bytes, facts.identity.config)
    layers = [ManifestLayer(blob.digest, blob.path.stat().st_size) for blob in blobs]
    return oci_manifest(facts.config_bytes, layers)


def push_signature(registry: Registry, name: str, digest: str, key: Signer) -> None:
    """Sign the manifest with this digest, and add the signature to those of the image in the registry."""
    payload, layer = cosign.sign(name, digest, key)
    _add(registry, cosign.tag_of(digest, "sig"), [(payload, layer)])


def push_attestations(registry: Registry, digest: str, envelopes: Mapping[str, bytes]) -> None:
    """Attach attestations, by the name of their file; BadInput for one that is not about this manifest."""
    layers = []
    for name, envelope in envelopes.items():
        layers.append((envelope, cosign.attach(envelope, _predicate_type(envelope, name, digest))))
    _add(registry, cosign.tag_of(digest, "att"), layers)


def _predicate_type(envelope: bytes, name: str, digest: str) -> str:
    try:
        statement = strict_loads(base64.b64decode(strict_loads(envelope)["payload"], validate=True))
        about = {subject["digest"].get("sha256") for subject in statement["subject"]}
        kind: str = statement["predicateType"] + ""
    except (DecodeError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"is not an attestation: {error!r:.80}", where=name) from None
    if digest.removeprefix("sha256:") not in about:
        advice = "attest the file that bench image save wrote, and push that file"
        raise BadInput("does not name the image as the registry has it", where=name, advice=advice)
    return kind


def _add(registry: Registry, tag: str, layers: Sequence[tuple[bytes, dict[str, Any]]]) -> None:
    """Add layers to the manifest of a tag, which others may have signed or attested too."""
    found = registry.manifest(tag)
    earlier = parse_manifest(found, tag)["layers"] if found else []
    manifest, config = cosign.manifest_of(earlier, [layer for _, layer in layers])
    for content, layer in layers:
        registry.upload(content, layer["digest"])
    registry.upload(config, f"sha256:{sha256(config)}")
    registry.put_manifest(manifest, tag)


def verify_signature(registry: Registry, name: str, digest: str, keys: Sequence[PublicKey]) -> PublicKey:
    """Return the first of the keys that signed the manifest of this digest; else VerificationFailed."""
    tag = cosign.tag_of(digest, "sig")
    found = registry.manifest(tag)
    if found is None and registry.manifest(digest) is None:
        advice = "check its name and digest; some registries show images only after a login: docker login"
        raise EnvironmentCannot(f"the registry has no image {digest}", where=name, advice=advice)
    if found is None:
        advice = "its publisher can sign it: bench image push, or cosign sign --key"
        raise VerificationFailed(f"is not signed: the registry has no {tag}", where=name, advice=advice)
    for payload_digest, signature in cosign.signatures_in(parse_manifest(found, f"{name}:{tag}")):
        payload = registry.small_blob(payload_digest, cosign.MAX_PAYLOAD_BYTES)
        if key := cosign.signer_of(payload, signature, digest, keys):
            return key
    known = ", ".join(key.fingerprint for key in keys)
    raise VerificationFailed(f"is not signed by {known}", where=name)


@dataclass(frozen=True, slots=True)
class OfferedImage:
    """An image in a registry, by its manifest."""

    layers: Sequence[Mapping[str, Any]]
    config_bytes: bytes
    config: Configuration


def read_image(registry: Registry, name: str, digest: str) -> OfferedImage:
    """Read the manifest and the configuration of an image."""
    data = registry.manifest(digest)
    if data is None:
        raise EnvironmentCannot(f"the registry has no {digest}", where=name)
    manifest = parse_manifest(data, name)
    layers = manifest["layers"]
    if len(layers) > _MAX_LAYERS:
        raise VerificationFailed(f"has {len(layers)} layers, which no engine accepts", where=name)
    data = registry.small_blob(manifest["config"]["digest"], _MAX_CONFIG_BYTES)
    try:
        config = read_configuration(data)
    except DecodeError:
        raise VerificationFailed("its configuration is not that of an image", where=name) from None
    if len(config.diff_ids) != len(layers):
        message = f"has {len(layers)} layers, its configuration names {len(config.diff_ids)}"
        raise VerificationFailed(message, where=name)
    return OfferedImage(layers, data, config)


def pull_layers(registry: Registry, image: OfferedImage, work: Path, say: Say) -> list[Blob]:
    """Download the layers of an image into a folder; EnvironmentCannot if they do not fit there twice."""
    layers = image.layers
    needed, free = 2 * sum(layer["size"] for layer in layers), shutil.disk_usage(work).free
    if needed > free:
        message = f"{size_text(free)} are free, the layers and the image file need {size_text(needed)}"
        raise EnvironmentCannot(message, where=str(work.parent), advice="-o on a larger disk")

    def pulled(number: int) -> Blob:
        layer, path = layers[number], work / f"{number}.layer"
        say(f"layer {number + 1} of {len(layers)}: {size_text(layer['size'])}")
        registry.fetch(layer["digest"], layer["size"], path)
        compressed = str(layer.get("mediaType", "")).endswith("gzip")
        return Blob(path, image.config.diff_ids[number], layer["digest"], compressed)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(pulled, range(len(layers))))
