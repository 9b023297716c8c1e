"""Images, signatures and attestations of a registry that is in memory: what is sent, and what is believed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.base.strict_json import canonical_json
from bench.images import cosign, transfer
from bench.images.archive import ImageFacts, facts_of, oci_manifest
from bench.images.registry import Registry
from bench.images.transfer import (
    OfferedImage,
    pull_layers,
    push_attestations,
    push_image,
    push_signature,
    read_image,
    verify_signature,
)
from bench.signing.dsse import seal
from bench.signing.ssh_keys import PublicKey
from tests.images.made_up_images import layer, make_image

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(byte * 32) for byte in (b"k", b"o"))
OWN, STRANGE = PublicKey.of(KEY), PublicKey.of(OTHER)
DIGEST = "sha256:" + "d" * 64
NAME = "r.example/lab/bench"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Stored:
    """A registry in memory, which does what the real one does once its answers have arrived."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.limits: list[int] = []

    def manifest(self, wanted: str) -> bytes | None:
        return self.manifests.get(wanted)

    def put_manifest(self, data: bytes, name: str) -> None:
        self.manifests[name] = self.manifests[digest_of(data)] = data

    def upload(self, content: Path | bytes, digest: str) -> None:
        data = content.read_bytes() if isinstance(content, Path) else content
        assert digest_of(data) == digest
        self.blobs[digest] = data

    def small_blob(self, digest: str, most_bytes: int) -> bytes:
        self.limits.append(most_bytes)
        return self.blobs[digest]

    def fetch(self, digest: str, size: int, out: Path) -> None:
        assert len(self.blobs[digest]) == size
        out.write_bytes(self.blobs[digest])


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def registry(stored: Stored) -> Registry:
    return cast(Registry, stored)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path, [{"first": b"1"}, {"second": b"2"}])


# --- images ------------------------------------------------------------------------------------------------


def test_an_image_is_uploaded_layer_by_layer_with_its_configuration_and_no_manifest(
    image: Path, registry: Registry, stored: Stored, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    facts, said = facts_of(image), list[str]()
    manifest = push_image(image, facts, registry, tmp_path / "work", said.append)
    document = json.loads(manifest)
    blobs = [stored.blobs[one["digest"]] for one in document["layers"]]
    assert [digest_of(gzip.decompress(blob)) for blob in blobs] == list(facts.identity.diff_ids)
    assert [one["size"] for one in document["layers"]] == [len(blob) for blob in blobs]
    assert stored.blobs[facts.identity.config] == facts.config_bytes
    assert document["config"]["digest"] == facts.identity.config
    assert len(stored.blobs) == 3 and not stored.manifests
    assert sorted(said) == ["layer 1 of 2", "layer 2 of 2", "uploading"] and said[-1] == "uploading"


def test_a_layer_that_is_compressed_already_is_sent_as_it_is(
    image: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(transfer, "pack_layers", lambda *_, **how: asked.update(how) or [])
    push_image(image, facts_of(image), registry, tmp_path, print)
    assert asked == {"recompress": False, "say": print}


def offered(stored: Stored, facts: ImageFacts, layers: int = 2, **changes: Any) -> str:
    """Put the manifest of an image with this many layers into the registry, with changes."""
    stored.upload(facts.config_bytes, facts.identity.config)
    document = json.loads(oci_manifest(facts.config_bytes, [])) | changes
    document["layers"] = [{"digest": DIGEST, "size": 1}] * layers
    data = canonical_json(document)
    stored.put_manifest(data, "tag")
    return digest_of(data)


def test_an_image_is_read_by_its_manifest_and_configuration(
    image: Path, registry: Registry, stored: Stored
) -> None:
    facts = facts_of(image)
    found = read_image(registry, NAME, offered(stored, facts))
    assert (found.config, found.config_bytes) == (facts.config, facts.config_bytes)
    assert [one["digest"] for one in found.layers] == [DIGEST, DIGEST]
    assert stored.limits == [4_194_304]


def test_a_digest_that_the_registry_lacks_is_named(registry: Registry) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        read_image(registry, NAME, DIGEST)
    assert (caught.value.message, caught.value.where) == (f"the registry has no {DIGEST}", NAME)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        (1, "has 1 layers, its configuration names 2"),
        (3, "has 3 layers, its configuration names 2"),
        (127, "has 127 layers, its configuration names 2"),
        (128, "has 128 layers, which no engine accepts"),
    ],
)
def test_an_image_has_as_many_layers_as_its_configuration_and_at_most_127(
    layers: int, why: str, image: Path, registry: Registry, stored: Stored
) -> None:
    digest = offered(stored, facts_of(image), layers)
    with pytest.raises(VerificationFailed) as caught:
        read_image(registry, NAME, digest)
    assert (caught.value.message, caught.value.where) == (why, NAME)


