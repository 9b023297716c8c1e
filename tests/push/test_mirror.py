"""Mirroring a run's journal, restoring it on a node that lost it, and fetching the bundle."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.bundle.tar_format import CERTIFICATE
from bench.operator import certify_and_receive
from bench.operator.ssh_keygen import OperatorKey
from bench.push import mirror, ship
from bench.push.connection import Unreachable
from bench.push.image_store import ImageStore
from bench.push.push_record import Record
from bench.push.remote import CommandResult, Here
from bench.push.shared_place import PlaceClaim, claimed
from bench.signing.ssh_keys import PublicKey
from tests.push.test_push_record import R

JOURNAL = b'{"trial": 1}\n{"trial": 2}\n'


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A record of a run whose folder exists on the node, and whose journal is mirrored."""
    made = dataclasses.replace(R, local=True, place=str(tmp_path / "a place"), out=str(tmp_path / "results"))
    (Path(made.folder) / "out").mkdir(parents=True)
    (made.mirror / "logs").mkdir(parents=True)
    for name in ("journal.jsonl", "telemetry.jsonl", "logs/a b.txt"):
        (made.mirror / name).write_bytes(JOURNAL)
    return made


def there(record: Record) -> Path:
    return Path(record.folder) / "out" / record.run_id


class Breaks(Here):
    """A connection that breaks in the middle of one file: the program there sees a normal end of file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        sent = b"".join(pieces)
        if sent and self._name in script:
            super().ask(script, [sent[: len(sent) // 2]])
            raise Unreachable("the connection broke")
        return super().ask(script, [sent], seconds=seconds)


def test_a_node_that_lost_everything_gets_the_mirror(record: Record) -> None:
    assert mirror.restore_journal(Here(), record, "")
    for name in ("journal.jsonl", "telemetry.jsonl", "logs/a b.txt"):
        assert (there(record) / name).read_bytes() == JOURNAL


@pytest.mark.parametrize("name", ["journal.jsonl", "telemetry.jsonl"])
def test_a_connection_that_breaks_during_restoring_loses_nothing(record: Record, name: str) -> None:
    with pytest.raises(Unreachable):
        mirror.restore_journal(Breaks(name), record, "")
    assert not (there(record) / "journal.jsonl").exists()
    assert mirror.restore_journal(Here(), record, "")  # the next push
    assert (there(record) / name).read_bytes() == JOURNAL


def test_an_existing_journal_on_the_node_counts_and_is_mirrored_again(record: Record) -> None:
    there(record).mkdir()
    (there(record) / "journal.jsonl").write_bytes(b'{"trial": 1}\n{"tri')
    assert not mirror.restore_journal(Here(), record, "")
    assert (there(record) / "journal.jsonl").read_bytes() == b'{"trial": 1}\n{"tri'
    assert not (record.mirror / "journal.jsonl").exists()


KEY = OperatorKey(Path("key"), PublicKey(b"7" * 32), in_agent=False)


class Endless(Here):
    """A node that sends more than the size it gave for the bundle."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        return CommandResult(0, f"{'0' * 64}  -\n1000\n".encode(), b"")

    def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        for _ in range(1000):
            take(bytes(600))
        return CommandResult(0, b"", b"")


def test_no_more_is_fetched_than_the_bundle_has(record: Record) -> None:
    with pytest.raises(VerificationFailed, match="sends more than"):
        mirror.fetch(Endless(), record, KEY, (), lambda done, total: None)
    assert not record.bundle.with_suffix(".part").exists()  # it could never become a bundle


