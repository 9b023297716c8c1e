"""A node assembles an image, or gets it whole: whichever is faster. The node is a folder on this machine."""

from __future__ import annotations

import dataclasses
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import facts_of
from bench.images.engines import EngineFacts
from bench.images.package_list import LIST, read_list, write_list
from bench.packages.package_index import PackageFile
from bench.push import assembly
from bench.push.assembly import Assembly, Ways, refuse_login
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import InstalledEngine
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import ClaimedNode, PlaceClaim
from bench.push.ship import Delivered
from tests.images.made_up_images import make_image
from tests.images.odd_packages import make_wheel
from tests.packages.web import Web, serving
from tests.push.strange_nodes import Answers
from tests.push.test_node_survey import found

MB = 1_000_000
DIST = "usr/local/lib/python3.11/dist-packages"


def ways(**changes: Any) -> Ways:
    usual = Ways(3244 * MB, 4 * MB, 2943 * MB, 6000 * MB, 2.5 * MB, 100 * MB)
    return dataclasses.replace(usual, **changes)


def test_the_faster_way_is_chosen_and_both_are_told_with_their_times() -> None:
    slow_uplink = ways()
    assert slow_uplink.assembles
    assert slow_uplink.sentence == (
        "the node downloads 2.94 GB, and gets 4.0 MB over SSH: 2 min "
        "(instead of all layers over SSH, 3.24 GB: 22 min)"
    )
    fast_uplink = ways(up_bytes_per_second=100 * MB)
    assert not fast_uplink.assembles
    assert fast_uplink.sentence.startswith(
        "all layers over SSH, 3.24 GB: 32 s (instead of the node downloads"
    )
    assert not ways(down_bytes_per_second=2 * MB).assembles
    assert ways(download_bytes=0, down_bytes_per_second=1).assembles


def test_a_login_in_an_option_is_refused_and_not_repeated() -> None:
    refuse_login(None, "--index")
    refuse_login("https://index.example/simple", "--index")
    with pytest.raises(BadInput, match="--index has a login") as caught:
        refuse_login("https://me:secret@index.example/simple", "--index")
    assert "secret" not in str(caught.value)


# --- an image and its node ------------------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as one:
        yield one


@dataclasses.dataclass
class Push:
    """The push of a made-up image to a folder of this machine."""

    folder: Path
    web: Web
    image: Shippable
    said: list[str] = dataclasses.field(default_factory=list)
    free_bytes: int = 10**12
    node: Here = dataclasses.field(default_factory=Here)

    @property
    def place(self) -> Path:
        return self.folder / "place"

    def deliver(self, held: int = 0) -> Delivered | None:
        engine = InstalledEngine(EngineFacts("docker", "27", None, None), free_bytes=self.free_bytes)
        survey = dataclasses.replace(
            found(), place=str(self.place), place_free_bytes=10**12, engines={"docker": engine}
        )
        store = ImageStore(self.said.append)
        store.folder = self.folder / "cache"
        index = f"{self.web.url}/simple"
        claim = PlaceClaim(str(self.place), "p-0")
        Here().ask(claim.take)
        node = ClaimedNode(self.node, claim)
        return Assembly(
            node, survey, "docker", self.image, store, lambda done, total: None, self.said.append,
            index=index, mirror=f"{self.web.url}/debian",
        ).deliver(held)  # fmt: skip

    def loaded(self, delivered: Delivered | None) -> str:
        """Write the archive as an engine would read it; return the identity of the image in it."""
        assert delivered is not None
        script = f"cd {self.place}/.load-p-0 && {delivered.archive} >../image.tar; cat trouble"
        assert Here().ask(script).text == ""
        return facts_of(self.place / "image.tar").identity.config


