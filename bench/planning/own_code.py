"""The code of a manifest's own modules: read from the files that it names, and kept in the manifest.

In: a manifest's bytes and its folder. Out: the bytes with the code inside, so that one file says everything
that a run does: its digest covers the code, and bundles, nodes and containers get both together. A manifest
without such modules, or with their code inside already, keeps its exact bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, Mistake, in_json, nearest
from bench.base.strict_json import DecodeError, strict_loads, tagged_infinity
from bench.training.models.own_module import CODE, MODULE, code_file, file_and_class

MAX_BYTES = 1 << 18  # of one file


def with_code(data: bytes, folder: Path, where: str) -> bytes:
    """Return a manifest with the code of its own modules; raise BadInput that names every missing file."""
    if f'"{MODULE}"'.encode() not in data:
        return data
    try:
        document = strict_loads(data, tagged_infinity)
    except DecodeError:
        return data  # the parser of manifests reports this
    mistakes: list[Mistake] = []
    changed = False
    for path, architecture in _own_modules(document):
        if CODE in architecture:
            continue
        lines = _read(architecture[MODULE], folder, path)
        if isinstance(lines, Mistake):
            mistakes.append(lines)
        else:
            architecture[CODE] = lines
            changed = True
    if mistakes:
        raise BadInput.of(mistakes, where)
    return (json.dumps(document, indent=1) + "\n").encode() if changed else data


def own_files(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of code that a manifest names, each once."""
    return tuple(dict.fromkeys(code_file(own) for _, own in _own_modules(document)))


def _own_modules(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the architecture of each model that is a module of its own."""
    models = document.get("models") if isinstance(document, dict) else None
    for i, entry in enumerate(models if isinstance(models, list) else []):
        architecture = entry.get("architecture") if isinstance(entry, dict) else None
        if isinstance(architecture, dict) and MODULE in architecture:
            yield f"/models/{i}/architecture/{MODULE}", architecture


def _read(module: Any, folder: Path, path: str) -> list[str] | Mistake:
    """Return the lines of the file that `module` names, or why there are none."""
    if not (named := file_and_class(module)):
        return Mistake(path, f"{in_json(module)} names no class", 'allowed: "FILE.py:CLASS"')
    name, _ = named
    file = folder / name
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        beside = sorted(each.name for each in folder.glob("*.py"))
        reason = error.strerror or type(error).__name__
        return Mistake(path, f"{file}: {reason}", nearest(name, beside) if beside else "allowed: a file")
    if len(data) > MAX_BYTES:
        return Mistake(path, f"{file} is larger than {MAX_BYTES:,} bytes", "allowed: one file of code")
    try:
        return data.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        return Mistake(path, f"{file} is not UTF-8 at byte {error.start}", "allowed: a file of Python code")
