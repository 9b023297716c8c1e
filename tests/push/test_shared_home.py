"""Nodes that share a home: what one push brings, another neither breaks nor takes away."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.archive import facts_of
from bench.images.engines import EngineFacts
from bench.push import mirror, pull_image, run_script, shared_place, ship
from bench.push.connection import Unreachable
from bench.push.image_store import ImageStore, Shippable
from bench.push.node_survey import InstalledEngine, Survey
from bench.push.place_lock import GIVEN_UP, locked
from bench.push.remote import Here
from bench.push.run_script import Job
from bench.push.shared_place import PlaceClaim, claimed
from tests.images.made_up_images import make_image
from tests.push import interleaved
from tests.push.interleaved import Between, Interleaved, run
from tests.push.made_up_engines import MadeUpEngine
from tests.push.test_mirror import record
from tests.push.test_node_survey import found
from tests.push.test_run_script import until

__all__ = ["record"]

KEY = "0123456789abcdef"


def at_once(work: Callable[[int], None], count: int) -> None:
    """Do work in threads that begin together; raise what any of them raises."""
    start = threading.Barrier(count)

    def begin(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(begin, range(count)))


def test_code_that_many_bring_at_once_arrives_whole(tmp_path: Path) -> None:
    store, place = ImageStore(print), str(tmp_path / "p")
    store.code()

    def bring(number: int) -> None:
        with claimed(Here(), PlaceClaim(place, str(number))) as node:
            shipped = ship.ship_code(node, store, lambda done, total: None)
            assert Path(shipped.runnable, "bench/__init__.py").exists()

    at_once(bring, 8)
    assert [path.name for path in (tmp_path / "p/code").iterdir()] == [store.code()[0][:16]]


def test_a_run_keeps_its_code_while_others_clean_up(record: mirror.Record) -> None:
    """Pushes ship, run and clean in turns of their own; a run's code is there from claim to end."""
    store = ImageStore(print)
    store.code()

    def push(number: int) -> None:
        for turn in range(4):
            mine = dataclasses.replace(record, run_id=f"{number:02d}{turn:02d}" * 3, engine="none")
            with claimed(Here(), PlaceClaim(mine.place, mine.run_id)) as node:
                shipped = ship.ship_code(node, store, lambda done, total: None)
                Path(mine.folder).mkdir(parents=True)
            assert Path(shipped.runnable, "bench/__init__.py").exists()
            mirror.clean(Here(), mine)

    at_once(push, 6)
    mirror.clean(Here(), dataclasses.replace(record, engine="none"))
    assert not Path(record.place).exists()


# --- another push in the middle of a script -----------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interleaved:
    return Interleaved(tmp_path / "programs", monkeypatch)


def impatient(make: Callable[[], str]) -> str:
    """Make a script that does not wait for a locked place: it cannot go on before the other script has."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("bench.push.place_lock._STEPS", 1)
        return make()


def test_a_push_may_begin_at_any_moment_of_another_one_s_end(node: Interleaved, tmp_path: Path) -> None:
    """The other push claims the place and makes a folder there, which it is about to enter."""
    place, claim = tmp_path / "place", PlaceClaim(str(tmp_path / "place"), "another")
    begin = impatient(lambda: f"{claim.take} && mkdir -p {place}/code")
    codes = []

    def end() -> None:
        for folder in ("runs/mine", f"code/{KEY}", "blobs", "environments"):
            (place / folder).mkdir(parents=True)
        node.ask(f"rm -rf {place}/runs/mine; {shared_place.empty(str(place), 'mine', 'none')}")

    for code in node.at_every_program(begin, end):
        codes.append(code)
        if code is not None:
            assert not code or run(begin) == 0
            assert (place / "code").is_dir() and Path(claim.path).exists()
            shutil.rmtree(place)
    assert not place.exists()
    assert {*codes} == {0, GIVEN_UP, None}


def test_another_push_may_end_at_any_moment_of_the_way_to_a_run(node: Interleaved, tmp_path: Path) -> None:
    place, store = tmp_path / "place", ImageStore(print)
    store._code = small_code(tmp_path)
    clean = impatient(lambda: f"rm -rf {place}/runs/other; {shared_place.empty(str(place), 'other', 'none')}")

    def push() -> None:
        (place / "runs/other").mkdir(parents=True)
        with claimed(node, PlaceClaim(str(place), "mine")) as there:
            shipped = ship.ship_code(there, store, lambda done, total: None)
            run_script.prepare(node, job(place, shipped.runnable, there.claim), b"{}", b"{}")
        assert (place / "runs/mine/manifest.json").read_text() == "{}"
        assert Path(shipped.runnable, "interleaved.py").exists()
        shutil.rmtree(place)

    assert [*node.at_every_program(clean, push)][-1] is None


def small_code(folder: Path) -> tuple[str, bytes]:
    """Return an archive that takes less time to unpack than bench's own code."""
    with tarfile.open(folder / "code.tar.gz", "w:gz") as archive:
        archive.add(interleaved.__file__, "interleaved.py")
    data = (folder / "code.tar.gz").read_bytes()
    return hashlib.sha256(data).hexdigest(), data


