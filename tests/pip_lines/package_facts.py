"""Facts of package indexes about the packages that printed pip lines install, as record.py found them.

package_facts.json has name, then version. `python` is the version's Requires-Python, `requires` its
Requires-Dist, without extras that nothing here asks for. `build` is null for a wheel; for a source archive it
has the packages that its build asks for, and the modules that its setup imports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

FILE = Path(__file__).with_name("package_facts.json")


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """How a source archive is built."""

    requires: tuple[str, ...]
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """A version of a package."""

    python: str
    requires: tuple[str, ...]
    build: BuildFacts | None = None

    def admits(self, python: str) -> bool:
        """Whether the version is for this Python, such as 3.12."""
        return SpecifierSet(self.python).contains(f"{python}.5")


Packages = Mapping[str, Mapping[str, PackageFacts]]


def read_facts(file: Path = FILE) -> Packages:
    return {
        name: {version: _package(facts) for version, facts in versions.items()}
        for name, versions in json.loads(file.read_text()).items()
    }


def _package(facts: Mapping[str, object]) -> PackageFacts:
    document = json.loads(json.dumps(facts))
    build = document["build"] and BuildFacts(**{key: tuple(v) for key, v in document["build"].items()})
    return PackageFacts(document["python"], tuple(document["requires"]), build)
