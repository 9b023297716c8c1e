"""Each step of shipping by itself: what an engine says, what follows from it, and what is told of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Blob, Identity, ImageFacts, Layer
from bench.images.engines import EngineFacts
from bench.push import pull_image, send_blobs, ship
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import SURVEY_BYTES, InstalledEngine, StoredImage, Survey
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import ClaimedNode, PlaceClaim
from bench.push.ship import Delivered, Shipped
from tests.push.test_node_survey import found

CONFIG = "sha256:" + "cd" * 32
OTHER = "sha256:" + "ef" * 32
LAYERS = ("sha256:" + "1" * 64, "sha256:" + "2" * 64)
IDENTITY = Identity(CONFIG, LAYERS)
IMAGE = Shippable(
    Path("image.tar"),
    ImageFacts(IDENTITY, {}, b"{}", tuple(Layer(each, 10, each, compressed=True) for each in LAYERS), ()),
)


class Says(Here):
    """A node that answers each script with what `answer` says; `asked` keeps scripts, limits and input."""

    def __init__(self, answer: Callable[[str], CommandResult | str]) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.seconds: list[float] = []
        self.most_bytes: list[int] = []
        self.sent: list[bytes] = []

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        self.asked.append(script)
        self.seconds.append(seconds)
        self.most_bytes.append(most_bytes)
        self.sent.append(b"".join(pieces))
        answer = self._answer(script)
        return answer if isinstance(answer, CommandResult) else CommandResult(0, answer.encode(), b"")


def failed(code: int, err: str = "", out: str = "") -> CommandResult:
    return CommandResult(code, out.encode(), err.encode())


def claimed_by(node: Says) -> ClaimedNode:
    return ClaimedNode(node, PlaceClaim("/place", "p-0"))


def with_engine(engine: str, *stored: StoredImage, named_by_configuration: bool = True) -> Survey:
    facts = EngineFacts(engine, "27", None, None)
    state = InstalledEngine(facts, "", None, stored, named_by_configuration)
    return dataclasses.replace(found(), place="/place", engines={engine: state})


def unused(*_: object) -> object:
    pytest.fail("called for nothing")


# --- the difference -------------------------------------------------------------------------------------


def test_the_tag_of_an_image_is_benchs_and_begins_with_its_digest() -> None:
    assert ship.tag_of(IMAGE) == "bench-push:" + "cd" * 8


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_engine_that_has_an_image_gets_nothing(engine: str) -> None:
    survey = with_engine(engine, StoredImage(OTHER, LAYERS), StoredImage(CONFIG, LAYERS))
    node = Says(unused)  # type: ignore[arg-type]
    done = ship.ship(claimed_by(node), survey, engine, IMAGE, ImageStore(print), unused, unused)  # type: ignore[arg-type]
    assert done == Shipped(CONFIG, 0, changed=False, identity=IDENTITY)


def test_an_image_of_a_store_that_names_manifests_is_known_by_all_its_layers_in_order() -> None:
    def named(*diff_ids: str) -> str | None:
        stored = StoredImage(OTHER, diff_ids)
        return ship.installed_as(with_engine("docker", stored, named_by_configuration=False), "docker", IMAGE)

    assert named(*LAYERS) == OTHER
    assert [named(*LAYERS[:1]), named(*LAYERS[::-1]), named(*LAYERS, LAYERS[0]), named()] == [None] * 4


# --- loading --------------------------------------------------------------------------------------------

LOADED = f"{CONFIG} {list(LAYERS)}".replace("'", '"')


def bring(
    engine: str, says: str = LOADED, *, load: str = "Loaded image: x", named_by_configuration: bool = True
) -> tuple[Shipped, Says]:
    """Bring an image to a node that lacks it; it is assembled there of 70 bytes that were sent."""

    def answer(script: str) -> CommandResult | str:
        if "image inspect" in script:
            return says
        return load if "load" in script or "apptainer build" in script else failed(1)

    node = Says(answer)
    survey = with_engine(engine, named_by_configuration=named_by_configuration)
    delivered: list[int] = []

    def assemble(held: int) -> Delivered:
        delivered.append(held)
        return Delivered("make archive", 70, ("packages/a", "blobs/b"))

    done = ship.ship(claimed_by(node), survey, engine, IMAGE, ImageStore(print), unused, assemble)
    assert delivered == [0]
    return done, node


@pytest.mark.parametrize(
    ("engine", "load"), [("docker", "| docker load;"), ("podman", "| podman load --quiet;")]
)
def test_an_engine_loads_the_archive_that_is_made_on_the_node(engine: str, load: str) -> None:
    done, node = bring(engine)
    assert done == Shipped(CONFIG, 70, changed=True, identity=IDENTITY)
    script = next(script for script in node.asked if "make archive" in script)
    assert f"make archive 2>&3 {load}" in script
    assert node.seconds[node.asked.index(script)] == 3600


@pytest.mark.parametrize(
    ("engine", "named_by_configuration", "is_discarded"),
    [("docker", True, True), ("docker", False, False), ("podman", True, False), ("podman", False, False)],
)
def test_only_docker_with_its_own_store_does_not_need_the_pieces_any_more(
    engine: str, named_by_configuration: bool, is_discarded: bool
) -> None:
    _, node = bring(engine, named_by_configuration=named_by_configuration)
    assert any("for f in packages/a blobs/b" in script for script in node.asked) == is_discarded


def test_apptainer_builds_a_file_named_by_the_image_and_keeps_the_pieces() -> None:
    done, node = bring("apptainer")
    sif = f"/place/images/{'cd' * 8}.sif"
    assert done == Shipped(sif, 70, changed=True, identity=IDENTITY)
    assert node.asked[0].endswith(f"test -s {sif}")
    assert f"apptainer build --fix-perms {sif}.part-p-0 docker-archive:image.tar" in node.asked[-1]
    assert not any("for f in" in script for script in node.asked)


def test_a_file_that_apptainer_has_built_is_used() -> None:
    node = Says(lambda script: "" if "test -s" in script else failed(1))
    survey = with_engine("apptainer")
    done = ship.ship(claimed_by(node), survey, "apptainer", IMAGE, ImageStore(print), unused, unused)  # type: ignore[arg-type]
    assert done == Shipped(f"/place/images/{'cd' * 8}.sif", 0, changed=False, identity=IDENTITY)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("unpacking\nwrite /x: No space left on device", "its disk is full"),
        ("first\nlast\x1b[31m", "the engine cannot load the image: last?[31m"),
        ("a" * 301, "the engine cannot load the image: " + "a" * 300),
        ("", "the engine cannot load the image: exit code 0 without a message"),
    ],
)
def test_an_engine_that_does_not_load_the_image_is_told_by_its_last_line(said: str, message: str) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        bring("docker", load=said)
    assert caught.value.message == message
    assert (caught.value.where == "the engine's store") == ("full" in message)


@pytest.mark.parametrize(
    "says",
    [
        LOADED.replace(CONFIG, OTHER),
        LOADED.replace(LAYERS[0], LAYERS[1]),
        LOADED.replace("]", f', "{LAYERS[0]}"]'),
        LOADED.replace(LAYERS[0], "x").replace(LAYERS[1], LAYERS[0]).replace("x", LAYERS[1]),
        f'{CONFIG} ["{LAYERS[0]}"]',
        f"{CONFIG} null",
    ],
    ids=[
        "another configuration", "another layer", "one layer more", "another order", "one layer less",
        "no layers",
    ],
)  # fmt: skip
def test_an_image_that_the_engine_loaded_otherwise_is_refused(says: str) -> None:
    with pytest.raises(EnvironmentCannot, match=f"the engine has .* as bench-push:.*, not {CONFIG}"):
        bring("docker", says)


def test_an_engine_has_to_say_what_it_loaded() -> None:
    for says in (CONFIG, "", f"{CONFIG} layers"):
        with pytest.raises(EnvironmentCannot, match="docker does not answer as docker does"):
            bring("docker", says)


def test_an_engine_may_leave_out_the_kind_of_digest() -> None:
    assert bring("podman", LOADED.replace("sha256:", "", 1))[0].runnable == CONFIG


def test_a_store_that_names_manifests_gives_the_loaded_image_its_own_name() -> None:
    done, _ = bring("docker", LOADED.replace(CONFIG, OTHER), named_by_configuration=False)
    assert (done.runnable, done.identity) == (OTHER, IDENTITY)


# --- the images that a node has now -----------------------------------------------------------------------


def asked_again(engine: str, answer: CommandResult | str, facts: bool = True) -> tuple[Survey, Says]:
    survey = with_engine(engine, StoredImage(OTHER, LAYERS))
    if not facts:
        survey = dataclasses.replace(survey, engines={engine: InstalledEngine(None, "it is off")})
    node = Says(lambda _: answer)
    return ship.with_stored_images(node, survey, engine), node


def test_the_images_of_an_engine_are_those_after_pending_removals() -> None:
    survey, node = asked_again("docker", f'{CONFIG} ["{LAYERS[0]}"]\n')
    assert survey.engines["docker"].images == (StoredImage(CONFIG, LAYERS[:1]),)
    assert (node.seconds, node.most_bytes) == ([3600], [SURVEY_BYTES])
    assert "bench-old" in node.asked[0]


def test_an_engine_that_does_not_answer_has_no_images_and_one_that_lies_is_refused() -> None:
    survey, _ = asked_again("podman", failed(1, out="no daemon"))
    assert survey.engines["podman"].images == ()
    with pytest.raises(EnvironmentCannot, match="podman does not answer as podman does"):
        asked_again("podman", "abc [1]\n")


@pytest.mark.parametrize(("engine", "facts"), [("apptainer", True), ("none", True), ("docker", False)])
def test_an_engine_without_a_store_and_one_that_is_off_are_not_asked(engine: str, facts: bool) -> None:
    survey, node = asked_again(engine, "", facts)
    assert node.asked == []
    assert survey.engines[engine] == (
        InstalledEngine(None, "it is off")
        if not facts
        else with_engine(engine, StoredImage(OTHER, LAYERS)).engines[engine]
    )


# --- sending --------------------------------------------------------------------------------------------


def a_blob(tmp_path: Path, data: bytes) -> Blob:
    path = tmp_path / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return Blob(path, "sha256:x", f"sha256:{path.name}", compressed=True)


def test_progress_counts_what_is_there_of_all_layers(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    large, small = bytes(2**17 + 10), b"small"
    blobs = [a_blob(tmp_path, large), a_blob(tmp_path, small)]
    (tmp_path / "place/blobs").mkdir(parents=True)
    place, total = str(tmp_path / "place"), len(large) + len(small)
    progress = lambda done, whole: seen.append((done, whole))  # noqa: E731
    assert send_blobs.send_all(Here(), place, blobs, progress) == total
    assert seen == [(at, total) for at in (0, 2**17, len(large), len(large), total, total)]
    assert send_blobs.send_all(Here(), place, blobs, progress) == 0


def test_a_layer_is_sent_from_the_byte_on_that_is_missing(tmp_path: Path) -> None:
    seen: list[int] = []
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1025)
    pieces = list(send_blobs.pieces_of(path, 100, seen.append))
    assert b"".join(pieces) == path.read_bytes()[100:]
    assert seen == [2**17 + 100, 2**18 + 100, path.stat().st_size]
    assert b"".join(send_blobs.pieces_of(path)) == path.read_bytes()


def test_a_writer_that_stands_still_for_20_looks_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part grows once; then the same size is seen in all looks that follow, and the part is replaced."""
    blob, looks, pauses = a_blob(tmp_path, b"abc"), list[int](), list[float]()

    def answer(script: str) -> CommandResult | str:
        if "echo whole; elif" in script:
            taken = any("cp " in asked for asked in node.asked)
            looks.append(len(pauses))
            return "whole" if taken else ("1" if len(looks) < 3 else "2")
        return failed(1) if script.endswith("flock -n 9") else ""

    node = Says(answer)
    monkeypatch.setattr(send_blobs.time, "sleep", pauses.append)
    seen: list[int] = []
    assert send_blobs._send(node, "/place", blob, 3, seen.append) == 0
    assert seen == [1, 1, *[2] * 21]
    assert pauses == [1.0] * len(seen)
    assert node.asked[-2].endswith(
        f"cp {blob.path.name}.part {blob.path.name}.part.copy && "
        f"mv {blob.path.name}.part.copy {blob.path.name}.part"
    )


