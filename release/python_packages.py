"""Build the sdist and the wheel of a commit, so that the same commit always gives the same bytes."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.paths import cache_path
from bench.images.fetch import wheels
from bench.images.locks import Pin
from bench.images.revision import CARRIED, git
from bench.images.variants import images
from release.archives import extract_all

_BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def commit_time(root: Path) -> int:
    """Return the time of the checked-out commit, which every file of the release gets."""
    return int(git(root, "show", "--no-patch", "--format=%ct", "HEAD"))


def commit_author(root: Path) -> str:
    """Return name and address of the checked-out commit's author, who maintains the Debian package."""
    return git(root, "show", "--no-patch", "--format=%an <%ae>", "HEAD").strip()


def export(root: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit, and its name, into a new folder: nothing else of the checkout is built."""
    command = ("git", "-C", str(root), "archive", "--format=tar", commit)
    done = subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        extract_all(archive, folder)
    (folder / CARRIED).write_text(f"{commit}\n", encoding="utf-8", newline="\n")


def unpacked_wheel(pin: Pin, work: Path) -> Path:
    """Return a folder with the contents of a locked wheel, downloaded unless the cache has it."""
    with_digest = wheels([pin], cache_path("images") / "wheels", images().python)[pin.name]
    folder = work / pin.name
    with zipfile.ZipFile(with_digest) as archive:
        archive.extractall(folder)
    return folder


def build(source: Path, out: Path, epoch: int, setuptools: Path) -> tuple[Path, Path]:
    """Build the sdist of an exported commit, and the wheel from that sdist; return their paths."""
    sdist = _made("build_sdist", source, out, epoch, setuptools)
    _normalise(sdist, epoch)
    unpacked = source.parent / "unpacked"
    with tarfile.open(sdist) as archive:
        extract_all(archive, unpacked)
    (folder,) = unpacked.iterdir()
    return sdist, _made("build_wheel", folder, out, epoch, setuptools)


def _made(hook: str, source: Path, out: Path, epoch: int, setuptools: Path) -> Path:
    """Call a hook of the build backend (PEP 517); return the file that it made."""
    before = set(out.iterdir())
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment |= {"PYTHONPATH": str(setuptools.resolve()), "PYTHONNOUSERSITE": "1"}
    environment |= {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    command = [sys.executable, "-c", _BUILD, hook, str(out.resolve())]
    done = subprocess.run(
        command, cwd=source, env=environment, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EnvironmentCannot(f"{hook} failed:\n{done.stderr[-2000:]}", where=str(source))
    (made,) = set(out.iterdir()) - before
    return made


def _normalise(sdist: Path, epoch: int) -> None:
    """Write an sdist again, in the order of names, without owners and times of this machine."""
    with tarfile.open(sdist) as archive:
        entries = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        contents = {member.name: (member, file.read()) for member, file in entries if file}
    with (
        sdist.open("wb") as target,
        gzip.GzipFile("", "wb", 9, target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, (member, data) in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), epoch
            entry.mode = 0o755 if member.mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))
