"""Read the Debian mirrors that this machine's apt uses, and build the URL of a package file on a mirror."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)", re.MULTILINE)
_FIELD = re.compile(r"^URIs:((?:.*\n?)(?:[ \t].*\n?)*)", re.MULTILINE | re.IGNORECASE)


def read_mirrors(own_mirror: str = "", etc: Path = Path("/etc")) -> tuple[str, ...]:
    """Return the mirrors of this machine; if `own_mirror` is not empty, only it and its security mirror."""
    if own_mirror:
        return (own_mirror, f"{own_mirror}-security")
    return tuple(dict.fromkeys(_listed(etc / "apt")))


def source_url(source: str) -> str:
    """Return the URL of a mirror, which is given as such or as a line of apt's lists of sources."""
    line = _LINE.match(source)
    return (line[1] if line else source).rstrip("/")


def pool_url(mirror: str, path: str) -> str:
    """Return the URL of a package file, which is named by its path below pool/main."""
    return f"{mirror}/pool/{'updates/' if 'security' in mirror else ''}main/{path}"


def _listed(folder: Path) -> Iterator[str]:
    """Yield the mirrors in apt's lists of sources, in both of their formats."""
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        fields = (word for field in _FIELD.findall(text) for word in field.split())
        urls = (word.rstrip("/") for word in (*_LINE.findall(text), *fields))
        yield from (url for url in urls if url.startswith(("http://", "https://", "file:")))