@pytest.fixture
def push(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> Push:
    """An image of two wheels in a layer each, over a slow line; an index on this machine has the wheels."""
    monkeypatch.setattr(assembly, "SMALL_BYTES", 0)
    monkeypatch.setattr(assembly, "_SOON_SECONDS", 0.0)
    monkeypatch.setattr(assembly, "measured_rate", lambda node: 10_000.0)
    monkeypatch.setattr(assembly, "_ROUND_SECONDS", 1.0)
    layers, wheels = [], []
    for number, name in enumerate(("first", "second")):
        data = {f"{name}/data.bin": (random.Random(number).randbytes(300_000), 0o644)}
        wheels.append(make_wheel(tmp_path, name, data))
        with zipfile.ZipFile(wheels[-1]) as archive:
            files = {f"{DIST}/{member}": archive.read(member) for member in archive.namelist()}
        layers.append({**files, f"{DIST}/{name}-1.0.dist-info/RECORD": b"as pip writes it\n" * 99})
    own = {"usr/share/bench/sbom": bytes(5000), LIST: write_list(wheels, [])}
    path = make_image(tmp_path, [*layers, own])
    for wheel, file in zip(wheels, read_list(own[LIST]), strict=True):
        publish(web, file, wheel.read_bytes())
    return Push(tmp_path, web, Shippable(path, facts_of(path)))


def publish(web: Web, file: PackageFile, data: bytes) -> None:
    web.pages[f"/files/{file.name}"] = data
    web.pages[f"/simple/{file.project}/"] = f'<a href="/files/{file.name}#sha256={file.sha256}">'.encode()


def test_an_assembled_image_is_the_one_that_was_built(push: Push) -> None:
    delivered = push.deliver()
    assert push.loaded(delivered) == push.image.config
    assert delivered is not None and delivered.sent_bytes < 10_000
    assert "instead of all layers over SSH" in push.said[-2]
    left = sorted(path.name for path in push.place.iterdir())
    assert left == [".claim-p-0", ".load-p-0", "blobs", "image.tar", "packages"]
    claim = PlaceClaim(str(push.place), "p-0")
    Here().ask(f"{claim.discard(delivered.surplus)}; {claim.release}")
    assert [path.name for path in push.place.iterdir()] == ["image.tar"]


def test_layers_that_the_engine_has_are_not_downloaded(push: Push) -> None:
    assert push.deliver(held=1) is not None
    assert {path for path, _, _ in push.web.asked if path.startswith("/simple")} == {"/simple/second/"}
    assert push.deliver(held=2) is None  # bench's own code is in no package


def test_the_wheel_that_an_index_lies_about_is_sent(push: Push) -> None:
    name = "/files/first-1.0-py3-none-any.whl"
    push.web.pages[name] = bytes(len(push.web.pages[name]))
    delivered = push.deliver()
    assert push.loaded(delivered) == push.image.config
    assert delivered is not None and 300_000 < delivered.sent_bytes < 320_000
    why = "127.0.0.1 has another file under this name, not the lock's"
    assert f"sent instead: first-1.0-py3-none-any.whl ({why})" in push.said


def test_what_a_slow_index_does_not_bring_is_sent(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "measured_rate", lambda node: 100_000.0)
    push.web.pause_seconds = 1.5  # before each 64 KiB
    monkeypatch.setattr(assembly, "_FIRST_ROUND_SECONDS", 2.0)
    monkeypatch.setattr(Ways, "assembles", True)
    delivered = push.deliver()
    assert push.loaded(delivered) == push.image.config
    assert any(text.endswith("/s: what lacks is sent") for text in push.said)
    assert not list((push.place / "packages").glob("*[0-9a-f]"))


def test_a_node_with_a_fast_line_or_without_room_gets_the_layers(
    push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push.free_bytes = 1_000_000
    assert push.deliver() is None
    assert push.said[-1].endswith("for a while: all layers are sent instead")
    push.free_bytes = 10**12
    monkeypatch.setattr(assembly, "measured_rate", lambda node: 1e12)
    assert push.deliver() is None
    assert push.said[-1].startswith("all layers over SSH")
    assert [path.name for path in push.place.iterdir()] == [".claim-p-0"]


def test_a_node_without_python_gets_the_layers(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    (push.folder / "bin").mkdir()
    (push.folder / "bin/python3").write_text("#!/bin/sh\necho no python here >&2; exit 1\n")
    (push.folder / "bin/python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{push.folder}/bin:/usr/bin:/bin")
    assert push.deliver() is None
    why = "the node assembles no layers: downloading package files failed: no python here"
    assert push.said[-1] == why


def test_an_image_that_lists_no_packages_is_sent(push: Push, tmp_path: Path) -> None:
    old = make_image(tmp_path, [{"usr/file": bytes(5000)}], "old.tar")
    push.image = Shippable(old, facts_of(old))
    assert push.deliver() is None


@pytest.mark.parametrize("answer", ["", "[]", '{"done": true}', '{"arrived_bytes": -1.5}', "\x00" * 99])
def test_a_node_that_answers_anything_else_is_not_believed(push: Push, answer: str) -> None:
    push.node = Answers(lambda _: answer)
    assert push.deliver() is None
    assert "the node's answer about its downloads has a form that its program never prints" in push.said[-1]


class LiesAboutContents(Here):
    """A node that downloads, and then asks for contents that no layer has."""

    def ask(self, script: str, *arguments: Any, **options: Any) -> CommandResult:
        answer = super().ask(script, *arguments, **options)
        if " missing " in script:
            return CommandResult(0, b"[[0], [0], [999]]", b"")
        return answer


def test_contents_that_do_not_exist_are_not_looked_for(push: Push) -> None:
    push.node = LiesAboutContents()
    with pytest.raises(EnvironmentCannot, match="about missing contents"):
        push.deliver()
