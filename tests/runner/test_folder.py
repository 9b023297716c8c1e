"""The run that --resume continues."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from bench.base.errors import BadInput
from bench.records.trial import NodeFacts
from bench.runner.run.journal import FILE_NAME, Journal
from bench.runner.run.run_folder import choose_folder
from tests.runner.test_moved import MANIFEST, begin

HERE = NodeFacts("EPYC", 64, 2**39, "Debian 12", "6.1", "3.11.2", packages={"torch": "2.9.1"}, switches={})
UPDATED = dataclasses.replace(HERE, kernel="6.12", packages={"torch": "2.10.0"})


def begun(out: Path, name: str, node: NodeFacts, age_seconds: int) -> Path:
    (folder := out / name).mkdir()
    begin(folder, node)
    os.utime(folder / FILE_NAME, (1e9 - age_seconds, 1e9 - age_seconds))
    return folder


def test_two_machines_that_share_a_folder_resume_their_own_runs(tmp_path: Path) -> None:
    ours, theirs = begun(tmp_path, "ours", HERE, 60), begun(tmp_path, "theirs", UPDATED, 0)
    assert choose_folder(tmp_path, MANIFEST, HERE, None, resume=True) == ours
    assert choose_folder(tmp_path, MANIFEST, UPDATED, None, resume=True) == theirs


def test_changes_since_the_start_of_a_run_are_named(tmp_path: Path) -> None:
    begun(tmp_path, "a", HERE, 0)
    with pytest.raises(BadInput, match=r"\(kernel 6.12 here, 6.1 there; torch 2.10.0 here, 2.9.1 there\)"):
        choose_folder(tmp_path, MANIFEST, UPDATED, None, resume=True)


def test_a_run_continues_after_a_reboot(tmp_path: Path) -> None:
    """After a reboot, the kernel may report a few pages more or less."""
    folder = begun(tmp_path, "a", HERE, 0)
    again = dataclasses.replace(HERE, memory_bytes=HERE.memory_bytes - 40 * 4096)
    assert choose_folder(tmp_path, MANIFEST, again, None, resume=True) == folder
    with pytest.raises(BadInput, match="memory_bytes"):
        choose_folder(tmp_path, MANIFEST, dataclasses.replace(HERE, memory_bytes=2**38), None, resume=True)


def test_a_damaged_journal_of_another_manifest_is_ignored(tmp_path: Path) -> None:
    folder = begun(tmp_path, "a", HERE, 60)
    (tmp_path / "b").mkdir()
    with Journal(tmp_path / "b") as journal:
        journal.append({"event": "run", "manifest": "sha256:another"})
    with (tmp_path / "b" / FILE_NAME).open("ab") as file:
        file.write(b"\0\0\n")
    assert choose_folder(tmp_path, MANIFEST, HERE, None, resume=True) == folder
