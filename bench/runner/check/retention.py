"""Delete the oldest node checks of a folder, for a node that is checked by a timer for years."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from bench.base.errors import BenchError
from bench.base.strict_json import DecodeError, strict_loads
from bench.bundle.tar_format import open_bundle
from bench.node_check import CHECK_SCHEMA

_RUN_ID = re.compile(r"[0-9a-f]{12}")  # names of the bundles and folders that `bench check` writes


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits for the node checks that a folder keeps; the newest check is kept in any case."""

    checks: float = inf
    seconds: float = inf
    size_bytes: float = inf  # of bundles and their runs' folders together


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A node check's bundle with its run's folder."""

    bundle: Path
    age_seconds: float
    size_bytes: int


def delete_older(folder: Path, retention: Retention, now: float, known: Mapping[str, bool]) -> int:
    """Delete the node checks in a folder that are not kept, each with its run's folder; return how many.

    Everything else stays: runs, bundles under other names, files that are not bundles, and the index. `now`:
    unix time. `known`: whether a bundle of this name is a check, as the index says; others are opened to find
    out.
    """
    old = too_old(list(_checks(folder, now, known)), retention)
    for bundle in old:
        shutil.rmtree(bundle.with_suffix(""), ignore_errors=True)
        bundle.unlink(missing_ok=True)
    return len(old)


def too_old(files: Iterable[KeptFile], retention: Retention) -> list[Path]:
    """Return the bundles that are not kept."""
    old, size = [], 0
    for number, file in enumerate(sorted(files, key=lambda file: file.age_seconds), 1):
        size += file.size_bytes
        over = (
            number > retention.checks or file.age_seconds > retention.seconds or size > retention.size_bytes
        )
        if over and number > 1:
            old.append(file.bundle)
    return old


def _checks(folder: Path, now: float, known: Mapping[str, bool]) -> Iterator[KeptFile]:
    for path in folder.glob("*.tar"):
        if _RUN_ID.fullmatch(path.stem) and path.is_file() and _is_check(path, known):
            stat = path.stat()
            parts = sum(file.lstat().st_size for file in path.with_suffix("").rglob("*"))
            yield KeptFile(path, now - stat.st_mtime, stat.st_size + parts)


def _is_check(path: Path, known: Mapping[str, bool]) -> bool:
    if path.name in known:
        return known[path.name]
    try:
        with open_bundle(path) as bundle:
            document = strict_loads(bundle.read("results.json"))
    except (BenchError, DecodeError):
        return False
    return isinstance(document, dict) and document.get("schema") == CHECK_SCHEMA
