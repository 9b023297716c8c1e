"""Get the files that a lock names by digest, from the cache or from the package index.

Pip downloads wheels, with the index, proxy and certificates of the user's configuration. Source archives are
downloaded without pip, which would run their setup, for which many packages would have to be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.stamps import file_sha256
from bench.images.locks import Pin, write_pins
from bench.packages.download import WantedFile, fetch_all
from bench.packages.errors import CannotDownload
from bench.packages.package_index import OfferedFile, PackageIndex, normal
from bench.packages.pip_settings import read_settings

_NEWEST_GLIBC = 36  # minor version of Debian 12's glibc; pip matches platform names exactly
_OLD_PLATFORMS = ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
_SOURCE_SUFFIX = ".tar.gz"


def wheels(
    pins: Iterable[Pin],
    cache: Path,
    python: str,
    *,
    newest_glibc: int = _NEWEST_GLIBC,
    fits: Callable[[str], bool] = lambda _: True,
) -> Mapping[str, Path]:
    """Return a wheel with an accepted digest for each pin; download the wheels that the cache lacks.

    `newest_glibc` is the minor version of glibc on the machine that the wheels are for. Of the files in the
    cache, only those are returned whose name `fits`.
    """
    cache.mkdir(parents=True, exist_ok=True)
    by_name = {pin.name: pin for pin in pins}
    cached = accepted_files(cache, by_name, fits)
    if missing := [pin for name, pin in by_name.items() if name not in cached]:
        _download(missing, cache, python, newest_glibc)
        cached = accepted_files(cache, by_name, fits)
    if lacking := sorted(by_name.keys() - cached.keys()):
        message = f"no wheel of {lacking[0]} {by_name[lacking[0]].version} has a digest of the lock"
        advice = f"put it into {cache}, or add an index or folder that has it to pip's configuration"
        raise EnvironmentCannot(message, advice=advice)
    return cached


def accepted_files(
    folder: Path,
    pins: Mapping[str, Pin],
    fits: Callable[[str], bool] = lambda _: True,
    suffix: str = ".whl",
) -> dict[str, Path]:
    """Return the files below a folder, by package, that fit and that a pin accepts by digest.

    Their names do not decide: wheels of two variants may have the same name.
    """
    paths = {}
    for path in sorted(folder.rglob(f"*{suffix}")):
        pin = pins.get(normal(path.name.removesuffix(_SOURCE_SUFFIX).split("-")[0]))
        if pin is not None and fits(path.name) and file_sha256(path) in pin.sha256:
            paths[pin.name] = path
    return paths


def _download(pins: Iterable[Pin], cache: Path, python: str, newest_glibc: int) -> None:
    options = "--quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all:"
    command = [sys.executable, "-m", "pip", "download", *options.split()]
    command += ["--implementation=cp", f"--python-version={python}"]
    command += [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(newest_glibc, 4, -1)]
    command += [f"--platform={name}" for name in _OLD_PLATFORMS]
    with tempfile.NamedTemporaryFile(suffix=".txt") as requirements:
        write_pins(Path(requirements.name), pins)
        command += ["--dest", str(cache), "-r", requirements.name]
        done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else done.stderr[-500:]
        raise EnvironmentCannot(f"pip could not fetch the locked wheels: {reason}")


def source(pin: Pin, cache: Path) -> Path:
    """Return the source archive of a pin, after downloading it if the cache lacks it."""
    cache.mkdir(parents=True, exist_ok=True)
    cached = accepted_files(cache, {pin.name: pin}, suffix=_SOURCE_SUFFIX)
    if cached:
        return cached[pin.name]
    try:
        index = PackageIndex(read_settings(os.environ, Path.home()))
        files = [file for file in index.files(pin.name) if file.name.endswith(_SOURCE_SUFFIX)]
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            for file in (file for file in files if _may_be(file, pin)):
                wanted = WantedFile(pin.name, pin.sha256, (file,))
                for path in fetch_all([wanted], index, Path(folder))[0].values():
                    # Not the index's name, which may have a backslash, a NUL or a thousand letters.
                    name = f"{pin.name.replace('-', '_')}-{pin.version}{_SOURCE_SUFFIX}"
                    return path.replace(cache / name)
    except CannotDownload as error:
        raise EnvironmentCannot(error.message, where=error.where, advice=error.advice) from None
    if not files and index.troubles:
        raise EnvironmentCannot(f"the package index did not answer: {index.troubles[0]}")
    raise EnvironmentCannot(
        f"the package index has no source of {pin.name} {pin.version} with the lock's digest"
    )


def _may_be(file: OfferedFile, pin: Pin) -> bool:
    """Whether an index or a folder offers a file as the source of a pin; a folder states no digests."""
    if file.sha256 is not None:
        return file.sha256 in pin.sha256
    return normal(file.name.removesuffix(_SOURCE_SUFFIX)) == normal(f"{pin.name}-{pin.version}")
