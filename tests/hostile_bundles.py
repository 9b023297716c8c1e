"""Signed bundles that have control characters in every text in which `bench verify` lets them stand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import bench
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json
from bench.bundle.pack import pack
from bench.bundle.statement import parse_statement
from bench.bundle.tar_format import STATEMENT
from tests.authority import contents
from tests.report.made import KEY, payload

OWNED = "owned"  # part of each text below, which shows that it reached an output
ONE_LINE = f"\x1b]0;{OWNED}\x07\x1b[2J\x08\x7f\x9b2J\u202e\u2066\u200b\U000e0041"
CONTROLS = f"{ONE_LINE}\r\x85\u2028"  # texts of several lines are refused in most places of a bundle
PRINTED_BY_BENCH = "\n"


def controls_in(text: str) -> list[str]:
    """Return the characters of a text that a terminal obeys, or that reverse or hide what follows."""
    return sorted({c for c in text if not c.isprintable() and c not in PRINTED_BY_BENCH})


def spoil(source: Path, path: Path, *, document: Callable[[dict[str, Any]], None] | None = None) -> int:
    """Write a copy of a bundle with control characters in its texts; return in how many kinds of places.

    Places of one kind differ only in numbers: all GPUs' names are one kind. A kind in which the bundle would
    be refused stays as it was. `document` changes results.json before.
    """
    files = {name: data for name, data in payload(source).items() if not name.startswith("logs/")}
    facts = parse_statement(contents(source)[STATEMENT]).predicate
    documents = {
        name: _lines(data) if name.endswith("l") else [json.loads(data)] for name, data in files.items()
    }
    if document:
        document(documents["results.json"][0])
    kinds = sorted({(name, kind) for name, found in documents.items() for kind, _ in _texts(found)})

    def write(spoiled: Sequence[tuple[str, str]]) -> bool:
        written = {
            name: _joined(_spoiled(found, {kind for of, kind in spoiled if of == name}), name)
            for name, found in documents.items()
        }
        manifest = sha256(written["manifest.json"])
        results = json.loads(written["results.json"]) | {"manifest_digest": f"sha256:{manifest}"}
        written["results.json"] = json.dumps(results).encode()
        node = cast(dict[str, Any], facts.node) | _identity(results["node"], facts.node)
        pack(path, written, replace(facts, manifest_sha256=manifest, node=node), KEY)
        (checked,) = bench.verify(path)
        return checked.valid

    kept = _accepted(kinds, write, [])
    assert write(kept)
    return len(kept)


def _accepted(
    kinds: Sequence[tuple[str, str]],
    write: Callable[[Sequence[tuple[str, str]]], bool],
    kept: list[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Add to `kept` all kinds with which the bundle is still valid, halving what is refused."""
    if write([*kept, *kinds]):
        return [*kept, *kinds]
    if len(kinds) == 1:
        return kept
    middle = len(kinds) // 2
    return _accepted(kinds[middle:], write, _accepted(kinds[:middle], write, kept))


def _identity(node: dict[str, Any], signed: Any) -> dict[str, Any]:
    """Return what the statement says of a node, as far as it names it by texts of results.json."""
    return {"gpus": [gpu["uuid"] for gpu in node["gpus"]], "driver": node["driver"], "cpu": node["cpu"]}


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of a JSON value with its kind of place."""
    if isinstance(value, str):
        yield re.sub(r"\d+", "0", place), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{place}/{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, f"{place}/0")


def _spoiled(value: Any, kinds: set[str], place: str = "") -> Any:
    if isinstance(value, str):
        return value + ONE_LINE if re.sub(r"\d+", "0", place) in kinds else value
    if isinstance(value, dict):
        return {key: _spoiled(item, kinds, f"{place}/{key}") for key, item in value.items()}
    return [_spoiled(item, kinds, f"{place}/0") for item in value] if isinstance(value, list) else value


def _lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def _joined(found: list[Any], name: str) -> bytes:
    if name.endswith("l"):
        return b"".join(canonical_json(line) + b"\n" for line in found)
    return json.dumps(found[0]).encode()
