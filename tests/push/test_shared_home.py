"""Nodes that share a home: what one push brings, another neither breaks nor takes away."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.push import mirror, run_script, ship
from bench.push.image_store import ImageStore
from bench.push.place_lock import locked
from bench.push.remote import Here
from tests.push.test_mirror import record

__all__ = ["record"]


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
        claim = run_script.claim_of(place, str(number))
        shipped = ship.ship_code(Here(), place, store, lambda done, total: None, claim)
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
            claim = Path(run_script.claim_of(mine.place, mine.run_id))
            shipped = ship.ship_code(Here(), mine.place, store, lambda done, total: None, str(claim))
            Path(mine.folder).mkdir(parents=True)
            claim.unlink()  # as the start of the run does
            assert Path(shipped.runnable, "bench/__init__.py").exists()
            mirror.clean(Here(), mine)

    at_once(push, 6)
    mirror.clean(Here(), dataclasses.replace(record, engine="none"))
    assert not Path(record.place).exists()


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
