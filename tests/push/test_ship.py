"""Sending layers and code, with failures in between; the node is a folder on this machine."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

import bench
from bench.base.errors import EnvironmentCannot
from bench.images.archive import Blob, Identity, ImageFacts, Layer, facts_of, read_facts
from bench.images.engines import EngineFacts
from bench.push import pull_image, send_blobs, ship
from bench.push.connection import Unreachable
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import InstalledEngine, StoredImage
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import PlaceClaim, claimed
from bench.push.ship import Shipped
from tests.images.made_up_images import make_image
from tests.push.made_up_engines import MadeUpEngine
from tests.push.test_node_survey import found

DATA = bytes(range(256)) * 4096


@pytest.fixture
def blob(tmp_path: Path) -> Blob:
    path = tmp_path / "layer"
    path.write_bytes(DATA)
    return Blob(path, "sha256:plain", f"sha256:{hashlib.sha256(DATA).hexdigest()}", compressed=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place/blobs").mkdir(parents=True)
    return tmp_path / "place"


def name(blob: Blob) -> str:
    return blob.digest.removeprefix("sha256:")


def send(place: Path, blob: Blob, node: Here | None = None) -> int:
    return send_blobs.send_all(node or Here(), str(place), [blob], lambda done, total: None)


def test_data_that_arrived_is_not_sent_again(place: Path, blob: Blob) -> None:
    assert send(place, blob) == len(DATA)
    assert (place / "blobs" / name(blob)).read_bytes() == DATA
    assert send(place, blob) == 0


def test_two_pushes_never_write_a_layer_at_once(
    place: Path, blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another push writes, this one waits, and what the other has sent is not sent again."""
    part = place / f"blobs/{name(blob)}.part"
    part.write_bytes(DATA[:100_000])
    other = part.open("ab", buffering=0)
    fcntl.flock(other, fcntl.LOCK_EX)
    pauses = iter([DATA[100_000:200_000], DATA[200_000:300_000]])

    def grow(seconds: float) -> None:
        if seconds != send_blobs._BUSY_SECONDS:  # of another module
            return
        data = next(pauses, None)
        if data is None:
            other.close()  # the other push is interrupted
        else:
            other.write(data)

    monkeypatch.setattr(send_blobs.time, "sleep", grow)
    assert send(place, blob) == len(DATA) - 300_000
    assert (place / "blobs" / name(blob)).read_bytes() == DATA


