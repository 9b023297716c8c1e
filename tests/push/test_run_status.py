"""A run on its node: what its status says, which bytes are mirrored, and how it is certified and fetched."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.operator import certify_and_receive
from bench.push import mirror, run_script
from bench.push.mirror import Status, look, read_status
from bench.push.out_folder import put
from bench.push.push_record import Record
from bench.push.remote import CommandResult, Here
from tests.push.test_mirror import KEY
from tests.push.test_push_record import R

MIB = 2**20


class Node(Here):
    """A node that notes what it is asked, and answers by the first word that a script has."""

    def __init__(self, **answers: bytes | CommandResult) -> None:
        self.answers = answers
        self.asked: list[tuple[str, bytes, float, int]] = []

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = MIB
    ) -> CommandResult:
        self.asked.append((script, b"".join(pieces), seconds, most_bytes))
        found = next((answer for word, answer in self.answers.items() if word in script), b"")
        return found if isinstance(found, CommandResult) else CommandResult(0, found, b"")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    made = dataclasses.replace(R, out=str(tmp_path / "results"), ledger=str(tmp_path / "ledger.jsonl"))
    made.mirror.mkdir(parents=True)
    return made


# --- status -----------------------------------------------------------------------------------------------

OUT = f"out/{R.run_id}"


def test_a_status_in_full() -> None:
    text = (
        "exit 3\nfile 12 log.txt\nfile 5 slurm.txt\nfile 7 out/aaaa00000000/journal.jsonl\n"
        "file 8 out/aaaa00000000/telemetry.jsonl\nfile 9 out/aaaa00000000/logs/0a.txt\nfile 1 mine.txt\n"
        "request 11 22\nrequest 33 44\ncertified\nbundle 1234\nwhy CANCELLED by 1000\non n[1-2]\n"
    )
    files = {
        "log.txt": 12, "slurm.txt": 5, f"{OUT}/journal.jsonl": 7, f"{OUT}/telemetry.jsonl": 8,
        f"{OUT}/logs/0a.txt": 9,
    }  # fmt: skip
    assert read_status(text) == Status(
        "exit", 3, files, "33 44", 1234, certified=True, reason="CANCELLED by 1000", on="n[1-2]"
    )


@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        ("alive", "alive", None),
        ("waiting \n", "waiting", None),
        ("dead", "dead", None),
        ("gone", "gone", None),
        ("exit 0", "exit", 0),
        ("exit 137", "exit", 137),
        ("exit", "dead", None),  # the node went down while the code was written
        ("", "dead", None),
        ("\n", "dead", None),
    ],
)
def test_the_state_of_a_run(text: str, state: str, code: int | None) -> None:
    assert read_status(text) == Status(state, code, {}, None, None)


@pytest.mark.parametrize("text", ["alive\nrequest\n", "alive\nrequest 1 2\nrequest\n", "alive\nbundle\n"])
def test_a_file_that_has_just_gone_is_not_there(text: str) -> None:
    assert read_status(text) == Status("alive", None, {}, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "alive 1", "exit 1000", "exit -1", "started", "alive\nhello", "alive\nrequest 1",
        "alive\nrequest 1 2 3",
        "alive\nbundle x", "alive\nwhy \x1b", "alive\nwhy", "alive\non a b", "alive\nrequested",
    ],
)  # fmt: skip
def test_an_answer_that_the_script_never_prints(text: str) -> None:
    with pytest.raises(EnvironmentCannot, match="the node's answer about its run has a form that"):
        read_status(text)


def test_a_status_has_a_largest_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror._MOST_FILES == 10_000
    monkeypatch.setattr(mirror, "_MOST_FILES", 2)
    lines = [f"file {n} {OUT}/logs/{n}.txt" for n in range(3)]
    assert read_status("\n".join(["alive", *lines])).files == {f"{OUT}/logs/{n}.txt": n for n in range(2)}


def test_a_look_asks_for_the_files_of_its_own_run(record: Record) -> None:
    node = Node(journal=f"alive\nfile 1 log.txt\nfile 2 slurm.txt\nfile 3 {OUT}/logs/a.txt\n"
                f"file 4 out/bbbb00000000/logs/a.txt\nbundle 9\n".encode())  # fmt: skip
    found = look(node, record)
    assert found == Status("alive", None, {"log.txt": 1, "slurm.txt": 2, f"{OUT}/logs/a.txt": 3}, None, 9)
    ((script, *_),) = node.asked
    assert script.startswith(
        run_script.state_script(record.folder, record.run_id, record.engine, record.slurm_job)
    )
    with pytest.raises(EnvironmentCannot, match="asking for the run's state failed: no"):
        look(Node(journal=CommandResult(1, b"", b"no")), record)


def test_a_run_is_cancelled_killed_and_read_in_its_folder(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[tuple[object, ...]] = []
    monkeypatch.setattr(run_script, "cancel", lambda node, *given: did.append(("cancel", *given)))
    monkeypatch.setattr(run_script, "kill", lambda node, *given: did.append(("kill", *given)))
    given = (record.folder, record.run_id, "docker", "17")
    job = dataclasses.replace(record, slurm_job="17")
    mirror.cancel(Here(), job)
    mirror.kill(Here(), job)
    assert did == [("cancel", *given), ("kill", *given)]
    node = Node(tail=b" the last line \n")
    assert mirror.last_line(node, record) == "the last line"
    assert node.asked[0][0] == f"tail -n 1 {record.folder}/log.txt"


# --- the mirror -------------------------------------------------------------------------------------------


class Files(Here):
    """A node with files, of which it sends what `tail` and `head` would."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("__", "."): data for name, data in files.items()}
        self.sent: list[tuple[str, int, int]] = []

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = MIB
    ) -> CommandResult:
        folder, _, tail = script.partition(" && ")
        assert folder == f"cd {R.folder}"
        words = tail.split()
        start, name, count = int(words[2].removeprefix("+")) - 1, words[3], int(words[7])
        assert most_bytes == count
        self.sent.append((name, start, count))
        return CommandResult(0, self.files[name][start : start + count], b"")