def test_another_document_is_no_configuration(image: Path, registry: Registry, stored: Stored) -> None:
    stored.upload(b"[]", digest_of(b"[]"))
    digest = offered(stored, facts_of(image), config={"digest": digest_of(b"[]"), "size": 2})
    with pytest.raises(VerificationFailed) as caught:
        read_image(registry, NAME, digest)
    assert caught.value.message == "its configuration is not that of an image"


def in_registry(stored: Stored, facts: ImageFacts, *blobs: tuple[bytes, str | None]) -> OfferedImage:
    """Return an image of blobs that the registry has, each with its kind."""
    layers = []
    for data, kind in blobs:
        stored.upload(data, digest_of(data))
        layers.append({"digest": digest_of(data), "size": len(data)} | ({"mediaType": kind} if kind else {}))
    return OfferedImage(layers, facts.config_bytes, facts.config)


def test_layers_are_downloaded_and_known_by_their_kind(
    image: Path, registry: Registry, stored: Stored, tmp_path: Path
) -> None:
    facts, said = facts_of(image), list[str]()
    kind = "application/vnd.oci.image.layer.v1.tar"
    plain, packed = layer({"a": b"1" * 2_000_000}), gzip.compress(b"x")
    found = pull_layers(
        registry, in_registry(stored, facts, (plain, kind), (packed, f"{kind}+gzip")), tmp_path, said.append
    )
    assert [one.path.read_bytes() for one in found] == [plain, packed]
    assert [one.digest for one in found] == [digest_of(plain), digest_of(packed)]
    assert [one.diff_id for one in found] == list(facts.identity.diff_ids)
    assert [one.compressed for one in found] == [False, True]
    assert sorted(said) == ["layer 1 of 2: 2.0 MB", "layer 2 of 2: 21 B"]
    unnamed = in_registry(stored, facts, (plain, None), (packed, None))
    assert [one.compressed for one in pull_layers(registry, unnamed, tmp_path, said.append)] == [False] * 2


