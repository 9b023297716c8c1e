"""One package in the folder of another Python: what its RECORD must say, and how its files are copied."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import site
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.environment import adopt
from bench.environment.contents import LockedPackage
from bench.environment.identity import InstalledFile, tree_digest

SITE = "lib/python3.11/site-packages"
MODULE, TOOL, MANUAL = b"v = 1\n", b"\x7fELF tool", b"manual"
CONTENTS = [
    InstalledFile("bin/tool", hashlib.sha256(TOOL).hexdigest(), executable=True),
    InstalledFile("share/man/a.1", hashlib.sha256(MANUAL).hexdigest(), executable=False),
    InstalledFile("site-packages/a/__init__.py", hashlib.sha256(MODULE).hexdigest(), executable=False),
]
LOCKED = LockedPackage("a", "1.0", frozenset(), frozenset({tree_digest(CONTENTS)}))


def row(name: str, data: bytes, size: object = None) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data) if size is None else size}"


OTHER_FILES = "its RECORD lists other files than the locked wheel's"
ROWS = {
    "module": row("a/__init__.py", MODULE),
    "tool": row("../../../bin/tool", TOOL),
    "manual": row("../../../share/man/a.1", MANUAL),
    "starter": row("../../../bin/starter", b"#!/usr/bin/python\n"),  # names the folder of its Python
    "header": row("../../../include/site/python3.11/a/a.h", b""),
    "other header": row("../../../include/python3.11/a.h", b""),
    "bytecode": "a/__pycache__/__init__.cpython-311.pyc,,",
    "empty line": "",
    "record": "a-1.0.dist-info/RECORD,,",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a Python that has the package."""
    root = tmp_path / "python"
    write(root / SITE / "a/__init__.py", MODULE)
    write(root / "bin/tool", TOOL, 0o755)
    write(root / "bin/starter", b"#!/usr/bin/python\n", 0o755)
    write(root / "share/man/a.1", MANUAL)
    listed(root)
    return root


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def listed(root: Path, folder: str = "a-1.0.dist-info", **rows: str) -> None:
    """Write the RECORD, with other rows in place of those of these names."""
    write(root / SITE / folder / "RECORD", "\n".join((ROWS | rows).values()).encode())


def found(root: Path, wanted: LockedPackage = LOCKED) -> adopt.HeldPackage | str:
    """Return the package as it can be copied, or why it cannot."""
    held, differing = adopt.find([wanted], [root / SITE])
    assert len(held) + len(differing) == 1
    return held.get(wanted.name) or differing[wanted.name]


def copied(root: Path, folder: Path, wanted: LockedPackage = LOCKED) -> dict[str, str]:
    """Copy the package into a folder; return why not, by name."""
    held, _ = adopt.find([LOCKED], [root / SITE])
    done: list[int] = []
    kept, differing = adopt.copy_all(held, [wanted], folder, done.append)
    assert set(kept) == {"a"} - set(differing)
    assert sum(done) == held["a"].bytes or differing
    return differing


# --- finding ----------------------------------------------------------------------------------------------


def test_a_package_whose_record_lists_the_locked_contents_is_held(root: Path) -> None:
    held = found(root)
    assert isinstance(held, adopt.HeldPackage)
    assert held.root == root
    assert sorted(file.stated for file in held.files) == CONTENTS
    assert {file.source: file.size for file in held.files} == {
        f"{SITE}/a/__init__.py": len(MODULE), "bin/tool": len(TOOL), "share/man/a.1": len(MANUAL)
    }  # fmt: skip
    assert held.bytes == len(MODULE + TOOL + MANUAL)