class Fills(Here):
    """A node whose files are as long as the operator is willing to read."""

    asked = 0

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        self.asked += 1
        count = int(script.split("head -c ")[1].split()[0])
        assert count <= most_bytes
        return CommandResult(0, b"L\n" * (count // 2), b"")


def test_all_files_of_a_run_together_have_a_largest_size(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_LARGEST_MIRROR", 10_000)
    node, before = Fills(), 10_000 - mirror.room_bytes(record)
    names = [f"out/{record.run_id}/logs/{number}.txt" for number in range(100)]
    for _ in range(3):
        mirror.mirror(node, record, dict.fromkeys(names, 1000))
    mirrored = sum(path.stat().st_size for path in record.mirror.rglob("*") if path.is_file())
    assert before < mirrored <= 10_000
    assert mirror.room_bytes(record) <= 1
    asked = node.asked
    mirror.mirror(node, record, {"log.txt": 5000})
    assert node.asked <= asked + 1


def test_one_look_costs_a_few_processes_of_ssh_and_few_bytes(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may name thousands of files at each look; what is left is copied after the next ones."""
    monkeypatch.setattr(mirror, "_MOST_AT_ONCE", 1000)
    names = [f"out/{record.run_id}/logs/{number}.txt" for number in range(100)]
    node = Fills()
    mirror.mirror(node, record, dict.fromkeys(names, 10))
    assert node.asked == mirror._FILES_AT_ONCE == 16
    for _ in range(6):
        mirror.mirror(node, record, dict.fromkeys(names, 10))
    assert node.asked == len(names)
    before = mirror.room_bytes(record)
    mirror.mirror(node, record, dict.fromkeys(names, 10_000))
    assert before - mirror.room_bytes(record) == 1000


def test_a_mirror_has_a_largest_number_of_files(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may name other files at each look."""
    monkeypatch.setattr(mirror, "_MOST_FILES", 20)
    for look in range(10):
        names = [f"out/{record.run_id}/logs/{look}-{number}.txt" for number in range(10)]
        mirror.mirror(Fills(), record, dict.fromkeys(names, 10))
    assert len([path for path in record.mirror.rglob("*") if path.is_file()]) < 20 + 10
    assert mirror.room_bytes(record) == 0


def test_only_the_newest_lines_of_a_flood_are_shown(record: Record) -> None:
    assert mirror.mirror(Fills(), record, {"log.txt": 100_000}) == ["L"] * 1000


def test_of_a_long_log_only_the_end_is_read(record: Record) -> None:
    log = record.mirror / "log.txt"
    log.write_bytes(b"L" * 10_000_000 + b"\nthe last line\n")
    assert mirror.end_of(log).endswith(b"L\nthe last line\n")
    assert len(mirror.end_of(log)) == mirror._END_BYTES
    log.write_bytes(b"short\n")
    assert mirror.end_of(log) == b"short\n"


@pytest.mark.parametrize("refused", ["sends more than the bundle has", "is refused"])
def test_nothing_of_a_refused_bundle_stays(
    record: Record, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VerificationFailed("not of this run")

    class Sends(Endless):
        def ask(
            self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 0
        ) -> CommandResult:
            return CommandResult(0, f"{hashlib.sha256(bytes(600)).hexdigest()}  -\n600\n".encode(), b"")

        def read(
            self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0
        ) -> CommandResult:
            take(bytes(600))
            return CommandResult(0, b"", b"")

    monkeypatch.setattr(certify_and_receive, "receive", refuse)
    with pytest.raises(VerificationFailed):
        mirror.fetch(
            Sends() if refused == "is refused" else Endless(), record, KEY, (), lambda done, total: None
        )
    assert not list(Path(record.out).glob("*.part"))


def test_files_of_others_in_the_place_are_kept(record: Record) -> None:
    place, own = Path(record.place), dataclasses.replace(record, engine="none")
    kept = [place / name for name in ("code/mine.py", "images/cafe.png", "load/mine", "blobs/mine.part")]
    kept.append(place / "packages/mine.whl")
    name = "0123456789abcdef"
    ours = [f"code/{name}", f"code/{name}.new", f"images/{name}.sif", f"images/{name}.sif.part"]
    ours += [f"blobs/{name * 4}", f"blobs/{name * 4}.part", ".load/x"]
    ours += [f"packages/{name * 4}", f"packages/{name * 4}.part"]
    for path in [*kept, *(place / name for name in ours)]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    mirror.clean(Here(), own)
    assert sorted(path for path in place.rglob("*") if path.is_file()) == sorted(kept)


def test_an_empty_place_is_removed(record: Record) -> None:
    with claimed(Here(), PlaceClaim(record.place, record.push)) as node:
        shipped = ship.ship_code(node, ImageStore(print), lambda done, total: None)
    assert Path(shipped.runnable).is_dir()
    mirror.clean(Here(), dataclasses.replace(record, engine="none"))
    assert not Path(record.place).exists()


def test_what_another_push_has_just_shipped_stays_until_its_run_begins(record: Record) -> None:
    claim = PlaceClaim(record.place, "another")
    with claimed(Here(), claim) as node:
        shipped = ship.ship_code(node, ImageStore(print), lambda done, total: None)
        mirror.clean(Here(), dataclasses.replace(record, engine="venv"))
        assert Path(shipped.runnable).is_dir()
        os.utime(claim.path, (0, 0))  # of a push that was killed long ago
        mirror.clean(Here(), dataclasses.replace(record, engine="venv"))
    assert not Path(record.place).exists()


@pytest.mark.parametrize("kind", ["environments", "pythons"])
def test_an_environment_and_its_python_are_deleted_although_they_are_read_only(
    record: Record, kind: str
) -> None:
    folder = Path(record.place, kind, "ab" * 32, "lib")
    folder.mkdir(parents=True)
    (folder / "module.py").touch()
    for path in (folder / "module.py", folder, folder.parent):
        path.chmod(0o555)
    Path(record.place, "environments").mkdir(exist_ok=True)
    Path(record.place, "environments/.lock").touch()
    Path(record.place, kind, ".new-1").mkdir()
    mirror.clean(Here(), dataclasses.replace(record, engine="venv"))
    assert not Path(record.place).exists()


# --- links that a run's own code made below `out` ----------------------------------------------------------

OWN = b"what the login user has there\n"
MIRRORED = ("journal.jsonl", "telemetry.jsonl", "logs/a b.txt")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the login user, outside of the run's folder."""
    path = tmp_path / "home/.bashrc"
    path.parent.mkdir()
    path.write_bytes(OWN)
    return path


@pytest.mark.parametrize("name", [".given", *MIRRORED])
def test_restored_files_replace_links(record: Record, victim: Path, name: str) -> None:
    link = there(record) / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    if name == "journal.jsonl":
        victim.write_bytes(b"")  # else the node would have a journal
    before = victim.read_bytes()
    assert mirror.restore_journal(Here(), record, "")
    assert victim.read_bytes() == before
    for restored in MIRRORED:
        assert (there(record) / restored).read_bytes() == JOURNAL
        assert not (there(record) / restored).is_symlink()


@pytest.mark.parametrize("folder", [".", "logs"])
def test_nothing_is_restored_through_a_folder_that_is_a_link(
    record: Record,
    victim: Path,
    folder: str,
) -> None:
    link = there(record) / folder
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim.parent)
    with pytest.raises(EnvironmentCannot, match="is a link"):
        mirror.restore_journal(Here(), record, "")
    assert list(victim.parent.iterdir()) == [victim]


@pytest.mark.parametrize("name", [f".{CERTIFICATE}.part", CERTIFICATE])
def test_a_certificate_replaces_a_link(
    record: Record,
    victim: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate = SimpleNamespace(line=lambda: "a certificate", valid_before=7)
    monkeypatch.setattr(certify_and_receive, "certify", lambda *_: certificate)
    monkeypatch.setattr(mirror, "read", lambda *_: SimpleNamespace(run_id=record.run_id))
    there(record).mkdir(parents=True)
    (there(record) / "request.json").touch()
    (there(record) / name).symlink_to(victim)
    assert mirror.certify(Here(), dataclasses.replace(record, ledger=str(record.mirror / "ledger")), KEY) == 7
    assert (there(record) / CERTIFICATE).read_text() == "a certificate\n"
    assert not (there(record) / CERTIFICATE).is_symlink()
    assert victim.read_bytes() == OWN


def test_files_that_are_links_are_not_looked_at(record: Record, victim: Path) -> None:
    (there(record) / "logs").mkdir(parents=True)
    for name in ("journal.jsonl", "logs/a.txt"):
        (there(record) / name).symlink_to(victim)
    Path(f"{there(record)}.tar").symlink_to(victim)
    (there(record) / "telemetry.jsonl").write_bytes(b"{}\n")
    status = mirror.look(Here(), record)
    assert status.files == {f"out/{record.run_id}/telemetry.jsonl": 3}
    assert status.bundle_bytes is None
