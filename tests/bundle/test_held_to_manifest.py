"""Results held against their manifest: what a manifest states, and what bench adds to it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.bundle import held_to_manifest
from bench.bundle.held_to_manifest import CHANGED, ManifestCheck
from bench.bundle.stated_manifest import read_stated
from bench.bundle.tar_format import open_bundle
from bench.bundle.verdict import Note
from bench.planning.manifest import resolve_models
from bench.records.trial import Proof, Skipped, Trial
from bench.training.methods import arithmetic
from bench.training.models import Lora, Model, counts_of
from tests.bundle.test_plausibility import real_results

REAL = Path(__file__).parents[2] / "results" / "proof-h200" / "pythia-160m.tar"
NAME = "pythia-160m"
ON_TRUST = "this bench cannot build it from the manifest: taken on trust"


@cache
def real_manifest() -> dict[str, Any]:
    with open_bundle(REAL) as opened:
        document: dict[str, Any] = json.loads(opened.read("manifest.json"))
    return document


def held(asks: dict[str, Any] | None = None, **changes: Any) -> ManifestCheck:
    """Hold the results of a measured bundle, changed a little, against its manifest with other fields."""
    manifest = json.dumps(real_manifest() | (asks or {})).encode()
    return ManifestCheck(read_stated(manifest), replace(real_results(), **changes))


def known() -> Model:
    (model,) = real_results().models
    return model


def with_adapters(model: Model) -> Model:
    return replace(model, recipe=replace(model.recipe, lora=Lora(8, 16.0, 0.0, "all-linear")))


def own(**architecture: Any) -> dict[str, Any]:
    """Describe a model in a manifest by the architecture of a known one."""
    recipe = {name: getattr(known().recipe, name) for name in ("objective", "batch_size", "steps")}
    recipe |= {"precision": "bf16", "sequence_length": 2048}
    stated = {"model_type": known().family, **known().architecture, **architecture}
    return {"name": "mine", "recipe": recipe, "architecture": stated}


# --- models ---------------------------------------------------------------------------------------------


def test_results_that_follow_from_their_manifest_need_no_note() -> None:
    assert held().notes == ()


@pytest.mark.parametrize(
    "entry", [{"name": "a-later-model"}, {"name": "a-later-model", "architecture": "a-later-form"}]
)
def test_a_model_that_this_bench_cannot_build_is_on_trust(entry: dict[str, Any]) -> None:
    later = replace(known(), name="a-later-model")
    assert held({"models": [entry]}, models=(later,)).notes == (Note("a-later-model", ON_TRUST),)


def test_a_recipe_that_is_no_object_is_not_that_of_any_results() -> None:
    with pytest.raises(VerificationFailed, match=f"states another {NAME}/recipe than the results have$"):
        held({"models": [{"name": NAME, "recipe": "fast"}]})


def test_adapters_that_the_manifest_states_and_the_results_lack() -> None:
    lora = {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": "all-linear"}
    with pytest.raises(VerificationFailed, match=f"states another {NAME}/recipe/lora than the results have$"):
        held({"models": [{"name": NAME, "recipe": {"lora": lora}}]})


def test_the_recipe_of_a_known_model_is_the_versions_own() -> None:
    """A name states no recipe, so another version may train adapters under it."""
    adapted = with_adapters(known())
    (note,) = held(bench_version="0.0.9", models=(adapted,)).notes
    assert "is not what this bench makes of the manifest; it is by bench '0.0.9'" in note.text
    with pytest.raises(VerificationFailed, match=f"{NAME}: its .* is not what this bench makes of"):
        held(models=(adapted,))


def test_an_architecture_may_have_fields_that_change_nothing() -> None:
    """Published configurations have them, and bench leaves them out of the model."""
    plain = own()
    (model,) = resolve_models([plain])[0]
    assert held({"models": [plain]}, models=(model,)).notes == ()
    published = own(torch_dtype="float16", transformers_version="4.24.0", bos_token_id=0, eos_token_id=0)
    assert held({"models": [published]}, models=(model,)).notes == ()


def test_an_architecture_is_of_the_family_that_the_manifest_states() -> None:
    (model,) = resolve_models([own()])[0]
    with pytest.raises(VerificationFailed, match="states another mine/architecture/model_type "):
        held({"models": [own(model_type="llama")]}, models=(model,))


# --- settings -------------------------------------------------------------------------------------------


def require_all_tried(
    asks: list[list[str]], complete: bool = True, skipped: tuple[Skipped, ...] = ()
) -> None:
    run = replace(real_results().run, complete=complete)
    held({"methods": asks}, run=run, skipped=skipped).require_all_tried()


def test_the_first_missing_setting_in_the_order_of_the_alphabet_is_named() -> None:
    with pytest.raises(VerificationFailed, match=f"complete, but checkpointing . tf32 of {NAME} was neither"):
        require_all_tried([["tf32"], ["tf32", "checkpointing"]])


def test_only_a_complete_run_must_have_tried_everything() -> None:
    require_all_tried([["tf32"]], complete=False)
    with pytest.raises(VerificationFailed, match="is marked complete, but tf32 of"):
        require_all_tried([["tf32"]])


def test_a_setting_may_be_skipped_for_a_reason_of_its_own_model() -> None:
    skip = Skipped(NAME, ("tf32",), "tf32", "a reason")
    require_all_tried([["tf32"]], skipped=(skip,))
    with pytest.raises(VerificationFailed, match="is marked complete, but tf32 of"):
        require_all_tried([["tf32"]], skipped=(replace(skip, model="another"),))


# --- trials ---------------------------------------------------------------------------------------------


def require_trial(asked: int | None, installed: int, used: int) -> None:
    """Hold a trial on `used` GPUs against a manifest that asks for `asked`, on a node with `installed`."""
    results = real_results()
    node = replace(results.node, gpus=results.node.gpus * installed)
    check = held({"gpus": asked}, node=node)
    check.require_trial(Trial(known(), (), 32, used, results.seed, results.timing))


@pytest.mark.parametrize(
    ("asked", "installed", "used"),
    [
        (None, 1, 1),
        (None, 2, 2),
        (None, 2, 4),  # two nodes
        (1, 2, 1),
        (2, 2, 4),
        (None, 0, 1),  # on a CPU: one process, or as many as the manifest asks for
        (2, 0, 2),
    ],
)
def test_a_trial_is_on_all_gpus_or_on_as_many_as_the_manifest_asks_for(
    asked: int | None, installed: int, used: int
) -> None:
    require_trial(asked, installed, used)


@pytest.mark.parametrize(
    ("asked", "installed", "used", "why"),
    [
        (None, 2, 1, "is on 1 GPUs, the manifest asks for 2$"),
        (2, 4, 1, "is on 1 GPUs, the manifest asks for 2$"),
        (2, 0, 1, "is on 1 GPUs, the manifest asks for 2$"),
        (2, 1, 2, "the manifest asks for 2 GPUs, the node has 1$"),
    ],
)
def test_a_trial_on_other_gpus_is_refused(asked: int | None, installed: int, used: int, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why):
        require_trial(asked, installed, used)


def test_operations_of_a_model_that_differs_are_not_compared() -> None:
    """The model's difference is noted already, and explains any number of operations."""
    longer = replace(known(), recipe=replace(known().recipe, steps=9))
    results = real_results()
    check = held(bench_version="0.0.9", models=(longer,))
    before = check.notes
    one = Trial(longer, (), 32, 1, results.seed, results.timing)
    flops = arithmetic((), longer, counts_of(longer))
    check.require_flops(one, replace(flops, matmul=flops.matmul // 4))
    assert check.notes == before and len(before) == 1
    as_stated = held(bench_version="0.0.9")
    as_stated.require_flops(replace(one, model=known()), replace(flops, matmul=flops.matmul // 4))
    (note,) = as_stated.notes
    assert note.text.startswith("a sample costs ")


def test_operations_that_this_bench_cannot_count_are_on_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise LookupError("no method tf64")

    monkeypatch.setattr(held_to_manifest, "arithmetic", unknown)
    check, results = held(), real_results()
    flops = arithmetic((), known(), counts_of(known()))
    check.require_flops(Trial(known(), (), 32, 1, results.seed, results.timing), flops)
    assert check.notes == (Note(NAME, "no method tf64: its operations are taken on trust"),)


@pytest.mark.parametrize("setting", [(), ("kernels", "tf32")])
def test_the_first_kind_of_operations_that_differs_is_named(setting: tuple[str, ...]) -> None:
    results = real_results()
    one = Trial(known(), setting, 32, 1, results.seed, results.timing)
    flops = arithmetic(setting, known(), counts_of(known()))
    check = held()
    check.require_flops(one, flops)
    assert check.notes == ()
    for kind in ("matmul", "attention"):
        more = replace(flops, **{kind: getattr(flops, kind) + 1})
        named = " . ".join(setting) or "naive"
        theirs, ours = getattr(more, kind), getattr(flops, kind)
        counts = f"{theirs} operations of {kind} with {named}; this bench counts {ours}"
        with pytest.raises(VerificationFailed, match=f"a sample costs {counts}"):
            held().require_flops(one, more)


@pytest.mark.parametrize(
    ("asked", "accepted"), [("auto", True), (32, True), (16, False), (64, False), (None, True)]
)
def test_a_trial_has_the_micro_batch_that_the_manifest_states(
    asked: int | str | None, accepted: bool
) -> None:
    results = real_results()
    one = Trial(known(), (), 32, 1, results.seed, results.timing)
    (entry,) = real_manifest()["models"]
    entry = entry if isinstance(entry, dict) else {"name": entry}
    check = held({"models": [entry | {"micro_batch": asked}]} if asked is not None else {})
    if accepted:
        check.require_trial(one)
    else:
        with pytest.raises(VerificationFailed, match=f"has the micro-batch 32, the manifest says {asked}$"):
            check.require_trial(one)


@pytest.mark.parametrize(
    ("asked", "steps", "seconds", "accepted"),
    [
        ({"steps": 10}, 10, 1.0, True),
        ({"steps": 10}, 9, 1e9, False),
        ({"minutes": 2}, 1, 120.0, True),
        ({"minutes": 2}, 10**6, 119.9, False),
        ({"minutes": 0.5}, 1, 30.0, True),
        ({"steps": 10, "minutes": 2}, 10, 120.0, True),
        ({"steps": 10, "minutes": 2}, 9, 120.0, False),
        ({"steps": 10, "minutes": 2}, 10, 119.0, False),
        ({"steps": "many"}, 1, 1.0, True),  # read by another version in its own way
        (True, 1, 1.0, True),
    ],
)
def test_a_proof_is_at_least_as_long_as_the_manifest_asks(
    asked: object, steps: int, seconds: float, accepted: bool
) -> None:
    results = real_results()
    one = Trial(known(), (), 32, 1, results.seed, results.timing)
    check = held({"prove": asked})
    if accepted:
        check.require_proof(one, Proof(steps, seconds, 1))
    else:
        with pytest.raises(VerificationFailed, match=f"the proof of trial {one.id} is {steps:,} steps in "):
            check.require_proof(one, Proof(steps, seconds, 1))


def test_a_proof_that_nobody_asked_for_is_refused() -> None:
    results = real_results()
    one = Trial(known(), (), 32, 1, results.seed, results.timing)
    check = held({"prove": None})
    with pytest.raises(VerificationFailed, match=r"has a proof, and the manifest asks for none$"):
        check.require_proof(one, Proof(1, 1.0, 1))


# --- an architecture of the user's own ------------------------------------------------------------------


def test_an_architecture_states_that_no_weights_are_frozen() -> None:
    """Without adapters in its recipe, results with adapters train something else."""
    (model,) = resolve_models([own()])[0]
    with pytest.raises(VerificationFailed, match=r"states another mine/recipe/lora than the results have$"):
        held({"models": [own()]}, models=(with_adapters(model),))


def test_the_source_of_a_recipe_may_tell_what_was_changed_of_it() -> None:
    stated = {**own(), "recipe": own()["recipe"] | {"source": "a paper"}}
    (model,) = resolve_models([stated])[0]
    assert held({"models": [stated]}, models=(model,)).notes == ()
    changed = replace(model, recipe=replace(model.recipe, source=f"a paper{CHANGED} batch_size"))
    other = replace(model, recipe=replace(model.recipe, source="another paper"))
    with pytest.raises(VerificationFailed) as caught:
        held({"models": [stated]}, models=(other,))
    assert "states another mine/recipe/source than" in caught.value.message
    with pytest.raises(VerificationFailed, match=r"is not what this bench makes of the manifest$"):
        held({"models": [stated]}, models=(changed,))  # stated so, and yet not what follows from it
