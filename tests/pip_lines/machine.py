"""A machine on which printed pip lines are run as they stand: a shell, fresh environments, an index."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.utils import canonicalize_name

from bench.base.distribution import DISTRIBUTION
from bench.base.pip_commands import BUILT_WITH_TORCH
from tests.patience import PATIENCE_SECONDS
from tests.pip_lines.package_facts import BuildFacts, PackageFacts
from tests.pip_lines.printed_lines import PROJECT, ROOT, PrintedLines
from tests.pip_lines.stand_in_backend import BUILT_WITH, write_wheel
from tests.pip_lines.stand_in_index import StandInIndex, metadata_lines, source_files

# Found without importing pip: after that, setuptools and torch's compiler cannot import distutils.
OURS = Path(str(distribution("pip").locate_file("")))
PYTHONS = ("3.11", "3.12", "3.13")


def make_environment(path: Path, python: str, index_url: str, packages_with_pip: Path = OURS) -> None:
    """Make an environment as `python -m venv` does, in a moment: pip is a link to one that is there.

    Its index is that of the given Python's machines, whichever Python runs these tests.
    """
    venv.EnvBuilder(with_pip=False).create(path)
    (packages,) = path.glob("lib/python*/site-packages")
    for each in (packages_with_pip / "pip", *packages_with_pip.glob("pip-*.dist-info")):
        (packages / each.name).symlink_to(each)
    command = path / "bin/pip"
    command.write_text(
        f"#!{path}/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    with (path / "bin/activate").open("a") as activate:
        activate.write(f"\nexport PIP_INDEX_URL={index_url}/{python}/simple\n")
    # For pip without activation, and without PIP_CONFIG_FILE; nothing that /etc/pip.conf adds is asked.
    (path / "pip.conf").write_text(
        f"[global]\nindex-url = {index_url}/{python}/simple\nextra-index-url =\nfind-links =\n"
    )


def put_pythons(folder: Path, index_url: str, packages_with_pip: Path = OURS) -> None:
    """Write a program for each of PYTHONS, which makes environments and tells scripts its version."""
    for version in PYTHONS:
        program = folder / f"python{version}"
        maker = [sys.executable, "-m", "tests.pip_lines.machine", version, index_url, str(packages_with_pip)]
        told = f"import sys; sys.version_info = {tuple(map(int, version.split('.')))}; exec(sys.argv[1])"
        program.write_text(
            "#!/bin/sh\n"
            f'[ "$1 $2" = "-m venv" ] && PYTHONPATH={ROOT} exec {shlex.join(maker)} "$3"\n'
            f'[ "$1" = -c ] && exec {sys.executable} -c {shlex.quote(told)} "$2"\n'
            "exit 2\n"
        )
        program.chmod(0o755)


class Machine:
    """A home with a repository of bench, and an environment in which packages may be installed already."""

    def __init__(self, folder: Path, index: StandInIndex, python: str) -> None:
        self.folder, self.index = folder, index
        self.repository, self.programs = folder / "bench", folder / "programs"
        self.repository.mkdir(parents=True)
        self.programs.mkdir()
        put_pythons(self.programs, index.url)
        self.environment = folder / "environment"
        make_environment(self.environment, python, index.url)
        self._put_repository()

    def _put_repository(self) -> None:
        """Put bench's own files there; only the build is a stand-in's, from the same pyproject.toml."""
        for path in ROOT.iterdir():
            if path.name != "pyproject.toml" and not path.name.startswith("."):
                (self.repository / path.name).symlink_to(path)
        facts = PackageFacts("", (), BuildFacts((), ()))
        files = source_files(DISTRIBUTION, "1.0", project_metadata(), facts)
        whole = (ROOT / "pyproject.toml").read_text().partition("[project]")
        files = {**files, "pyproject.toml": files["pyproject.toml"] + "".join(whole[1:])}
        for name, text in files.items():
            (self.repository / name).write_text(text)

    def install(self, name: str, version: str, metadata: Iterable[str] = (), **built_with: str) -> None:
        """Install a package without pip."""
        wheel = self.folder / write_wheel(self.folder, name, version, metadata, built_with)
        (packages,) = self.environment.glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)

    def run(self, lines: PrintedLines) -> subprocess.CompletedProcess[str]:
        """Run the lines one after the other in one shell, in the repository, until one fails."""
        if lines.installed:
            self.install(DISTRIBUTION, "1.0", project_metadata())
        for name, version in lines.before.items():
            built_with = {"torch": lines.before["torch"]} if name in BUILT_WITH_TORCH else {}
            self.install(name, version, **built_with)
        for name, text in lines.files.items():
            (self.repository / name).write_text(text)
        script = ["set -e", f". {self.environment}/bin/activate", *lines.commands, 'echo "in $VIRTUAL_ENV"']
        environment = {
            "HOME": str(self.folder), "PATH": f"{self.programs}:/usr/bin:/bin", "LC_ALL": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_COMPILE": "1", "PIP_RETRIES": "0",
            "PIP_DEFAULT_TIMEOUT": f"{PATIENCE_SECONDS:.0f}", "UV_HTTP_TIMEOUT": f"{PATIENCE_SECONDS:.0f}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CERT": str(self.index.certificate),
            "https_proxy": self.index.url, "no_proxy": "127.0.0.1",
            "SSL_CERT_FILE": str(self.index.certificate), "UV_DEFAULT_INDEX": f"{self.index.url}/3.11/simple",
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=self.repository, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def project_metadata() -> list[str]:
    """Return the lines of metadata that pip would find in a built bench."""
    needed = list(PROJECT["dependencies"])
    for extra, requirements in PROJECT["optional-dependencies"].items():
        needed += [f'{each}; extra == "{extra}"' for each in requirements]
    return metadata_lines(needed)


def installed(shown: str) -> dict[str, importlib.metadata.Distribution]:
    """Return the packages of the environment in which a script ended."""
    environment = re.findall("^in (.+)$", shown, re.MULTILINE)[-1]
    (packages,) = Path(environment).glob("lib/python*/site-packages")
    all_of_them = importlib.metadata.distributions(path=[str(packages)])
    return {canonicalize_name(each.metadata["Name"]): each for each in all_of_them}


def torch_of_build(package: importlib.metadata.Distribution) -> str | None:
    """Return the version of torch with which a package was built; None if its build did not import torch."""
    for path in package.files or ():
        if path.name == BUILT_WITH:
            found: dict[str, str] = json.loads(Path(str(package.locate_file(path))).read_text())
            return found.get("torch")
    return None


def fault(lines: PrintedLines, index: StandInIndex, folder: Path) -> str | None:
    """Run the lines; return the fault that remains afterwards, or None."""
    done = Machine(folder, index, lines.python).run(lines)
    if done.returncode or "does not provide the extra" in done.stderr:
        return f"{lines}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    there = installed(done.stdout)
    for name, version in lines.after.items():
        if name not in there or there[name].version != version:
            return f"{lines}\nleave {name} {there[name].version if name in there else 'out'}"
    if surplus := lines.before.keys() & there.keys() - (lines.after or lines.before).keys():
        return f"{lines}\nleave {surplus}"
    for package in there.values():
        if (torch := torch_of_build(package)) and torch != there["torch"].version:
            return f"{lines}\n{package.name} was built with torch {torch}"
    return None


if __name__ == "__main__":
    make_environment(Path(sys.argv[4]).absolute(), sys.argv[1], sys.argv[2], Path(sys.argv[3]))
