"""The base of an image: what mmdebstrap is asked for, and the repository that it is given. Builds nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.debian_base import EXCLUDED, LICENCES, build_base, newest_packages
from bench.images.debian_packages import Deb
from tests.environment.made_wheels import sha256_of
from tests.images.odd_packages import make_deb

A, B = "a" * 64, "b" * 64
# Stands in for mmdebstrap: it notes what it was asked and with which variables, and keeps the repository that
# it is given. It writes the base, and RECORD into the file into which the hooks would write each package.
MMDEBSTRAP = """#!/usr/bin/env python3
import json, os, pathlib, re, shutil, sys
asked = {name: os.environ.get(name) for name in ("SOURCE_DATE_EPOCH", "LC_ALL", "TZ", "KEPT")}
pathlib.Path(os.environ["ASKED"]).write_text(json.dumps([sys.argv[1:], asked]))
print("said on stdout")
print(os.environ.get("SAYS", ""), file=sys.stderr)
if os.environ.get("SAYS"):
    sys.exit(1)
for word in sys.argv[1:]:
    if word.startswith("--extract-hook="):
        pathlib.Path(word.rpartition(">> ")[2]).write_text(os.environ["RECORD"])
if repository := re.search(r" copy:(\\S+) ", sys.argv[-1]):
    shutil.copytree(repository[1], os.environ["REPOSITORY"])
pathlib.Path(os.environ["OUT"]).write_text("the base")
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in first in PATH; return the file with what it is asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mmdebstrap").write_text(MMDEBSTRAP)
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("OUT", str(tmp_path / "base.tar"))
    monkeypatch.setenv("REPOSITORY", str(tmp_path / "repository"))
    monkeypatch.setenv(
        "RECORD", f"tool 2:1.0-1 all tools {A}\nlib 3 amd64 libx {B}\ntool 2:1.0-1 all tools {A}\n"
    )
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "asked"


def test_what_the_base_leaves_out_and_keeps() -> None:
    documents = [f"/usr/share/{name}/*" for name in ("doc", "man", "info", "locale", "lintian")]
    sanitizers = [f"/usr/lib/*/lib{name}san*" for name in ("a", "hwa", "l", "t", "ub")]
    assert [*documents, "/usr/bin/*lto-dump*", "/usr/lib/*/libpython3*.a", *sanitizers] == EXCLUDED
    assert LICENCES == "/usr/share/doc/*/copyright"


CLEAN = (
    'find "$1" -xdev -perm /6000 -type f -exec chmod a-s {} +',
    'rm -rf "$1"/var/log/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/etc/machine-id',
)
PATHS = [
    *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED),
    f"--dpkgopt=path-include={LICENCES}",
    *(f"--customize-hook={hook}" for hook in CLEAN),
]
FORM = ["--quiet", "--variant=essential", "--architectures=amd64", "--format=tar"]


# --- a base of the locked packages -------------------------------------------------------------------------


def packages(folder: Path) -> tuple[list[Deb], list[Path]]:
    """Two made-up packages of a lock, and their files."""
    debs, paths = [], []
    for name in ("lib", "tool"):
        control = f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\n".encode()
        path = make_deb(folder, name, {}, {"control": control})
        debs.append(Deb(name, "1.0", sha256_of(path), f"{name[0]}/{name}/{path.name}"))
        paths.append(path)
    return debs, paths


def test_mmdebstrap_is_asked_for_every_package_of_a_repository_that_has_no_others(
    asked: Path, tmp_path: Path
) -> None:
    debs, paths = packages(tmp_path)
    build_base(debs, paths, "bookworm", tmp_path / "base.tar", 1_700_000_000)
    assert (tmp_path / "base.tar").read_text() == "the base"
    words, variables = json.loads(asked.read_text())
    sources = (
        "'deb http://deb.debian.org/debian bookworm main'"
        " 'deb http://deb.debian.org/debian bookworm-updates main'"
        " 'deb http://security.debian.org/debian-security bookworm-security main'"
    )
    mirror = words.pop()
    assert words == [
        *FORM,
        "--include=lib tool",
        f"--customize-hook=printf '%s\\n' {sources} > \"$1\"/etc/apt/sources.list",
        *PATHS,
        "bookworm",
        str(tmp_path / "base.tar"),
    ]
    _, _, place, path = mirror.split()
    repository = Path(place.removeprefix("copy:"))
    assert mirror == f"deb [trusted=yes] copy:{repository} ./" and path == "./"
    assert repository.name.startswith("bench-repository-") and not repository.exists()
    assert variables == {
        "SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C.UTF-8", "TZ": "UTC", "KEPT": "yes"
    }  # fmt: skip


