"""Parse a node-check manifest: the depth, the checks to skip or require, and the owner's expectations.

In:  bytes or a path. Out: `CheckManifest`, or BadInput with every mistake at once. No torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from bench.base.errors import BadInput, Mistake, nearest
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.node_check.all_checks import known_checks
from bench.node_check.judging import DEPTHS, Depth
from bench.node_check.judging.standards import Expectations
from bench.planning.manifest import read_manifest, schema_mistakes

SCHEMA = "bench/node-check/v1"
SHIPPED = Path(str(files("bench.data") / "node-check.json"))  # manifests/node-check.json links to it


@dataclass(frozen=True, slots=True)
class DepthBudget:
    """The time that a node check of one depth may take."""

    minutes: float  # in all; checks that have not begun by then are not run
    warm_seconds: float  # before each figure
    seconds: float  # of each figure
    soak_seconds: float


DEFAULTS: Mapping[Depth, DepthBudget] = {
    "quick": DepthBudget(2, 0.7, 1.0, 15),
    "standard": DepthBudget(10, 1.5, 3.0, 180),
    "soak": DepthBudget(60, 2.0, 4.0, 3000),
}


@dataclass(frozen=True, slots=True)
class CheckManifest:
    """A valid node-check manifest and the bytes it was parsed from."""

    data: bytes
    name: str
    level: Depth = "standard"
    gpus: int | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()  # checks that must have an answer before the node passes
    expect: Expectations = field(default_factory=Expectations)
    levels: Mapping[str, DepthBudget] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    def budget(self, depth: Depth) -> DepthBudget:
        return self.levels.get(depth, DEFAULTS[depth])

    def expected(self, device: Literal["cpu", "cuda"]) -> Expectations:
        """The owner's expectations; the number of GPUs to check is also the number that must be present."""
        gpus = self.expect.gpus or (self.gpus if device == "cuda" else None)
        return replace(self.expect, gpus=gpus)


@dataclass(frozen=True, slots=True)
class _Document:
    schema: Literal["bench/node-check/v1"]
    name: str = "node-check"
    level: Depth = "standard"
    gpus: int | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    expect: Expectations = field(default_factory=Expectations)
    levels: Mapping[str, DepthBudget] = field(default_factory=dict)


def shipped() -> CheckManifest:
    return parse(SHIPPED.read_bytes(), SHIPPED.name)


def load(path: Path | None) -> CheckManifest:
    return shipped() if path is None else parse(read_manifest(path), str(path))


def parse(data: bytes, where: str) -> CheckManifest:
    """Bytes to manifest, or BadInput with every mistake at once."""
    try:
        document = strict_loads(data)
    except DecodeError as error:
        raise BadInput(str(error), where=where) from None
    if isinstance(document, dict) and document.get("schema") == "bench/manifest/v1":
        raise BadInput(
            "is a manifest of models, not of a node check", where=where, advice=f"bench run {where}"
        )
    mistakes = [*schema_mistakes(document, "node-check-v1"), *_names(document), *_contradictions(document)]
    if mistakes:
        mistakes.sort(key=lambda mistake: mistake.path)
        raise BadInput.of(mistakes, where)
    return _build(data, document)


def read(data: bytes) -> CheckManifest:
    """Parse the manifest of a finished check, which may name unknown checks; DecodeError if malformed."""
    return _build(data, strict_loads(data))


def _build(data: bytes, document: Any) -> CheckManifest:
    parsed = from_json(_Document, document)
    return CheckManifest(
        data=data,
        name=parsed.name,
        level=parsed.level,
        gpus=parsed.gpus,
        skip=parsed.skip,
        require=parsed.require,
        expect=parsed.expect,
        levels=parsed.levels,
    )


def _names(document: Any) -> list[Mistake]:
    """Mistakes in the names of checks and levels."""
    mistakes = []
    for key in ("skip", "require") if isinstance(document, dict) else ():
        entries = document.get(key)
        for i, name in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(name, str) and name not in known_checks():
                mistakes.append(
                    Mistake(f"/{key}/{i}", f'no check is named "{name}"', nearest(name, known_checks()))
                )
    levels = document.get("levels") if isinstance(document, dict) else None
    for name in levels if isinstance(levels, dict) else ():
        if name not in DEPTHS:
            mistakes.append(Mistake(f"/levels/{name}", "no such level", nearest(name, DEPTHS)))
    return mistakes


def _contradictions(document: Any) -> list[Mistake]:
    """Mistakes for checks that are both skipped and required."""
    entries = document if isinstance(document, dict) else {}
    skip, require = (
        names if isinstance(names := entries.get(key), list) else [] for key in ("skip", "require")
    )
    return [
        Mistake(
            f"/skip/{i}", f'"{name}" is required at /require/{require.index(name)}', "leave one of them out"
        )
        for i, name in enumerate(skip)
        if name in require
    ]


def is_check(data: bytes) -> bool:
    """True if the document's `schema` field names a node check."""
    try:
        document = strict_loads(data)
    except DecodeError:
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA
