"""The files that a lock names, by their digest: from a folder of earlier ones, else from the package index.

Wheels come through pip, with the index, proxy and certificates that the user's pip has. pip runs the setup of
a source archive to download it, which needs half the stack; so those we take from the same index ourselves.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.files import write_whole
from bench.images.locks import Pin, normal

# The glibc of Debian 12; pip matches these names exactly.
_NEWEST_GLIBC = 36
_PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in range(_NEWEST_GLIBC, 4, -1)]
_PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
_LINK = re.compile(r'<a[^>]+href="([^"]+)"')
_SOURCE = ".tar.gz"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wheels(pins: Iterable[Pin], cache: Path, python: str) -> Mapping[str, Path]:
    """A wheel for each pin, whose sha256 is one of the pin's; fetched where the cache has none."""
    cache.mkdir(parents=True, exist_ok=True)
    wanted = {pin.name: pin for pin in pins}
    found = _cached(wanted, cache, ".whl")
    if missing := [pin for name, pin in wanted.items() if name not in found]:
        _download(missing, cache, python)
        found = _cached(wanted, cache, ".whl")
    if lacking := sorted(wanted.keys() - found.keys()):
        raise EnvironmentCannot(
            f"no wheel of {lacking[0]} {wanted[lacking[0]].version} has a digest of the lock",
            advice=f"put it into {cache}, or let pip's configuration say where it is",
        )
    return found


def _cached(wanted: Mapping[str, Pin], cache: Path, ending: str) -> dict[str, Path]:
    """By digest, and the digest is taken of the bytes: two variants' wheels may share a name."""
    found = {}
    for path in sorted(cache.rglob(f"*{ending}")):
        pin = wanted.get(normal(path.name.removesuffix(_SOURCE).split("-")[0]))
        if pin is not None and digest(path) in pin.sha256:
            found[pin.name] = path
    return found


def _download(pins: Iterable[Pin], cache: Path, python: str) -> None:
    tags = [f"--platform={name}" for name in _PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += [
        "--require-hashes",
        "--only-binary=:all:",
        f"--python-version={python}",
        "--implementation=cp",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("".join(f"{pin.line}\n" for pin in pins))
        requirements.flush()
        done = subprocess.run(
            [*command, *tags, "--dest", str(cache), "-r", requirements.name],
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr[-500:]
        ]
        raise EnvironmentCannot(f"pip could not fetch the locked wheels:\n  {errors[-1]}")


def source(pin: Pin, cache: Path) -> Path:
    """The source archive of a pin."""
    cache.mkdir(parents=True, exist_ok=True)
    if found := _cached({pin.name: pin}, cache, _SOURCE):
        return found[pin.name]
    for url, sha256 in _links(pin.name):
        if sha256 in pin.sha256 and (name := urllib.parse.urlparse(url).path.rpartition("/")[2]).endswith(
            _SOURCE
        ):
            data = _get(url)
            if hashlib.sha256(data).hexdigest() == sha256:
                write_whole(cache / name, data)
                return cache / name
    raise EnvironmentCannot(
        f"the package index has no source of {pin.name} {pin.version} with the lock's digest"
    )


def _links(name: str) -> Iterator[tuple[str, str]]:
    """Address and sha256 of every file that the index lists for a project."""
    page = f"{_index().rstrip('/')}/{name}/"
    for link in _LINK.findall(_get(page).decode("utf-8", "replace")):
        url, _, fragment = urllib.parse.urljoin(page, html.unescape(link)).partition("#")
        if fragment.startswith("sha256="):
            yield url, fragment.removeprefix("sha256=")


def _index() -> str:
    """The index that pip would ask."""
    ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        check=False,
        capture_output=True,
        text=True,
    )
    if url := os.environ.get("PIP_INDEX_URL") or configured.stdout.strip():
        return url
    return subprocess.run(
        [sys.executable, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
            return data
    except (urllib.error.URLError, TimeoutError) as error:
        raise EnvironmentCannot(f"the package index did not answer: {error}", where=url) from None
