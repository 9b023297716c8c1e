"""The plan is pure, covers the paper's space exactly, and gives a reason for every skipped setting."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.planning.manifest import Manifest, parse_manifest
from bench.planning.plan import DRIVER_BYTES, EXCEEDED_BY, make_plan, may_not_fit, never_counted, target_of
from bench.planning.search.next_trial import next_trial, remaining
from bench.records.trial import Gpu, NodeFacts, OutOfMemory, TimedOut
from bench.training.methods import (
    Target,
    conflict,
    free_lunch,
    known_methods,
    label,
    memory_saving_settings,
    ordered,
    refusal,
)
from bench.training.models import Counted, Flops, Model, Parts, known_models
from bench.training.setting import GROUPS, Setting, in_group
from tests.targets import CPU, FOUR_H200, H200, RTX_3090, V100


def manifest(**changes: Any) -> Manifest:
    base = {"schema": "bench/manifest/v1", "models": ["tiny-vit"], "methods": ["naive", ["checkpointing"]]}
    return parse_manifest(json.dumps(base | changes).encode(), "m.json")


@pytest.mark.parametrize(("gpus", "count"), [(1, 12), (2, 22), (4, 22), (8, 22)])
def test_the_papers_space_is_enumerated_exactly(gpus: int, count: int) -> None:
    settings = memory_saving_settings(gpus)
    assert len(settings) == len(set(settings)) == count
    assert all(conflict(setting) is None for setting in settings)


@pytest.mark.parametrize(("target", "count"), [(H200, 12), (FOUR_H200, 22)])
def test_exhaustive_is_naive_and_the_papers_space(target: Target, count: int) -> None:
    plan = make_plan(manifest(models=["pythia-1b"], methods="exhaustive"), target)
    assert len(plan.cells) + len(plan.skipped) == count + 1


@pytest.mark.parametrize("model", ["mamba-2.8b", "pythia-1b"])
def test_a_plan_for_another_machine_assumes_the_images_software(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The software on the planning machine does not matter: a laptop has neither DeepSpeed nor kernels."""
    monkeypatch.setattr("bench.training.models.model.find_spec", lambda package: None)
    searched = manifest(models=[model], methods="exhaustive")
    there = make_plan(searched, replace(FOUR_H200, elsewhere=True))
    assert not [s for s in there.skipped if "installed" in s.reason]
    assert all("kernels" in cell.setting for cell in there.cells if cell.setting)
    here = make_plan(searched, FOUR_H200)
    assert {s.reason for s in here.skipped if "zero-2" in s.setting} == {
        "deepspeed is not installed: pip install 'bench-appliance[zero]'"
    }


def test_offloading_needs_sharding_and_shardings_exclude_each_other() -> None:
    assert "needs a sharding" in str(conflict(("offload",)))
    assert "choose one" in str(conflict(("zero-1", "fsdp-2")))
    assert "choose one" in str(conflict(("compile", "compile-blocks")))
    assert conflict(("checkpointing", "zero-3", "offload")) is None


def test_all_but_naive_is_compiled_block_by_block_and_zero_3_not_at_all() -> None:
    plan = make_plan(manifest(models=["convnext-xl"], methods="exhaustive"), FOUR_H200)
    for setting in [*(cell.setting for cell in plan.cells), *(skipped.setting for skipped in plan.skipped)]:
        assert ("compile-blocks" in setting) == ("zero-3" not in setting and setting != ())
        assert "compile" not in setting


def test_tf32_is_for_gpus_that_have_it() -> None:
    for target, reason in [(CPU, "NVIDIA"), (V100, "8.0")]:
        (skip,) = make_plan(manifest(methods=[["tf32"]]), target).skipped
        assert reason in skip.reason