def sizes(node: Files) -> dict[str, int]:
    return {name: len(data) for name, data in node.files.items()}


def test_what_was_appended_is_mirrored(record: Record) -> None:
    node = Files(log__txt=b"one\n", slurm__txt=b"job\n")
    node.files[f"{OUT}/logs/a.txt"] = b"a\n"
    assert mirror.mirror(node, record, sizes(node)) == ["one"]
    node.files |= {"log.txt": b"one\ntwo\n"}
    assert mirror.mirror(node, record, sizes(node)) == ["two"]
    assert mirror.mirror(node, record, sizes(node)) == []
    assert node.sent[3:] == [("log.txt", 4, 4)]
    assert (record.mirror / "log.txt").read_bytes() == b"one\ntwo\n"
    assert (record.mirror / "slurm.txt").read_bytes() == b"job\n"
    assert (record.mirror / "logs/a.txt").read_bytes() == b"a\n"


def test_a_file_that_is_shorter_than_its_mirror_is_mirrored_anew(record: Record) -> None:
    (record.mirror / "log.txt").write_bytes(b"of a run before this one\n")
    node = Files(log__txt=b"now\n")
    assert mirror.mirror(node, record, sizes(node)) == ["now"]
    assert (record.mirror / "log.txt").read_bytes() == b"now\n"