def job(place: Path, runnable: str, claim: PlaceClaim) -> Job:
    return Job("mine", str(place), "none", runnable, None, "python3", (0, 0), 2**30, None, on_cpu=True,
               claim=claim.path)  # fmt: skip


def test_what_was_shipped_may_not_be_used_when_its_claim_is_gone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with claimed(Here(), PlaceClaim(str(place), "mine")) as there:
        Path(there.claim.path).unlink()
        with pytest.raises(EnvironmentCannot, match="is gone: push again"):
            run_script.prepare(Here(), job(place, "code", there.claim), b"{}", b"{}")
    assert not (place / "runs").exists()


def test_a_lock_that_is_old_is_taken_by_one_of_those_who_find_it_old(
    node: Interleaved, tmp_path: Path
) -> None:
    """Another push takes it, and holds it, at any moment of this one's way to it."""
    place, inside = tmp_path / "place", tmp_path / "inside"
    other = impatient(lambda: locked(str(place), f"echo other >>{inside}; kill -KILL $$"))
    this = impatient(lambda: locked(str(place), f"echo this >>{inside}"))

    def take() -> None:
        inside.unlink(missing_ok=True)
        (place / ".busy/killed").mkdir(parents=True)
        for path in (place / ".busy/killed", place / ".busy"):
            os.utime(path, (0, 0))
        for _ in range(3):  # the first time removes the old lock
            node.ask(this)
        told = inside.read_text().splitlines()
        if "other" in told:  # which still holds it
            assert told[told.index("other") :] == ["other"]
        shutil.rmtree(place)

    *codes, last = node.at_every_program(other, take)
    assert last is None and -9 not in codes and 137 in codes


# --- claims -------------------------------------------------------------------------------------------------


def test_a_claim_stays_fresh_while_a_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_place, "_REFRESH_SECONDS", "0.01")
    claim = PlaceClaim(str(tmp_path), "mine")
    with claimed(Here(), claim) as there:
        wait = f"while [ {claim.path} -ot {tmp_path}/begun ]; do sleep 0.01; done; exit 7"
        touch = f"touch -d '1 minute ago' {claim.path}; touch -d '30 seconds ago' {tmp_path}/begun"
        assert there.ask(f"{touch}; {wait}").code == 7
    assert not Path(claim.path).exists()


def test_what_keeps_a_claim_fresh_ends_with_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = f"60.{os.getpid()}"  # by which its process is found
    monkeypatch.setattr(shared_place, "_REFRESH_SECONDS", pause)
    find = ["pgrep", "-f", f"^sleep {pause}"]
    with claimed(Here(), PlaceClaim(str(tmp_path), "mine")) as there:
        wait = f"until {shlex.join(find)} >/dev/null; do :; done; exit 7"
        assert there.ask(wait).code == 7
    until(lambda: subprocess.run(find, check=False, capture_output=True).returncode == 1)


