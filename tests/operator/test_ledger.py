"""The ledger: append-only, chained, locked, and refused when a line does not follow from the one before."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.operator.ledger import Ledger

NONCES = ["0a" * 32, "0b" * 32, "0c" * 32]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "ledger.jsonl"
    with Ledger(path) as ledger:
        for number, nonce in enumerate(NONCES):
            ledger.append("challenged", 100 + number, f"run{number}", nonce, {"manifest_sha256": "d" * 64})
    return path


def test_appended_events_are_found_again(path: Path) -> None:
    with Ledger(path) as ledger:
        assert [line.nonce for line in ledger.lines] == NONCES
        found = ledger.find("challenged", nonce=NONCES[1])
        assert found is not None
        assert (found.number, found.at, found.run_id) == (2, 101, "run1")
        assert ledger.find("received", nonce=NONCES[1]) is None
        assert ledger.find("challenged", nonce=NONCES[1], run_id="run0") is None


def test_only_the_operator_reads_a_new_ledger(path: Path) -> None:
    """--ledger may name a folder that everybody reads."""
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o660)  # several operators of one group
    with Ledger(path):
        assert path.stat().st_mode & 0o777 == 0o660


def test_each_line_holds_the_hash_of_the_one_before(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    with Ledger(path) as ledger:
        assert [line["previous"] for line in lines] == [
            "0" * 64,
            *(x.entry.sha256 for x in ledger.lines[:-1]),
        ]


@pytest.mark.parametrize(
    ("found", "written", "line"),
    [
        (b'"at":101', b'"at":102', 3),  # the line after an edited line does not match it
        (b'"at":102', b'"at": 102', 3),
        (b'"number":2', b'"number":4', 2),
        (b'"run1"', b'"run9"', 3),
        (b'"event":"challenged"', b'"event":"forgotten"', 1),
        (b"{", b"", 1),
        (b'"at":100', b'"at":100,"at":100', 1),
    ],
)
def test_an_edited_ledger_is_refused(path: Path, found: bytes, written: bytes, line: int) -> None:
    data = path.read_bytes()
    assert found in data
    path.write_bytes(data.replace(found, written, 1))
    with pytest.raises(BadInput, match=f"line {line} is damaged") as caught:
        Ledger(path).__enter__()
    assert caught.value.where == str(path)
    assert "never edited" in str(caught.value.advice)


@pytest.mark.parametrize("keep", [(0, 2), (1, 2), (1, 0, 2), (0, 0, 1, 2)])
def test_a_line_removed_moved_or_repeated_is_refused(path: Path, keep: tuple[int, ...]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in keep))
    with pytest.raises(BadInput, match="is damaged: it does not follow"):
        Ledger(path).__enter__()


def test_a_torn_last_line_is_cut_off_and_the_chain_goes_on(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with Ledger(path) as ledger:
        assert len(ledger.lines) == 2
        ledger.append("challenged", 102, "run2", NONCES[2], {"manifest_sha256": "d" * 64})
    assert path.read_bytes() == whole


def test_a_ledger_is_released_at_the_end_of_its_block_though_somebody_still_has_its_file(path: Path) -> None:
    ledger = Ledger(path)
    with ledger:
        file = ledger._file
        assert file is not None
    with pytest.raises(ValueError, match="closed"):
        file.read()


@pytest.mark.parametrize("given", [None, ""])
def test_without_a_path_it_is_the_users_own_ledger(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Ledger(given).path == Ledger(None).path
    assert Ledger(given).path.is_relative_to(tmp_path)


def _append(path: Path, count: int) -> None:
    for number in range(count):
        with Ledger(path) as ledger:
            ledger.append("challenged", number, "run", f"{number:064x}", {})


def test_concurrent_appends_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, 20)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    with Ledger(path) as ledger:
        assert len(ledger.lines) == 80


def test_only_its_owner_may_read_the_ledger(path: Path) -> None:
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_where_no_ledger_can_be_stored_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentCannot, match="cannot be opened for writing") as caught:
        Ledger(tmp_path / "file" / "ledger.jsonl").__enter__()
    assert "--ledger" in str(caught.value)


def test_the_folders_of_a_new_ledger_are_made_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "ledger.jsonl"
    with Ledger(path) as ledger:
        assert ledger.lines == []
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_damaged_ledger_is_released_at_once(path: Path) -> None:
    """While one command reports the damage, another command may restore the file."""
    path.write_bytes(path.read_bytes() + b"damaged\n")
    with pytest.raises(BadInput, match="line 4 is damaged") as caught:
        Ledger(path).__enter__()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert caught.value.where == str(path)