def test_a_layer_is_sent_three_times_before_it_is_given_up(tmp_path: Path) -> None:
    blob = a_blob(tmp_path, b"abc")
    node = Says(lambda script: "0" if "echo whole; elif" in script else "")
    with pytest.raises(EnvironmentCannot, match="a layer arrived damaged 3 times"):
        send_blobs.send_all(node, "/place", [blob], lambda done, total: None)
    assert [data for data in node.sent if data] == [b"abc"] * 3


def test_every_attempt_counts_as_sent(tmp_path: Path) -> None:
    """The first attempt arrives damaged and the second whole, two of its bytes being there already."""
    blob, arrived = a_blob(tmp_path, b"abc"), iter(["0", "2"])
    accepted = iter(["", "whole"])

    def answer(script: str) -> str:
        if "echo whole; elif" in script:
            return next(arrived)
        return next(accepted) if "sha256sum" in script else ""

    node = Says(answer)
    assert send_blobs.send_all(node, "/place", [blob], lambda done, total: None) == 4
    assert [data for data in node.sent if data] == [b"abc", b"c"]


@pytest.mark.parametrize(("size", "seconds"), [(0, 60.0), (10**9, 160.0)])
def test_a_node_has_time_to_hash_what_arrived(size: int, seconds: float) -> None:
    node = Says(lambda _: " whole\n")
    assert send_blobs._accepted(node, "/place", "a" * 64, size)
    assert node.seconds == [seconds]
    assert not send_blobs._accepted(Says(lambda _: "other"), "/place", "a" * 64, size)


def test_a_layer_that_another_push_writes_meanwhile_is_not_written() -> None:
    write = lambda node: send_blobs._write(node, "/place", "a" * 64, 2, iter([b"x"]), 2)  # noqa: E731
    for busy in (1, 75):
        asks = Says(lambda script, busy=busy: failed(busy if "cat" in script or busy == 1 else 0))  # type: ignore[misc]
        assert write(asks) is False
        assert len(asks.asked) == (1 if busy == 1 else 2)
    taken = Says(lambda _: "")
    assert write(taken) is True
    assert taken.sent == [b"", b"x"]
    with pytest.raises(EnvironmentCannot, match="writing failed: no such folder"):
        write(Says(lambda _: failed(2, "no such folder")))


def test_bytes_that_are_too_many_are_written_from_the_beginning() -> None:
    for start, emptied in ((2, False), (0, True)):
        node = Says(lambda _: "")
        send_blobs._write(node, "/place", "a" * 64, 2, iter([]), start)
        assert (f": >{'a' * 64}.part; " in node.asked[-1]) == emptied
    fresh = Says(lambda _: "")
    send_blobs._write(fresh, "/place", "a" * 64, 0, iter([]), 0)
    assert ": >" not in fresh.asked[-1]


@pytest.mark.parametrize(("said", "bytes_there"), [("whole\n", None), ("0\n", 0), (" 123\n", 123)])
def test_a_node_says_how_much_of_a_layer_it_has(said: str, bytes_there: int | None) -> None:
    assert send_blobs._arrived_bytes(Says(lambda _: said), "/place", "a" * 64) == bytes_there


