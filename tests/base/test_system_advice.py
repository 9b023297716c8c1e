"""A message about an error of the operating system says what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import open_regular, read_bounded
from bench.base.paths import using
from bench.base.system_advice import advice_on

KNOWN = (
    "EISDIR",
    "ENOTDIR",
    "EEXIST",
    "EACCES",
    "EPERM",
    "ENOSPC",
    "EDQUOT",
    "EROFS",
    "ENAMETOOLONG",
    "ELOOP",
)


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("name", KNOWN)
def test_errors_that_people_can_mend_have_advice(name: str, reading: bool, tmp_path: Path) -> None:
    error = OSError(getattr(errno, name), "said by the system")
    assert advice_on(error, tmp_path, reading=reading)


def test_other_errors_have_none(tmp_path: Path) -> None:
    for error in (OSError(errno.EIO, "broken disk"), OSError("without a number"), ValueError("a NUL")):
        assert advice_on(error, tmp_path, reading=True) is None


def test_a_missing_file_is_told_with_the_folder_in_which_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    here = f"nothing of this name is in {tmp_path}"
    assert advice_on(missing, Path("a.tar"), reading=True) == here
    assert advice_on(missing, tmp_path / "a.tar", reading=True) == here
    assert advice_on(missing, Path("none/a.tar"), reading=True) == f"there is no folder {tmp_path / 'none'}"


def test_a_file_that_cannot_be_written_is_missed_in_no_folder_but_its_folder_may_be(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert advice_on(missing, tmp_path / "a.tar", reading=False) is None
    inside = tmp_path / "none/a.tar"
    assert advice_on(missing, inside, reading=False) == f"there is no folder {inside.parent}"


def test_a_folder_whose_name_could_forge_a_line_is_not_named(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert advice_on(missing, tmp_path / "march\nvalid" / "a.tar", reading=True) is None


def test_readers_and_writers_give_the_advice_unless_they_have_their_own(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused, open_regular(tmp_path / "none.tar"):
        pass
    assert refused.value.advice == f"nothing of this name is in {tmp_path}"
    with pytest.raises(BadInput) as refused, open_regular(tmp_path):
        pass
    assert refused.value.advice == "it is a folder: name a file in it"
    with pytest.raises(BadInput) as refused:
        read_bounded(tmp_path, 10, what="the prices", too_large="too large")
    assert refused.value.advice == "it is a folder: name a file"
    with pytest.raises(EnvironmentCannot) as failed, using(tmp_path):
        tmp_path.write_text("")
    assert failed.value.advice == "it is a folder: name a file"
    with pytest.raises(EnvironmentCannot) as failed, using(tmp_path, advice="name another with --out"):
        tmp_path.write_text("")
    assert failed.value.advice == "name another with --out"
