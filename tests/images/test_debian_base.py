"""The base of an image: the lock of Debian packages, and what mmdebstrap is asked for. Builds nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.debian_base import EXCLUDED, LICENCES, Deb, bootstrap, build_base, read_debs

A, B = "a" * 64, "b" * 64
# Stands in for mmdebstrap: it notes what it was asked and with which variables, writes the base, and writes
# RECORD into the file into which the hooks would write each package.
MMDEBSTRAP = """#!/usr/bin/env python3
import json, os, pathlib, sys
asked = {name: os.environ.get(name) for name in ("SOURCE_DATE_EPOCH", "LC_ALL", "TZ", "KEPT")}
pathlib.Path(os.environ["ASKED"]).write_text(json.dumps([sys.argv[1:], asked]))
print("said on stdout")
print(os.environ.get("SAYS", ""), file=sys.stderr)
if os.environ.get("SAYS"):
    sys.exit(1)
for word in sys.argv[1:]:
    if word.startswith("--extract-hook="):
        pathlib.Path(word.rpartition(">> ")[2]).write_text(os.environ["RECORD"])
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
    monkeypatch.setenv("RECORD", f"tool 2:1.0-1 {A}\nlib 3 {B}\ntool 2:1.0-1 {A}\n")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "asked"


# --- the lock ----------------------------------------------------------------------------------------------


def test_a_lock_has_a_package_in_each_line_but_comments(tmp_path: Path) -> None:
    path = tmp_path / "debian.lock"
    path.write_text(f"# made by make lock\ntool 2:1.0+b~1-1 {A}\nlib3.1 3 {B}\n")
    debs = read_debs(path)
    assert debs == (Deb("tool", "2:1.0+b~1-1", A), Deb("lib3.1", "3", B))
    assert [deb.line for deb in debs] == [f"tool 2:1.0+b~1-1 {A}", f"lib3.1 3 {B}"]


@pytest.mark.parametrize(
    "line", ["", "tool 1", f"tool 1 {A[1:]}", f"Tool 1 {A}", f"tool 1 {A} x", f" tool 1 {A}"]
)
def test_the_first_line_of_another_form_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "debian.lock"
    path.write_text(f"# a comment\ntool 1 {A}\n{line}\nworse\n")
    with pytest.raises(BadInput) as caught:
        read_debs(path)
    assert caught.value.message == "is not of the form NAME VERSION SHA256"
    assert caught.value.where == f"{path}: line 3"


def test_what_the_base_leaves_out_and_keeps() -> None:
    documents = [f"/usr/share/{name}/*" for name in ("doc", "man", "info", "locale", "lintian")]
    sanitizers = [f"/usr/lib/*/lib{name}san*" for name in ("a", "hwa", "l", "t", "ub")]
    assert [*documents, "/usr/bin/*lto-dump*", "/usr/lib/*/libpython3*.a", *sanitizers] == EXCLUDED
    assert LICENCES == "/usr/share/doc/*/copyright"


# --- mmdebstrap --------------------------------------------------------------------------------------------


def test_mmdebstrap_is_asked_for_exactly_these_packages(asked: Path, tmp_path: Path) -> None:
    out = tmp_path / "base.tar"
    used = bootstrap(["tool=2:1.0-1", "lib=3"], "bookworm", out, ["http://a", "http://b"], 1_700_000_000)
    assert used == (Deb("lib", "3", B), Deb("tool", "2:1.0-1", A))
    words, variables = json.loads(asked.read_text())
    hooks = [word for word in words if "-hook=for deb" in word]
    record = hooks[0].rpartition(">> ")[2]
    assert Path(record).parent.name.startswith("bench-base-") and not Path(record).parent.exists()
    each = (
        'for deb in "$1"/var/cache/apt/archives/*.deb; do '
        'echo "$(dpkg-deb -W --showformat=\'${Package} ${Version}\' "$deb") '
        f'$(sha256sum "$deb" | cut -d\' \' -f1)"; done >> {record}'
    )
    clean = (
        'find "$1" -xdev -perm /6000 -type f -exec chmod a-s {} +',
        'rm -rf "$1"/var/log/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/etc/machine-id',
    )
    assert words == [
        "--quiet",
        "--variant=essential",
        "--architectures=amd64",
        "--format=tar",
        "--include=tool=2:1.0-1 lib=3",
        f"--extract-hook={each}",
        f"--customize-hook={each}",
        *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED),
        f"--dpkgopt=path-include={LICENCES}",
        *(f"--customize-hook={hook}" for hook in clean),
        "bookworm",
        str(out),
        "http://a",
        "http://b",
    ]
    assert variables == {
        "SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C.UTF-8", "TZ": "UTC", "KEPT": "yes"
    }  # fmt: skip


def test_nothing_of_mmdebstrap_reaches_the_terminal(
    asked: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bootstrap([], "bookworm", tmp_path / "base.tar", [], 0)
    assert capfd.readouterr() == ("", "")


def test_the_last_four_lines_tell_why_mmdebstrap_failed(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYS", "one\ntwo\nthree\nfour\nfive")
    with pytest.raises(EnvironmentCannot) as caught:
        bootstrap([], "bookworm", asked.parent / "base.tar", [], 0)
    assert caught.value.message == "mmdebstrap failed to build the base:\n  two\n  three\n  four\n  five"
    assert caught.value.advice and "make lock" in caught.value.advice


def test_without_mmdebstrap_there_is_no_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match=r"^mmdebstrap is not installed"):
        bootstrap([], "bookworm", tmp_path / "base.tar", [], 0)


# --- the packages that the mirror had ----------------------------------------------------------------------


def test_a_base_of_the_locked_packages_is_kept(asked: Path, tmp_path: Path) -> None:
    out = tmp_path / "base.tar"
    build_base([Deb("tool", "2:1.0-1", A), Deb("lib", "3", B)], "bookworm", out, [], 0)
    assert out.read_text() == "the base"
    words, _ = json.loads(asked.read_text())
    assert "--include=tool=2:1.0-1 lib=3" in words


@pytest.mark.parametrize(
    "debs",
    [
        [Deb("tool", "2:1.0-1", B), Deb("lib", "3", B)],
        [Deb("tool", "2:1.0-1", A)],
        [Deb("tool", "2:1.0-1", A), Deb("lib", "3", B), Deb("more", "1", A)],
    ],
    ids=["another digest", "one too many", "one is missing"],
)
def test_a_base_of_other_packages_is_removed(asked: Path, tmp_path: Path, debs: list[Deb]) -> None:
    out = tmp_path / "base.tar"
    with pytest.raises(EnvironmentCannot, match="the mirror's packages are not those of the lock"):
        build_base(debs, "bookworm", out, [], 0)
    assert not out.exists()


def test_the_first_difference_is_named_and_the_others_counted(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "elsewhere"))  # mmdebstrap wrote no base: none is removed
    with pytest.raises(EnvironmentCannot) as caught:
        build_base([Deb("tool", "9", A), Deb("lib", "3", B)], "bookworm", tmp_path / "base.tar", [], 0)
    message = f"the mirror's packages are not those of the lock: tool 2:1.0-1 {A} and 1 more"
    assert caught.value.message == message
