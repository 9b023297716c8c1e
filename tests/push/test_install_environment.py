"""Installing an environment: what is sent and why, and answers of a node that is not trusted."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.environment import store
from bench.environment.identity import environment_digest, tree_digest
from bench.environment.unpack import wheel_contents
from bench.images.locked_wheels import LockedWheel
from bench.images.locks import Pin
from bench.images.variants import find_variant, images
from bench.push import line_rate
from bench.push.image_store import ImageStore
from bench.push.install_environment import (
    EnvironmentInstaller,
    Installed,
    InstallPlan,
    check_room,
    choose,
    folder_of_code,
    read_plan,
)
from bench.push.locked_environment import LockedEnvironment, read_locked
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import PlaceClaim, claimed
from tests.environment.made_wheels import PYTHON, lock_lines, make_index, make_wheel
from tests.push.strange_nodes import Answers

SITE = "lib/python3.11/site-packages"
ROOT = Path(__file__).parents[2]
VARIANT = find_variant("cpu")
LOCKED = LockedEnvironment(
    VARIANT, "sha256:" + "1" * 64, {name: Pin(name, "1", frozenset({"2" * 64})) for name in ("a", "b")}, ()
)
PLAN = InstallPlan(None, PYTHON, {"a": 1000}, {"b": "the index does not have it"}, (), 1e6, 10**9)


# --- what is sent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index_rate", "rate_here", "sent"),
    [
        (1e6, 1e6, ("b",)),
        (1e6, 1.9e6, ("b",)),
        (1e6, 2.1e6, ("a", "b")),  # over this line, everything arrives sooner
        (None, 1e6, ("b",)),
    ],
)
def test_only_what_the_node_lacks_is_sent_unless_this_line_is_the_faster_one(
    index_rate: float | None, rate_here: float, sent: tuple[str, ...]
) -> None:
    plan = dataclasses.replace(PLAN, index_rate=index_rate)
    assert choose(plan, LOCKED, lambda: rate_here).packages == sent


def test_what_the_nodes_own_python_has_is_never_sent() -> None:
    plan = dataclasses.replace(PLAN, here={"a": 5000}, sizes={}, index_rate=1e3)
    assert choose(plan, LOCKED, lambda: 1e6).packages == ("b",)
    everything = dataclasses.replace(PLAN, here={"a": 5000, "b": 5000}, sizes={}, lacking={}, index_rate=None)
    assert choose(everything, LOCKED, lambda: 1e6).packages == ()


def test_the_reason_names_the_index_that_does_not_answer_or_the_first_package() -> None:
    nothing = dataclasses.replace(PLAN, lacking={"a": "x", "b": "x"}, troubles=("http://i: refused",))
    unused: Callable[[], float] = lambda: pytest.fail("the line was measured for nothing")  # noqa: E731
    shipment = choose(nothing, LOCKED, unused)
    assert (shipment.packages, shipment.why) == (("a", "b"), "the node cannot download: http://i: refused")
    assert choose(PLAN, LOCKED, lambda: 1e6).why == "b: the index does not have it"
    slow = choose(dataclasses.replace(PLAN, index_rate=12_500.0), LOCKED, lambda: 1e6)
    assert slow.why == "the node's own line to its index gives 0.1 Mbit/s"


def test_a_disk_without_room_is_refused_before_anything_is_sent() -> None:
    free = dataclasses.replace(PLAN, free_bytes=5_500, here={"c": 500})
    check_room(free, 1_000, "/place")
    with pytest.raises(EnvironmentCannot, match=r"5\.4 kB are free, .* need 5\.5 kB") as caught:
        check_room(dataclasses.replace(free, free_bytes=5_400), 1_000, "/place")
    assert caught.value.advice is not None and "--place DIR" in caught.value.advice


# --- locks ----------------------------------------------------------------------------------------------


def test_kernels_are_left_out_unless_their_wheels_are_at_hand(tmp_path: Path) -> None:
    kernel = make_wheel(tmp_path / "wheels", "flash-attn", "2.8.3", "cp311-cp311-linux_x86_64")
    plain = make_wheel(tmp_path / "other", "numpy")
    (tmp_path / "docker").mkdir()
    sources = "".join(f"{name}==1 --hash=sha256:{'3' * 64}\n" for name in ("flash-attn", "mamba-ssm"))
    needed_by_kernels = make_wheel(tmp_path / "other", "einops")
    (tmp_path / "requirements.lock").write_text(lock_lines(plain, needed_by_kernels) + sources)
    (tmp_path / "docker/cuda13.built.lock").write_text(lock_lines(kernel))
    variant = find_variant("cuda13")
    without = read_locked(tmp_path, variant, "3.11", None)
    assert (set(without.packages), without.without) == ({"numpy"}, ("flash-attn", "mamba-ssm"))
    found = read_locked(tmp_path, variant, "3.11", tmp_path / "wheels")
    assert set(found.packages) == {"numpy", "flash-attn", "einops"}
    assert found.without == ("mamba-ssm",)
    assert found.pins != without.pins
    newer = read_locked(tmp_path, variant, "3.12", tmp_path / "wheels")
    assert newer.without == ("flash-attn", "mamba-ssm")  # the kernels are for the image's Python


def test_a_folder_without_locks_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no docker/cpu\.lock") as caught:
        read_locked(tmp_path, VARIANT, "3.11", None)
    assert caught.value.advice is not None and "--source DIR" in caught.value.advice


def test_every_variant_has_the_images_python_first() -> None:
    for variant in images().variants:
        assert variant.pythons[0] == images().python
        assert {*variant.pythons} <= {"3.11", "3.12", "3.13"}
        assert read_locked(ROOT, variant, "3.11", None).packages


# --- a node's answers ------------------------------------------------------------------------------------


def told(**changes: Any) -> dict[str, Any]:
    plan = {
        "python": "3.11.2", "version": "3.11", "glibc": [2, 36], "found": None, "sizes": {"a": 5},
        "lacking": {"b": "no"}, "troubles": [], "index_rate": 1e6, "free_bytes": 10**9,
    }  # fmt: skip
    return {"plan": plan | changes}


def described(**changes: Any) -> dict[str, Any]:
    parts = {"lock": LOCKED.lock, "python": "3.11.2", "build": "3" * 64, "files": "4" * 64}
    digest = environment_digest(**parts)  # type: ignore[arg-type]
    return parts | {"digest": digest} | changes


def test_a_plan_is_read() -> None:
    plan = read_plan(told(), LOCKED)
    assert (plan.sizes, plan.lacking, plan.python.version) == ({"a": 5}, {"b": "no"}, (3, 11))
    own = read_plan(told(here={"a": 5}, differing={"b": "2 is\x1b installed"}, sizes={}, lacking={}), LOCKED)
    assert (own.here, own.differing) == ({"a": 5}, {"b": "2 is? installed"})
    found = read_plan(told(found=described()), LOCKED).found
    assert found is not None and found.digest == described()["digest"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"plan": []},
        told(version="three"),
        told(version=None),
        told(glibc=["x", "y"]),
        told(glibc=[2]),
        told(sizes={"a": -1}),
        told(sizes={"a": True, "c": 5}),
        told(sizes={"a": 2**60}),
        told(lacking={"unknown": "no"}),
        told(here={"unknown": 5}),
        told(here={"a": -5}),
        told(here=["a"]),
        told(differing={"unknown": "x"}),
        told(free_bytes="much"),
        told(found=described(digest="sha256:" + "0" * 64)),
        told(found=described(lock="sha256:" + "9" * 64)),
        told(found=described(build="../x")),
        told(found=described(python="3.11.2; rm -rf /")),
        told(found={}),
    ],
)
def test_a_node_that_answers_otherwise_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentCannot):
        read_plan(answer, LOCKED)


def install(work: EnvironmentInstaller) -> Installed:
    with claimed(work.node, PlaceClaim(work.place, "p-0")) as node:
        return work.install(work.ask(), node)


def installer(node: Here, place: Path, locked: LockedEnvironment, **changes: Any) -> EnvironmentInstaller:
    said: list[str] = changes.pop("said", [])
    made = EnvironmentInstaller(
        node, str(place), str(ROOT), sys.executable, locked, None, None, said.append, lambda done, total: None
    )
    return dataclasses.replace(made, **changes)


def test_code_for_the_plan_is_in_the_first_folder_that_may_be_written_and_is_deleted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, code = PlaceClaim(str(tmp_path / "place"), "1"), ImageStore(print).code()
    (tmp_path / "files").mkdir()
    for temporary, expected in (
        (tmp_path / "files", str(tmp_path / "files")),
        (tmp_path / "none", "/dev/shm"),
    ):
        monkeypatch.setenv("TMPDIR", str(temporary))
        with folder_of_code(Here(), claim, code) as folder:
            assert folder.startswith(f"{expected}/bench-ask.")
            assert (Path(folder) / "bench/__init__.py").exists()
        assert not Path(folder).exists()
    assert not (tmp_path / "place").exists()


def test_a_node_that_can_write_no_temporary_files_is_told_what_to_set(tmp_path: Path) -> None:
    class Full(Here):
        def ask(self, script: str, *_: Any, **__: Any) -> CommandResult:
            return CommandResult(1, b"", b"not in /tmp, /dev/shm or /root")

    claim = PlaceClaim(str(tmp_path), "1")
    with (
        pytest.raises(EnvironmentCannot, match="not in /tmp, /dev/shm or /root") as told,
        folder_of_code(Full(), claim, ("ab" * 32, b"code")),
    ):
        pass
    assert "TMPDIR" in str(told.value.advice)


def test_a_python_that_was_brought_finds_its_libraries(tmp_path: Path) -> None:
    scripts: list[str] = []

    def answer(script: str) -> str:
        scripts.append(script)
        return ""

    for libraries in (None, "/my place/lib"):
        with pytest.raises(EnvironmentCannot):
            installer(Answers(answer), tmp_path, LOCKED, libraries=libraries).ask()
    assert "LD_LIBRARY_PATH" not in scripts[0]
    assert "LD_LIBRARY_PATH='/my place/lib' PYTHONPATH=" in scripts[1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Segmentation fault",
        "[]",
        "{}",
        '{"error": 5}',
        '{"installed": {}}',
        '{"refused": {"unknown": "x"}}',
        '{"plan": {"found": {"digest": "x"}}}',
        "{" * 100_000,
    ],
)
def test_texts_of_a_strange_node_become_an_error_of_that_node(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentCannot):
        install(installer(Answers(lambda _: line), tmp_path, LOCKED))


def test_an_error_of_the_node_is_shown_with_its_advice_and_without_control_characters(tmp_path: Path) -> None:
    error = {"error": {"message": "no space\x1b[31m", "advice": "free some"}}
    with pytest.raises(EnvironmentCannot, match=r"no space\?\[31m") as caught:
        install(installer(Answers(lambda _: json.dumps(error)), tmp_path, LOCKED))
    assert caught.value.advice == "free some"


# --- the whole, on this machine -------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(line_rate, "_SENT_BYTES", (2**10,))
    yield tmp_path / "place"
    for path in (tmp_path / "place/environments").glob("*"):
        store.remove(path)


def locked_of(tmp_path: Path, *wheels: Path) -> LockedEnvironment:
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker/cpu.lock").write_text(lock_lines(*wheels))
    return read_locked(tmp_path, VARIANT, "3.11", None)


def test_what_the_index_has_is_downloaded_and_the_rest_is_sent(place: Path, tmp_path: Path) -> None:
    a, b = make_wheel(tmp_path / "w", "a"), make_wheel(tmp_path / "w", "b")
    index = (make_index(tmp_path / "index", a) / "simple").as_uri()
    said: list[str] = []
    work = installer(
        Here(), place, locked_of(tmp_path, a, b), index=index, wheelhouse=tmp_path / "w", said=said
    )
    made = install(work)
    assert (made.sent_bytes, made.changed) == (b.stat().st_size, True)
    assert "1 of 2 wheels" in said[0] and "b: the index does not have it" in said[0]
    again = install(work)
    assert (again.digest, again.sent_bytes, again.changed) == (made.digest, 0, False)
    assert sorted(path.name for path in place.iterdir()) == ["environments"]


def test_what_the_nodes_own_python_has_is_copied_and_gives_the_same_digest(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make_wheel(tmp_path / "w", "a"), make_wheel(tmp_path / "w", "b")
    locked = locked_of(tmp_path, a, b)
    wheels = {wheel.name[0]: (known_wheel(wheel),) for wheel in (a, b)}
    own, other = tmp_path / "own", tmp_path / "other"
    make_python(own, a)
    make_python(other, a, b)
    (other / f"{SITE}/b/__init__.py").write_bytes(b"v = '2.0'\n")  # of the same size
    work = installer(Here(), place, dataclasses.replace(locked, wheels=wheels), wheelhouse=tmp_path / "w")
    from_wheels = install(work)
    assert from_wheels.sent_bytes == a.stat().st_size + b.stat().st_size
    store.remove(next((place / "environments").glob("[0-9a-f]*")))
    monkeypatch.setenv("PATH", f"{own}/bin:{os.environ['PATH']}")
    assert install(work) == dataclasses.replace(from_wheels, sent_bytes=b.stat().st_size)
    store.remove(next((place / "environments").glob("[0-9a-f]*")))
    said: list[str] = []
    monkeypatch.setenv("PATH", f"{other}/bin:{os.environ['PATH']}")
    changed = dataclasses.replace(work, say=said.append)
    assert changed.ask().plan.here.keys() == {"a", "b"}  # the plan reads no file
    assert install(changed) == dataclasses.replace(from_wheels, sent_bytes=b.stat().st_size)
    assert "refused: b: " in said[0] and f"{SITE}/b/__init__.py was changed" in said[0]


def known_wheel(wheel: Path) -> LockedWheel:
    return LockedWheel(wheel.name, wheel.stat().st_size, tree_digest(wheel_contents(wheel)))


def make_python(folder: Path, *wheels: Path) -> None:
    """Unpack wheels into a Python's folder of packages, as an installer does."""
    (folder / "bin").mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / SITE)


