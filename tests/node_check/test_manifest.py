"""Node-check manifests: every mistake is reported with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.node_check.check_manifest import DEFAULTS, load, parse

ROOT = Path(__file__).parents[2]


def read(**document: Any) -> Any:
    return parse(json.dumps({"schema": "bench/node-check/v1", **document}).encode(), "mine.json")


def test_the_shipped_manifest_equals_the_one_in_manifests_and_has_the_defaults() -> None:
    assert (ROOT / "manifests" / "node-check.json").read_bytes() == load(None).data
    assert load(None).level == "standard"
    assert {level: load(None).budget(level) for level in DEFAULTS} == dict(DEFAULTS)
    assert [load(None).budget(level).minutes for level in DEFAULTS] == [1, 0.3, 2, 10, 60, 30]


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        ({"level": "hard"}, "/level", "quick, standard, soak"),
        ({"skip": ["matmull"]}, "/skip/0", 'nearest: "matmul"'),
        ({"require": ["xids"]}, "/require/0", 'nearest: "xid"'),
        ({"skip": ["disk", "xid"], "require": ["xid"]}, "/skip/1", '"xid" is required at /require/0'),
        ({"skip": "xid", "require": ["xid"]}, "/skip", "does not fit"),
        ({"gpus": 0}, "/gpus", "at least 1"),
        ({"expect": {"gpuz": 8}}, "/expect/gpuz", "no such field"),
        ({"expect": {"driver": 580}}, "/expect/driver", "a text"),
        ({"expect": {"leaves": {"a": [0, 1], "b": [1]}}}, "/expect/leaves/b/0", "node 1 is under a too"),
        ({"expect": {"leaves": {"a": [128]}}}, "/expect/leaves/a/0", "at most 127"),
        (
            {"levels": {"quik": {"minutes": 1, "warm_seconds": 0, "seconds": 1, "soak_seconds": 1}}},
            "/levels/quik",
            "quick",
        ),
        ({"levels": {"quick": {"minutes": 1}}}, "/levels/quick", "missing"),
        ({"colour": "red"}, "/colour", "no such field"),
    ],
)
def test_mistakes_are_reported_with_their_place(document: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(**document)
    assert any(mistake.path.startswith(place) for mistake in caught.value.mistakes)
    assert words in str(caught.value)


def test_a_manifest_of_models_is_sent_to_bench_run() -> None:
    with pytest.raises(BadInput, match="bench run"):
        parse(b'{"schema":"bench/manifest/v1","models":["pythia-1b"]}', "mine.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":"bench/node-check/v9"}', b'"x"'])
def test_a_file_that_is_not_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        parse(data, "mine.json")
