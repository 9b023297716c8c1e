"""A manifest that a caller of the library gives, as a file or as a dictionary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bench.base.errors import BadInput
from bench.base.shipped_data import manifest_path
from bench.library.given import AnyPath
from bench.planning.manifest import Manifest, load_manifest, parse_manifest
from bench.planning.own_code import with_code

GivenManifest: TypeAlias = AnyPath | Mapping[str, Any]
GIVEN = "manifest"  # the place that errors name for a manifest that was in no file


def manifest_of(given: GivenManifest) -> tuple[Manifest, str]:
    """Return a manifest, and the place that errors name: its file, or "manifest".

    A dictionary becomes JSON, whose bytes the manifest's digest is of. Files of code that it names are read
    from the working folder.
    """
    if not isinstance(given, Mapping):
        path = manifest_path(os.fspath(given))
        return load_manifest(path), str(path)
    try:
        data = f"{json.dumps(dict(given), indent=1)}\n".encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot be written as JSON: {error}", where=GIVEN) from None
    return parse_manifest(with_code(data, Path(), GIVEN), GIVEN), GIVEN