def test_an_archive_names_the_layers_that_the_engine_has_and_those_that_were_sent(tmp_path: Path) -> None:
    """Those that the engine has are named by their contents, the others by the file that was sent."""
    node = Says(lambda _: "")
    sent = dataclasses.replace(a_blob(tmp_path, b"abc"), diff_id=LAYERS[1])
    ship._link(claimed_by(node), IMAGE, 1, [sent])
    manifest = node.sent[0].removesuffix(b"{}")
    assert json.loads(manifest) == [
        {
            "Config": "blobs/sha256/" + "cd" * 32,
            "RepoTags": [ship.tag_of(IMAGE)],
            "Layers": [f"blobs/sha256/{'1' * 64}", f"blobs/sha256/{sent.path.name}"],
        }
    ]
    assert f"head -c {len(manifest)} >manifest.json" in node.asked[0]
    assert f"for name in {sent.path.name}; do" in node.asked[0]
    with pytest.raises(EnvironmentCannot, match="/place: writing failed: x"):
        ship._link(claimed_by(Says(lambda _: failed(1, "x"))), IMAGE, 1, [sent])


@pytest.mark.parametrize("reason", ["write error: No space left", "Disk quota exceeded"])
def test_a_full_disk_has_advice_of_its_own(reason: str) -> None:
    with pytest.raises(EnvironmentCannot, match="/place: its disk is full") as caught:
        send_blobs.check_written(failed(1, reason), "/place")
    assert caught.value.advice is not None and "push again" in caught.value.advice


