"""Build the base layer of every image: a Debian made of exactly the packages in docker/debian.lock.

In:  the lock's packages, as files. Out: a tar. Runs mmdebstrap on a repository that has these files and no
others. apt compares each file with the sha256 of the lock.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, cast

from bench.base.errors import EnvironmentCannot
from bench.base.stamps import sha256
from bench.images.debian_packages import Deb, deb_name, pool_path
from bench.packages.deb_file import package_tars

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
# Sources of apt in the base, which do not depend on the places that the packages came from.
_SOURCES = (
    "deb http://deb.debian.org/debian {suite} main",
    "deb http://deb.debian.org/debian {suite}-updates main",
    "deb http://security.debian.org/debian-security {suite}-security main",
)
_WHEN_RECORDED = ("extract", "customize")  # apt's folder first has the essential packages, later all others
_PACKAGES = "Packages"  # list of a repository


def build_base(debs: Sequence[Deb], packages: Sequence[Path], suite: str, out: Path, epoch: int) -> None:
    """Write the tar of a Debian of exactly these packages. `packages`: their files, in the same order."""
    sources = " ".join(shlex.quote(line.format(suite=suite)) for line in _SOURCES)
    hook = f"--customize-hook=printf '%s\\n' {sources} > \"$1\"/etc/apt/sources.list"
    with tempfile.TemporaryDirectory(prefix="bench-repository-") as work:
        folder = Path(work)
        folder.chmod(0o755)  # apt reads the files as a user of its own
        _write_repository(debs, packages, suite, folder)
        mirror = f"deb [trusted=yes] copy:{folder} ./"
        _mmdebstrap([deb.name for deb in debs], suite, out, epoch, options=[hook], mirrors=[mirror])


def _write_repository(debs: Sequence[Deb], packages: Sequence[Path], suite: str, folder: Path) -> None:
    """Copy packages into a folder, with the lists by which apt finds them there."""
    entries = []
    for deb, path in zip(debs, packages, strict=True):
        name = f"{deb.sha256}.deb"
        shutil.copy(path, folder / name)
        stated = f"Filename: ./{name}\nSize: {path.stat().st_size}\nSHA256: {deb.sha256}\n"
        entries.append(f"{_control(path)}\n{stated}")
    listed = "\n".join(entries).encode()
    (folder / _PACKAGES).write_bytes(listed)
    # mmdebstrap takes essential packages from repositories of its suite alone.
    release = f"Suite: {suite}\nCodename: {suite}\nSHA256:\n {sha256(listed)} {len(listed)} {_PACKAGES}\n"
    (folder / "Release").write_text(release, encoding="utf-8", newline="\n")


def _control(package: Path) -> str:
    """Return the fields of a Debian package, without a newline at the end."""
    with package.open("rb") as file:
        _, stream = next(package_tars(file))  # the control data, which Debian's format has first
        with tarfile.open(fileobj=io.BytesIO(stream.read())) as archive:
            control = cast("IO[bytes]", archive.extractfile("./control"))
            return control.read().decode().rstrip("\n")


def newest_packages(names: Iterable[str], suite: str, epoch: int) -> tuple[Deb, ...]:
    """Return the newest packages that a Debian with these packages is made of, from Debian's own mirrors.

    apt checks Debian's signatures. A lock of what is returned passes them on, as it has each file's digest.
    """
    with tempfile.TemporaryDirectory(prefix="bench-base-") as work:
        record, out = Path(work) / "debs", Path(work) / "base.tar"
        hooks = [f"--{when}-hook={_recording(record)}" for when in _WHEN_RECORDED]
        _mmdebstrap(names, suite, out, epoch, options=hooks)
        lines = set(record.read_text(encoding="utf-8").splitlines())
    return tuple(sorted(_recorded(*line.split()) for line in lines))


def _recording(record: Path) -> str:
    """Return a shell hook that appends a line to `record` for each package file that apt downloaded."""
    shown = "${Package} ${Version} ${Architecture} ${source:Package}"
    return (
        'for deb in "$1"/var/cache/apt/archives/*.deb; do '
        f'echo "$(dpkg-deb -W --showformat=\'{shown}\' "$deb") '
        f'$(sha256sum "$deb" | cut -d\' \' -f1)"; done >> {record}'
    )


def _recorded(name: str, version: str, architecture: str, source: str, sha256: str) -> Deb:
    return Deb(name, version, sha256, pool_path(source, deb_name(name, version, architecture)))


def _mmdebstrap(
    include: Iterable[str],
    suite: str,
    out: Path,
    epoch: int,
    *,
    options: Sequence[str],
    mirrors: Sequence[str] = (),
) -> None:
    """Write the tar of a Debian with these packages and those that they need, from `mirrors`."""
    if shutil.which("mmdebstrap") is None:
        raise EnvironmentCannot("mmdebstrap is not installed", advice="apt-get install mmdebstrap")
    command = ["mmdebstrap", "--quiet", "--variant=essential", "--architectures=amd64", "--format=tar"]
    command += [f"--include={' '.join(include)}", *options]
    command += [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED]
    command += [f"--dpkgopt=path-include={LICENCES}", *(f"--customize-hook={hook}" for hook in _CLEAN)]
    command += [suite, str(out), *mirrors]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    done = subprocess.run(command, check=False, capture_output=True, env=environment, encoding="utf-8")
    if done.returncode:
        tail = "\n  ".join(done.stderr.strip().splitlines()[-4:])
        raise EnvironmentCannot(f"mmdebstrap failed to build the base:\n  {tail}")