def test_models_in_bf16_are_skipped_on_gpus_without_it() -> None:
    """Models in other precisions are still measured."""
    models = ["pythia-160m", "pythia-1b", "mamba-2.8b"]
    for methods in ("naive", "exhaustive", "guided"):
        plan = make_plan(manifest(models=models, methods=methods), V100)
        assert {cell.model.name for cell in plan.cells} == {"pythia-160m"}
        assert all("bf16" in s.reason for s in plan.skipped if s.model != "pythia-160m")
        assert {s.model for s in plan.skipped} >= {"pythia-1b", "mamba-2.8b"}


def test_attention_on_tf32_units_is_no_free_lunch_without_them() -> None:
    for target, has in ((V100, False), (H200, True)):
        (cell,) = make_plan(manifest(models=["vit-l"], methods=["free-lunch"]), target).cells
        assert (in_group(cell.setting, "attention") is not None) is has


def test_the_plan_uses_the_smallest_of_different_gpus_and_names_all() -> None:
    gpus = (Gpu(0, "NVIDIA H200", "GPU-1", 1 << 37, "9.0"), Gpu(1, "Tesla T4", "GPU-2", 1 << 34, "7.5"))
    node = NodeFacts("cpu", 8, 1 << 36, "os", "6", "3.12", gpus)
    target = target_of(node, None)
    assert (target.memory_bytes, target.compute_capability) == (1 << 34, "7.5")
    assert target.name == "NVIDIA H200 + Tesla T4"
    assert target_of(node, 1).name == "NVIDIA H200"


def test_every_model_has_one_trial_before_any_has_two() -> None:
    plan = make_plan(manifest(models=["tiny-vit", "tiny-roberta", "tiny-gpt-neox"]), CPU)
    assert [cell.model.name for cell in plan.cells[:3]] == ["tiny-vit", "tiny-roberta", "tiny-gpt-neox"]
    assert [cell.label for cell in plan.cells] == ["naive"] * 3 + ["checkpointing"] * 3


def test_a_model_can_have_methods_of_its_own() -> None:
    models = ["tiny-vit", {"name": "tiny-mamba", "methods": ["naive"]}]
    plan = make_plan(manifest(models=models), CPU)
    assert [(cell.model.name, cell.label) for cell in plan.cells] == [
        ("tiny-vit", "naive"),
        ("tiny-mamba", "naive"),
        ("tiny-vit", "checkpointing"),
    ]


def test_the_same_manifest_gives_the_same_trials() -> None:
    plans = [make_plan(manifest(seed=7), CPU) for _ in range(2)]
    ids = [[trial.id for cell in plan.cells for trial in cell.trials] for plan in plans]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0])


def test_a_trial_id_changes_with_everything_that_can_change_its_result() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"micro_batch": 2},
        {"memory_cap_gib": 8},
        {"methods": [["checkpointing"]]},
        {"timing": {"target_percent": 3}},
        {"models": [{"name": "tiny-vit", "recipe": {"batch_size": 128}}]},
    ]
    ids = [make_plan(manifest(**change), CPU).cells[0].trials[0].id for change in changes]
    assert len(set(ids)) == len(changes)


def test_micro_batches_keep_the_recipes_batch_exact() -> None:
    for target in (CPU, H200):
        for cell in make_plan(
            manifest(models=list(known_models())[:9], methods=["naive", "free-lunch"]), target
        ).cells:
            for trial in cell.trials:
                batch = trial.micro_batch * trial.accumulation * trial.gpus
                assert batch == trial.model.recipe.batch_size


def test_a_setting_that_cannot_fit_is_skipped_with_the_memory_it_needs() -> None:
    plan = make_plan(manifest(models=["pythia-6.9b"], methods="naive"), RTX_3090)
    assert not plan.cells
    assert "needs about" in plan.skipped[0].reason
    assert "there are 24" in plan.skipped[0].reason