def test_sizes_and_the_case_of_a_version_may_differ_between_installers(root: Path) -> None:
    listed(root, module=row("a/__init__.py", MODULE, ""), manual=ROWS["manual"].rpartition(",")[0])
    assert isinstance(found(root), adopt.HeldPackage)
    listed(root, "A-1.0RC1.dist-info", record="A-1.0RC1.dist-info/RECORD,,")
    held = found(root, replace(LOCKED, version="1.0rc1"))
    assert isinstance(held, adopt.HeldPackage)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"module": row("a/__init__.py", b"v = 2\n")}, OTHER_FILES),
        ({"module": ""}, OTHER_FILES),
        ({"module": row("a/__init__.py", MODULE, 7)}, "a/__init__.py was changed"),
        ({"module": "a/__init__.py,,"}, "its RECORD cannot be used: a/__init__.py has no sha256"),
        ({"module": "a/__init__.py"}, "its RECORD cannot be used: a/__init__.py has no sha256"),
        ({"more": row("a/missing.py", b"")}, "missing.py is missing"),
        ({"more": row("a", b"")}, "a is not a regular file"),
        ({"more": row("../../../../a", b"")}, "its RECORD cannot be used: '../../../../a' is outside"),
        ({"more": row("../../a", b"")}, "its RECORD cannot be used: '../../a' is outside"),
        ({"more": row("../../..", b"")}, "its RECORD cannot be used: '../../..' is outside"),
        ({"more": row("a/../b", b"")}, "its RECORD cannot be used: 'a/../b' is outside"),
        ({"more": row("/etc/hosts", b"")}, "its RECORD cannot be used: '/etc/hosts' is outside"),
        ({"more": row("a\\b", b"")}, "its RECORD cannot be used: 'a\\\\b' is outside"),
    ],
)
def test_a_record_that_says_something_else_is_no_plan(root: Path, rows: dict[str, str], why: str) -> None:
    listed(root, **rows)
    assert found(root) == why


@pytest.mark.parametrize("name", ["include/site/python3.11", "include/python3.12/a/deep"])
def test_headers_and_starters_are_not_needed(root: Path, name: str) -> None:
    """A starter may be missing from other installers; a program in bin that is none is needed."""
    listed(root, starter="", header="", more=row(f"../../../{name}/a.h", b""))
    assert isinstance(found(root), adopt.HeldPackage)
    listed(root, more=row("../../../include/elsewhere/a.h", b""))
    assert found(root) == "a.h is missing"


def test_the_mode_of_a_file_counts_but_in_bin(root: Path) -> None:
    (root / "bin/tool").chmod(0o644)
    assert isinstance(found(root), adopt.HeldPackage)
    for mode in (0o100, 0o010, 0o001):
        (root / SITE / "a/__init__.py").chmod(0o644 | mode)
        assert found(root) == OTHER_FILES


def test_only_the_beginning_of_an_endless_record_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (root / SITE / "a-1.0.dist-info/RECORD").read_bytes()
    assert adopt._MOST_RECORD_BYTES == 64 * 2**20
    monkeypatch.setattr(adopt, "_MOST_RECORD_BYTES", len(text))
    write(root / SITE / "a-1.0.dist-info/RECORD", text + b"\nand more")
    assert isinstance(found(root), adopt.HeldPackage)


def test_of_several_versions_the_locked_one_is_held(root: Path) -> None:
    listed(root, "a-0.9.dist-info")
    listed(root, "a-1.1.dist-info")
    assert isinstance(found(root), adopt.HeldPackage)
    assert found(root, replace(LOCKED, version="2.0")) == "0.9 is installed"


def test_a_package_that_is_nowhere_is_neither_held_nor_different(root: Path, tmp_path: Path) -> None:
    nowhere = [tmp_path / "nothing", root / SITE]
    assert adopt.find([replace(LOCKED, name="b")], nowhere) == ({}, {})
    assert adopt.find([replace(LOCKED, contents=frozenset())], nowhere) == ({}, {})
    held, differing = adopt.find([replace(LOCKED, name="b"), LOCKED], nowhere)
    assert (set(held), differing) == ({"a"}, {})


def test_a_name_of_a_package_is_normalised(root: Path) -> None:
    listed(root, "A_B.c-1.0.dist-info", record="A_B.c-1.0.dist-info/RECORD,,")
    assert isinstance(found(root, replace(LOCKED, name="a-b-c")), adopt.HeldPackage)


def test_a_folder_near_the_top_of_the_file_system_has_that_as_its_root(tmp_path: Path) -> None:
    """No file of a package lies above the root of the file system."""
    with pytest.raises(adopt._Differs, match="no-such-folder is missing"):
        adopt._held(LOCKED, "1.0", Path("/no-such-folder/a-1.0.dist-info"))