def test_a_wheel_that_the_index_falsified_is_sent_instead(place: Path, tmp_path: Path) -> None:
    a = make_wheel(tmp_path / "w", "a")
    index = make_index(tmp_path / "index", a)
    (index / "files" / a.name).write_bytes(b"another")
    said: list[str] = []
    work = installer(
        Here(), place, locked_of(tmp_path, a), index=(index / "simple").as_uri(), wheelhouse=tmp_path / "w",
        said=said,
    )  # fmt: skip
    assert install(work).sent_bytes == a.stat().st_size
    assert said[0].startswith("refused: a: ") and "not the lock's" in said[0]


def test_a_wheel_that_neither_has_is_named(place: Path, tmp_path: Path) -> None:
    a = make_wheel(tmp_path / "w", "a")
    with pytest.raises(EnvironmentCannot, match="neither the node nor this machine can get a") as caught:
        install(installer(Here(), place, locked_of(tmp_path, a)))
    assert caught.value.advice is not None and "--wheelhouse DIR" in caught.value.advice


def test_a_python_that_cannot_install_is_an_error_with_its_reason(place: Path, tmp_path: Path) -> None:
    a = make_wheel(tmp_path / "w", "a")
    with pytest.raises(EnvironmentCannot, match="cannot install an environment"):
        install(installer(Here(), place, locked_of(tmp_path, a), python="/bin/false"))
