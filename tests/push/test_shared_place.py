"""A node's folder that pushes share: what each holds, what it may delete, what it leaves to others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.push.connection import Unreachable
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import (
    SHARED_FOLDERS,
    ClaimedNode,
    PlaceClaim,
    claimed,
    empty,
    one_at_a_time,
    remove_untagged,
)
from tests.push.made_up_engines import MadeUpEngine
from tests.push.test_ship_steps import Says, failed

HASH = "0123456789abcdef"


def tree(place: Path, *names: str) -> None:
    """Make files in a place; a name that ends with / is a folder."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (place / name).mkdir(parents=True, exist_ok=True)
        else:
            (place / name).write_text(name)


def left(place: Path) -> list[str]:
    """Return the files in a place and its empty folders."""
    found = (path for path in place.rglob("*") if not path.is_dir() or not any(path.iterdir()))
    return sorted(path.relative_to(place).as_posix() for path in found)


# --- claims ---------------------------------------------------------------------------------------------


@pytest.fixture
def claim(tmp_path: Path) -> PlaceClaim:
    return PlaceClaim(str(tmp_path / "a place"), "p 1")


def test_a_claim_is_a_file_of_the_user_alone_and_keeps_what_is_there(claim: PlaceClaim) -> None:
    place = Path(claim.place)
    assert Here().ask(claim.take).code == 0
    assert left(place) == [".claim-p 1"]
    assert (place / ".claim-p 1").stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    assert (claim.path, claim.staging) == (f"{place}/.claim-p 1", ".load-p 1")


def test_a_claim_that_ends_takes_its_own_files_with_it(claim: PlaceClaim) -> None:
    Here().ask(claim.take)
    tree(Path(claim.place), ".load-p 1/manifest.json", ".load-p 2/x", ".claim-p 2", "blobs/a")
    assert Here().ask(claim.release).code == 0
    assert left(Path(claim.place)) == [".claim-p 2", ".load-p 2/x", "blobs/a"]


def test_a_script_has_its_own_exit_code_input_and_output(claim: PlaceClaim) -> None:
    Here().ask(claim.take)
    done = Here().ask(claim.refreshed_during("cat; echo trouble >&2; exit 7"), [b"in"])
    assert (done.code, done.out, done.err) == (7, b"in", b"trouble\n")


