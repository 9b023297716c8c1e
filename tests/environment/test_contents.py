"""The contents of a package and the digests of an environment, in full: two nodes must compute the same."""

from __future__ import annotations

import hashlib

import pytest

from bench.environment.contents import LockedPackage, in_environment, record, written_by_installers
from bench.environment.identity import InstalledFile, environment_digest, tree_digest

ONE, TWO = "11" * 32, "22" * 32
SITE = "lib/python3.11/site-packages"
UNREADABLE = "a/caf\udce9.py"  # the name has a byte that is no UTF-8


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("a-1.0.dist-info/RECORD", True),
        ("a-1.0.dist-info/RECORD.jws", True),
        ("a-1.0.dist-info/RECORD.p7s", True),
        ("a-1.0.dist-info/INSTALLER", True),
        ("a-1.0.dist-info/REQUESTED", True),
        ("a-1.0.dist-info/direct_url.json", True),
        ("a-1.0.dist-info/uv_cache.json", True),
        ("a-1.0.dist-info/uv_build.json", True),
        ("__pycache__/a.cpython-311.pyc", True),
        ("a/b/__pycache__/c.cpython-311.pyc", True),
        ("a-1.0.dist-info/METADATA", False),
        ("a-1.0.dist-info/licenses/RECORD", False),
        ("a/vendored-1.dist-info/RECORD", False),  # of a package inside the package
        ("RECORD", False),
        ("a/b.pyc", False),
        ("a/__pycache__/c.py", False),
        ("a/__pycache__/deeper/c.pyc", False),
    ],
)
def test_an_installer_writes_these_files_and_no_other(name: str, theirs: bool) -> None:
    assert written_by_installers(name) == theirs


def test_a_file_has_its_path_in_the_environments_folder_of_packages() -> None:
    inside, beside = InstalledFile("site-packages/a/b.py", ONE, False), InstalledFile("bin/tool", TWO, True)
    assert in_environment(inside, SITE) == InstalledFile(f"{SITE}/a/b.py", ONE, False)
    assert in_environment(beside, SITE) == beside
    alike = InstalledFile("share/site-packages/a", ONE, False)
    assert in_environment(alike, SITE) == alike


def test_the_record_of_an_environment_in_full() -> None:
    """Base64 without padding, as in the RECORD of a wheel, and paths from the folder of packages."""
    files = [
        InstalledFile(f"{SITE}/a/b.py", ONE, False),
        InstalledFile("bin/tool", TWO, True),
        InstalledFile(f"{SITE}/{UNREADABLE}", TWO, False),
        InstalledFile(f"{SITE}/a/one, two.txt", ONE, False),
    ]
    one, two = "ERERERERERERERERERERERERERERERERERERERERERE", "IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiI"
    assert record(files, SITE, f"{SITE}/a-1.0.dist-info/RECORD") == (
        f"../../../bin/tool,sha256={two},\n"
        f"a/b.py,sha256={one},\n"
        f"a/caf\udce9.py,sha256={two},\n"
        f'"a/one, two.txt",sha256={one},\n'
        "a-1.0.dist-info/RECORD,,\n"
    ).encode("utf-8", "surrogateescape")
    assert record(files[1:2], "packages", "packages/a") == f"../bin/tool,sha256={two},\na,,\n".encode()


def test_the_digest_of_a_tree_is_over_its_sorted_lines() -> None:
    files = [InstalledFile(UNREADABLE, TWO, True), InstalledFile("a/b.py", ONE, False)]
    lines = f"{ONE} - a/b.py\n{TWO} x {UNREADABLE}\n".encode("utf-8", "surrogateescape")
    assert tree_digest(files) == hashlib.sha256(lines).hexdigest()
    assert tree_digest([]) == hashlib.sha256().hexdigest()


def test_a_path_with_a_line_feed_does_not_stand_for_two_files() -> None:
    one, two = InstalledFile("a.py", "1" * 64, False), InstalledFile("b.py", "2" * 64, True)
    both = InstalledFile(f"a.py\n{two.line}".rstrip("\n"), "1" * 64, False)
    assert tree_digest([both]) != tree_digest([one, two])
    assert both.line == f"{'1' * 64} - a.py\\n{'2' * 64} x b.py\n"
    escaped = InstalledFile(both.path.replace("\n", "\\n"), "1" * 64, False)
    assert tree_digest([escaped]) != tree_digest([both])


def test_the_digest_of_an_environment_is_over_canonical_json() -> None:
    document = b'{"build":"b","files":"f","lock":"l","python":"p"}'
    found = environment_digest(lock="l", python="p", build="b", files="f")
    assert found == f"sha256:{hashlib.sha256(document).hexdigest()}"


def test_the_contents_of_a_locked_package_may_be_unknown() -> None:
    assert LockedPackage("a", "1.0", frozenset({ONE})).contents == frozenset()
