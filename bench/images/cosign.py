"""Sign images of a registry, and verify them, as `cosign sign --key` and `cosign verify --key` do. Pure.

A signature is over a small JSON document that names the digest of the image's manifest. It lies in the
image's repository, under a tag made of that digest; so do attestations, as DSSE envelopes.
Specification: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.base.errors import VerificationFailed
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, canonical_json, strict_loads
from bench.images.registry import MANIFESTS
from bench.signing.ssh_keys import FormatError, PublicKey, Signer, WrongSignature, from_base64, to_base64

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"  # annotation of a layer: the signature over its content
PREDICATE_TYPE = "predicateType"  # annotation of an attestation's layer
MAX_PAYLOAD_BYTES = 2**16
MAX_SIGNATURES = 100
_TYPE = "cosign container image signature"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def tag_of(digest: str, kind: str) -> str:
    """Return the tag under which signatures ("sig") or attestations ("att") of a manifest lie."""
    return f"{digest.replace(':', '-')}.{kind}"


def sign(name: str, digest: str, key: Signer) -> tuple[bytes, dict[str, Any]]:
    """Return the payload that says that an image has this digest, and its layer with the signature."""
    critical = {
        "identity": {"docker-reference": name},
        "image": {"docker-manifest-digest": digest},
        "type": _TYPE,
    }
    payload = canonical_json({"critical": critical, "optional": None})
    return payload, _layer(payload, SIMPLE_SIGNING, {SIGNATURE: to_base64(key.sign(payload))})


def attach(envelope: bytes, predicate_type: str) -> dict[str, Any]:
    """Return the layer of an attestation."""
    return _layer(envelope, ENVELOPE, {SIGNATURE: "", PREDICATE_TYPE: predicate_type})


def _layer(content: bytes, kind: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    digest = f"sha256:{sha256(content)}"
    return {"mediaType": kind, "digest": digest, "size": len(content), "annotations": dict(annotations)}


def manifest_of(earlier: Sequence[Any], layers: Sequence[Any]) -> tuple[bytes, bytes]:
    """Return the manifest of signatures or attestations, the earlier ones first, and its configuration."""
    every = [*earlier, *(layer for layer in layers if layer not in earlier)]
    diff_ids = [layer["digest"] for layer in every]
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": "0001-01-01T00:00:00Z",
            "history": [{"created": "0001-01-01T00:00:00Z"} for _ in every],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    )
    described = {"mediaType": _CONFIG, "digest": f"sha256:{sha256(config)}", "size": len(config)}
    manifest = {"schemaVersion": 2, "mediaType": MANIFESTS[0], "config": described, "layers": every}
    return canonical_json(manifest), config


def signatures_in(manifest: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the digest of each payload in a manifest of signatures, and its signature."""
    for layer in manifest["layers"][:MAX_SIGNATURES]:
        text = (layer.get("annotations") or {}).get(SIGNATURE)
        if layer.get("mediaType") == SIMPLE_SIGNING and isinstance(text, str):
            try:
                yield layer["digest"], from_base64(text)
            except FormatError:
                continue


def signer_of(payload: bytes, signature: bytes, digest: str, keys: Sequence[PublicKey]) -> PublicKey | None:
    """Return the key that signed a payload; None if none of them did.

    VerificationFailed if one did, and the payload is not about the image with this digest.
    """
    for key in keys:
        try:
            key.check(signature, payload)
        except WrongSignature:
            continue
        _require_about(payload, digest)
        return key
    return None


def _require_about(payload: bytes, digest: str) -> None:
    try:
        critical = strict_loads(payload)["critical"]
        kind, found = critical["type"], critical["image"]["docker-manifest-digest"]
    except (DecodeError, LookupError, TypeError) as error:
        raise VerificationFailed(f"its signature is over a malformed document: {error!r:.80}") from None
    if kind != _TYPE:
        raise VerificationFailed(f"its signature is not about an image: {kind!r:.80}")
    if found != digest:
        raise VerificationFailed(f"its signature is about another image: {found!r:.80}")
