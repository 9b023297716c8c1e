"""Memory that is lost beside a recorded pass: segments in which gradients and moments lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.recorded_memory import lost_bytes
from bench.training.models import Model, Parts, known_models
from bench.training.models.footprint import Block, Footprint

MIB = 2**20
RECORDED = ("kernels", "compile-blocks", "cuda-graphs")
# A block that keeps 4 MiB a sample, and whose weight has a gradient of 16 MiB, when they have been freed.
FREES_FIRST = f"10 {4 * MIB}+0@1-12 0+{16 * MIB}@15-"
# A block whose gradient exists before what it keeps is freed.
FREES_LAST = f"10 {4 * MIB}+0@1-15 0+{16 * MIB}@12-"
PARTS = Parts(outside=0, blocks=(4 * MIB,))


def model() -> Model:
    """A model whose loss curve has 64 samples a step, and whose logits need no padding."""
    found = known_models()["pythia-160m"]
    return replace(found, recipe=replace(found.recipe, batch_size=1024))


def lost(
    block: str,
    micro_batch: int = 32,
    count: int = 1,
    *,
    head: tuple[int, int] = (0, 0),  # words and features
    setting: tuple[str, ...] = RECORDED,
) -> int:
    of_head = head[0] * head[1]
    footprint = Footprint(
        ends=0,
        blocks=(Block(count, 0, 0, tensors=block),),
        logits=model().recipe.units_per_sample * head[0],
        weights=(of_head,) if of_head else (),
    )
    parts = replace(PARTS, outside=of_head)
    return lost_bytes(footprint, model(), parts, setting, micro_batch, moments=2 * 4 * parts.total)


def test_a_gradient_among_freed_activations_keeps_all_of_their_segment() -> None:
    # The segment of 128 MiB has the gradient and both moments, each of 16 MiB.
    assert lost(FREES_FIRST) == (128 - 3 * 16) * MIB


def test_nothing_is_lost_if_gradients_and_moments_have_segments_of_their_own() -> None:
    # Gradients exist before activations are freed. With 8 passes a step, moments come after the recording.
    assert lost(FREES_LAST, micro_batch=8) == 0


def test_moments_of_a_first_update_lie_in_freed_activations() -> None:
    assert lost(FREES_LAST, micro_batch=32) == (128 - 2 * 16) * MIB  # two passes a step


def test_each_block_finds_the_memory_that_the_ones_after_it_freed() -> None:
    # The gradients and moments of all four blocks share the segment of the last one.
    assert lost(FREES_FIRST, count=4) == lost(FREES_FIRST) + 128 * MIB - 3 * 3 * 16 * MIB


def test_only_recorded_passes_with_fp32_weights_lose_memory() -> None:
    assert lost(FREES_FIRST, setting=("kernels", "compile-blocks")) == 0
    assert lost(FREES_FIRST, setting=(*RECORDED, "half-weights")) == 0


def test_the_gradient_of_a_large_head_keeps_the_memory_of_the_logits() -> None:
    words = 50_304
    recorded = lost(FREES_LAST, micro_batch=8, head=(words, 768))
    logits, gradient = 2 * 8 * 2048 * words, 4 * words * 768
    # Moments come after the recording, and fill a part of both segments: that of the logits, and that of the
    # head's gradient in half precision, in which the block's gradient lies.
    assert recorded == pytest.approx(logits + gradient / 2 - 3 * gradient - 3 * 16 * MIB, rel=0.001)


def test_blocks_whose_tensors_were_not_counted_lose_nothing() -> None:
    assert lost("") == 0
