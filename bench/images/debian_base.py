"""Build the base layer of every image: a Debian made of exactly the packages in docker/debian.lock.

In:  the lock and a mirror. Out: a tar. Runs mmdebstrap, which requests every package by its version; apt
checks Debian's signatures, and the sha256 of each package used is compared with the lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot

# Files left out of the base: documents, translations, and what compiling Python extensions never needs.
EXCLUDED = [
    *(f"/usr/share/{name}/*" for name in ("doc", "man", "info", "locale", "lintian")),
    "/usr/bin/*lto-dump*",  # prints the objects of link-time optimisation
    "/usr/lib/*/libpython3*.a",  # for programs that contain a static Python
    *(f"/usr/lib/*/lib{name}san*" for name in ("a", "hwa", "l", "t", "ub")),  # sanitizers
]
LICENCES = "/usr/share/doc/*/copyright"
# Removed at the end: set-id bits, useless in a container with no-new-privileges, and traces of the build.
_CLEAN = (
    'find "$1" -xdev -perm /6000 -type f -exec chmod a-s {} +',
    'rm -rf "$1"/var/log/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/etc/machine-id',
)
_HOOKS = ("extract", "customize")  # when package files are recorded; see _record
_LINE = re.compile(r"(?P<name>[a-z0-9][a-z0-9+.-]+) (?P<version>[A-Za-z0-9.+:~-]+) (?P<sha256>[0-9a-f]{64})")


def deb_name(package: str, version: str, architecture: str) -> str:
    """Return the name of a package's file on Debian's mirrors, which leaves out the version's epoch."""
    return f"{package}_{version.rpartition(':')[2]}_{architecture}.deb"


def pool_path(source: str, file_name: str) -> str:
    """Return the path of a package's file below a mirror's pool/main, by the name of its source package."""
    folder = source[:4] if source.startswith("lib") else source[0]
    return f"{folder}/{source}/{file_name}"


@dataclass(frozen=True, slots=True, order=True)
class Deb:
    """A Debian package of the lock."""

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        """Return the package's line in the lock of Debian packages."""
        return f"{self.name} {self.version} {self.sha256}"


def read_debs(path: Path) -> tuple[Deb, ...]:
    """Read a lock of Debian packages; BadInput names the first malformed line."""
    debs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise BadInput("is not of the form NAME VERSION SHA256", where=f"{path}: line {number}")
        debs.append(Deb(**match.groupdict()))
    return tuple(debs)


def build_base(debs: Sequence[Deb], suite: str, out: Path, mirror: Sequence[str], epoch: int) -> None:
    """Write the tar of a Debian with these packages; EnvironmentCannot if the mirror's packages differ."""
    used = bootstrap([f"{deb.name}={deb.version}" for deb in debs], suite, out, mirror, epoch)
    if missing := sorted({deb.line for deb in debs} ^ {deb.line for deb in used}):
        out.unlink(missing_ok=True)
        message = f"the mirror's packages are not those of the lock: {missing[0]} and {len(missing) - 1} more"
        advice = "--mirror with a snapshot of the lock's date, or `make lock`"
        raise EnvironmentCannot(message, advice=advice)


def bootstrap(
    include: Iterable[str], suite: str, out: Path, mirror: Sequence[str], epoch: int
) -> tuple[Deb, ...]:
    """Run mmdebstrap; return the packages that it installed, with the digest of each package file."""
    if shutil.which("mmdebstrap") is None:
        raise EnvironmentCannot("mmdebstrap is not installed", advice="apt-get install mmdebstrap")
    with tempfile.TemporaryDirectory(prefix="bench-base-") as work:
        record = Path(work) / "debs"
        command = ["mmdebstrap", "--quiet", "--variant=essential", "--architectures=amd64", "--format=tar"]
        # Packages are recorded twice: apt's folder first holds the essential ones, later all others.
        command += [
            f"--include={' '.join(include)}",
            *(f"--{when}-hook={_record(record)}" for when in _HOOKS),
        ]
        command += [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED]
        command += [f"--dpkgopt=path-include={LICENCES}", *(f"--customize-hook={hook}" for hook in _CLEAN)]
        command += [suite, str(out), *mirror]
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        done = subprocess.run(command, check=False, capture_output=True, env=environment, encoding="utf-8")
        if done.returncode:
            tail = "\n  ".join(done.stderr.strip().splitlines()[-4:])
            advice = "if the mirror no longer has a version: --mirror with a snapshot, or `make lock`"
            raise EnvironmentCannot(f"mmdebstrap failed to build the base:\n  {tail}", advice=advice)
        return tuple(sorted({Deb(*line.split()) for line in record.read_text(encoding="utf-8").splitlines()}))


def _record(record: Path) -> str:
    """Return a shell hook that appends name, version and digest of each fetched package file to `record`."""
    return (
        'for deb in "$1"/var/cache/apt/archives/*.deb; do '
        'echo "$(dpkg-deb -W --showformat=\'${Package} ${Version}\' "$deb") '
        f'$(sha256sum "$deb" | cut -d\' \' -f1)"; done >> {record}'
    )