def test_layers_need_room_for_themselves_and_for_the_image_file(
    image: Path, registry: Registry, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = in_registry(stored, facts_of(image), (b"123", None), (b"45", None))
    free = [10]
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    assert len(pull_layers(registry, both, tmp_path, print)) == 2
    free[0] = 9
    with pytest.raises(EnvironmentCannot) as caught:
        pull_layers(registry, both, tmp_path, print)
    assert caught.value.message == "9 B are free, the layers and the image file need 10 B"
    assert caught.value.where == str(tmp_path.parent)


def test_four_layers_are_transferred_at_a_time(
    image: Path, registry: Registry, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []

    def pool(most: int) -> ThreadPoolExecutor:
        workers.append(most)
        return ThreadPoolExecutor(most)

    monkeypatch.setattr(transfer, "ThreadPoolExecutor", pool)
    (tmp_path / "work").mkdir()
    push_image(image, facts_of(image), registry, tmp_path / "work", lambda _: None)
    pull_layers(registry, in_registry(stored, facts_of(image), (b"1", None)), tmp_path, lambda _: None)
    assert workers == [4, 4]


# --- signatures --------------------------------------------------------------------------------------------


def test_a_signature_lies_under_a_tag_made_of_the_digest_and_beside_earlier_ones(
    registry: Registry, stored: Stored
) -> None:
    push_signature(registry, NAME, DIGEST, KEY)
    tag = f"sha256-{'d' * 64}.sig"
    (first,) = json.loads(stored.manifests[tag])["layers"]
    payload, signed = cosign.sign(NAME, DIGEST, KEY)
    assert first == signed and stored.blobs[signed["digest"]] == payload
    push_signature(registry, NAME, DIGEST, OTHER)
    document = json.loads(stored.manifests[tag])
    assert [one["annotations"][cosign.SIGNATURE] for one in document["layers"]] == [
        signed["annotations"][cosign.SIGNATURE],
        cosign.sign(NAME, DIGEST, OTHER)[1]["annotations"][cosign.SIGNATURE],
    ]
    assert json.loads(stored.blobs[document["config"]["digest"]])["rootfs"]["diff_ids"] == [
        signed["digest"], signed["digest"]
    ]  # fmt: skip


def test_the_key_that_signed_is_returned_and_a_strange_signature_before_it_passed_over(
    registry: Registry,
) -> None:
    push_signature(registry, NAME, DIGEST, OTHER)
    push_signature(registry, NAME, DIGEST, KEY)
    assert verify_signature(registry, NAME, DIGEST, [OWN]) == OWN
    assert verify_signature(registry, NAME, DIGEST, [OWN, STRANGE]) == STRANGE  # signed first
    assert verify_signature(registry, NAME, DIGEST, [STRANGE]) == STRANGE


def test_a_payload_is_read_up_to_its_limit(registry: Registry, stored: Stored) -> None:
    push_signature(registry, NAME, DIGEST, KEY)
    verify_signature(registry, NAME, DIGEST, [OWN])
    assert stored.limits == [65_536]


def test_an_image_that_only_others_signed_is_refused(registry: Registry) -> None:
    push_signature(registry, NAME, DIGEST, OTHER)
    third = PublicKey.of(Ed25519PrivateKey.from_private_bytes(b"t" * 32))
    with pytest.raises(VerificationFailed) as caught:
        verify_signature(registry, NAME, DIGEST, [OWN, third])
    assert caught.value.message == f"is not signed by {OWN.fingerprint}, {third.fingerprint}"
    assert caught.value.where == NAME


def test_an_image_that_is_there_without_a_signature_is_told_from_one_that_is_not_there(
    registry: Registry, stored: Stored
) -> None:
    with pytest.raises(EnvironmentCannot) as absent:
        verify_signature(registry, NAME, DIGEST, [OWN])
    assert (absent.value.message, absent.value.where) == (f"the registry has no image {DIGEST}", NAME)
    stored.manifests[DIGEST] = b"{}"
    with pytest.raises(VerificationFailed) as unsigned:
        verify_signature(registry, NAME, DIGEST, [OWN])
    assert unsigned.value.message == f"is not signed: the registry has no sha256-{'d' * 64}.sig"
    assert unsigned.value.where == NAME


def test_a_signature_counts_where_the_registry_does_not_show_the_manifest(registry: Registry) -> None:
    push_signature(registry, NAME, DIGEST, KEY)
    assert registry.manifest(DIGEST) is None
    assert verify_signature(registry, NAME, DIGEST, [OWN]) == OWN


# --- attestations ------------------------------------------------------------------------------------------


def envelope(*subjects: object, **changes: Any) -> bytes:
    statement = {"predicateType": "https://example/p", "subject": list(subjects), "predicate": {}} | changes
    return seal(canonical_json(statement), KEY)


ABOUT = {"name": "x", "digest": {"sha256": "d" * 64}}
ELSE = {"name": "y", "digest": {"sha256": "e" * 64}}


def test_attestations_lie_under_a_tag_of_their_own_with_the_kind_of_each(
    registry: Registry, stored: Stored
) -> None:
    first, second = envelope(ABOUT), envelope(ELSE, ABOUT, predicateType="https://example/q")
    push_attestations(registry, DIGEST, {"a.json": first, "b.json": second})
    layers = json.loads(stored.manifests[f"sha256-{'d' * 64}.att"])["layers"]
    assert [stored.blobs[one["digest"]] for one in layers] == [first, second]
    kinds = [one["annotations"]["predicateType"] for one in layers]
    assert kinds == ["https://example/p", "https://example/q"]


@pytest.mark.parametrize("subjects", [[ELSE], [], [{"name": "x", "digest": {"sha512": "d" * 64}}]])
def test_an_attestation_of_something_else_is_refused(
    subjects: list[object], registry: Registry, stored: Stored
) -> None:
    with pytest.raises(BadInput) as caught:
        push_attestations(registry, DIGEST, {"a.json": envelope(ABOUT), "b.json": envelope(*subjects)})
    assert caught.value.message == "does not name the image as the registry has it"
    assert caught.value.where == "b.json"
    assert not stored.manifests and not stored.blobs


def padded(data: bytes) -> bytes:
    """Put a character into the base64 of an envelope's payload that only careless decoders leave out."""
    document = json.loads(data)
    return canonical_json(document | {"payload": "*" + document["payload"]})


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[]",
        b"{}",
        canonical_json({"payload": 1}),
        canonical_json({"payload": base64.b64encode(b"[]").decode()}),
        envelope("x"),
        envelope({"name": "x"}),
        envelope(ABOUT, predicateType=1),
        padded(envelope(ABOUT)),
    ],
)
def test_what_is_no_attestation(data: bytes, registry: Registry) -> None:
    with pytest.raises(BadInput) as caught:
        push_attestations(registry, DIGEST, {"a.json": data})
    assert caught.value.message.startswith("is not an attestation: ")
    assert caught.value.where == "a.json"
