"""Node-check manifests: every mistake is reported with its place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.node_check.check_manifest import (
    DEFAULTS,
    CheckManifest,
    DepthBudget,
    data_folders,
    is_check,
    load,
    load_any,
    parse,
    wanted_environment,
    wanted_image,
)
from bench.node_check.check_manifest import read as strict_read

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


def test_each_depth_has_its_times() -> None:
    assert {
        "passive": DepthBudget(1, 0.0, 0.0, 0.0),
        "prolog": DepthBudget(0.3, 0.0, 0.0, 0.0),
        "quick": DepthBudget(2, 0.7, 1.0, 15),
        "standard": DepthBudget(10, 1.5, 3.0, 180),
        "soak": DepthBudget(60, 2.0, 4.0, 3000),
        "nodes": DepthBudget(30, 0.2, 1.0, 0.0),
    } == DEFAULTS
    own = {"minutes": 5, "warm_seconds": 1, "seconds": 2, "soak_seconds": 3}
    manifest = read(levels={"quick": own})
    assert manifest.budget("quick") == DepthBudget(5, 1, 2, 3)
    assert manifest.budget("soak") == DEFAULTS["soak"]


@pytest.mark.parametrize(
    ("document", "device", "gpus"),
    [
        ({}, "cuda", None),
        ({"gpus": 4}, "cuda", 4),
        ({"gpus": 4}, "cpu", None),
        ({"gpus": 4, "expect": {"gpus": 8}}, "cuda", 8),
        ({"expect": {"gpus": 8}}, "cpu", 8),
    ],
)
def test_as_many_gpus_are_expected_as_are_ordered_or_checked(
    document: dict[str, Any], device: Any, gpus: int | None
) -> None:
    assert read(**document).expected(device).gpus == gpus


def test_only_mistakes_are_reported() -> None:
    with pytest.raises(BadInput) as caught:
        read(skip=["disk", "matmull"], require=["xid", 7], levels={"quik": 7})
    places = {mistake.path for mistake in caught.value.mistakes}
    assert {"/skip/1", "/levels/quik"} <= places
    assert not places & {"/skip/0", "/require/0"}
    manifest = read(skip=["disk"], require=["xid"], expect={"leaves": {"a": [0, 2], "b": [1]}})
    assert (manifest.skip, manifest.require) == (("disk",), ("xid",))
    assert manifest.digest == "sha256:" + hashlib.sha256(manifest.data).hexdigest()


def test_a_node_check_prescribes_no_image_environment_or_data() -> None:
    check = read()
    assert (wanted_image(check), wanted_environment(check), data_folders(check)) == (None, None, ())
    requests = [SimpleNamespace(data=folder) for folder in ("/data/b", None, "/data/a", "/data/b")]
    models: Any = SimpleNamespace(image="sha256:1", environment="sha256:2", requests=requests)
    assert (wanted_image(models), wanted_environment(models)) == ("sha256:1", "sha256:2")
    assert data_folders(models) == (Path("/data/b"), Path("/data/a"))


def test_a_manifest_of_either_kind_is_known_by_its_schema(tmp_path: Path) -> None:
    texts = {
        '{"schema":"bench/node-check/v1"}': True,
        '{"schema":"bench/manifest/v1","models":["pythia-1b"]}': False,
    }
    for text, is_one in texts.items():
        path = tmp_path / "m.json"
        path.write_text(text, encoding="utf-8")
        assert is_check(text.encode()) == isinstance(load_any(path), CheckManifest) == is_one
    for text in ("{", "[]", '"bench/node-check/v1"', "{}"):
        assert not is_check(text.encode())
    assert strict_read(b'{"$schema":"x","schema":"bench/node-check/v1"}').level == "standard"
