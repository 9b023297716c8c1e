"""The commands that write a file below a run's folder. tests/push/test_mirror.py has links in its way."""

from __future__ import annotations

from pathlib import Path

from bench.push.out_folder import put
from bench.push.remote import Here


def test_a_file_that_arrives_in_part_is_not_put_in_place(tmp_path: Path) -> None:
    assert Here().ask(put(str(tmp_path), "out/run/journal.jsonl", 5), [b"half"]).code
    assert not (tmp_path / "out").exists()


def test_a_name_that_begins_with_a_hyphen_is_a_name(tmp_path: Path) -> None:
    assert not Here().ask(put(str(tmp_path), "out/run/logs/-f.txt", 2), [b"x\n"]).code
    assert (tmp_path / "out/run/logs/-f.txt").read_bytes() == b"x\n"
