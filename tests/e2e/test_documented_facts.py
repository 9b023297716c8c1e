"""The line that records facts of package indexes is typed where the index has stand-ins of known facts."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bench.packages.package_index import normal
from tests.documented_commands import printed
from tests.e2e.reader import BIN
from tests.e2e.services import SYSTEM
from tests.pip_lines.machine import put_pythons
from tests.pip_lines.package_facts import FILE, PackageFacts, Packages, read_facts
from tests.pip_lines.printed_lines import HERE, PROJECT
from tests.pip_lines.stand_in_index import EXTRA, StandInIndex, serving
from tests.warm import ROOT

pytestmark = pytest.mark.e2e

PIP = "pip-26.3-py3-none-any.whl"  # newer than the one that `python -m venv` brings
LINE = printed("python -m tests.pip_lines.record python3.11 python3.12 python3.13")
BUNDLE = "results/settings-h200/vit-l-1gpu-naive-128.tar"  # of a node with kernels that pip builds
KEPT = PackageFacts(">=2", ("what-nobody-has",))  # facts of a version that the index does not have


def test_facts_are_recorded_as_the_index_has_them(tmp_path: Path) -> None:
    checkout, home = tmp_path / "bench", tmp_path / "home"
    offered = with_all_of_this_project(read_facts())
    file = put_checkout(checkout)
    file.write_text(json.dumps({"certifi": {"1.0": asdict(KEPT)}}))
    with serving(offered, tmp_path) as index:
        put_machine(home, index)
        typed(LINE, checkout, home)
    recorded = {
        (name, version): facts
        for name, versions in read_facts(file).items()
        for version, facts in versions.items()
    }
    assert recorded.pop(("certifi", "1.0")) == KEPT
    assert {name for name, _ in recorded} >= {"torch", "mamba-ssm", "mkdocs-material", "bcrypt", "certifi"}
    for (name, version), facts in recorded.items():
        known = offered[name][version]
        assert facts.build == known.build
        assert facts.python == (known.python if known.admits(HERE) else "")  # see StandInIndex
        assert without_extras(facts) == without_extras(known)
        assert {*facts.requires} <= {*known.requires}  # extras that nothing asks for are left out


def without_extras(facts: PackageFacts) -> list[str]:
    return [each for each in facts.requires if not EXTRA.search(each)]


def with_all_of_this_project(packages: Packages) -> Packages:
    """Add the requirements of this project that no printed line installs, in the first version that fits."""
    found = {name: dict(versions) for name, versions in packages.items()}
    for text in [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]:
        wanted = Requirement(text)
        versions = found.setdefault(normal(wanted.name), {})
        if not any(map(wanted.specifier.contains, versions)):
            first = next(each.version for each in wanted.specifier if each.operator == ">=")
            versions[first] = PackageFacts("", ())
    return found


def put_checkout(folder: Path) -> Path:
    """Link this checkout's files, but one bundle for all; return the path of its facts, which are missing."""
    (folder / "tests/pip_lines").mkdir(parents=True)
    (folder / BUNDLE).parent.mkdir(parents=True)
    (folder / BUNDLE).symlink_to(ROOT / BUNDLE)
    facts = folder / FILE.relative_to(ROOT)
    for inside in (Path(), Path("tests"), Path("tests/pip_lines")):
        for path in (ROOT / inside).iterdir():
            link = folder / inside / path.name
            if path.name[0] not in "._" and link != facts and not link.exists():
                link.symlink_to(path)
    return facts


def put_machine(home: Path, index: StandInIndex) -> None:
    """Make the reader's home, with Pythons that stand for others, a new pip, and its configuration."""
    index.add_downloaded(PIP.replace("-", "==", 1).partition("-py3")[0])
    wheel = index.file(f"/files/{PIP}")
    assert wheel is not None
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        archive.extractall(home / "pip")
    (home / "programs").mkdir()
    put_pythons(home / "programs", index.url, home / "pip")
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = {index.url}/3.12/simple\n")


def typed(line: str, folder: Path, home: Path) -> None:
    path = f"{home}/programs:{BIN}:{SYSTEM}"
    environment = {"HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8", "PIP_NO_COMPILE": "1"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