def test_two_commands_that_mirror_at_once_write_the_same(record: Record) -> None:
    """The other command has appended while this one asked."""
    path = record.mirror / "log.txt"
    path.write_bytes(b"one\n")

    class Beside(Files):
        def ask(self, *given: Any, **more: Any) -> CommandResult:
            found = super().ask(*given, **more)
            path.write_bytes(b"one\ntwo\nthree\n")
            return found

    mirror.mirror(Beside(log__txt=b"one\ntwo\n"), record, {"log.txt": 8})
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_the_limits_of_a_mirror(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (mirror._MOST_AT_ONCE, mirror._LARGEST_FILE) == (8 * MIB, 512 * MIB)
    assert (mirror._LARGEST_MIRROR, mirror._FILES_AT_ONCE) == (2048 * MIB, 16)
    assert (mirror._MOST_SHOWN, mirror._LINE_CHARACTERS, mirror._END_BYTES) == (1000, 2000, 16_384)
    monkeypatch.setattr(mirror, "_LARGEST_FILE", 6)
    node = Files(log__txt=b"123456789")
    for _ in range(2):
        mirror.mirror(node, record, sizes(node))
    assert node.sent == [("log.txt", 0, 6)]
    assert mirror.room_bytes(record) == 2048 * MIB - 6
    monkeypatch.setattr(mirror, "_LARGEST_MIRROR", 6)
    assert mirror.room_bytes(record) == 0
    monkeypatch.setattr(mirror, "_LARGEST_MIRROR", 2)
    assert mirror.room_bytes(record) == 0
    monkeypatch.setattr(mirror, "_LARGEST_MIRROR", 7)
    monkeypatch.setattr(mirror, "_MOST_FILES", 1)
    assert mirror.room_bytes(record) == 0
    monkeypatch.setattr(mirror, "_MOST_FILES", 2)
    assert mirror.room_bytes(record) == 1


def test_a_look_mirrors_a_few_files_and_bytes(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_FILES_AT_ONCE", 2)
    monkeypatch.setattr(mirror, "_MOST_AT_ONCE", 5)
    node = Files()
    node.files = {f"{OUT}/logs/{name}.txt": b"1234" for name in "abcd"}
    mirror.mirror(node, record, sizes(node))
    assert [count for _, _, count in node.sent] == [4, 1]
    mirror.mirror(node, record, sizes(node))
    assert [(name[-5], start, count) for name, start, count in node.sent[2:]] == [("b", 1, 3), ("c", 0, 2)]


def test_lines_are_shown_as_text_without_hints_for_operators(record: Record) -> None:
    log = b"plain\n\n \nrequest out/x/request.json\n  bench certify this\nbell\x07 \xff\n" + b"x" * 3000
    node = Files(log__txt=log)
    first, second, third = mirror.mirror(node, record, sizes(node))
    assert (first, second) == ("plain", "bell? \ufffd")
    assert len(third) <= 2000 and third.startswith("x" * 1900)


def test_the_end_of_a_mirrored_file(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_END_BYTES", 4)
    path = record.mirror / "log.txt"
    for data, end in ((b"", b""), (b"1234", b"1234"), (b"12345\xff", b"345\xff")):
        path.write_bytes(data)
        assert mirror.end_of(path) == end


@pytest.mark.parametrize("owner", ["", "65534:65534"])
def test_restored_files_belong_to_the_user_of_the_run(record: Record, owner: str) -> None:
    node = Node(test=CommandResult(1, b"", b""))
    assert not mirror.restore_journal(node, record, owner)
    assert len(node.asked) == 1  # nothing is mirrored
    (record.mirror / "journal.jsonl").write_bytes(b"{}\n")
    assert mirror.restore_journal(node, record, owner)
    _, written, *given = node.asked[1:]
    assert written[1] == b"{}\n"
    owned = [script for script, *_ in given]
    assert owned == ([f"chown -hR {owner} {record.folder}/out"] if owner else [])


def test_a_journal_that_cannot_be_written_is_an_error(record: Record) -> None:
    (record.mirror / "journal.jsonl").write_bytes(b"{}\n")
    node = Node(test=CommandResult(1, b"", b""))
    node.answers["journal.jsonl"] = CommandResult(1, b"", b"disk full")
    with pytest.raises(EnvironmentCannot, match="the journal cannot be restored: disk full"):
        mirror.restore_journal(node, record, "")


# --- the certificate --------------------------------------------------------------------------------------


def request(run_id: str) -> bytes:
    return json.dumps({"run_id": run_id}).encode()


@pytest.fixture
def certified(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """List the ledger, key, request, time and validity of all that is certified."""
    made: list[tuple[Any, ...]] = []
    certificate = SimpleNamespace(line=lambda: "a certificate", valid_before=7)

    def certify(ledger: Any, *given: Any) -> Any:
        made.append((ledger.path, *given))
        return certificate

    monkeypatch.setattr(mirror, "read", lambda kind, data: SimpleNamespace(**json.loads(data)))
    monkeypatch.setattr(mirror, "now", lambda: 1_000)
    monkeypatch.setattr(certify_and_receive, "certify", certify)
    return made


def test_a_runs_key_is_certified_for_the_time_of_its_record(
    record: Record, certified: list[tuple[Any, ...]]
) -> None:
    node = Node(request=request(record.run_id))
    assert mirror.certify(node, record, KEY) == 7
    assert certified == [(Path(record.ledger or ""), KEY, request(record.run_id), 1_000, 7200)]
    (asked, _, _, most), (written, data, *_) = node.asked
    assert asked == f"head -c 16384 {record.folder}/{OUT}/request.json" and most == 16_384
    assert data == b"a certificate\n"
    assert written == f"umask 022; {put(record.folder, f'{OUT}/run-cert.pub', 14)}"


def test_a_request_of_another_run_gets_no_certificate(
    record: Record, certified: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(VerificationFailed) as refused:
        mirror.certify(Node(request=request("bbbb00000000")), record, KEY)
    assert (refused.value.message, refused.value.where) == (
        "the node asks for a certificate of another run", "gpu1",
    )  # fmt: skip
    assert certified == []


def test_a_certificate_that_cannot_be_written_is_an_error(
    record: Record, certified: list[tuple[Any, ...]]
) -> None:
    node = Node(head=request(record.run_id), umask=CommandResult(1, b"", b"disk full"))
    node.answers = {"umask": node.answers["umask"], "head": node.answers["head"]}
    with pytest.raises(EnvironmentCannot) as failed:
        mirror.certify(node, record, KEY)
    assert (failed.value.message, failed.value.where) == (
        "the certificate cannot be written: disk full", "gpu1",
    )  # fmt: skip


# --- the bundle -------------------------------------------------------------------------------------------

BUNDLE = bytes(range(100))


class Sends(Node):
    """A node with a bundle, which sends what `tail` and `head` would of the next of `versions`."""

    def __init__(self, *versions: bytes, size: int = 100) -> None:
        super().__init__(sha256sum=f"{hashlib.sha256(BUNDLE).hexdigest()}  -\n{size}\n".encode())
        self.versions = list(versions)
        self.ranges: list[tuple[int, int]] = []

    def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        words = script.split()
        start, count = int(words[2].removeprefix("+")) - 1, int(words[-1])
        self.ranges.append((start, count))
        data = self.versions.pop(0)[start : start + count]
        for piece in (data[:30], data[30:]):
            if piece:
                take(piece)
        return CommandResult(0, b"", b"")


def download(node: Node, record: Record) -> tuple[bytes, list[tuple[int, int]]]:
    part, seen = record.bundle.with_suffix(".part"), list[tuple[int, int]]()
    mirror._download(node, record, part, lambda done, total: seen.append((done, total)))
    return part.read_bytes(), seen


def test_a_bundle_is_downloaded_from_where_an_earlier_attempt_ended(record: Record) -> None:
    node = Sends(BUNDLE)
    assert download(node, record) == (BUNDLE, [(30, 100), (100, 100)])
    assert (node.ranges, node.asked[0][2]) == ([(0, 100)], 240.0)
    record.bundle.with_suffix(".part").write_bytes(BUNDLE[:40])
    node = Sends(BUNDLE)
    assert download(node, record)[0] == BUNDLE
    assert node.ranges == [(40, 60)]
    whole = Sends(b"")
    assert download(whole, record)[0] == BUNDLE
    assert whole.ranges == [(100, 0)]


def test_bytes_of_another_bundle_are_downloaded_once_more(record: Record) -> None:
    record.bundle.with_suffix(".part").write_bytes(bytes(200))
    node = Sends(b"", BUNDLE)
    assert download(node, record)[0] == BUNDLE
    assert node.ranges == [(200, 0), (0, 100)]


def test_a_bundle_that_is_never_the_hashed_one_is_an_error(record: Record) -> None:
    with pytest.raises(EnvironmentCannot) as failed:
        download(Sends(bytes(100), bytes(100)), record)
    error = failed.value
    assert (error.message, error.where) == ("the bundle changed while it was fetched", "gpu1")
    assert error.advice == "bench fetch"
    assert not record.bundle.with_suffix(".part").exists()


def test_a_node_that_sends_more_than_the_bundle_has_is_refused(record: Record) -> None:
    class SendsMore(Sends):
        def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> Any:
            take(BUNDLE)
            take(b"x")

    with pytest.raises(VerificationFailed, match="the node sends more than the bundle's size") as refused:
        download(SendsMore(), record)
    assert refused.value.where == "gpu1"


def test_a_node_sends_a_bundle_of_a_possible_size(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MAX_TOTAL_BYTES", 50)
    assert download(Sends(BUNDLE), record)[0] == BUNDLE
    with pytest.raises(VerificationFailed, match="the node's bundle has 101 bytes, more than") as large:
        download(Sends(BUNDLE, size=101), record)
    assert large.value.where == "gpu1"
    node = Node(sha256sum=b"nonsense")
    with pytest.raises(EnvironmentCannot, match="the node's answer about its bundle has a form") as odd:
        download(node, record)
    assert odd.value.where == "gpu1"


def test_a_fetched_bundle_is_received_by_the_ledger_of_its_run(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(mirror, "now", lambda: 1_000)
    monkeypatch.setattr(mirror, "as_asked", lambda record: ("as asked", record.run_id))

    def receive(ledger: Any, *all_: Any, run_id: str) -> str:
        given.extend([ledger.path, *all_, run_id])
        return "good"

    monkeypatch.setattr(certify_and_receive, "receive", receive)
    assert mirror.fetch(Sends(BUNDLE), record, KEY, (), lambda done, total: None) == "good"
    part = record.bundle.with_suffix(".part")
    assert given == [
        Path(record.ledger or ""), KEY, part, part, 1_000, ("as asked", record.run_id), (), record.run_id
    ]  # fmt: skip
    assert record.bundle.read_bytes() == BUNDLE and not part.exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_folder_is_cleaned_and_its_place_unless_that_is_kept(
    record: Record, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(mirror, "empty", lambda *given: f"empty {' '.join(given)}")
    node = Node()
    mirror.clean(node, dataclasses.replace(record, keep=keep))
    ((script, _, seconds, _),) = node.asked
    emptied = "" if keep else f"; empty {record.place} {record.run_id} docker"
    assert script == f"rm -rf {record.folder}{emptied}; exit 0"
    assert seconds == 300.0