def test_a_memory_cap_above_the_cards_memory_has_no_effect() -> None:
    """A manifest with a cap of 80 GB, made for an H200, is planned for a smaller card."""
    plans = [
        make_plan(manifest(models=["pythia-1b"], methods="exhaustive", **cap), RTX_3090)
        for cap in ({}, {"memory_cap_gib": 80})
    ]
    assert plans[1].memory_bytes == RTX_3090.memory_bytes
    assert [cell.needs for cell in plans[1].cells] == [cell.needs for cell in plans[0].cells]
    assert plans[1].skipped == plans[0].skipped


def test_a_memory_cap_replaces_the_cards_memory() -> None:
    free = make_plan(manifest(models=["pythia-1b"], methods="naive"), H200).cells[0]
    capped = make_plan(manifest(models=["pythia-1b"], methods="naive", memory_cap_gib=40), H200).cells[0]
    assert capped.trials[0].micro_batch < free.trials[0].micro_batch
    assert capped.predicted_bytes is not None
    assert capped.predicted_bytes <= 40 << 30


def test_after_running_out_of_memory_a_smaller_micro_batch_is_tried_and_nothing_else_is() -> None:
    plan = make_plan(manifest(methods="naive"), CPU)
    sizes, known = [], {}
    while trial := next_trial(plan, known):
        sizes.append(trial.micro_batch)
        known[trial.id] = OutOfMemory("host", "")
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 2
    assert sizes[-1] == 1
    first = plan.cells[0].trials[0]
    assert next_trial(plan, {first.id: TimedOut(1, "build")}) is None
    assert remaining(plan, {}) == 1


def test_a_batch_that_does_not_divide_is_named() -> None:
    told = r"^m\.json: .*\n.* does not divide among 3 GPUs; allowed numbers of GPUs: 1, 2, 4$"
    with pytest.raises(BadInput, match=told):
        make_plan(manifest(), Target("cuda", 3, 1 << 40))
    with pytest.raises(BadInput, match="allowed: 1, 2, 4"):
        make_plan(manifest(micro_batch=5), CPU)


def test_a_manifest_cannot_ask_for_more_gpus_than_there_are() -> None:
    node = NodeFacts("cpu", 8, 1 << 36, "os", "6", "3.12", (Gpu(0, "NVIDIA H200", "GPU-1", 1 << 37, "9.0"),))
    assert target_of(node, None).gpus == 1
    with pytest.raises(BadInput, match="asks for 2 GPUs, this node has 1"):
        target_of(node, 2)


def test_predictions_are_lower_bounds_of_days() -> None:
    plan = make_plan(manifest(models=["pythia-1b", "vit-l"], methods=["naive", "free-lunch"]), H200)
    floors = {(cell.model.name, cell.label): cell.floor_days for cell in plan.cells}
    naive, lunch = floors["vit-l", "naive"], floors["vit-l", "free-lunch"]
    assert naive is not None
    assert lunch is not None
    assert naive > lunch  # TF32 raises the ceiling
    assert floors["pythia-1b", "naive"] is not None


def test_a_label_replaces_the_free_methods_by_free_lunch() -> None:
    model = known_models()["tiny-vit"]
    lunch = ordered(["kernels", "fused-optimizer", "compile-blocks"])
    assert label(lunch, model, CPU) == "free-lunch"
    assert label(ordered([*lunch, "checkpointing"]), model, CPU) == "free-lunch + checkpointing"
    assert label(("compile",), model, CPU) == "compile"
    # Hooks outside a block that gather its parameters allow the block to be compiled.
    sharded = ordered(["kernels", "fused-optimizer", "compile-blocks", "fsdp-3"])
    assert label(sharded, model, replace(CPU, gpus=2)) == "free-lunch + fsdp-3"
    assert label((), model, CPU) == "naive"


@pytest.mark.parametrize("name", list(known_methods()))
def test_every_method_keeps_the_contract(name: str) -> None:
    method = known_methods()[name]
    assert method.name == name
    assert method.summary
    for target in (CPU, H200, V100, FOUR_H200):
        for model in known_models().values():
            reason = method.refuse(model, target)
            assert reason is None or reason.strip()


def test_mambas_free_lunch_is_compiled_block_by_block_on_a_gpu() -> None:
    """mamba-ssm's kernels break the graph in every block; compiling the whole model would take minutes."""
    model = known_models()["mamba-2.8b"]
    assert "compile-blocks" in free_lunch(model, H200)
    assert "compile" not in free_lunch(model, H200)
    assert "compile-blocks" in free_lunch(model, FOUR_H200, ("fsdp-2",))
    assert not {"compile", "compile-blocks"} & {*free_lunch(model, FOUR_H200, ("zero-3",))}
    lines = make_plan(manifest(models=["mamba-2.8b"], methods=[["compile"]]), H200).skipped
    assert [skip.reason for skip in lines] == [
        "mamba-ssm's kernels break the graph in every block: use compile-blocks"
    ]


@pytest.mark.parametrize("name", ["pythia-1b", "roberta-large", "vit-l", "convnext-xl"])
def test_a_family_that_loses_nothing_by_it_is_compiled_block_by_block(name: str) -> None:
    assert in_group(free_lunch(known_models()[name], H200), "compilation") == "compile-blocks"


def test_an_unknown_model_is_compiled_block_by_block() -> None:
    llama = {
        "name": "mine",
        "architecture": {"model_type": "llama", "vocab_size": 1000},
        "recipe": {
            "objective": "causal-lm", "batch_size": 8, "steps": 10, "precision": "bf16", "sequence_length": 32
        },
    }  # fmt: skip
    (model,) = manifest(models=[llama]).models
    assert in_group(free_lunch(model, H200), "compilation") == "compile-blocks"
    assert in_group(free_lunch(model, FOUR_H200, ("fsdp-2",)), "compilation") == "compile-blocks"
    assert in_group(free_lunch(model, FOUR_H200, ("zero-3",)), "compilation") is None


def test_offloading_is_left_out_where_the_hosts_memory_is_too_small_for_it() -> None:
    host = replace(H200, host_bytes=128 << 30)

    def skipped(model: str, target: Target) -> dict[str, str]:
        plan = make_plan(manifest(models=[model], methods="exhaustive"), target)
        return {skip.label: skip.reason for skip in plan.skipped if "host's memory" in skip.reason}

    large = skipped("pythia-6.9b", host)
    assert len(large) == 10  # all settings with offloading
    assert (
        "needs about 143.3 GiB of the host's memory; there are 128.0 GiB"
        in large["free-lunch + zero-1 + offload"]
    )
    assert not skipped("pythia-2.8b", host)
    assert not skipped("pythia-6.9b", replace(H200, host_bytes=256 << 30))


def test_offloaded_memory_is_divided_among_the_nodes() -> None:
    """DeepSpeed and FSDP2 both divide it: each additional node reduces the memory of the others."""
    gpus = tuple(Gpu(i, "NVIDIA H200", f"GPU-{i}", 140 << 30, "9.0") for i in range(8))
    node = NodeFacts("cpu", 8, 256 << 30, "os", "6", "3.12", gpus)
    offloads = manifest(models=["pythia-6.9b"], methods=[["zero-3", "offload"]])
    for nodes in (1, 16):
        target = target_of(node, None, nodes)
        assert (target.gpus, target.nodes) == (8 * nodes, nodes)
        assert not make_plan(offloads, target).skipped
    small = replace(node, memory_bytes=128 << 30)
    (skipped,) = make_plan(offloads, target_of(small, None)).skipped
    assert "needs about 239.5 GiB of the host's memory; there are 128.0 GiB" in skipped.reason
    assert not make_plan(offloads, target_of(small, None, 4)).skipped


def test_rotary_kernels_are_for_gpt_neox_on_a_gpu_beside_the_other_kernels() -> None:
    rotary, by_name = known_methods()["rotary"], known_models()
    assert rotary.refuse(by_name["pythia-1b"], H200) is None
    for model, target in [("roberta-large", H200), ("mamba-2.8b", H200), ("pythia-1b", CPU)]:
        assert rotary.refuse(by_name[model], target)
    assert "add kernels" in str(conflict(("tf32", "rotary")))
    assert conflict(("kernels", "rotary")) is None


def test_gelu_by_kernels_is_for_exact_gelu_on_a_gpu() -> None:
    gelu, by_name = known_methods()["gelu"], known_models()
    for name in ("pythia-1b", "roberta-large", "vit-l", "convnext-xl"):
        assert gelu.refuse(by_name[name], H200) is None
        assert gelu.refuse(by_name[name], CPU)
        assert "gelu_new" in str(gelu.refuse(with_architecture(by_name[name], hidden_act="gelu_new"), H200))
    assert gelu.refuse(by_name["mamba-2.8b"], H200)


def test_norms_by_one_kernel_are_for_blocks_in_half_precision_throughout() -> None:
    norms, by_name = known_methods()["norms"], known_models()
    pythia = by_name["pythia-1b"]
    assert norms.refuse(pythia, H200) is None
    assert norms.refuse(pythia, CPU) and norms.refuse(by_name["roberta-large"], H200)
    assert "use_parallel_residual" in str(
        norms.refuse(with_architecture(pythia, use_parallel_residual=False), H200)
    )
    assert norms.refuse(with_architecture(pythia, hidden_dropout=0.1), H200) is None
    wide = with_architecture(pythia, hidden_size=5120)
    assert "4,096 numbers a row at most; pythia-1b has 5,120" in str(norms.refuse(wide, H200))
    assert "add half-weights" in str(conflict(("kernels", "norms")))
    assert "norms" in free_lunch(pythia, H200, ("half-weights",))
    assert "norms" not in free_lunch(pythia, H200)


def test_without_a_compiler_some_settings_can_still_be_measured() -> None:
    """Triton also needs a C compiler to build its kernels."""
    for name in ("pythia-1b", "roberta-large", "vit-l", "convnext-xl"):
        plain = free_lunch(known_models()[name], H200, compiled=False)
        assert plain
        assert not {"compile", "compile-blocks", "rotary", "gelu", "depthwise", "flex-attention"} & {*plain}
        assert any(
            cell.setting == plain for cell in make_plan(manifest(models=[name], methods="guided"), H200).cells
        )


def with_architecture(model: Model, **changed: object) -> Model:
    return replace(model, architecture={**model.architecture, **changed})


@pytest.mark.parametrize("beside", [(), ("half-weights",), ("checkpointing",)], ids="+".join)
def test_a_free_lunch_has_every_method_that_costs_nothing_there(beside: Setting) -> None:
    for model in list(known_models().values())[:9]:
        if any(known_methods()[name].refuse(model, H200) for name in beside):
            continue
        lunch = free_lunch(model, H200, beside)
        for name, method in known_methods().items():
            if method.free_lunch and name not in GROUPS and not method.refuse(model, H200):
                assert name in lunch or conflict(ordered([name, *lunch])), model.name
    assert "rotary" not in free_lunch(known_models()["roberta-large"], H200)


def test_attention_that_is_slow_unless_compiled_is_free_only_beside_a_compiler() -> None:
    vit = known_models()["vit-l"]
    wide = replace(vit, architecture={**vit.architecture, "num_attention_heads": 8})
    assert "flex-attention" in free_lunch(wide, H200)
    assert "flex-attention" in free_lunch(wide, FOUR_H200, ("fsdp-2",))
    assert "flex-attention" not in free_lunch(wide, FOUR_H200, ("zero-3",))
    assert "full-attention" in free_lunch(vit, FOUR_H200, ("zero-3",))
    narrow = replace(vit, architecture={**vit.architecture, "num_attention_heads": 128})
    assert in_group(free_lunch(narrow, H200), "attention") is None


def test_every_setting_of_a_free_lunch_can_be_run() -> None:
    for model in known_models().values():
        for target in (CPU, H200, FOUR_H200, V100):
            for beside in memory_saving_settings(target.gpus):
                setting = free_lunch(model, target, beside)
                if refusal(beside, model, target) is None:
                    assert refusal(setting, model, target) is None


LLAMA = {
    "name": "llama-7b",
    "architecture": {"model_type": "llama", "vocab_size": 32_000},
    "recipe": {
        "objective": "causal-lm",
        "batch_size": 8,
        "steps": 1000,
        "precision": "bf16",
        "sequence_length": 8,
    },
}
SEVEN = Counted(Parts(262_000_000, (202_000_000,) * 32), Flops(10**14))


def test_the_plan_of_a_model_without_formulas_uses_counted_states() -> None:
    mine = manifest(models=[LLAMA], methods=["naive", ["zero-3", "offload"]])
    for cell in make_plan(mine, H200).cells:
        assert (cell.predicted_bytes, cell.least_bytes, cell.floor_days) == (None, None, None)
    known = make_plan(mine, H200, {"llama-7b": SEVEN})
    assert known.cells[0].predicted_bytes is None
    assert known.cells[0].least_bytes == SEVEN.parts.total * 18
    assert known.cells[0].floor_days == pytest.approx(3e14 * 8 * 1000 / 989.5e12 / 86_400, rel=0.01)
    assert not known.skipped


def test_a_plan_says_of_which_settings_the_memory_is_never_counted() -> None:
    """Attention is then compiled that PyTorch can fuse, and was not asked to."""
    ways = ["naive", ["compile"], ["kernels", "compile"], ["compile-blocks"]]
    (said,) = never_counted(make_plan(manifest(models=[LLAMA], methods=ways), H200))
    assert said.startswith("llama-7b: the memory of compile, compile-blocks is unknown before it runs")
    assert "With kernels beside it" in said and "smaller ones" in said
    assert never_counted(make_plan(manifest(models=["pythia-160m"], methods=ways), H200)) == ()
    known = manifest(models=[LLAMA], methods=["naive", ["kernels", "compile"]])
    assert never_counted(make_plan(known, H200)) == ()


def test_weights_that_fit_nowhere_are_not_tried_and_none_are_offloaded_where_the_host_is_small() -> None:
    mine = manifest(models=[LLAMA], methods=["naive", ["zero-3", "offload"]])
    assert not make_plan(mine, RTX_3090).skipped
    naive, offloaded = make_plan(mine, replace(RTX_3090, host_bytes=64 << 30), {"llama-7b": SEVEN}).skipped
    assert naive.reason == "needs about 112.8 GiB before any sample; there are 24.0 GiB"
    assert offloaded.reason == "offloading needs about 215.8 GiB of the host's memory; there are 64.0 GiB"


@pytest.mark.parametrize(
    ("predicted_gib", "doubtful"),
    [(79.4, True), (75.5, True), (75.4, False), (73.2, False)],  # of an H100 torch can allocate 79.2 GiB
)
def test_a_prediction_without_room_for_its_error_may_not_fit(predicted_gib: float, doubtful: bool) -> None:
    assert may_not_fit(round(predicted_gib * 2**30), round(79.6 * 2**30)) == doubtful


def test_a_trial_that_may_not_fit_waits_for_all_others() -> None:
    plan = make_plan(manifest(), H200)
    first, second = plan.cells
    most = round((plan.memory_bytes - DRIVER_BYTES) / (1 + EXCEEDED_BY))
    for needed, expected in ((most - 1, first), (most + 1, second)):
        size = first.trials[0].micro_batch
        tight = replace(first, trials=first.trials[:1], needs={size: needed})
        found = next_trial(replace(plan, cells=(tight, second)), {})
        assert found == expected.trials[0]
    alone = replace(plan, cells=(tight,))
    assert next_trial(alone, {}) == tight.trials[0]
