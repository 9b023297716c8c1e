"""The fields that the author of a bundle asked for: in digits, a model's own before the manifest's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.bundle.stated_manifest import (
    SearchScope,
    StatedManifest,
    check_software,
    read_document,
    read_stated,
)
from bench.records.trial import Gpu, NodeFacts

OWN = {"name": "small", "methods": ["naive", "compile"], "micro_batch": 4, "data": "texts"}


def stated(**fields: Any) -> StatedManifest:
    return read_stated(json.dumps({"models": ["tiny", OWN]} | fields).encode())


def test_a_manifest_without_options_has_defaults() -> None:
    found = read_stated(b'{"models": ["tiny"], "later": 1}')
    assert found.document == {"models": ["tiny"], "later": 1}
    assert found.data == b'{"models": ["tiny"], "later": 1}'
    assert (found.models, found.entries) == (("tiny",), {"tiny": {"name": "tiny"}})
    assert (found.gpus, found.memory_cap_gib, found.memory_cap_bytes) == (None, None, None)
    assert (found.micro_batch, found.seed, found.timing, found.methods) == ("auto", 0, {}, "guided")


def test_a_memory_cap_is_in_gib() -> None:
    assert stated(memory_cap_gib=1.5).memory_cap_bytes == 1_610_612_736


def test_a_models_own_options_come_before_the_manifests() -> None:
    found = stated(methods="exhaustive", micro_batch=8)
    assert (found.methods_of("tiny"), found.micro_batch_of("tiny")) == ("exhaustive", 8)
    assert (found.methods_of("small"), found.micro_batch_of("small")) == (["naive", "compile"], 4)
    assert (found.data_of("tiny"), found.data_of("small")) == (None, "texts")
    assert (found.methods_of("other"), found.data_of("other")) == ("exhaustive", None)


def test_a_run_trains_on_all_gpus_unless_it_asked_for_fewer() -> None:
    gpus = tuple(Gpu(number, "NVIDIA H200", f"GPU-{number}", 1 << 37, "9.0") for number in range(4))
    node = NodeFacts("a CPU", 8, 1 << 36, "Linux", "6", "3.12", gpus)
    asked = {None: 4, 0: 4, 1: 1, 3: 3, 4: 4, 8: 4, -1: 4}
    assert {count: replace(stated(), gpus=count).gpus_of(node) for count in asked} == asked


@pytest.mark.parametrize(
    ("methods", "micro_batch", "limits"),
    [
        ("guided", "auto", ""),
        ("exhaustive", "auto", ""),
        ("guided", 4, "micro-batch 4"),
        ("naive", "auto", "methods naive"),
        ("naive", 4, "methods naive, micro-batch 4"),
    ],
)
def test_a_scope_names_what_is_narrower_than_everything(
    methods: str, micro_batch: int | str, limits: str
) -> None:
    scope = stated(methods=methods, micro_batch=micro_batch).scope_of("tiny")
    assert scope.limits == limits
    assert str(scope) == f"methods {methods}, micro-batch {micro_batch}"


def test_methods_have_a_short_text_that_differs_whenever_they_do() -> None:
    assert stated().scope_of("small") == SearchScope("naive, compile", "4")
    lists = [[["naive"]], [["naive"], ["compile"]], [["naive"], ["tf32"]], [["naive", "compile"]]]
    texts = [stated(methods=methods).scope_of("tiny").methods for methods in lists]
    assert len(set(texts)) == 4
    assert (texts[0], texts[3]) == ("naive alone", "naive + compile")
    assert texts[1].startswith("2 listed settings (") and len(texts[1]) == len("2 listed settings ()") + 8
    for long in ([["x" * 70]], [[1]], [{}]):
        assert stated(methods=long).scope_of("tiny").methods.startswith("1 listed setting (")
    mixed = stated(methods=["naive", ["tf32"]]).scope_of("tiny").methods
    assert mixed.startswith("2 listed settings (") and mixed not in texts
    with pytest.raises(TypeError):
        stated(methods=1).scope_of("tiny")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[]", "manifest.json: is no manifest: expected an object"),
        (b"{", "manifest.json: is no manifest: "),
        (b'{"models": 1}', "manifest.json: is no manifest: /models"),
        (b'{"models": [], "gpus": "two"}', "manifest.json: is no manifest: /gpus"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(VerificationFailed, match=f"^{why}") as refused:
        read_stated(data)
    assert refused.value.where == "manifest.json"


def test_a_node_check_has_a_document_too() -> None:
    assert read_document(b'{"checks": ["xid"]}') == {"checks": ["xid"]}
    with pytest.raises(VerificationFailed, match=r"^manifest\.json: is no manifest: expected an object"):
        read_document(b"1")


def test_results_of_a_run_are_of_one_place() -> None:
    """An image and an environment at once would be two places."""
    node: Any = SimpleNamespace(image=SimpleNamespace(config="i"), environment=SimpleNamespace(digest="e"))
    with pytest.raises(VerificationFailed, match="states both an image and an environment that it ran in"):
        check_software({}, node)
    node.image = None
    check_software({"environment": "e"}, node)
    with pytest.raises(VerificationFailed, match=r"ran in e, the manifest asks for other$"):
        check_software({"environment": "other"}, node)
    with pytest.raises(VerificationFailed, match=r"ran in no known image, the manifest asks for i$"):
        check_software({"image": "i"}, node)