def test_a_claimed_node_passes_on_limits_and_keeps_the_claim_fresh(claim: PlaceClaim) -> None:
    node = Says(lambda _: "out")
    heard: list[bytes] = []

    def read(script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        take(node.ask(script, seconds=seconds).out)
        return CommandResult(3, b"", b"")

    node.read = read  # type: ignore[method-assign]
    closed: list[bool] = []
    node.close = lambda: closed.append(True)  # type: ignore[method-assign]
    held = ClaimedNode(node, claim)
    assert held.ask("a", [b"1", b"2"], seconds=7, most_bytes=9).text == "out"
    assert held.read("b", heard.append, seconds=8).code == 3
    held.ask("c")
    held.close()
    assert node.asked == [claim.refreshed_during(script) for script in "abc"]
    assert (node.seconds, node.most_bytes[0], node.sent[0], heard) == ([7, 8, 60], 9, b"12", [b"out"])
    assert closed == [True]


def test_a_place_that_cannot_be_claimed_is_an_error_and_nothing_else_is_asked(claim: PlaceClaim) -> None:
    node = Says(lambda _: failed(75, "Read-only file system"))
    with pytest.raises(EnvironmentCannot) as caught, claimed(node, claim):
        pytest.fail("the place is not held")
    assert (caught.value.message, caught.value.where) == (
        "writing failed: Read-only file system", claim.place,
    )  # fmt: skip
    assert node.asked == [claim.take]


@pytest.mark.parametrize(
    "error", [None, ValueError("a defect"), KeyboardInterrupt(), EnvironmentCannot("no")]
)
def test_a_claim_is_released_however_its_push_ends(claim: PlaceClaim, error: BaseException | None) -> None:
    node = Says(lambda _: "")
    try:
        with claimed(node, claim) as held:
            assert held.claim is claim
            if error:
                raise error
    except BaseException as ended:
        assert ended is error
    assert node.asked == [claim.take, claim.release]


def test_a_claim_of_a_lost_node_stays(claim: PlaceClaim) -> None:
    node = Says(lambda _: "")
    with pytest.raises(Unreachable), claimed(node, claim):
        raise Unreachable("the connection broke")
    assert node.asked == [claim.take]


def test_a_claim_that_cannot_be_released_costs_no_result(claim: PlaceClaim) -> None:
    def answer(script: str) -> str:
        if script == claim.release:
            raise Unreachable("the connection broke")
        return ""

    with claimed(Says(answer), claim):
        pass


def test_scripts_with_one_lock_wait_for_each_other_and_leave_it_to_no_child(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = one_at_a_time(str(lock), f"flock -n {lock} true && echo free || echo held; ls /proc/self/fd")
    done = Here().ask(script)
    assert done.text.splitlines()[0] == "held"
    assert "9" not in done.text.splitlines()[1:]
    assert Here().ask(one_at_a_time(str(lock), "exit 7")).code == 7


# --- what may be deleted ----------------------------------------------------------------------------------


def test_what_a_push_no_longer_needs_is_deleted_with_its_empty_folders(claim: PlaceClaim) -> None:
    Here().ask(claim.take)
    place = Path(claim.place)
    tree(place, "blobs/a b", "packages/x", "packages/y", "runs/r/log", "images/")
    (place / "packages/x").chmod(0o400)
    Here().ask(claim.discard(["blobs/a b", "packages/x", "absent/z"]))
    assert left(place) == [".claim-p 1", "packages/y", "runs/r/log"]


def test_every_shared_folder_that_is_empty_is_removed(claim: PlaceClaim) -> None:
    Here().ask(claim.take)
    names = ("blobs", "code", "environments", "images", "packages", "runs", "results")
    tree(Path(claim.place), *(f"{name}/" for name in names))
    Here().ask(claim.discard([]))
    assert left(Path(claim.place)) == [".claim-p 1", "results"]


def test_a_claim_is_refreshed_each_minute_and_an_engine_has_20_seconds_for_a_tag(claim: PlaceClaim) -> None:
    assert "sleep 60 & wait" in claim.refreshed_during("true")
    assert "timeout 20 docker tag" in empty("/place", "delete-1", "docker")


@pytest.mark.parametrize(("minutes", "counts"), [(0, True), (50, True), (61, False)])
def test_a_claim_counts_for_an_hour_after_its_push_was_killed(
    claim: PlaceClaim, minutes: int, counts: bool
) -> None:
    Here().ask(claim.take)
    place = Path(claim.place)
    tree(place, "blobs/a", ".claim-another")
    begun = (place / ".claim-another").stat().st_mtime - 60 * minutes
    os.utime(place / ".claim-another", (begun, begun))
    Here().ask(claim.discard(["blobs/a"]))
    assert (place / "blobs/a").exists() == counts


def test_what_a_killed_push_had_set_aside_is_deleted(claim: PlaceClaim) -> None:
    Here().ask(claim.take)
    place = Path(claim.place)
    tree(place, ".old-p 1/blobs/a", ".old-p 2/blobs/b")
    (place / ".old-p 1/blobs").chmod(0o500)
    Here().ask(claim.discard([]))
    assert left(place) == [".claim-p 1", ".old-p 2/blobs/b"]


@pytest.mark.parametrize(
    "name",
    [
        f"blobs/{HASH * 4}", f"blobs/{HASH * 4}.part", f"blobs/{HASH * 4}.part.copy", f"packages/{HASH * 4}",
        f"images/{HASH}.sif", f"images/{HASH}.sif.part-p", f"code/{HASH}/bench/x.py",
        f"environments/{HASH}/bin/x", f"environments/{HASH}.new", ".load/x", ".load-p/x", ".claim-old",
        ".pull-node", ".request-1", ".old-p/x",
        "environments/.lock", "environments/.new-1/x", "code/.new-1/x",
    ],
)  # fmt: skip
def test_what_pushes_brought_is_deleted(tmp_path: Path, name: str) -> None:
    tree(tmp_path / "place", name)
    os.utime(tmp_path / "place" / name, (0, 0))  # a claim of long ago does not count
    assert Here().ask(empty(str(tmp_path / "place"), "delete-1", "none")).code == 0
    assert not (tmp_path / "place").exists()


@pytest.mark.parametrize(
    "name",
    [
        "blobs/mine", f"blobs/{HASH[:-1]}", f"blobs/{HASH}0", f"blobs/{HASH.upper()}", "code/notes",
        ".hidden",
        "images/my.sif", "results/x", "environments/mine/x", f"packages/{HASH}x", "environments/.other",
    ],
)  # fmt: skip
def test_files_of_the_user_in_the_place_stay(tmp_path: Path, name: str) -> None:
    tree(tmp_path / "place", name, f"blobs/{HASH}")
    Here().ask(empty(str(tmp_path / "place"), "delete-1", "none"))
    assert left(tmp_path / "place") == [name]


@pytest.mark.parametrize("needs", [".claim-p", "runs/r/log", "runs/r/"])
def test_nothing_is_deleted_while_a_claim_or_a_run_needs_it(tmp_path: Path, needs: str) -> None:
    tree(tmp_path / "place", f"blobs/{HASH}", needs)
    Here().ask(empty(str(tmp_path / "place"), "delete-1", "none"))
    assert left(tmp_path / "place") == sorted([f"blobs/{HASH}", needs.rstrip("/")])


def test_an_idle_place_with_an_empty_folder_of_runs_is_removed(tmp_path: Path) -> None:
    tree(tmp_path / "a place", *(f"{folder}/" for folder in SHARED_FOLDERS))
    assert Here().ask(empty(str(tmp_path / "a place"), "delete-1", "none")).code == 0
    assert left(tmp_path) == []


def test_a_place_that_is_not_there_needs_no_deletion(tmp_path: Path) -> None:
    assert Here().ask(empty(str(tmp_path / "absent"), "delete-1", "docker")).code == 0
    assert left(tmp_path) == []


# --- the engine's images ------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpEngine:
    """A docker with an image under bench's tag, one under the tag of those to remove, and the user's own."""
    made = MadeUpEngine("docker", tmp_path / "engine", monkeypatch)
    for identity, tag in {"1": "bench-push:a", "2": "bench-old:b", "3": "theirs:c"}.items():
        (made.store / "images" / f"sha256:{identity}").write_text("[]")
        (made.store / "tags" / tag).write_text(f"sha256:{identity}")
    return made


def test_images_of_bench_go_with_the_last_push(tmp_path: Path, engine: MadeUpEngine) -> None:
    tree(tmp_path / "place", f"blobs/{HASH}")
    Here().ask(empty(str(tmp_path / "place"), "delete-1", "docker"))
    assert engine.tags == {"theirs:c": "sha256:3"}
    assert engine.images == {"sha256:3"}


def test_images_of_bench_stay_while_a_push_may_need_them(tmp_path: Path, engine: MadeUpEngine) -> None:
    tree(tmp_path / "place", ".claim-p")
    Here().ask(empty(str(tmp_path / "place"), "delete-1", "docker"))
    assert engine.tags == {"bench-push:a": "sha256:1", "theirs:c": "sha256:3"}


def test_only_an_engine_with_a_store_is_asked(tmp_path: Path, engine: MadeUpEngine) -> None:
    tree(tmp_path / "place", f"blobs/{HASH}")
    Here().ask(empty(str(tmp_path / "place"), "delete-1", "apptainer"))
    assert len(engine.tags) == 3


def test_images_that_were_untagged_are_removed(engine: MadeUpEngine) -> None:
    assert Here().ask(remove_untagged("docker")).code == 0
    assert set(engine.tags) == {"bench-push:a", "theirs:c"}