def test_a_push_that_fails_leaves_no_claim_unless_its_node_is_lost(tmp_path: Path) -> None:
    claim = PlaceClaim(str(tmp_path), "mine")
    for error, stays in ((EnvironmentCannot("no"), False), (Unreachable("the connection broke"), True)):
        with pytest.raises(type(error)), claimed(Here(), claim):
            raise error
        assert Path(claim.path).exists() == stays


def test_what_others_may_need_is_deleted_by_the_last_one(tmp_path: Path) -> None:
    with claimed(Here(), PlaceClaim(str(tmp_path), "mine")) as mine:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs/a").touch()
        with claimed(Here(), PlaceClaim(str(tmp_path), "another")):
            mine.ask(mine.claim.discard(["blobs/a"]))
            assert (tmp_path / "blobs/a").exists()
        mine.ask(mine.claim.discard(["blobs/a", "packages"]))
    assert list(tmp_path.iterdir()) == []


# --- engines ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class EnginePush:
    """Pushes of images to one engine, from a survey of the time before any of them."""

    folder: Path
    engine: str
    images: list[Shippable]
    survey: Survey

    @property
    def place(self) -> str:
        return self.survey.place

    def ship(
        self, number: int, image: Shippable, survey: Survey | None = None, node: Here | None = None
    ) -> str:
        """Ship an image and begin a run of it, as a push does; return what the engine is told to run."""
        store = ImageStore(print)
        store.folder = self.folder / f"operator{number}"
        with claimed(node or Here(), PlaceClaim(self.place, f"{number}")) as there:
            now = ship.with_stored_images(there, survey or self.survey, self.engine)
            shipped = ship.ship(there, now, self.engine, image, store, lambda done, total: None)
            Path(self.place, f"runs/{number}").mkdir(parents=True)
        return shipped.runnable

    def end(self, number: int, record: mirror.Record) -> None:
        own = dataclasses.replace(record, engine=self.engine, place=self.place, run_id=f"{number}")
        mirror.clean(Here(), own)


@pytest.fixture
def images(tmp_path: Path) -> list[Shippable]:
    """Two images whose first layer is the same."""
    paths = [
        make_image(tmp_path, [{"a": b"base"}, {"b": name.encode()}], name) for name in ("x.tar", "y.tar")
    ]
    return [Shippable(path, facts_of(path)) for path in paths]


