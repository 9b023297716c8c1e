"""Ask the package index of pip's configuration about all packages that printed pip lines install.

    python -m tests.pip_lines.record python3.11 python3.12 ...

pip resolves the lines of every committed bundle with the Python of the bundle, and all parts of this project
with each Python that is given. It downloads no wheel, and installs nothing. Facts that are there are kept.
"""

from __future__ import annotations

import ast
import email
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from bench.base.pip_commands import BUILD_TOOLS, BUILT_WITH_TORCH
from bench.packages.package_index import PackageIndex, normal
from bench.packages.pip_settings import read_settings
from tests.pip_lines.bundles import stacks
from tests.pip_lines.package_facts import FILE, BuildFacts, PackageFacts, read_facts
from tests.pip_lines.printed_lines import PROJECT
from tests.pip_lines.stand_in_index import EXTRA

ALONE = (
    "bcrypt",
    "pillow",
    "uv==0.13.8",
    *BUILD_TOOLS,
)  # that lines name without a version, or for themselves
SETUPTOOLS_BY_DEFAULT = ("setuptools>=40.8.0",)  # of an archive that names no build system


class Resolver:
    """An environment of a Python in which nothing but pip is ever installed."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder], check=True)
        self._pip("install", "--quiet", "--upgrade", "pip>=24.1")

    def resolve(self, requirements: Iterable[str]) -> list[dict[str, Any]]:
        """Return the packages that pip would install, as its report has them."""
        report = self.folder / "report.json"
        options = ("-qq", "--dry-run", "--use-feature=fast-deps", f"--report={report}")
        self._pip("install", *options, *requirements)
        packages: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return packages

    def _pip(self, *words: str) -> None:
        subprocess.run([self.folder / "bin/python", "-m", "pip", *words], check=True)


def archive(index: PackageIndex, name: str, version: str) -> tarfile.TarFile:
    """Download a version's source archive."""
    ending = f"-{version}.tar.gz"
    offered = next(
        file
        for file in index.files(name)
        if file.name.endswith(ending) and normal(file.name[: -len(ending)]) == name
    )
    with index.open(offered.url) as answer:
        return tarfile.open(fileobj=io.BytesIO(answer.read()))


def facts_of_archive(files: tarfile.TarFile) -> PackageFacts:
    """Return an archive's own metadata, and the imports of its setup."""
    root = files.getnames()[0].split("/")[0]
    texts = {}
    for name in ("PKG-INFO", "pyproject.toml", "setup.py"):
        if f"{root}/{name}" in files.getnames():
            member = files.extractfile(f"{root}/{name}")
            assert member is not None
            texts[name] = member.read().decode()
    metadata = email.message_from_string(texts["PKG-INFO"])
    own = {Path(name).parts[1].removesuffix(".py") for name in files.getnames() if "/" in name}
    imports = set()
    for node in ast.parse(texts.get("setup.py", "")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        imports |= {name.split(".")[0] for name in names}
    system = tomllib.loads(texts.get("pyproject.toml", "")).get("build-system", {})
    return PackageFacts(
        metadata.get("Requires-Python", ""),
        tuple(metadata.get_all("Requires-Dist", [])),
        BuildFacts(
            tuple(system.get("requires", SETUPTOOLS_BY_DEFAULT)),
            tuple(sorted(imports - own - sys.stdlib_module_names)),
        ),
    )


def facts_of_report(index: PackageIndex, package: dict[str, Any]) -> PackageFacts:
    metadata = package["metadata"]
    facts = PackageFacts(metadata.get("requires_python", ""), tuple(metadata.get("requires_dist", [])))
    if package["download_info"]["url"].endswith(".whl"):
        return facts
    of_archive = facts_of_archive(archive(index, normal(metadata["name"]), metadata["version"]))
    return replace(facts, build=of_archive.build)


def without_other_extras(packages: dict[str, dict[str, PackageFacts]]) -> dict[str, dict[str, PackageFacts]]:
    """Leave out requirements of packages for extras that no requirement asks for."""
    asked = {
        extra
        for text in [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
        + [each for versions in packages.values() for facts in versions.values() for each in facts.requires]
        for extra in Requirement(text).extras
    }
    return {
        name: {
            version: replace(
                facts,
                requires=tuple(r for r in facts.requires if set(EXTRA.findall(r)) <= asked),
            )
            for version, facts in versions.items()
        }
        for name, versions in packages.items()
    }


def record(resolvers: Mapping[str, Resolver]) -> None:
    """Write the facts of all packages of the lines; `resolvers` has an environment for each version."""
    index = PackageIndex(read_settings(os.environ, Path.home()))
    packages = {name: dict(versions) for name, versions in read_facts().items()}

    def note(resolver: Resolver, requirements: list[str]) -> None:
        for package in resolver.resolve(requirements):
            name, version = normal(package["metadata"]["name"]), package["metadata"]["version"]
            if version not in packages.setdefault(name, {}):
                packages[name][version] = facts_of_report(index, package)
        kept = without_other_extras(packages)
        document = {name: {v: asdict(facts) for v, facts in kept[name].items()} for name in sorted(kept)}
        FILE.write_text(json.dumps(document, indent=1) + "\n")

    for node in stacks():
        resolver = resolvers[".".join(node.python.split(".")[:2])]
        versions = {name: version.partition("+")[0] for name, version in node.packages.items()}
        built: list[str] = []
        for name in versions.keys() & set(BUILT_WITH_TORCH):
            facts = facts_of_archive(archive(index, name, versions[name]))
            packages.setdefault(name, {})[versions[name]] = facts
            built += [each for each in facts.requires if "extra ==" not in each]
        pinned = [f"{name}=={version}" for name, version in versions.items() if name not in BUILT_WITH_TORCH]
        note(resolver, [*pinned, *BUILD_TOOLS])
        if built:
            note(resolver, [*pinned, *BUILD_TOOLS, *built])
    own = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    for resolver in resolvers.values():
        note(resolver, list(PROJECT["dependencies"]))
        note(resolver, own)
        note(resolver, [*ALONE])


def minor(python: Path) -> str:
    """Return the version of an interpreter, such as 3.12."""
    script = "import sys; print(*sys.version_info[:2], sep='.')"
    return subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        pythons = {minor(Path(name)): Path(name) for name in sys.argv[1:]}
        record({version: Resolver(python, Path(folder, version)) for version, python in pythons.items()})
