"""The history of a folder: what its index keeps, what damage costs, what two writers do, what is deleted."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from bench.bundle import verify
from bench.bundle.verify import verify_bundle
from bench.runner.check import check_index, history
from bench.runner.check.check_index import FILE_NAME, IndexedCheck, add, read_index
from bench.runner.check.retention import KeptFile, Retention, delete_older, too_old
from tests.node_check.checks.node import evidence
from tests.node_check.made import START, files, packed, results

ONE = IndexedCheck(
    bundle="000000000000.tar",
    run="000000000000",
    ended_at=START,
    level="passive",
    verdict="pass",
    finding="",
    simulated=False,
    remapped_rows={"GPU-0": 2, "GPU-1": None},
    figures={"GPU-0": {"memory": 4.1e12}},
)


def numbered(number: int) -> IndexedCheck:
    name = f"{number:012x}"
    return replace(ONE, bundle=f"{name}.tar", run=name, ended_at=START + number)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a folder with the bundles of three checks; the memory of GPU 2 fails in the last."""
    folder = tmp_path / "store"
    folder.mkdir()
    for i, factor in enumerate((1.0, 1.0, 0.7)):
        found = evidence(tmp_path, rates={"memory": {"2": factor}})
        done = results(found, run=f"00000000000{i}", at=START + i)
        packed(folder / f"00000000000{i}.tar", done, files(done, found))
    return folder


def test_the_index_says_what_the_bundles_say_and_remains_when_they_are_deleted(store: Path) -> None:
    from_bundles = history.read([store]).past
    assert not (store / FILE_NAME).exists()
    assert history.read([store], index=True).past == from_bundles
    for bundle in store.glob("*.tar"):
        bundle.unlink()
    assert history.read([store]).past == from_bundles
    assert [check.verdict for check in read_index(store).checks] == ["pass", "pass", "fail"]
    assert "memory" in read_index(store).checks[2].finding


def test_a_bundle_is_read_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "other.tar").write_bytes(b"no bundle")
    refused = history.read([store], index=True).refused
    assert len(refused) == 1
    read: list[Path] = []
    monkeypatch.setattr(
        verify, "verify_bundle", lambda path, how: read.append(path) or verify_bundle(path, how)
    )
    refused = history.read([store], index=True).refused
    assert (read, refused) == ([], ())
    (store / "000000000001.tar").rename(store / "host-000000000001.tar")
    history.read([store], index=True)
    assert read == [store / "host-000000000001.tar"]


@pytest.mark.parametrize("place", [0.01, 0.5, 0.99])
def test_a_damaged_line_is_written_again_from_its_bundle(store: Path, place: float) -> None:
    whole = history.read([store], index=True).past
    index = store / FILE_NAME
    first, second, third = index.read_bytes().splitlines(keepends=True)
    at = int(len(second) * place)
    index.write_bytes(first + second[:at] + bytes([second[at] ^ 1]) + second[at + 1 :] + third)
    assert read_index(store).damaged >= 1
    assert history.read([store], index=True).past == whole
    assert sorted(index.read_bytes().splitlines(keepends=True)) == sorted([first, second, third])


def test_damage_costs_only_lines_whose_bundles_are_gone(tmp_path: Path) -> None:
    add(tmp_path, [numbered(i) for i in range(5)])
    index = tmp_path / FILE_NAME
    index.write_bytes(index.read_bytes().replace(b"000000000002", b"00000000000\0", 1))
    past = history.read([tmp_path], index=True).past
    assert past["GPU-0"].runs == tuple(f"{i:012x}" for i in (0, 1, 3, 4))
    assert read_index(tmp_path).damaged == 0


def test_an_index_that_is_all_damage_is_written_again(store: Path) -> None:
    whole = history.read([store], index=True).past
    (store / FILE_NAME).write_bytes(os.urandom(5000))
    assert history.read([store], index=True).past == whole
    assert read_index(store).damaged == 0


def test_a_line_without_its_end_does_not_damage_the_next(tmp_path: Path) -> None:
    """A crash or a full disk leaves a line without its end."""
    add(tmp_path, [numbered(0), numbered(1)])
    index = tmp_path / FILE_NAME
    index.write_bytes(index.read_bytes()[:-20])
    add(tmp_path, [numbered(2)])
    assert [check.run for check in read_index(tmp_path).checks] == [f"{i:012x}" for i in (0, 2)]