def pushes(
    engine: str, images: list[Shippable], tmp_path: Path, *, by_configuration: bool = True
) -> EnginePush:
    installed = InstalledEngine(EngineFacts(engine, "1", None, None), named_by_configuration=by_configuration)
    survey = dataclasses.replace(found(), place=f"{tmp_path}/the home/p", engines={engine: installed})
    return EnginePush(tmp_path, engine, images, survey)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_images_come_and_go_by_many_pushes_at_once(
    engine: str,
    images: list[Shippable],
    record: mirror.Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_up, work = MadeUpEngine(engine, tmp_path / "engine", monkeypatch), pushes(engine, images, tmp_path)

    def push(number: int) -> None:
        for turn in range(2):
            image = images[(number + turn) % 2]
            runnable = work.ship(number, image)
            assert runnable == image.config and runnable in made_up.images
            work.end(number, record)

    at_once(push, 3)
    assert (made_up.images, made_up.tags, Path(work.place).exists()) == (set(), {}, False)


def test_an_image_may_be_pulled_by_many_pushes_at_once(
    images: list[Shippable], record: mirror.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up, work = (
        MadeUpEngine("docker", tmp_path / "engine", monkeypatch),
        pushes("docker", images, tmp_path),
    )
    made_up.publish("bench:cpu", images[0].path)

    def push(number: int) -> None:
        with claimed(Here(), PlaceClaim(work.place, f"{number}")) as there:
            now = ship.with_stored_images(there, work.survey, "docker")
            assert pull_image.pull(there, now, "docker", "bench:cpu", None).runnable in made_up.images
            Path(work.place, f"runs/{number}").mkdir(parents=True)
        work.end(number, record)

    at_once(push, 3)
    assert (made_up.images, made_up.tags, Path(work.place).exists()) == (set(), {}, False)


def test_an_image_that_was_removed_after_the_survey_is_shipped_again(
    images: list[Shippable], record: mirror.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey of the second push found the image, and the layer below the other one."""
    made_up, work = (
        MadeUpEngine("docker", tmp_path / "engine", monkeypatch),
        pushes("docker", images, tmp_path),
    )
    work.ship(1, images[0])
    with_image = ship.with_stored_images(Here(), work.survey, "docker")
    assert ship.installed_as(with_image, "docker", images[0]) and ship.layers_held(
        with_image, "docker", images[1]
    )
    work.end(1, record)
    assert made_up.images == set()
    assert [work.ship(2, image, with_image) for image in images[:1]] == [images[0].config]
    work.end(2, record)
    assert work.ship(2, images[1], with_image) == images[1].config


@pytest.mark.parametrize("moment", ["ln ../blobs/", "docker load", "docker image inspect"])
def test_another_push_of_the_image_may_end_while_this_one_loads_it(
    moment: str,
    images: list[Shippable],
    record: mirror.Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one has the engine's copies, so that it needs no layers in the place any more."""
    MadeUpEngine("docker", tmp_path / "engine", monkeypatch)
    work = pushes("docker", images, tmp_path)

    def other() -> None:
        work.ship(1, images[0])
        work.end(1, record)

    assert work.ship(2, images[0], node=Between(moment, other)) == images[0].config
    work.end(2, record)
    assert not Path(work.place).exists()


def test_an_image_that_many_pushes_need_is_built_by_one_and_never_replaced(
    images: list[Shippable], record: mirror.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up, work = (
        MadeUpEngine("apptainer", tmp_path / "e", monkeypatch),
        pushes("apptainer", images, tmp_path),
    )
    inodes = []

    def push(number: int) -> None:
        sif = Path(work.ship(number, images[0]))
        assert facts_of(sif).identity == images[0].facts.identity
        inodes.append(sif.stat().st_ino)

    at_once(push, 4)
    assert len(made_up.builds) == len(set(inodes)) == 1
    for number in range(4):
        work.end(number, record)
    assert not Path(work.place).exists()


# --- the lock -----------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_and_gives_the_exit_code_of_its_script(tmp_path: Path) -> None:
    place = tmp_path / "a place"
    count = place / "count"
    file = shlex.quote(str(count))
    add = f"n=$(cat {file} 2>/dev/null || echo 0); echo $((n + 1)) >{file}"

    def add_one(_number: int) -> None:
        for _ in range(5):
            assert Here().ask(locked(str(place), f"{add}; exit 7")).code == 7

    at_once(add_one, 6)
    assert count.read_text() == "30\n" and not (place / ".busy").exists()


def test_the_lock_of_a_killed_push_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".busy").mkdir()
    os.utime(tmp_path / ".busy", (0, 0))
    assert Here().ask(locked(str(tmp_path), "echo here")).out == b"here\n"


@pytest.mark.parametrize(("place", "waits"), [("held", 299), ("missing", 18)])
def test_a_lock_is_waited_for_half_a_minute_and_a_place_that_vanished_two_seconds(
    tmp_path: Path, place: str, waits: int
) -> None:
    """Each wait is a tenth of a second, which `sleep` counts here instead. `mkdir` makes nothing."""
    (tmp_path / "held/.busy").mkdir(parents=True)
    commands = "sleep() { echo $1 >>waits; }; mkdir() { false; }; find() { :; }; "
    script = f"cd {tmp_path}; {commands}{locked(place, 'echo here')}"
    answer = Here().ask(script)
    assert answer.code == 75 and answer.out == b""
    assert (tmp_path / "waits").read_text() == "0.1\n" * waits
    named = place == "held"
    assert (answer.reason == "another push holds held/.busy") is named


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    user = {"user": 65534} if os.geteuid() == 0 else {}
    command = ["sh", "-c", locked(str(tmp_path / "below"), "echo here")]
    done = subprocess.run(command, **user, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
    assert done.returncode == 75 and "here" not in done.stdout
    assert "Permission denied" in done.stderr
