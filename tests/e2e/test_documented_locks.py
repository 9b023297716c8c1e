"""`make lock` is typed in a checkout whose package index and Debian offer stand-ins, two of them newer.

The index has what the locks name already. Real are make, pip, uv, setuptools, and all of bench. mmdebstrap is
a stand-in too: what the real one does with a lock is a matter of the tests that build images.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.images.debian_packages import read_debs
from bench.images.locks import BUILDER, DEBIAN, read_pins
from tests.documented_commands import printed
from tests.e2e.reader import Reader
from tests.patience import PATIENCE_SECONDS
from tests.pip_lines.locked_stand_ins import locked_packages, versions_of_locks
from tests.pip_lines.machine import make_environment
from tests.pip_lines.package_facts import PackageFacts
from tests.pip_lines.stand_in_backend import write_wheel
from tests.pip_lines.stand_in_index import StandInIndex, for_label, metadata_lines, serving
from tests.release.checkouts import copy_of_source
from tests.warm import ROOT

pytestmark = pytest.mark.e2e

LOCKED = versions_of_locks(ROOT)
REAL = ["uv==0.13.8", f"pip=={LOCKED[BUILDER]['pip']}"]
SETUPTOOLS = {versions["setuptools"] for versions in LOCKED.values() if "setuptools" in versions}
NEWER = ("certifi", "2099.1.1")  # that the index has beside what is locked
DEBS_VERSION = "99.1-1"  # of every package of Debian's stand-in
TORCH = LOCKED["docker/cpu.lock"]["torch"]  # where UV_FIND_LINKS says, and on no index
IMAGES = "bench/data/images.json"
PYTHON = "3.11"  # of the images
# Debian's stand-in makes the packages that it is asked for, and calls the hooks as mmdebstrap does.
MMDEBSTRAP = f"""#!{sys.executable}
import pathlib, subprocess, sys, tempfile
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
hooks = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--extract-hook=")]
with tempfile.TemporaryDirectory() as root:
    archives = pathlib.Path(root, "var/cache/apt/archives")
    archives.mkdir(parents=True)
    for name in given["include"].split():
        control = pathlib.Path(root, name, "DEBIAN/control")
        control.parent.mkdir(parents=True)
        fields = dict(Package=name, Version="{DEBS_VERSION}", Architecture="amd64", Maintainer="a", Description="b")
        control.write_text("".join(f"{{key}}: {{value}}\\n" for key, value in fields.items()))
        command = ["dpkg-deb", "--build", "-Znone", f"{{root}}/{{name}}", f"{{archives}}/{{name}}.deb"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for hook in hooks:
        subprocess.run(["sh", "-c", hook, "sh", root], check=True)
"""  # noqa: E501


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInIndex]:
    packages = {name: dict(versions) for name, versions in locked_packages(ROOT).items()}
    packages[NEWER[0]][NEWER[1]] = PackageFacts("", ())
    with serving(packages, tmp_path_factory.mktemp("index")) as one:
        one.add_downloaded(*REAL)
        for version in SETUPTOOLS:
            one.add_downloaded(f"setuptools=={version}")
        yield one


@pytest.fixture
def reader(index: StandInIndex, tmp_path: Path) -> Reader:
    """A reader in a checkout that has an environment of its own."""
    checkout, torch, simple = tmp_path / "checkout", tmp_path / "torch", f"{index.url}/{PYTHON}/simple"
    copy_of_source(checkout)
    shutil.copy(ROOT / "Makefile", checkout)
    make_environment(checkout / ".venv", PYTHON, index.url)
    (packages,) = (checkout / ".venv").glob("lib/python*/site-packages")
    (packages / "of_these_tests.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    (checkout / ".venv/.installed").touch()
    (checkout / "programs").mkdir()
    program = checkout / "programs/mmdebstrap"
    program.write_text(MMDEBSTRAP)
    program.chmod(0o755)
    torch.mkdir()
    version, label = TORCH.split("+")
    write_wheel(
        torch, "torch", TORCH, metadata_lines(for_label(index.packages["torch"][version], label).requires)
    )
    own = {
        "PYTHONPATH": "", "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": simple,
        "PIP_FIND_LINKS": str(torch), "PIP_DEFAULT_TIMEOUT": f"{PATIENCE_SECONDS:.0f}", "PIP_NO_COMPILE": "1",
        "UV_DEFAULT_INDEX": simple, "UV_FIND_LINKS": str(torch), "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_HTTP_TIMEOUT": f"{PATIENCE_SECONDS:.0f}",
    }  # fmt: skip
    return Reader(checkout, own)


def test_make_lock_takes_what_is_newer_and_keeps_all_else(reader: Reader, index: StandInIndex) -> None:
    checkout, began = reader.folder, int(time.time())
    said = reader.type(printed("make lock"))
    assert said.endswith("locks, pyproject.toml and images agree\n"), said

    name, version = NEWER
    locked = versions_of_locks(checkout)
    several = {each for each in index.packages if len(index.packages[each]) > 1} - {name, "torch"}
    for lock, before in LOCKED.items():
        expected = before | ({name: version} if name in before else {})
        assert locked[lock].keys() == expected.keys()
        changed = {each for each, of_it in expected.items() if locked[lock][each] != of_it}
        assert changed <= several  # locks that were made on different days differ
    assert sum(name in before for before in LOCKED.values()) > 3
    wheel = index.file(f"/files/{name}-{version}-py3-none-any.whl")
    assert wheel is not None
    sha256 = hashlib.sha256(wheel).hexdigest()
    assert read_pins(checkout / "requirements.lock")[name].sha256 == {sha256}
    listed = json.loads((checkout / "bench/data/wheels.json").read_bytes())["wheels"][sha256]
    assert (listed["file"].split("-")[1], listed["bytes"]) == (version, len(wheel))

    asked = [line for line in (checkout / "docker/debian.in").read_text().splitlines() if line[0] != "#"]
    debs = [(deb.name, deb.version) for deb in read_debs(checkout / DEBIAN)]
    assert debs == [(each, DEBS_VERSION) for each in sorted(asked)]
    images = json.loads((checkout / IMAGES).read_bytes())
    assert images["epoch"] in {moment // 86_400 * 86_400 for moment in (began, int(time.time()))}
    assert images == json.loads((ROOT / IMAGES).read_bytes()) | {"epoch": images["epoch"]}