def test_a_writer_whose_connection_was_lost_is_not_waited_for(
    place: Path, blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = place / f"blobs/{name(blob)}.part"
    part.write_bytes(DATA[:100_000])
    with part.open("ab", buffering=0) as stale:
        fcntl.flock(stale, fcntl.LOCK_EX)
        monkeypatch.setattr(send_blobs, "_BUSY_SECONDS", 0.0)
        assert send(place, blob) == len(DATA) - 100_000
        stale.write(b"late")  # reaches nobody
    assert (place / "blobs" / name(blob)).read_bytes() == DATA


def test_a_partial_transfer_is_continued(place: Path, blob: Blob) -> None:
    (place / f"blobs/{name(blob)}.part").write_bytes(DATA[:100_000])
    assert send(place, blob) == len(DATA) - 100_000
    assert (place / "blobs" / name(blob)).read_bytes() == DATA


@pytest.mark.parametrize("wrong", [b"x" * 100_000, b"x" * (len(DATA) + 1)], ids=["other bytes", "too many"])
def test_a_damaged_partial_transfer_starts_again(place: Path, blob: Blob, wrong: bytes) -> None:
    (place / f"blobs/{name(blob)}.part").write_bytes(wrong)
    send(place, blob)
    assert (place / "blobs" / name(blob)).read_bytes() == DATA


class Breaks(Here):
    """A connection that breaks while a layer is sent."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        sent = list(pieces)
        if len(sent) > 1:
            super().ask(script, sent[: len(sent) // 2])
            raise Unreachable("the connection broke")
        return super().ask(script, sent, seconds=seconds)


def test_the_next_push_continues_after_a_broken_connection(place: Path, blob: Blob) -> None:
    with pytest.raises(Unreachable):
        send(place, blob, Breaks())
    assert 0 < send(place, blob) < len(DATA)
    assert (place / "blobs" / name(blob)).read_bytes() == DATA


class Full(Here):
    """A node whose disk is full."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        if "cat " in script:
            return CommandResult(1, b"", b"cat: write error: No space left on device")
        return super().ask(script, pieces, seconds=seconds)


def test_a_full_disk_says_so(place: Path, blob: Blob) -> None:
    with pytest.raises(EnvironmentCannot, match="its disk is full") as caught:
        send(place, blob, Full())
    assert "push again" in str(caught.value)


class Damages(Here):
    """A node whose disk stores wrong bytes."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        return super().ask(script, [piece[::-1] for piece in pieces], seconds=seconds)


def test_a_layer_that_always_arrives_damaged_is_refused(place: Path, blob: Blob) -> None:
    blob.path.write_bytes(b"abc")
    good = Blob(blob.path, blob.diff_id, f"sha256:{hashlib.sha256(b'abc').hexdigest()}", compressed=True)
    with pytest.raises(EnvironmentCannot, match="damaged 3 times"):
        send(place, good, Damages())
    assert list((place / "blobs").iterdir()) == []


def test_a_layer_damaged_in_the_local_cache_is_compressed_again(place: Path, tmp_path: Path) -> None:
    archive, store = make_image(tmp_path, [{"usr/a": DATA}]), ImageStore(print)
    store.folder = tmp_path / "kept"
    with archive.open("rb") as file:
        ours = Shippable(archive, read_facts(file, "image"))
    kept = store.layer(ours, 0)
    kept.path.write_bytes(kept.path.read_bytes()[:100])
    with pytest.raises(EnvironmentCannot, match="was damaged in the cache"):
        send(place, store.layer(ours, 0))
    assert send(place, store.layer(ours, 0)) > 100


def test_the_code_of_bench_arrives_unchanged(tmp_path: Path) -> None:
    store = ImageStore(lambda text: None)
    with claimed(Here(), PlaceClaim(str(tmp_path / "p"), "1")) as node:
        shipped = ship.ship_code(node, store, lambda done, total: None)
        again = ship.ship_code(node, store, lambda done, total: None)
    assert shipped.changed and 0 < shipped.sent_bytes < 2_000_000
    assert (Path(shipped.runnable) / "bench/__init__.py").read_bytes() == (Path(bench.__file__).read_bytes())
    assert (again.changed, again.sent_bytes) == (False, 0)


# Its disk is full the first time: it leaves what it has written so far.
APPTAINER = """#!/bin/sh
echo "$3" >>"$HOME/asked"
printf half >"$3"
[ -e "$HOME/room" ] || { echo "FATAL: mksquashfs: write failed"; exit 255; }
printf whole >"$3"
"""


def test_an_image_that_apptainer_left_incomplete_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apptainer").write_text(APPTAINER)
    (tmp_path / "bin/apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    archive = make_image(tmp_path, [{"usr/a": b"one"}])
    with archive.open("rb") as file:
        ours = Shippable(archive, read_facts(file, "image"))
    engines = {"apptainer": InstalledEngine(EngineFacts("apptainer", "1.3", "runtime", None))}
    node = dataclasses.replace(found(), place=str(tmp_path / "a place"), engines=engines)

    def bring() -> Shipped:
        with claimed(Here(), PlaceClaim(node.place, "1")) as place:
            return ship.ship(place, node, "apptainer", ours, ImageStore(print), lambda done, total: None)

    with pytest.raises(EnvironmentCannot, match="cannot load the image: FATAL: mksquashfs: write failed"):
        bring()
    (tmp_path / "room").touch()
    shipped = bring()
    assert shipped.changed and Path(shipped.runnable).read_text() == "whole"
    assert not bring().changed


# --- the difference -------------------------------------------------------------------------------------


def image(*diff_ids: str) -> Shippable:
    layers = tuple(Layer(diff_id, 10, diff_id, compressed=True) for diff_id in diff_ids)
    return Shippable(Path("image.tar"), ImageFacts(Identity("sha256:ours", diff_ids), {}, b"{}", layers, ()))


def with_images(*stored: StoredImage, named_by_configuration: bool = True):  # type: ignore[no-untyped-def]
    engine = InstalledEngine(
        EngineFacts("docker", "27", None, None), "", None, stored, named_by_configuration
    )
    return dataclasses.replace(found(), engines={"docker": engine, "podman": engine})


def test_layers_below_the_first_difference_are_not_sent() -> None:
    ours = image("a", "b", "c")
    assert ship.layers_held(with_images(), "docker", ours) == 0
    assert (
        ship.layers_held(
            with_images(StoredImage("x", ("a", "b", "old")), StoredImage("y", ("b", "c"))), "docker", ours
        )
        == 2
    )
    assert ship.layers_held(with_images(StoredImage("x", ("z", "b", "c"))), "docker", ours) == 0


def test_engines_that_need_whole_archives_get_them() -> None:
    ours, theirs = image("a", "b"), StoredImage("x", ("a", "old"))
    assert ship.layers_held(with_images(theirs), "podman", ours) == 0
    assert ship.layers_held(with_images(theirs, named_by_configuration=False), "docker", ours) == 0


def test_an_image_is_known_by_its_identity_never_by_a_name() -> None:
    ours = image("a", "b")
    assert (
        ship.installed_as(with_images(StoredImage("sha256:ours", ("a", "b"))), "docker", ours)
        == "sha256:ours"
    )
    assert ship.installed_as(with_images(StoredImage("sha256:other", ("a", "b"))), "docker", ours) is None
    by_manifest = with_images(StoredImage("sha256:manifest", ("a", "b")), named_by_configuration=False)
    assert ship.installed_as(by_manifest, "docker", ours) == "sha256:manifest"


# --- pulling --------------------------------------------------------------------------------------------

REFERENCE = "bench:cpu"


@dataclasses.dataclass
class Registry:
    """A registry with one image, and a node whose engine can pull it; `older` is another image."""

    engine: MadeUpEngine
    place: Path
    image: Shippable
    older: Shippable

    def pull(self, required: str | None = None) -> Shipped:
        survey = dataclasses.replace(with_images(), place=str(self.place))
        with claimed(Here(), PlaceClaim(str(self.place), "1")) as node:
            survey = ship.with_stored_images(node, survey, "docker")
            return pull_image.pull(node, survey, "docker", REFERENCE, required)

    @property
    def own_tag(self) -> str:
        return ship.tag_of(self.image)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    engine = MadeUpEngine("docker", tmp_path / "engine", monkeypatch)
    paths = [make_image(tmp_path, [{"usr/a": data}], f"{data.decode()}.tar") for data in (b"new", b"old")]
    engine.publish(REFERENCE, paths[0])
    return Registry(engine, tmp_path / "place", *(Shippable(path, facts_of(path)) for path in paths))


def test_a_pulled_image_is_kept_only_under_benchs_tag(registry: Registry) -> None:
    shipped, config = registry.pull(registry.image.config), registry.image.config
    assert (shipped.runnable, shipped.changed, shipped.identity) == (
        config,
        True,
        registry.image.facts.identity,
    )
    assert registry.engine.tags == {registry.own_tag: config}


def test_images_that_the_node_had_keep_their_tags(registry: Registry) -> None:
    had = {REFERENCE: registry.image.config}
    registry.engine.tag(registry.image.path, REFERENCE)
    assert not registry.pull().changed
    assert registry.engine.tags == had
    registry.engine.tag(registry.older.path, REFERENCE)
    registry.engine.tag(registry.older.path, "kept")
    (registry.engine.store / "images" / registry.image.config).unlink()
    assert registry.pull().changed
    older = registry.older.config
    assert registry.engine.tags == {REFERENCE: older, "kept": older, registry.own_tag: registry.image.config}


def test_a_pulled_image_with_another_identity_is_removed(registry: Registry) -> None:
    with pytest.raises(EnvironmentCannot, match="the manifest asks for sha256:other"):
        registry.pull("sha256:other")
    assert (registry.engine.tags, registry.engine.images) == ({}, set())


def test_an_image_that_the_registry_lacks_is_refused(registry: Registry) -> None:
    (registry.engine.store / "registry" / REFERENCE).unlink()
    with pytest.raises(
        EnvironmentCannot, match="docker cannot pull bench:cpu: manifest for bench:cpu not found"
    ):
        registry.pull()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("reading manifest cpu in r.example/lab/bench: unauthorized", "podman login r.example"),
        ("reading manifest cpu in r.example/lab/bench: denied", "podman login r.example"),
        ("reading manifest cpu in r.example/lab/bench: manifest unknown", "no such image"),
        ('Head "http://r.example/v2/lab/bench/manifests/cpu": no basic auth credentials', "login r.example"),
        ("toomanyrequests: You have reached your pull rate limit.", "wait some minutes"),
        ("pinging container registry r.example: too many requests to registry", "wait some minutes"),
        (
            'Get "https://r.example/v2/": x509: certificate signed by unknown authority',
            "/etc/containers/certs.d/r.example/ca.crt",
        ),
        ('Get "https://r.example/v2/": tls: first record does not look like a TLS handshake', "has no TLS"),
    ],
)
def test_an_image_that_an_engine_does_not_get_is_told_with_what_to_do(said: str, advice: str) -> None:
    """The messages are those of Podman 4.3 and Docker 20.10 about registries that refuse an image."""
    error = pull_image.refused_pull("podman", "r.example/lab/bench:cpu", said)
    assert error.message == f"podman cannot pull r.example/lab/bench:cpu: {said}"
    assert error.advice and advice in error.advice
    assert error.advice.endswith("without --pull, the image is sent from here")