def test_the_folders_of_packages_of_this_python_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, more, theirs = (tmp_path / name for name in ("own/site-packages", "more/x", "theirs"))
    there = [theirs / "lib/python3.11/site-packages", theirs / "lib/python3/dist-packages"]
    for folder in (own, more, theirs / "bin", *there):
        folder.mkdir(parents=True)
    (theirs / "lib/python3.12").mkdir()
    (theirs / "lib/python3.12/site-packages").write_text("no folder")
    (tmp_path / "link-packages").symlink_to(own)
    missing = tmp_path / "missing-packages"
    monkeypatch.setattr(sys, "path", [str(p) for p in (tmp_path / "link-packages", own, missing, tmp_path)])
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(more)])
    assert adopt.folders_of_packages(f"relative/bin:{theirs}/bin") == [own, more, *there]
    monkeypatch.delattr(site, "getsitepackages")
    assert adopt.folders_of_packages("") == [own]


# --- copying ----------------------------------------------------------------------------------------------


def test_copies_have_the_contents_and_modes_of_an_environment(root: Path, tmp_path: Path) -> None:
    (root / "share/man/a.1").chmod(0o600)
    assert copied(root, tmp_path / "new") == {}
    new = tmp_path / "new/a"
    for file in CONTENTS:
        assert hashlib.sha256((new / file.path).read_bytes()).hexdigest() == file.sha256
        assert (new / file.path).stat().st_mode & 0o777 == (0o555 if file.executable else 0o444)


def test_a_file_that_is_there_already_is_not_written_over(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "new/a/share/man/a.1", b"mine")
    assert copied(root, tmp_path / "new") == {"a": "share/man/a.1: File exists"}
    assert (tmp_path / "new/a/share/man/a.1").read_bytes() == b"mine"


def test_copies_that_are_not_the_locked_contents_are_not_kept(root: Path, tmp_path: Path) -> None:
    """The plan may be of another lock than the one that is installed."""
    other = replace(LOCKED, contents=frozenset({"0" * 64}))
    assert copied(root, tmp_path / "new", other) == {"a": "its files are not those of the locked wheel"}


def test_a_file_that_changed_since_the_plan_is_named_once(root: Path, tmp_path: Path) -> None:
    held, _ = adopt.find([LOCKED], [root / SITE])
    (root / "bin/tool").write_bytes(TOOL.replace(b"tool", b"loot"))
    (root / "share/man/a.1").unlink()
    kept, differing = adopt.copy_all(held, [LOCKED], tmp_path / "new", lambda count: None)
    assert kept == {}
    assert differing == {"a": "bin/tool was changed"}  # the largest file comes first


def test_a_link_is_followed_nowhere_below_the_folder(root: Path, tmp_path: Path) -> None:
    held, _ = adopt.find([LOCKED], [root / SITE])
    (root / "share").rename(tmp_path / "share")
    (root / "share").symlink_to(tmp_path / "share")
    _, differing = adopt.copy_all(held, [LOCKED], tmp_path / "new", lambda count: None)
    assert differing == {"a": "share/man/a.1: Not a directory"}


def files(tmp_path: Path, data: bytes) -> tuple[int, int]:
    write(tmp_path / "source", data)
    target = tmp_path / "target"
    return os.open(tmp_path / "source", os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT)


def by_threes(until: int, error: int) -> Callable[[int, int, int], int]:
    """Copy three bytes with each call, as far as `until`, and then fail."""
    done = 0

    def copy(source: int, target: int, count: int) -> int:
        nonlocal done
        if done >= until:
            raise OSError(error, os.strerror(error))
        data = os.pread(source, min(3, count), done)
        os.pwrite(target, data, done)
        done += len(data)
        return len(data)

    return copy


@pytest.mark.parametrize("until", [0, 3, 6, 99])
@pytest.mark.parametrize("size", [7, 10])
def test_a_file_is_copied_up_to_its_size_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int, size: int
) -> None:
    """A file that grows meanwhile is copied as it was planned, and one that shrinks ends where it ends."""
    monkeypatch.setattr(os, "copy_file_range", by_threes(until, errno.EXDEV))
    for data in (b"0123456789abcdef"[:size], b"0123456789abcdef", b"01234"):
        monkeypatch.setattr(os, "copy_file_range", by_threes(until, errno.EXDEV))
        source, target = files(tmp_path, data)
        adopt._copy_bytes(source, target, size)
        os.close(source)
        os.close(target)
        assert (tmp_path / "target").read_bytes() == data[:size]
        (tmp_path / "target").unlink()


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", by_threes(3, errno.EIO))
    source, target = files(tmp_path, b"0123456789")
    with pytest.raises(OSError, match="Input/output error"):
        adopt._copy_bytes(source, target, 10)
    os.close(source)
    os.close(target)