def test_another_failure_to_write_is_told_with_its_reason() -> None:
    send_blobs.check_written(failed(0, "no space"), "/place")
    with pytest.raises(EnvironmentCannot, match="/place: writing failed: is a directory"):
        send_blobs.check_written(failed(1, "is a directory"), "/place")


def test_code_that_is_there_is_not_sent_and_progress_is_told_otherwise() -> None:
    store = ImageStore(print)
    store.code = lambda: ("a" * 64, b"code!")  # type: ignore[method-assign]
    seen: list[tuple[int, int]] = []
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    folder = "/place/code/" + "a" * 16
    there = Says(lambda _: "")
    assert ship.ship_code(claimed_by(there), store, progress) == Shipped(folder, 0, changed=False)
    assert seen == []
    lacks = Says(lambda script: failed(1) if "tar" not in script else "")
    assert ship.ship_code(claimed_by(lacks), store, progress) == Shipped(folder, 5, changed=True)
    assert (seen, lacks.sent) == ([(0, 5), (5, 5)], [b"", b"code!"])
    with pytest.raises(EnvironmentCannot, match="writing failed: sha256sum: 1 checksum did NOT match"):
        ship.ship_code(
            claimed_by(Says(lambda _: failed(1, "sha256sum: 1 checksum did NOT match"))), store, progress
        )


# --- pulling --------------------------------------------------------------------------------------------


def pull(node: Says, survey: Survey, required: str | None = None) -> Shipped:
    (engine,) = survey.engines
    return pull_image.pull(claimed_by(node), survey, engine, "r.example/b:1", required)


def test_a_pulled_image_is_what_the_engine_says() -> None:
    node = Says(lambda _: f"{LOADED}\n")
    assert pull(node, with_engine("docker")) == Shipped(CONFIG, 0, changed=True, identity=IDENTITY)
    assert node.seconds == [3600]
    had = with_engine("docker", StoredImage(CONFIG, LAYERS))
    assert pull(node, had, CONFIG) == Shipped(CONFIG, 0, changed=False, identity=IDENTITY)