def test_a_repository_states_the_lock_s_digests_which_apt_compares(asked: Path, tmp_path: Path) -> None:
    debs, paths = packages(tmp_path)
    build_base(debs, paths, "bookworm", tmp_path / "base.tar", 0)
    repository = tmp_path / "repository"
    names = [f"{deb.sha256}.deb" for deb in debs]
    assert sorted(path.name for path in repository.iterdir()) == sorted([*names, "Packages", "Release"])
    assert [(repository / name).read_bytes() for name in names] == [path.read_bytes() for path in paths]
    listed = [
        f"Package: {deb.name}\nVersion: 1.0\nArchitecture: amd64\n"
        f"Filename: ./{deb.sha256}.deb\nSize: {path.stat().st_size}\nSHA256: {deb.sha256}\n"
        for deb, path in zip(debs, paths, strict=True)
    ]
    assert (repository / "Packages").read_text() == "\n".join(listed)
    list_of_packages = repository / "Packages"
    digest, size = sha256_of(list_of_packages), list_of_packages.stat().st_size
    assert (repository / "Release").read_text() == (
        f"Suite: bookworm\nCodename: bookworm\nSHA256:\n {digest} {size} Packages\n"
    )
    assert repository.stat().st_mode & 0o777 == 0o755  # apt reads as another user


def test_each_package_needs_its_file(asked: Path, tmp_path: Path) -> None:
    debs, paths = packages(tmp_path)
    with pytest.raises(ValueError, match="zip"):
        build_base(debs, paths[1:], "bookworm", tmp_path / "base.tar", 0)


# --- the newest packages -----------------------------------------------------------------------------------


def test_a_lock_gets_what_debian_s_own_mirrors_have_for_these_packages(asked: Path) -> None:
    newest = newest_packages(["tool", "lib"], "bookworm", 1_700_000_000)
    assert newest == (
        Deb("lib", "3", B, "libx/libx/lib_3_amd64.deb"),
        Deb("tool", "2:1.0-1", A, "t/tools/tool_1.0-1_all.deb"),
    )
    words, variables = json.loads(asked.read_text())
    hooks = [word for word in words if "-hook=for deb" in word]
    record = hooks[0].rpartition(">> ")[2]
    folder = Path(record).parent
    assert folder.name.startswith("bench-base-") and not folder.exists()
    shown = "${Package} ${Version} ${Architecture} ${source:Package}"
    each = (
        'for deb in "$1"/var/cache/apt/archives/*.deb; do '
        f'echo "$(dpkg-deb -W --showformat=\'{shown}\' "$deb") '
        f'$(sha256sum "$deb" | cut -d\' \' -f1)"; done >> {record}'
    )
    hooks = [f"--extract-hook={each}", f"--customize-hook={each}"]
    assert words == [*FORM, "--include=tool lib", *hooks, *PATHS, "bookworm", str(folder / "base.tar")]
    assert variables["SOURCE_DATE_EPOCH"] == "1700000000"


# --- mmdebstrap --------------------------------------------------------------------------------------------


def test_nothing_of_mmdebstrap_reaches_the_terminal(asked: Path, capfd: pytest.CaptureFixture[str]) -> None:
    newest_packages([], "bookworm", 0)
    assert capfd.readouterr() == ("", "")


def test_the_last_four_lines_tell_why_mmdebstrap_failed(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYS", "one\ntwo\nthree\nfour\nfive")
    with pytest.raises(EnvironmentCannot) as caught:
        newest_packages([], "bookworm", 0)
    assert caught.value.message == "mmdebstrap failed to build the base:\n  two\n  three\n  four\n  five"


def test_without_mmdebstrap_there_is_no_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match=r"^mmdebstrap is not installed"):
        build_base([], [], "bookworm", tmp_path / "base.tar", 0)
