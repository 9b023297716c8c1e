"""Read the lock files of wheels and check that they satisfy each other, pyproject.toml and docker/*.in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from bench.base.errors import BadInput
from bench.images.debian_packages import read_debs
from bench.images.variants import Variant, images
from bench.packages.package_index import normal

BUILDER = "docker/builder.lock"
DEBIAN = "docker/debian.lock"
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.+!]+)(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)"
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of a lock file: its version and the digests of files that may be installed."""

    name: str  # normalised (PEP 503)
    version: str
    sha256: frozenset[str]  # digests of the accepted files

    @property
    def line(self) -> str:
        """Return the line that pip reads from a lock: the version, and the allowed checksums."""
        return f"{self.name}=={self.version} " + " ".join(f"--hash=sha256:{h}" for h in sorted(self.sha256))


def read_pins(path: Path) -> Mapping[str, Pin]:
    """Read a lock file; BadInput unless every line has a version and hashes, and no package comes twice."""
    text = "\n".join(
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    pins = {}
    for entry in filter(str.strip, text.replace("\\\n", " ").splitlines()):
        match = _PIN.fullmatch(entry.strip())
        if not match:
            raise BadInput(f"is not pinned with its hashes: {entry.strip()[:80]}", where=str(path))
        hashes = re.findall(r"sha256:([0-9a-f]{64})", match["hashes"])
        pin = Pin(normal(match["name"]), match["version"], frozenset(hashes))
        if pin.name in pins:
            raise BadInput(f"pins {pin.name} twice", where=str(path))
        pins[pin.name] = pin
    return pins


def read_built(root: Path, variant: Variant) -> Mapping[str, Pin]:
    """Read the lock of a variant's compiled kernels; empty if none were compiled yet."""
    path = root / variant.built_lock
    return read_pins(path) if path.exists() else {}


def write_pins(path: Path, pins: Iterable[Pin]) -> None:
    """Write the lines by which pip installs these packages and no others."""
    path.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8", newline="\n")


def check_all(root: Path) -> list[str]:
    """Return one sentence for each disagreement between the locks; an empty list if they agree."""
    disagreements = [text for variant in images().variants for text in _check(root, variant)]
    if not read_debs(root / DEBIAN):
        disagreements.append(f"{DEBIAN} lists no package")
    read_pins(root / BUILDER)
    return disagreements


def _check(root: Path, variant: Variant) -> Iterator[str]:
    pins = read_pins(root / variant.lock)
    wanted = (root / f"docker/{variant.name}.in").read_text(encoding="utf-8").splitlines()
    named = (line for line in wanted if line and not line.startswith("#"))
    for requirement in (*_requirements_of_bench(root, variant), *named):
        yield from _unmet(requirement, pins, variant.lock)
    built = read_built(root, variant)
    for name in variant.kernels:
        if name not in pins:
            yield f"{variant.lock} lacks {name}, which the image compiles"
        elif name in built and built[name].version != pins[name].version:
            found = f"{PurePath(variant.built_lock).name} has {name} {built[name].version}"
            yield f"{found}, {variant.lock} has {pins[name].version}"


def _requirements_of_bench(root: Path, variant: Variant) -> Iterator[str]:
    """Yield requirements in pyproject.toml: of the package, the variant's extras and the build system."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    yield from pyproject["build-system"]["requires"]
    yield from project["dependencies"]
    for extra in variant.extras:
        yield from project["optional-dependencies"][extra]


def _unmet(text: str, pins: Mapping[str, Pin], lock: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    pin = pins.get(normal(requirement.name))
    if pin is None:
        yield f"{lock} lacks {requirement.name}, required as {text}"
    elif not requirement.specifier.contains(pin.version, prereleases=True):
        yield f"{lock} has {requirement.name} {pin.version}, required is {text}"