@pytest.mark.parametrize(
    ("required", "is_accepted"), [(None, True), (CONFIG, True), (OTHER, False), ("", False)]
)
def test_only_the_required_image_is_accepted(required: str | None, is_accepted: bool) -> None:
    stored, state = StoredImage(CONFIG, LAYERS), with_engine("docker").engines["docker"]
    if is_accepted:
        assert pull_image.pulled(stored, state, "r/b:1", required).runnable == CONFIG
        return
    with pytest.raises(EnvironmentCannot) as caught:
        pull_image.pulled(stored, state, "r/b:1", required)
    assert caught.value.message == f"r/b:1 is {CONFIG}, the manifest asks for {required}"
    assert caught.value.advice is not None and "by its digest" in caught.value.advice


def test_a_store_that_names_manifests_knows_no_identity_and_so_no_required_image() -> None:
    stored = StoredImage(CONFIG, LAYERS)
    state = with_engine("docker", named_by_configuration=False).engines["docker"]
    assert pull_image.pulled(stored, state, "r/b:1", None) == Shipped(CONFIG, 0, changed=True, identity=None)
    with pytest.raises(EnvironmentCannot, match=f"the manifest asks for {CONFIG}"):
        pull_image.pulled(stored, state, "r/b:1", CONFIG)


@pytest.mark.parametrize(
    ("stored", "required", "named_by_configuration", "is_kept"),
    [
        ((), None, True, True),
        ((), None, False, True),
        ((CONFIG,), None, True, False),
        ((OTHER, CONFIG), None, False, False),
        ((OTHER,), None, True, True),
        ((), CONFIG, True, True),
        ((), OTHER, True, False),
        ((CONFIG,), CONFIG, True, False),
        ((), CONFIG, False, False),
    ],
)
def test_a_pulled_image_gets_benchs_tag_if_it_is_new_and_what_was_required(
    stored: tuple[str, ...], required: str | None, named_by_configuration: bool, is_kept: bool
) -> None:
    images = [StoredImage(each, LAYERS) for each in stored]
    state = with_engine("docker", *images, named_by_configuration=named_by_configuration).engines["docker"]
    test = pull_image._is_kept(state, required)
    assert Here().ask(f"set -e; id={CONFIG}; if {test}; then echo kept; fi").text == "kept\n" * is_kept


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failed(76, "denied"), "docker cannot pull r.example/b:1: denied"),
        (failed(1, "tag: read-only"), "tagging the image failed: tag: read-only"),
        (failed(75, "x"), "tagging the image failed: x"),
        (failed(0, out="nonsense"), "docker does not answer as docker does"),
    ],
)
def test_each_way_in_which_an_engine_fails_to_pull_is_told(answer: CommandResult, message: str) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        pull(Says(lambda _: answer), with_engine("docker"))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("engine", "said", "advice"),
    [
        ("docker", "x509: unknown authority", "/etc/docker/certs.d/r.example/ca.crt"),
        ("podman", "bad certificate", "/etc/containers/certs.d/r.example/ca.crt"),
        ("docker", "Too Many Requests", "or log in there, on the node: docker login r.example"),
        ("docker", "you hit the Rate Limit", "wait some minutes, or log in there"),
        ("docker", "authentication required", "log in on the node: docker login r.example"),
        ("docker", "403 Forbidden", "log in on the node: docker login r.example"),
        ("docker", "not found", "the registry has no such image"),
        ("docker", "HTTP response to HTTPS client", "as an insecure registry of docker on the node"),
        ("docker", "lookup r.example: no such host", "the node does not reach the registry"),
        ("docker", "dial tcp 1.2.3.4:443: refused", "the node does not reach the registry"),
        ("docker", "i/o timeout", "the node does not reach the registry"),
        ("podman", "something else", "look at podman pull on the node"),
    ],
)  # fmt: skip
def test_a_pull_that_failed_has_advice_for_its_cause(engine: str, said: str, advice: str) -> None:
    error = pull_image.refused_pull(engine, "r.example/lab/bench:cpu", said)
    assert error.advice is not None and advice in error.advice
