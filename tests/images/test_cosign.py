"""Signatures of images in cosign's form: what is written, and which ones count."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.images import cosign
from bench.signing.ssh_keys import WrongSignature

DIGEST = "sha256:" + "d" * 64
TYPE = "cosign container image signature"


class Key:
    """A key whose signature is its letter before what it signs."""

    def __init__(self, letter: str) -> None:
        self._letter = letter.encode()
        self.checked = 0

    def sign(self, data: bytes) -> bytes:
        return self._letter + data

    def check(self, signature: bytes, data: bytes) -> None:
        self.checked += 1
        if signature != self._letter + data:
            raise WrongSignature("another key signed it")


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_signatures_lie_under_a_tag_of_the_digest() -> None:
    assert cosign.tag_of(DIGEST, "sig") == "sha256-" + "d" * 64 + ".sig"


def test_a_payload_names_image_and_digest_and_its_layer_has_the_signature() -> None:
    payload, layer = cosign.sign("r.example/a", DIGEST, Key("k"))  # type: ignore[arg-type]
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": "r.example/a"},
            "image": {"docker-manifest-digest": DIGEST},
            "type": TYPE,
        },
        "optional": None,
    }
    assert layer == {
        "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
        "digest": sha256(payload),
        "size": len(payload),
        "annotations": {"dev.cosignproject.cosign/signature": base64.b64encode(b"k" + payload).decode()},
    }


def test_an_attestation_has_its_type_and_no_signature_beside_its_own() -> None:
    assert cosign.attach(b"{}", "https://slsa.dev/provenance/v1") == {
        "mediaType": "application/vnd.dsse.envelope.v1+json",
        "digest": sha256(b"{}"),
        "size": 2,
        "annotations": {
            "dev.cosignproject.cosign/signature": "",
            "predicateType": "https://slsa.dev/provenance/v1",
        },
    }


def test_a_manifest_keeps_earlier_layers_first_and_each_once() -> None:
    old, new = ({"digest": digest} for digest in ("sha256:a", "sha256:b"))
    manifest, config = cosign.manifest_of([old], [new, old])
    time = "0001-01-01T00:00:00Z"
    assert json.loads(config) == {
        "architecture": "", "config": {}, "created": time, "history": [{"created": time}] * 2, "os": "",
        "rootfs": {"type": "layers", "diff_ids": ["sha256:a", "sha256:b"]},
    }  # fmt: skip
    assert json.loads(manifest) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(config),
            "size": len(config),
        },
        "layers": [old, new],
    }  # fmt: skip


def signed(
    text: object = "c2ln", kind: str = cosign.SIMPLE_SIGNING, digest: str = "sha256:a"
) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "annotations": {cosign.SIGNATURE: text}}


def test_layers_with_a_signature_are_those_of_a_payload() -> None:
    layers = [
        signed(), signed(kind=cosign.ENVELOPE), signed(7), signed("*"), {"digest": "x"},
        {"mediaType": cosign.SIMPLE_SIGNING, "annotations": None}, signed("b3RoZXI=", digest="sha256:b"),
    ]  # fmt: skip
    assert [*cosign.signatures_in({"layers": layers})] == [("sha256:a", b"sig"), ("sha256:b", b"other")]


def test_a_hundred_layers_are_looked_at() -> None:
    assert len([*cosign.signatures_in({"layers": [signed()] * 101})]) == 100


def payload_of(**changes: Any) -> bytes:
    critical = {"type": TYPE, "image": {"docker-manifest-digest": DIGEST}} | changes
    return json.dumps({"critical": critical}).encode()


def test_the_first_key_that_signed_counts() -> None:
    keys: list[Any] = [Key("a"), Key("b"), Key("b")]
    payload = payload_of()
    assert cosign.signer_of(payload, b"b" + payload, DIGEST, keys) is keys[1]
    assert [key.checked for key in keys] == [1, 1, 0]
    assert cosign.signer_of(payload, b"c" + payload, DIGEST, keys) is None
    assert cosign.signer_of(b"malformed", b"c", DIGEST, keys) is None  # nobody's words are not read


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"no json", "its signature is over a malformed document: "),
        (b"[]", "its signature is over a malformed document: "),
        (b"{}", "its signature is over a malformed document: KeyError"),
        (payload_of(image=7), "its signature is over a malformed document: TypeError"),
        (payload_of(image={}), "its signature is over a malformed document: KeyError"),
        (payload_of(type="x" * 99), "its signature is not about an image: '" + "x" * 79),
        (payload_of(type=None), "its signature is not about an image: None"),
        (
            payload_of(image={"docker-manifest-digest": "y" * 99}),
            "its signature is about another image: '" + "y" * 79,
        ),
    ],
)  # fmt: skip
def test_a_signature_over_something_else_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        cosign.signer_of(payload, b"a" + payload, DIGEST, [Key("a")])  # type: ignore[list-item]
    assert caught.value.message.startswith(message)
    assert len(caught.value.message) <= len("its signature is over a malformed document: ") + 80
