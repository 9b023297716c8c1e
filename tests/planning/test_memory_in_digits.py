"""Predicted memory in digits, and which terms each way of sharding has; no bundle is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.planning import memory_prediction
from bench.planning.memory_prediction import (
    gradients_of_a_pass,
    host_bytes,
    predict_bytes,
    predict_counted_bytes,
    state_bytes,
)
from bench.planning.recorded_memory import Reserved
from bench.training.methods import memory_saving_settings
from bench.training.models import Parts, Precision
from bench.training.setting import Setting

# A large model: at one billion parameters ZeRO-3 needs more than ZeRO-2 (measured too), as it gathers.
PARTS = Parts(outside=1_000_000_000, blocks=(500_000_000,) * 20)
MOMENTS = 8 * PARTS.total  # Adam's


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
        (("offload",), 1, 0),  # nothing is sharded, so nothing is offloaded
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


# --- the peak of a step ------------------------------------------------------------------------------------


def peak(
    setting: Setting, activations: tuple[int, int], micro_batch: int = 1, precision: str = "bf16"
) -> float:
    """Return the gigabytes of a peak beyond those of the state, for two GPUs and OUTSIDE."""
    moments = SimpleNamespace(moment_bytes=lambda matrices, others: 4 * matrices + 2 * others)
    recipe = SimpleNamespace(precision=precision, optimizer=moments, objective="none", units_per_sample=0)
    model: Any = SimpleNamespace(recipe=recipe, architecture={})
    found = memory_prediction._peak_bytes(model, setting, micro_batch, 2, OUTSIDE, activations)
    state = state_bytes(OUTSIDE, setting, 2, 4 * 10**9 + 2 * 10**9, half=precision != "fp32")
    return (found - state) / 1e9


@pytest.fixture(autouse=True)
def _without_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of the models here keeps no logits."""
    monkeypatch.setattr(memory_prediction, "logits_bytes", lambda model, setting, micro_batch: 0)


def test_activations_grow_with_the_micro_batch_and_the_larger_peak_counts() -> None:
    assert peak((), (2 * 10**9, 3 * 10**9)) == 3
    assert peak((), (4 * 10**9, 3 * 10**9)) == 4
    assert peak((), (4 * 10**9, 3 * 10**9), 2) == 8
    assert peak((), (2 * 10**9, 3 * 10**9), 2) == 6


def test_gradients_of_a_pass_lie_beside_the_activations_of_blocks_and_not_of_the_loss() -> None:
    bucket = 1  # of ZeRO-2 in half precision
    assert peak(("zero-2",), (2 * 10**9, 3 * 10**9)) == 3 + bucket
    assert peak(("zero-2",), (5 * 10**9, 3 * 10**9)) == 5
    assert peak(("zero-2",), (10**9, 3 * 10**9), precision="fp32") == 3 + 2 * bucket


def test_sums_that_a_step_allocates_last_may_be_the_peak() -> None:
    assert peak(("zero-1",), (10**9, 10**9), precision="fp16") == 4 * 2 / 2 + 2 * 0.5
    assert peak(("zero-1",), (9 * 10**9, 10**9), precision="fp16") == 9


def test_logits_of_a_micro_batch_lie_beside_the_activations_at_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        memory_prediction, "logits_bytes", lambda model, setting, micro_batch: micro_batch * 10**9
    )
    assert peak((), (2 * 10**9, 3 * 10**9), 2) == 6
    assert peak((), (2 * 10**9, 10**9), 2) == 2 * 2 + 2


def test_formulas_of_the_family_come_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of these doubles is a number that tells what it was made from."""
    given: list[object] = []
    family = SimpleNamespace(
        parameters=lambda model: "parts", activation_bytes=lambda model, setting: "activations"
    )
    monkeypatch.setattr(memory_prediction, "family_of", lambda model: family)
    monkeypatch.setattr(memory_prediction, "_peak_bytes", lambda *all: given.append(all) or 7)
    monkeypatch.setattr(memory_prediction, "predict_counted_bytes", lambda *all: given.append(all) or 5)
    model: Any = "model"
    counts: Any = "counts"
    assert predict_bytes(model, ("kernels",), 3, 2, counts) == 7
    assert given.pop() == ("model", ("kernels",), 3, 2, "parts", "activations")

    def unknown(*_: object) -> None:
        raise LookupError

    family.activation_bytes = unknown
    assert predict_bytes(model, (), 3, 2, counts) == 5
    assert given.pop() == ("model", (), 3, 2, "counts")
    assert predict_bytes(model, (), 3, 2) is None
    assert given == []
