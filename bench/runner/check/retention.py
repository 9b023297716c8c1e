"""Delete the oldest node checks of a folder, for a node that is checked by a timer for years."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.base.errors import BenchError
from bench.base.strict_json import DecodeError, strict_loads
from bench.bundle.tar_format import open_bundle
from bench.node_check import CHECK_SCHEMA

_RUN_ID = re.compile(r"[0-9a-f]{12}")  # names of the bundles and folders that `bench check` writes


def delete_older(folder: Path, kept: int) -> int:
    """Delete all but the `kept` newest node checks in a folder, each with its run's folder; return how many.

    Everything else stays: runs, bundles under other names, files that are no bundles.
    """
    newest_last = sorted(_checks(folder), key=lambda path: path.stat().st_mtime)
    for bundle in (old := newest_last[: max(0, len(newest_last) - kept)]):
        shutil.rmtree(bundle.with_suffix(""), ignore_errors=True)
        bundle.unlink(missing_ok=True)
    return len(old)


def _checks(folder: Path) -> Iterator[Path]:
    for path in folder.glob("*.tar"):
        if _RUN_ID.fullmatch(path.stem) and path.is_file() and _is_check(path):
            yield path


def _is_check(path: Path) -> bool:
    try:
        with open_bundle(path) as bundle:
            document = strict_loads(bundle.read("results.json"))
    except (BenchError, DecodeError):
        return False
    return isinstance(document, dict) and document.get("schema") == CHECK_SCHEMA
