"""The installed wheel has the functions' types: mypy accepts right programs and finds mistakes."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.release.checkouts import copy_of_source

USER = """
from typing import assert_type

import bench

assert_type(bench.plan("a.json"), bench.PlannedRun)
assert_type(bench.run("a.json", device="cpu", say=print), bench.MeasuredRun)
assert_type(bench.verify("a.tar"), tuple[bench.CheckedBundle, ...])
assert_type(bench.compare(["a.tar"], deadline="14d").runs.parts[0].model, str)
assert_type(bench.predict({"models": []}, gpu="h100").predicted[0].predicted.days, float)
if verdict := bench.verify("a.tar")[0].verdict:
    assert_type(verdict.fingerprint, str)
"""
MISTAKES = {
    'bench.plan("a.json", gpuu="h100")': 'Unexpected keyword argument "gpuu" for "plan"',
    'bench.compare("a.tar", rent="weekly")': 'Argument "rent" to "compare" has incompatible type',
    'bench.verify("a.tar")[0].verdict.level': "has no attribute",
    "bench.measure": 'Module has no attribute "measure"',
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel of this tree into a separate environment, without what it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_of_source(folder / "source")
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=folder / "source", check=True, capture_output=True
    )
    venv.create(folder / "venv", symlinks=True)
    (wheel,) = folder.glob("*.whl")
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder


def mypy(site: Path, program: str) -> str:
    user = site / "user.py"
    user.write_text(program, encoding="utf-8", newline="\n")
    python = site / "venv/bin/python"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(site / "cache")]
    done = subprocess.run(
        [*command, "--python-executable", str(python), str(user)],
        cwd=site, env={"PATH": "/usr/bin:/bin"}, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
def test_a_user_of_the_wheel_gets_types_and_is_told_mistakes(site: Path) -> None:
    assert mypy(site, USER).startswith("Success")
    said = mypy(site, "\n".join([USER, *MISTAKES]))
    errors = [line for line in said.splitlines() if " error: " in line]
    assert len(errors) == len(MISTAKES), said
    assert all(wrong in error for wrong, error in zip(MISTAKES.values(), errors, strict=True)), said


@pytest.mark.slow
def test_without_its_marker_the_wheel_has_no_types(site: Path) -> None:
    """The check above sees the installed wheel, and not this repository."""
    (marker,) = site.glob("venv/lib/python*/site-packages/bench/py.typed")
    marker.rename(marker.with_suffix(".gone"))
    try:
        assert "missing library stubs or py.typed marker" in mypy(site, USER)
    finally:
        marker.with_suffix(".gone").rename(marker)
