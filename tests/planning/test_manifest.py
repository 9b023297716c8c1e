"""Mistakes in a manifest are all reported at once, each with its place and what is allowed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.errors import BadInput
from bench.node_check import check_manifest as node_check
from bench.planning.manifest import load_manifest, parse_manifest
from bench.planning.plan import make_plan
from tests.targets import CPU

BAD = sorted((Path(__file__).parent / "bad_manifests").iterdir())
GOOD = sorted((Path(__file__).parents[2] / "manifests").glob("*.json"))
BASE: dict[str, Any] = {"schema": "bench/manifest/v1", "models": ["tiny-vit"], "methods": "naive"}


def mistakes(**changes: Any) -> dict[str, str]:
    """Map each path of a mistake to its message."""
    with pytest.raises(BadInput) as caught:
        parse_manifest(json.dumps(BASE | changes).encode(), "m.json")
    return {m.path: f"{m.found}; {m.allowed}" for m in caught.value.mistakes}


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_every_shipped_manifest_is_valid(path: Path) -> None:
    if node_check.is_check(path.read_bytes()):
        assert node_check.load(path).name == path.stem
    else:
        assert json.loads(load_manifest(path).data)["name"] == path.stem


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_every_bad_manifest_is_refused_with_a_message(path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        make_plan(load_manifest(path), CPU)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "Traceback" not in text
    assert len(text) < 4000


def test_all_mistakes_are_reported_at_once_with_place_and_nearest_name() -> None:
    found = mistakes(models=["pythia-1B0"], budget_minutes=-5, colour="red", methods=[["compil"]])
    assert 'nearest: "pythia-1b"' in found["/models/0"]
    assert "more than 0" in found["/budget_minutes"]
    assert "no such field" in found["/colour"]
    assert 'nearest: "compile"' in found["/methods/0/0"]


def test_all_mistakes_of_one_model_are_reported_at_once() -> None:
    found = mistakes(
        models=[{"name": "tiny-vit", "colour": "red", "micro_batch": 0, "recipe": {"steps": "x"}}]
    )
    assert set(found) == {"/models/0/colour", "/models/0/micro_batch", "/models/0/recipe/steps"}


def test_the_error_reads_as_a_short_list() -> None:
    with pytest.raises(BadInput) as caught:
        parse_manifest(json.dumps(BASE | {"models": ["pythia-1B0"], "budget_minutes": -5}).encode(), "m.json")
    assert str(caught.value).splitlines()[0] == "m.json: 2 mistakes"
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"gpus": True}, "/gpus", "true does not fit; allowed: a whole number at least 1 and at most 8"),
        (
            {"models": None},
            "/models",
            "null does not fit; allowed: a list with at least 1 and with at most 100",
        ),
        ({"floor": "yes"}, "/floor", '"yes" does not fit; allowed: true or false'),
        ({"gradient_check": 1}, "/gradient_check", "1 does not fit; allowed: true or false"),
        ({"prove": True}, "/prove", "true does not fit; allowed: an object with steps, minutes"),
        ({"timing": [1]}, "/timing", "[1] does not fit; allowed: an object with target_percent, "),
        ({"micro_batch": {"a": 1}}, "/micro_batch", '{"a": 1} does not fit; allowed: auto (searched, '),
        ({"schema": 1}, "/schema", '1 does not fit; allowed: "bench/manifest/v1"'),
        ({"name": "x" * 99}, "/name", f'"{"x" * 58}… does not fit; allowed: a text matching '),
    ],
)
def test_a_bad_value_is_quoted_as_written_with_what_is_allowed(
    changes: dict[str, Any], path: str, said: str
) -> None:
    assert mistakes(**changes)[path].startswith(said)


def test_a_mistake_is_one_line_whatever_characters_its_names_contain() -> None:
    models = ["no\nsuch", {"name": "tiny-vit", "recipe": {"a\nb\tc": 1}}]
    with pytest.raises(BadInput) as caught:
        parse_manifest(json.dumps(BASE | {"models": models, "x\ny": 1}).encode(), "m.json")
    assert len(str(caught.value).splitlines()) == 1 + len(caught.value.mistakes) == 4
    assert "/x\\ny" in str(caught.value)


def test_a_text_of_several_lines_is_refused_before_it_is_measured() -> None:
    """The bundle of a run with a text of several lines would be refused afterwards."""
    own = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    own |= {"num_attention_heads": 2, "vocab_size": 64, "about": "one\ntwo"}
    recipe = {"objective": "causal-lm", "batch_size": 4, "steps": 9, "precision": "bf16"}
    recipe |= {"sequence_length": 8}
    model = {"name": "mine", "architecture": own, "recipe": recipe}
    assert mistakes(models=[model]) == {"/models/0/architecture/about": "a text of several lines; one line"}


@pytest.mark.parametrize("number", ["1" + "0" * 30, "1e999"])
def test_a_number_beyond_a_double_is_reported_with_its_place(number: str) -> None:
    data = json.dumps(BASE | {"models": ["tiny-vit", {"micro_batch": "?"}]}).replace('"?"', number).encode()
    with pytest.raises(
        BadInput, match=f"/models/1/micro_batch: the (integer|number) {number[:20]}"
    ) as caught:
        parse_manifest(data, "m.json")
    assert ("…" in str(caught.value)) is (len(number) > 20)


@pytest.mark.parametrize("gib", [1e-9, 1e-12])
def test_a_tiny_memory_cap_is_reported_as_given(gib: float) -> None:
    made = parse_manifest(json.dumps(BASE | {"memory_cap_gib": gib}).encode(), "m.json")
    (skipped,) = make_plan(made, CPU).skipped
    assert "MiB at micro-batch 1; there are 1 B" in skipped.reason


def test_a_missing_field_is_named_at_its_own_place() -> None:
    with pytest.raises(BadInput) as caught:
        parse_manifest(b"{}", "m.json")
    assert {m.path for m in caught.value.mistakes} == {"/schema", "/models"}


def test_the_digest_is_of_the_exact_bytes() -> None:
    plain, spaced = json.dumps(BASE).encode(), json.dumps(BASE, indent=1).encode()
    assert parse_manifest(plain, "").digest == parse_manifest(plain, "").digest
    assert parse_manifest(plain, "").digest != parse_manifest(spaced, "").digest
    assert parse_manifest(plain, "").data == plain


def test_a_known_model_takes_another_recipe() -> None:
    changed = BASE | {"models": [{"name": "pythia-1b", "recipe": {"batch_size": 512}}]}
    recipe = parse_manifest(json.dumps(changed).encode(), "").models[0].recipe
    assert (recipe.batch_size, recipe.steps) == (512, 143_000)


def test_settings_have_one_spelling() -> None:
    manifest = parse_manifest(json.dumps(BASE | {"methods": [["checkpointing", "compile"]]}).encode(), "")
    assert manifest.requests[0].methods == (("compile", "checkpointing"),)


def test_a_hundred_megabytes_are_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    started = time.monotonic()
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        load_manifest(path)
    assert time.monotonic() - started < 5  # it would take minutes to parse; this is no benchmark


def test_a_path_that_is_not_a_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadInput, match=str(path)):
            load_manifest(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "schema",
        "name",
        "models",
        "methods",
        "gpus",
        "micro_batch",
        "memory_cap_gib",
        "budget_minutes",
        "timing",
        "seed",
        "floor",
        "gradient_check",
    ]
)


@given(changes=st.dictionaries(FIELDS, JSON_VALUES, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_json_is_a_manifest_or_a_list_of_mistakes(changes: dict[str, Any]) -> None:
    try:
        make_plan(parse_manifest(json.dumps(BASE | changes).encode(), "m.json"), CPU)
    except BadInput as error:
        assert str(error).startswith(("m.json", "unnamed"))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        parse_manifest(data, "m.json")
