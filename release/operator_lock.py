"""The lock of the operator's side: what pip installs, by hash, for the commands that do not measure.

It has a line for each Python and system that bench's operator may have; markers choose among them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

from bench.base.distribution import DISTRIBUTION
from bench.base.errors import BadInput
from bench.images.sbom import cyclonedx
from bench.packages.package_index import normal

LOCK = "release/operator.lock"
EXTRAS = ("push", "engines")
_LINE = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>[\w.+!]+)(?: ; (?P<marker>[^\\]+?))?"
    r"(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


@dataclass(frozen=True, slots=True)
class MarkedPin:
    """A package of the lock, and the Pythons and systems that it is for."""

    name: str
    version: str
    marker: str  # "": for all
    sha256: tuple[str, ...]


def read_lock(text: str) -> tuple[MarkedPin, ...]:
    """Parse the lock; BadInput unless every line has a version and hashes."""
    pins = []
    for line in filter(str.strip, text.replace("\\\n", " ").splitlines()):
        match = _LINE.fullmatch(re.sub(" +", " ", line.strip()))
        if match is None:
            raise BadInput(f"is not pinned with its hashes: {line.strip()[:80]}", where=LOCK)
        hashes = tuple(re.findall(r"sha256:([0-9a-f]{64})", match["hashes"]))
        pins.append(MarkedPin(normal(match["name"]), match["version"], match["marker"] or "", hashes))
    return tuple(pins)


def unmet(root: Path) -> Iterator[str]:
    """Yield a sentence for each requirement of pyproject.toml that the lock does not satisfy."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    pins = read_lock((root / LOCK).read_text(encoding="utf-8"))
    for text in (*project["dependencies"], *extras):
        requirement = Requirement(text)
        versions = [pin.version for pin in pins if pin.name == normal(requirement.name)]
        if not versions:
            yield f"{LOCK} lacks {requirement.name}, required as {text}"
        for version in versions:
            if not requirement.specifier.contains(version, prereleases=True):
                yield f"{LOCK} has {requirement.name} {version}, required is {text}"


def with_own_wheel(lock: str, version: str, sha256: str) -> str:
    """Return the lock with a line for the release's wheel, so that pip accepts exactly this one."""
    return f"{lock.rstrip()}\n{DISTRIBUTION}=={version} \\\n    --hash=sha256:{sha256}\n"


def sbom(pins: Sequence[MarkedPin], version: str, wheel: tuple[str, str]) -> bytes:
    """Return the CycloneDX list of a wheel and of its requirements; `wheel` is its file name and sha256."""
    components = [_component(pin) for pin in pins]
    own = MarkedPin(DISTRIBUTION, version, "", (wheel[1],))
    subject = _component(own) | {"type": "application"}
    return cyclonedx(subject, components, [*components, wheel])


def _component(pin: MarkedPin) -> dict[str, Any]:
    """Return a package's component; each file of it that may be installed is named by its digest."""
    purl = f"pkg:pypi/{quote(pin.name)}@{quote(pin.version, safe='')}"
    hashes = [{"alg": "SHA-256", "content": value} for value in pin.sha256]
    distributions = [{"type": "distribution", "url": purl, "hashes": [one]} for one in hashes]
    found = {"type": "library", "name": pin.name, "version": pin.version, "purl": purl, "bom-ref": purl}
    return found | ({"hashes": hashes} if len(hashes) == 1 else {"externalReferences": distributions})
