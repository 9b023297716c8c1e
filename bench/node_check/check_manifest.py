"""Parse a node-check manifest: the depth, the checks to skip or require, and the owner's expectations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from bench.base.errors import BadInput, Mistake, nearest
from bench.base.form_mistakes import written_json
from bench.base.kinds_of_file import NODE_CHECK
from bench.base.shipped_data import DATA
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.node_check.all_checks import known_checks
from bench.node_check.judging import DEPTHS, Depth
from bench.node_check.judging.standards import Expectations

if TYPE_CHECKING:
    from bench.planning.manifest import Manifest

SCHEMA = "bench/node-check/v1"
SHIPPED = DATA / "node-check.json"  # manifests/node-check.json links to this file


@dataclass(frozen=True, slots=True)
class DepthBudget:
    """The time that a node check of one depth may take."""

    minutes: float  # in all; checks that have not begun by then are not run
    warm_seconds: float  # before each figure
    seconds: float  # of each figure
    soak_seconds: float


DEFAULTS: Mapping[Depth, DepthBudget] = {
    "passive": DepthBudget(1, 0.0, 0.0, 0.0),
    "prolog": DepthBudget(0.3, 0.0, 0.0, 0.0),
    "quick": DepthBudget(2, 0.7, 1.0, 15),
    "standard": DepthBudget(10, 1.5, 3.0, 180),
    "soak": DepthBudget(60, 2.0, 4.0, 3000),
    "nodes": DepthBudget(30, 0.2, 1.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class CheckManifest:
    """A valid node-check manifest and the bytes it was parsed from."""

    schema: Literal["bench/node-check/v1"]
    name: str = "node-check"
    level: Depth = "standard"
    gpus: int | None = None
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()  # checks without whose answer the node does not pass
    expect: Expectations = field(default_factory=Expectations)
    levels: Mapping[str, DepthBudget] = field(default_factory=dict)
    disks: tuple[str, ...] = ()  # folders on the file systems to measure
    data: bytes = b""  # no JSON value is of this type, so no document can set this field

    @property
    def digest(self) -> str:
        """Digest of the manifest's bytes, sha256:..., by which results name it."""
        return "sha256:" + sha256(self.data)

    def budget(self, depth: Depth) -> DepthBudget:
        """Return the times of a depth: the manifest's own, or the defaults."""
        return self.levels.get(depth, DEFAULTS[depth])

    def expected(self, device: Literal["cpu", "cuda"]) -> Expectations:
        """Return the owner's expectations; as many GPUs must be present as are to be checked."""
        gpus = self.expect.gpus or (self.gpus if device == "cuda" else None)
        return replace(self.expect, gpus=gpus)


def load(path: Path | None) -> CheckManifest:
    """Load and validate the manifest at this path; without a path, load the shipped manifest."""
    if path is None:
        return read(SHIPPED.read_bytes())
    from bench.planning.manifest import read_manifest  # imports all models and methods

    return parse(read_manifest(path), str(path))


def parse(data: bytes, where: str) -> CheckManifest:
    """Parse a node-check manifest; BadInput with every mistake at once."""
    document = written_json(data, where, NODE_CHECK)
    from bench.planning.manifest import schema_mistakes

    parts = document if isinstance(document, dict) else {}
    mistakes = [
        *schema_mistakes(document, "node-check-v1"),
        *_names(parts),
        *_contradictions(parts),
        *_leaves(parts),
    ]
    if mistakes:
        mistakes.sort(key=lambda mistake: mistake.path)
        raise BadInput.of(mistakes, where)
    return read(data)


def read(data: bytes) -> CheckManifest:
    """Parse the manifest of a finished check, which may name unknown checks; DecodeError if malformed."""
    document = strict_loads(data)
    if isinstance(document, dict):
        document.pop("$schema", None)  # for editors
    return replace(from_json(CheckManifest, document), data=data)


def _names(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes in the names of checks and levels."""
    for key in ("skip", "require"):
        for i, name in enumerate(_list(document, key)):
            if isinstance(name, str) and name not in known_checks():
                yield Mistake(f"/{key}/{i}", f'no check is named "{name}"', nearest(name, known_checks()))
    levels = document.get("levels")
    for name in levels if isinstance(levels, dict) else ():
        if name not in DEPTHS:
            yield Mistake(f"/levels/{name}", "no such level", nearest(name, DEPTHS))


def _contradictions(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes for checks that are both skipped and required."""
    require = _list(document, "require")
    for i, name in enumerate(_list(document, "skip")):
        if name in require:
            found = f'"{name}" is required at /require/{require.index(name)}'
            yield Mistake(f"/skip/{i}", found, "leave one of them out")


def _leaves(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes for nodes that are under two leaf switches."""
    expect = document.get("expect")
    leaves = expect.get("leaves") if isinstance(expect, dict) else None
    above: dict[int, str] = {}
    for name, nodes in leaves.items() if isinstance(leaves, dict) else ():
        for i, node in enumerate(nodes if isinstance(nodes, list) else ()):
            if isinstance(node, int) and above.setdefault(node, name) != name:
                found = f"node {node} is under {above[node]} too"
                yield Mistake(f"/expect/leaves/{name}/{i}", found, "a node has one leaf switch")


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := document.get(key), list) else []


AnyManifest = Union["Manifest", "CheckManifest"]


def wanted_image(manifest: AnyManifest) -> str | None:
    """Return the image that the manifest prescribes, if any; a node check prescribes no image."""
    return None if isinstance(manifest, CheckManifest) else manifest.image


def wanted_environment(manifest: AnyManifest) -> str | None:
    """Return the environment that the manifest prescribes, if any; a node check prescribes none."""
    return None if isinstance(manifest, CheckManifest) else manifest.environment


def data_folders(manifest: AnyManifest) -> tuple[Path, ...]:
    """Return the folders of data that the manifest names, each once; a node check reads none."""
    if isinstance(manifest, CheckManifest):
        return ()
    return tuple(dict.fromkeys(Path(request.data) for request in manifest.requests if request.data))


def load_any(path: Path) -> AnyManifest:
    """Load a manifest of either kind: models to train, or a node check."""
    from bench.planning.manifest import parse_manifest, read_manifest

    data = read_manifest(path)
    return (parse if is_check(data) else parse_manifest)(data, str(path))


def is_check(data: bytes) -> bool:
    """Whether the document's `schema` field names a node check."""
    try:
        document = strict_loads(data, lambda _: None)  # the reader of the manifest refuses NaN
    except DecodeError:
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA
