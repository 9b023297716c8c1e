"""Printed pip lines, run as they stand: for all stacks of bundles, by uv, and with real packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cli.rent import requirements
from bench.push.rent.rental import script
from tests.pip_lines.bundles import all_reproduced, exported
from tests.pip_lines.machine import Machine, fault, installed
from tests.pip_lines.package_facts import read_facts
from tests.pip_lines.printed_lines import ROOT, PrintedLines, found
from tests.pip_lines.stand_in_index import StandInIndex, serving
from tests.push.test_rent import rental

pytestmark = pytest.mark.e2e
OF_A_REPOSITORY = ("bench", "ansible", "pyproject.toml", "README.md", "LICENSE")
# The largest line without torch, and a message. `make` itself installs all that measures, with real packages.
WITH_REAL_PACKAGES = ("ansible/requirements.txt", "bench/signing/key_file.py")
REAL = [lines for lines in found() if lines.where in WITH_REAL_PACKAGES]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInIndex]:
    with serving(read_facts(), tmp_path_factory.mktemp("index")) as one:
        yield one


@pytest.mark.sweep
@pytest.mark.parametrize("lines", list(all_reproduced()), ids=lambda lines: f"{len(lines.after)} packages")
def test_lines_of_reproduce_make_the_packages_equal(
    lines: PrintedLines, index: StandInIndex, tmp_path: Path
) -> None:
    assert fault(lines, index, tmp_path / "machine") is None


@pytest.mark.sweep
def test_lines_of_exported_scripts_install(index: StandInIndex, tmp_path: Path) -> None:
    """Scripts that need only a part of what another one needs, by the same commands, add nothing."""
    every = list(exported(tmp_path / "scripts"))
    needed = {str(lines): frozenset(lines.files["requirements.txt"].splitlines()) for lines in every}
    largest = [
        lines
        for lines in every
        if not any(
            lines.commands == other.commands and needed[str(lines)] < needed[str(other)] for other in every
        )
    ]
    assert any("mamba-ssm" in lines.files["requirements.txt"] for lines in largest)
    for number, lines in enumerate(largest):
        assert fault(lines, index, tmp_path / f"{number}") is None


def test_a_rented_machine_installs_what_measures(index: StandInIndex, tmp_path: Path) -> None:
    """uv is the real one, of the version that the script asks for."""
    wanted = script(rental(requirements=requirements()))
    (version,) = {word for word in wanted.split() if word.startswith("uv==")}
    index.add_downloaded(version)
    lines, _, rest = wanted.partition("mkdir")
    assert "pip" not in rest
    machine = Machine(tmp_path / "machine", index, "3.11")
    done = machine.run(PrintedLines("bench rent", (lines, 'VIRTUAL_ENV="$HOME/bench-env"')))
    assert done.returncode == 0, done.stderr
    there = installed(done.stdout)
    assert there["torch"].version.endswith("+cpu")  # as --torch-backend=auto chooses without a GPU
    assert {"transformers", "numpy", "rich", "cryptography"} <= there.keys()


@pytest.mark.parametrize("lines", REAL, ids=lambda lines: lines.where)
def test_lines_install_real_packages(lines: PrintedLines, tmp_path: Path) -> None:
    """Packages come from the index of pip's configuration; bench is built by its own build."""
    repository = tmp_path / "bench"
    repository.mkdir()
    for name in OF_A_REPOSITORY:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, repository / name)
    commands = ("pip install .", *lines.commands) if lines.installed else lines.commands
    venv.create(tmp_path / "environment", with_pip=True)
    path = f"{tmp_path}/environment/bin:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *commands, "bench --version"])],
        cwd=repository, env={**environment, "PATH": path, "PIP_NO_COMPILE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr
