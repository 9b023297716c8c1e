"""A node-check manifest: how hard to look, at what, and what the owner expects of the node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from bench.base.errors import BadInput, Mistake, nearest
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.node_check.checks import known_checks
from bench.node_check.judging import LEVELS, Level
from bench.node_check.judging.standards import Expect
from bench.planning.manifest import read_manifest, schema_mistakes

SCHEMA = "bench/node-check/v1"
SHIPPED = Path(str(files("bench.data") / "node-check.json"))  # manifests/node-check.json links to it


@dataclass(frozen=True, slots=True)
class LevelBudget:
    """What a level may take."""

    minutes: float  # in all; what has not begun by then is not run
    warm_seconds: float  # before each figure
    seconds: float  # of each figure
    soak_seconds: float


DEFAULTS: Mapping[Level, LevelBudget] = {
    "quick": LevelBudget(2, 0.7, 1.0, 15),
    "standard": LevelBudget(10, 1.5, 3.0, 180),
    "soak": LevelBudget(60, 2.0, 4.0, 3000),
}


@dataclass(frozen=True, slots=True)
class CheckManifest:
    data: bytes
    name: str
    level: Level = "standard"
    gpus: int | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()  # checks without whose answer the node does not pass
    expect: Expect = field(default_factory=Expect)
    levels: Mapping[str, LevelBudget] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    def pains(self, level: Level) -> LevelBudget:
        return self.levels.get(level, DEFAULTS[level])

    def expected(self, device: Literal["cpu", "cuda"]) -> Expect:
        """As many GPUs as are asked for must be there."""
        wanted = self.expect.gpus or (self.gpus if device == "cuda" else None)
        return replace(self.expect, gpus=wanted)


@dataclass(frozen=True, slots=True)
class _Document:
    schema: Literal["bench/node-check/v1"]
    name: str = "node-check"
    level: Level = "standard"
    gpus: int | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    expect: Expect = field(default_factory=Expect)
    levels: Mapping[str, LevelBudget] = field(default_factory=dict)


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
        raise BadInput("is no node check but a manifest of models", where=where, advice=f"bench run {where}")
    mistakes = [*schema_mistakes(document, "node-check-v1"), *_names(document), *_contradictions(document)]
    if mistakes:
        mistakes.sort(key=lambda mistake: mistake.path)
        raise BadInput.of(mistakes, where)
    return _build(data, document)


def read(data: bytes) -> CheckManifest:
    """One that was run already, maybe where other checks are known; DecodeError if it is none."""
    return _build(data, strict_loads(data))


def _build(data: bytes, document: Any) -> CheckManifest:
    found = from_json(_Document, document)
    return CheckManifest(
        data, found.name, found.level, found.gpus, found.skip, found.require, found.expect, found.levels
    )


def _names(document: Any) -> list[Mistake]:
    """Checks that there are none of."""
    found = []
    for key in ("skip", "require") if isinstance(document, dict) else ():
        entries = document.get(key)
        for i, name in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(name, str) and name not in known_checks():
                found.append(Mistake(f"/{key}/{i}", f'"{name}" is no check', nearest(name, known_checks())))
    levels = document.get("levels") if isinstance(document, dict) else None
    for name in levels if isinstance(levels, dict) else ():
        if name not in LEVELS:
            found.append(Mistake(f"/levels/{name}", "no such level", nearest(name, LEVELS)))
    return found


def _contradictions(document: Any) -> list[Mistake]:
    """Checks that are left out and without whose answer the node does not pass."""
    asked = document if isinstance(document, dict) else {}
    skip, require = (
        found if isinstance(found := asked.get(key), list) else [] for key in ("skip", "require")
    )
    return [
        Mistake(
            f"/skip/{i}", f'"{name}" is required at /require/{require.index(name)}', "leave one of them out"
        )
        for i, name in enumerate(skip)
        if name in require
    ]


def is_check(data: bytes) -> bool:
    """Whether these bytes say of themselves that they are a node check."""
    try:
        document = strict_loads(data)
    except DecodeError:
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA
