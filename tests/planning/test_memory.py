"""Predicted device memory is within 10% of the peaks of the measured bundles in results/."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning import memory_prediction
from bench.planning.memory_prediction import (
    gradients_of_a_pass,
    host_bytes,
    predict_bytes,
    predict_counted_bytes,
    state_bytes,
)
from bench.planning.recorded_memory import Reserved
from bench.report.read_bundles import check_all
from bench.training.methods import known_methods, memory_saving_settings
from bench.training.models import Counted, Flops, Model, Parts, Precision, families, family_of, parameters_of
from bench.training.models.counted_memory import counted_footprints
from bench.training.models.generic import TransformersFamily, _parts
from bench.training.models.paper_code import find_model
from bench.training.models.shipped_counts import digest_of, shipped_counts
from bench.training.setting import Setting, halves_weights, in_group

RESULTS = Path(__file__).parents[2] / "results"
# A large model: at one billion parameters ZeRO-3 needs more than ZeRO-2 (measured too), as it gathers.
PARTS = Parts(outside=1_000_000_000, blocks=(500_000_000,) * 20)
MOMENTS = 8 * PARTS.total  # Adam's


# Measured before head and loss were compiled together: models compiled by blocks stored the logits twice.
LOGITS_TWICE = {
    "every-setting-h200/pythia-160m-1gpu", "every-setting-h200/pythia-160m-2gpus",
    "compiled-how-h200/32-pythia-160m", "compiled-how-h200/16-pythia-410m",
    "proof-2xh200/pythia-1b-fsdp-2", "side-by-side-h200/head-and-loss-apart", "hour-h200/24-minutes",
}  # fmt: skip

# Measured before the head of a model with an encoder was compiled with the loss: the copies of logits of odd
# length, which padded-head saves, remained.
HEAD_APART = {"zoo-h100/zoo-1"}

SUMS = 4  # bytes per parameter: in these bundles FSDP2 added gradients up itself, without additional sums
WITHOUT_SUMS = {
    "hour-h200/20-minutes", "hour-h200/24-minutes", "settings-h200/mamba-2.8b-1gpu-2",
    "settings-h200/mamba-2.8b-1gpu-rest-2",
}  # fmt: skip


def logits_bytes(model: Model) -> int:
    """Return the bytes of a sample's logits in half precision; logits of picture models are negligible."""
    recipe = model.recipe
    all_predict = recipe.objective != "masked-lm" and recipe.target_length is None
    positions = recipe.units_per_sample if all_predict else recipe.asked_per_sample
    return 2 * positions * model.architecture.get("vocab_size", 0)


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


COUNTS: dict[tuple[str | bool, ...], Counted] = {}  # of brought models, by what counts depend on


def counts_of_brought(model: Model, setting: Setting) -> Counted | None:
    """Return the counts of a model whose family has no formulas; None if the family has some.

    Counting takes seconds, so the footprint is counted for this setting alone.
    """
    if model.family in families():
        return None
    if shipped := shipped_counts(model):
        return shipped
    kernels, halved = "kernels" in setting, halves_weights(setting)
    compiled = in_group(setting, "compilation") is not None
    key = digest_of(model), kernels, compiled, halved
    if key not in COUNTS:
        family = family_of(model)
        assert isinstance(family, TransformersFamily)
        ways = [(fused, (how,)) for fused, hows in family.counted_ways() for how in hows]
        asked = [way for way in ways if way == (kernels, (compiled,))]
        footprints = counted_footprints(
            model, partial(family.build_with, model), family.blocks, asked, (halved,)
        )
        COUNTS[key] = Counted(parts_of(model, family), Flops(0), footprints=footprints)
    return COUNTS[key]


def parts_of(model: Model, family: TransformersFamily) -> Parts:
    """Count a model's weights, and not its operations, on which memory does not depend."""
    with torch.device("meta"):
        module = family.build_with(model, "eager")
    return _parts(module, family.blocks(module))


def bundles() -> list[Path]:
    return sorted(RESULTS.rglob("*.tar"))


@pytest.mark.parametrize("path", bundles(), ids=named)
def test_a_committed_bundle_verifies_and_its_peaks_are_predicted_within_10_percent(path: Path) -> None:
    ((_, verdict),) = check_all([path], None)
    assert isinstance(verdict, Verdict), verdict
    if not isinstance(verdict.contents, RunContents):  # a node check
        return
    results = verdict.contents.results
    for trial in results.trials:
        # Trials with a removed method, or with CUDA graphs, whose peaks lack memory, are left out.
        graphs = "TORCHINDUCTOR_CUDAGRAPHS" in (results.node.switches or {})
        if trial.estimate and not graphs and known_methods().keys() >= {*trial.setting}:
            model = next(one for one in results.models if one.name == trial.model)
            counts = counts_of_brought(model, trial.setting)
            predicted = predict_bytes(model, trial.setting, trial.micro_batch, trial.gpus, counts)
            assert predicted is not None
            if named(path) in LOGITS_TWICE and "compile-blocks" in trial.setting:
                predicted += trial.micro_batch * logits_bytes(model)
            if named(path) in HEAD_APART and "padded-head" in trial.setting and model.recipe.target_length:
                predicted += 2 * trial.micro_batch * logits_bytes(model)
            assert predicted == pytest.approx(trial.estimate.peak_bytes, rel=0.1), trial.label


# In hour-h200/17-minutes, the other GPU of the machine worked on the same host.
@pytest.mark.parametrize(
    "name", [*sorted(WITHOUT_SUMS), "settings-h200/mamba-2.8b-1gpu-fsdp-2",
             "settings-h200/pythia-1b-1gpu-fsdp-16"],
)  # fmt: skip
def test_the_host_memory_of_offloading_is_predicted(name: str) -> None:
    """Only large models show it clearly. The peak counts, which a trial that failed later has reached too."""
    with tarfile.open(RESULTS / f"{name}.tar") as bundle:
        results = json.loads(member(bundle, "results.json"))
        telemetry = [json.loads(line) for line in member(bundle, "telemetry.jsonl").splitlines()]
    idle = max(sample["available_bytes"] for sample in telemetry)
    offloading = [trial for trial in results["trials"] if "offload" in trial["setting"]]
    assert offloading
    for trial in offloading:
        model = find_model(trial["model"])
        assert model
        parameters = parameters_of(model) or 0
        predicted = host_bytes(parameters, tuple(trial["setting"]), 1)
        if "fsdp-2" in trial["setting"] and name in WITHOUT_SUMS:
            predicted -= SUMS * parameters
        if "SIGKILL" in str(trial["failure"]):  # the host ran out of memory
            assert predicted > results["node"]["memory_bytes"]
            continue
        least = min(sample["available_bytes"] for sample in telemetry if sample["trial"] == trial["id"])
        assert predicted == pytest.approx(idle - least, rel=0.15), trial["label"]


def member(bundle: tarfile.TarFile, name: str) -> bytes:
    file = bundle.extractfile(name)
    assert file
    return file.read()


def test_there_are_committed_bundles() -> None:
    assert len(bundles()) > 30


@pytest.mark.parametrize("half", [True, False])
def test_higher_sharding_stages_need_less_memory(half: bool) -> None:
    def held(*setting: str) -> int:
        return state_bytes(PARTS, setting, 8, MOMENTS, half=half)

    assert held() > held("zero-1") > held("zero-2") > held("zero-3")
    assert held("fsdp-2") > held("fsdp-3")
    for setting in memory_saving_settings(8):
        if "offload" in setting:
            assert held(*setting) < held(*(name for name in setting if name != "offload"))


# Two billion parameters: much outside of few uneven blocks, or little outside of many blocks.
OUTSIDE, BLOCKS = Parts(10**9, (2 * 10**8, 6 * 10**8, 2 * 10**8)), Parts(10**8, (10**8,) * 19)


@pytest.mark.parametrize(
    ("parts", "setting", "gpus", "half", "gigabytes"),
    [
        (OUTSIDE, (), 1, True, 20 + 16),  # weights in fp32 and halved, gradients; then the moments
        (OUTSIDE, (), 1, False, 16 + 16),
        (OUTSIDE, (), 2, True, 20 + 16 + 8),  # and the gradients that DDP sends
        # Half copies of the weights outside of blocks and of one block, which computes its own again.
        (OUTSIDE, ("checkpointing",), 1, True, 16 + 2 * (1 + 0.6) + 16),
        (OUTSIDE, ("checkpointing",), 1, False, 16 + 16),
        (OUTSIDE, ("half-weights", "checkpointing"), 1, True, 20 + 16),  # they are no copies
        (OUTSIDE, ("half-weights",), 1, True, 20 + 16),
        (OUTSIDE, ("half-weights",), 2, True, 20 + 16),
        # Sums of gradients, the bucket, and a quarter of fp32 weights with moments, beside the weights.
        (OUTSIDE, ("zero-1",), 4, True, 4 + 8 + 2 + 6),
        (OUTSIDE, ("zero-2",), 4, True, 4 + 2 + 6),
        (
            OUTSIDE,
            ("zero-3",),
            4,
            True,
            2 * (1 + 2 * 0.6) + 1 + 2 + 1 + 6,
        ),  # gathered weights, then a quarter
        (BLOCKS, ("zero-3",), 4, True, 2 * 1 + 1 + 2 + 1 + 6),  # DeepSpeed keeps a billion weights gathered
        (OUTSIDE, ("zero-1", "offload"), 4, True, 4 + 8 + 2),
        (OUTSIDE, ("zero-2", "offload"), 4, True, 4 + 2),
        (OUTSIDE, ("zero-2", "offload"), 4, False, 8),
        (OUTSIDE, ("zero-3", "offload"), 4, True, 2 * (1 + 2 * 0.6) + 1),
        # A quarter of everything, gathered weights, and the gradients that are being reduced.
        (OUTSIDE, ("fsdp-2",), 4, True, 8 + 4 + 2 * 1),
        (OUTSIDE, ("fsdp-3",), 4, True, 8 + 2 * (1 + 2 * 0.6) + 2 * 1),
        (BLOCKS, ("fsdp-3",), 4, False, 8 + 4 * (0.1 + 2 * 0.1) + 4 * 0.1),
        (OUTSIDE, ("fsdp-3", "offload"), 4, True, 2 * (1 + 2 * 0.6) + 2 * 1),
    ],
)
def test_the_state_of_two_billion_parameters(
    parts: Parts, setting: tuple[str, ...], gpus: int, half: bool, gigabytes: float
) -> None:
    found = state_bytes(parts, setting, gpus, 16 * 10**9, half=half)
    assert found == pytest.approx(gigabytes * 1e9, rel=0, abs=0.5)


def test_a_model_without_blocks_gathers_all_of_its_weights() -> None:
    whole = Parts(10**9, ())
    found = state_bytes(whole, ("fsdp-3",), 4, 8 * 10**9, half=True)
    assert found == 4 * 10**9 + 2 * 10**9 + 2 * 10**9


def test_a_model_without_blocks_keeps_half_copies_of_all_of_its_weights() -> None:
    for setting in ((), ("checkpointing",)):
        assert state_bytes(Parts(10**9, ()), setting, 1, 8 * 10**9, half=True) == (4 + 4 + 8 + 2) * 10**9


# Frozen weights: 3 GB of them outside of blocks, and blocks of 1 and 2 GB.
FROZEN = Parts(
    10**9, (10**9,), frozen_outside_bytes=3 * 10**9, frozen_blocks_bytes=(10**9, 2 * 10**9)
)  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "gigabytes"),
    [
        ((), 6),  # every GPU has all of them
        (("zero-1",), 6),
        (("zero-2",), 6),
        (("zero-1", "offload"), 6),
        (("zero-3",), 3 + 2 * 2 + 6 / 4),  # those outside and two blocks are gathered; a quarter is kept
        (("zero-3", "offload"), 3 + 2 * 2),
        (("fsdp-2",), 6 + 6 / 4),
        (("fsdp-3",), 3 + 2 * 2 + 6 / 4),
        (("fsdp-3", "offload"), 3 + 2 * 2),
    ],
)
def test_frozen_weights_take_memory_beside_trained_ones(setting: tuple[str, ...], gigabytes: float) -> None:
    bare = Parts(FROZEN.outside, FROZEN.blocks)
    with_frozen, without = (state_bytes(one, setting, 4, 16 * 10**9, half=True) for one in (FROZEN, bare))
    assert with_frozen - without == gigabytes * 10**9


@pytest.mark.parametrize(
    ("setting", "precision", "gpus", "gigabytes"),
    [
        ((), "bf16", 2, (0, 0)),
        (("zero-2",), "bf16", 2, (2 * 0.5, 0)),  # a bucket of 500 million gradients
        (("zero-2", "offload"), "fp32", 2, (4 * 0.5, 0)),
        (("zero-1",), "bf16", 2, (0, 0)),  # the pass has freed more than all gradients take
        (("zero-1", "checkpointing"), "bf16", 2, (2 * 2, 0)),
        # This GPU's part of the sums, and a bucket in half precision, after the last pass of a step.
        (("zero-1",), "fp16", 4, (0, 4 * 2 / 4 + 2 * 0.5)),
        (("zero-1", "offload"), "bf16", 1, (0, 4 * 2 + 2 * 0.5)),
        (("zero-1", "checkpointing", "offload"), "bf16", 2, (0, 4 * 2 / 2 + 2 * 0.5)),
        (("zero-1", "offload"), "fp32", 2, (0, 0)),
        (("zero-3", "offload"), "bf16", 2, (0, 0)),
    ],
)
def test_the_gradients_of_a_pass_of_two_billion_parameters(
    setting: tuple[str, ...], precision: Precision, gpus: int, gigabytes: tuple[float, float]
) -> None:
    found = gradients_of_a_pass(setting, precision, OUTSIDE.total, gpus)
    assert found == tuple(round(one * 1e9) for one in gigabytes)


def test_a_small_model_fills_no_bucket() -> None:
    assert gradients_of_a_pass(("zero-1", "offload"), "bf16", 10**6, 2) == (0, 4 * 10**6 // 2 + 2 * 10**6)


@pytest.mark.parametrize(
    ("setting", "nodes", "gigabytes"),
    [
        ((), 1, 0),
        (("zero-1",), 1, 0),
        (("fsdp-3",), 1, 0),
        (("zero-1", "offload"), 1, 2 * 22 + 4 * 3),
        (("zero-2", "offload"), 1, 2 * 22 + 4 * 3),
        (("zero-3", "offload"), 1, 2 * 34 + 4 * 3 + 1),  # and the frozen weights
        (("fsdp-2", "offload"), 1, 2 * 24 + 4 * 3 + 1),
        (("fsdp-3", "offload"), 2, (2 * 24 + 4 * 3 + 1) / 2),
    ],
)
def test_only_offloading_takes_the_hosts_memory(
    setting: tuple[str, ...], nodes: int, gigabytes: float
) -> None:
    assert host_bytes(2 * 10**9, setting, 4, nodes, frozen_bytes=10**9) == gigabytes * 1e9


def test_without_a_word_a_model_is_offloaded_on_one_node_and_has_no_frozen_weights() -> None:
    assert host_bytes(2 * 10**9, ("zero-3", "offload"), 4) == (2 * 34 + 4 * 3) * 1e9


def test_sharding_on_one_device_saves_nothing() -> None:
    alone = state_bytes(PARTS, (), 1, MOMENTS, half=True)
    assert state_bytes(PARTS, ("zero-2",), 1, MOMENTS, half=True) >= alone


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ((), 1 + 100 + 3000),
        (("kernels",), 1 + 100 + 3000),
        (("checkpointing",), 1 + 50_000 + 20),
        (("chunked-loss",), 1 + 50_000 + 20),
        (("checkpointing", "chunked-loss"), 1 + 50_000 + 20),
    ],
)
def test_a_recorded_pass_has_its_pool_unless_it_saves_activations(
    setting: Setting, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations that are computed again, or piece by piece, are freed in the middle of a pass."""
    counts: Any = SimpleNamespace(footprint=lambda *_: SimpleNamespace(logits=7), parts=None)
    aim = SimpleNamespace(bytes_of_a_step=lambda *_: 1)
    model: Any = SimpleNamespace(recipe=SimpleNamespace(aim=aim, batch_size=8))
    reserved: list[Reserved | None] = [Reserved(outside=100, lost=20, pool=3000)]
    for name, double in {
        "activation_bytes": lambda *_: (0, 0),
        "moment_bytes": lambda *_: 0,
        "reserved_memory": lambda *_: reserved[0],
        "_peak_bytes": lambda *_: 50_000,
    }.items():
        monkeypatch.setattr(memory_prediction, name, double)
    assert predict_counted_bytes(model, setting, 4, 1, counts) == found
    reserved[0] = None
    assert predict_counted_bytes(model, setting, 4, 1, counts) == 1 + 50_000
    counts.footprint = lambda *_: None
    assert predict_counted_bytes(model, setting, 4, 1, counts) is None