def _add_many(folder: Path, first: int) -> None:
    for number in range(first, first + 25):
        add(folder, [numbered(number)], repair=number % 5 == 0)


def test_writers_at_once_lose_no_line(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(tmp_path, first)) for first in (0, 25, 50, 75)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    index = read_index(tmp_path)
    assert sorted(check.run for check in index.checks) == [f"{i:012x}" for i in range(100)]
    assert index.damaged == 0


def test_the_index_stays_below_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_index, "MAX_BYTES", 20_000)
    for number in range(200):
        add(tmp_path, [numbered(number)])
    line = len(check_index._line(ONE))
    assert (tmp_path / FILE_NAME).stat().st_size <= 20_000 + line
    runs = [check.run for check in read_index(tmp_path).checks]
    assert runs == [f"{i:012x}" for i in range(200 - len(runs), 200)]
    assert len(runs) * line >= 0.7 * 20_000


def test_figures_are_found_behind_thousands_of_checks_without_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_index, "DECODED", 10)
    add(tmp_path, [numbered(0), *(replace(numbered(i), figures={}) for i in range(1, 100))])
    past = history.read([tmp_path]).past
    assert past["GPU-0"].figures == {"memory": (4.1e12,)}
    assert past["GPU-0"].counters == {"remapped rows": 2}
    assert past["GPU-1"].counters == {}


def test_a_line_of_a_later_version_stays(tmp_path: Path) -> None:
    add(tmp_path, [numbered(0)])
    index = tmp_path / FILE_NAME
    body = index.read_bytes()[: -check_index._CHECKSUM_BYTES] + b',"invented_later":1'
    index.write_bytes(body + check_index._checksum(body))
    add(tmp_path, [numbered(1)], repair=True)
    assert b"invented_later" in index.read_bytes()
    assert [check.run for check in read_index(tmp_path).checks] == [numbered(1).run]


def kept(*sizes_and_ages: tuple[int, float]) -> list[KeptFile]:
    return [KeptFile(Path(str(n)), age, size) for n, (size, age) in enumerate(sizes_and_ages)]


@pytest.mark.parametrize(
    ("retention", "deleted"),
    [
        (Retention(), []),
        (Retention(checks=2), ["2", "3"]),
        (Retention(seconds=250), ["3"]),
        (Retention(size_bytes=25), ["2", "3"]),
        (Retention(checks=3, seconds=150), ["2", "3"]),
        (Retention(size_bytes=5, seconds=0.0), ["1", "2", "3"]),  # the newest stays
    ],
)
def test_the_oldest_checks_beyond_any_limit_are_deleted(retention: Retention, deleted: list[str]) -> None:
    files = kept((10, 0.0), (10, 100.0), (10, 200.0), (10, 300.0))
    assert [path.name for path in too_old(reversed(files), retention)] == deleted


@pytest.mark.parametrize("indexed", [True, False])
def test_a_bundle_is_deleted_only_if_it_is_a_check(store: Path, indexed: bool) -> None:
    (store / "0123456789ab.tar").write_text("of somebody else")
    known = history.read([store]).bundles if indexed else {}
    (store / "000000000000").mkdir()
    (store / "000000000000/telemetry.jsonl").write_bytes(b"x" * 10**6)
    for i in range(3):
        os.utime(store / f"00000000000{i}.tar", (START + i, START + i))
    assert delete_older(store, Retention(checks=inf, size_bytes=10**6), START + 3, known) == 1
    left = {"0123456789ab.tar", "000000000001.tar", "000000000002.tar"}
    assert {path.name for path in store.iterdir()} == left


def test_an_index_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    """Another user who may write to the folder could choose a file of root's."""
    theirs, folder = tmp_path / "passwd", tmp_path / "out"
    theirs.write_text("root\n")
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        add(folder, [ONE])
    assert theirs.read_text() == "root\n"


def test_a_bundle_with_any_name_is_indexed(tmp_path: Path) -> None:
    names = (b"\xff\x1b[2J.tar", b'a","verdict":"b.tar', b"two\nlines.tar")
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"no bundle")
    assert len(history.read([tmp_path], index=True).refused) == len(names)
    known = read_index(tmp_path)
    assert known.bundles == dict.fromkeys(map(os.fsdecode, names), False)
    assert (known.damaged, known.checks) == (0, ())
    assert history.read([tmp_path], index=True).refused == ()
