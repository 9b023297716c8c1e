"""Memory that is lost beside a recorded pass: segments in which gradients and moments lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.recorded_memory import PRODUCTS, Reserved, reserved_memory
from bench.training.models import Model, Parts, known_models
from bench.training.models.footprint import Block, BlockCall, Footprint, order_of

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


def reserved(
    block: str,
    micro_batch: int = 32,
    count: int = 1,
    *,
    head: tuple[int, int] = (0, 0),  # words and features
    ends: tuple[int, int] = (0, 0),  # bytes of a sample before the first block, and after the last
    trained: Model | None = None,
    setting: tuple[str, ...] = RECORDED,
) -> Reserved | None:
    of_head = head[0] * head[1]
    trained = trained or model()
    footprint = Footprint(
        ends=sum(ends),
        blocks=(Block(count, 0, 0, tensors=block),),
        logits=trained.recipe.units_per_sample * head[0],
        weights=(of_head,) if of_head else (),
        before=ends[0],
    )
    parts = replace(PARTS, blocks=PARTS.blocks * count, outside=of_head)
    return reserved_memory(footprint, trained, parts, setting, micro_batch, moments=2 * 4 * parts.total)


def lost(block: str, micro_batch: int = 32, count: int = 1, *, head: tuple[int, int] = (0, 0)) -> int:
    found = reserved(block, micro_batch, count, head=head)
    assert found
    return found.lost


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
    assert reserved(FREES_FIRST, setting=("kernels", "compile-blocks")) is None
    assert reserved(FREES_FIRST, setting=(*RECORDED, "half-weights")) is None


def test_the_gradient_of_a_large_head_keeps_the_memory_of_the_logits() -> None:
    words = 50_304
    recorded = lost(FREES_LAST, micro_batch=8, head=(words, 768))
    logits, gradient = 2 * 8 * 2048 * words, 4 * words * 768
    # Moments come after the recording, and fill a part of both segments: that of the logits, and that of the
    # head's gradient in half precision, in which the block's gradient lies.
    assert recorded == pytest.approx(logits + gradient / 2 - 3 * gradient - 3 * 16 * MIB, rel=0.001)


def test_blocks_whose_tensors_were_not_counted_lose_nothing() -> None:
    assert reserved("") is None


def test_memory_outside_of_the_pool_is_that_of_weights_gradients_and_moments_and_what_is_lost() -> None:
    found = reserved(FREES_FIRST)
    assert found
    # Products in the forward and in the backward pass; the loss's small tensors share 2 MiB.
    assert found.outside - found.lost == pytest.approx(4 * 16 * MIB + 2 * PRODUCTS, abs=2 * MIB)


def test_the_recorded_pass_has_a_pool_of_its_own() -> None:
    found = reserved(FREES_FIRST, count=4)
    assert found
    # Activations of four blocks; their gradients lie in what is freed, and are added to earlier ones.
    assert found.pool == pytest.approx(4 * 128 * MIB + 2 * PRODUCTS, abs=2 * MIB)


def test_a_tensor_that_no_freed_segment_holds_needs_another_one() -> None:
    """The second block's backward pass frees 128 MiB in all, but not in one piece for the first block."""
    needs_more = f"10 {4 * MIB}+0@1-15 {6 * MIB}+0@11-12"
    found = reserved(needs_more, count=2)
    assert found
    assert found.pool == pytest.approx((2 * 128 + 192) * MIB + 2 * PRODUCTS, abs=2 * MIB)


def test_what_is_kept_before_the_first_block_stays_until_the_pass_ends() -> None:
    """Backward passes of the blocks find only that memory free which was kept after the last block."""
    needs_more = f"10 {4 * MIB}+0@1-15 {6 * MIB}+0@11-12"
    kept_before, kept_after = (reserved(needs_more, ends=ends) for ends in ((6 * MIB, 0), (0, 6 * MIB)))
    assert kept_before and kept_after
    assert kept_before.pool == kept_after.pool + 6 * 32 * MIB


def test_the_recorded_pass_reads_pictures_from_a_copy() -> None:
    pictures = known_models()["vit-l"]
    found = reserved(FREES_LAST, micro_batch=8, trained=pictures)
    assert found
    batch = 4 * 3 * 224 * 224 * 8
    in_use = found.outside - found.lost
    assert in_use == pytest.approx(4 * 16 * MIB + 2 * PRODUCTS + 2 * batch, abs=2 * MIB)


def of_two_kinds(order: tuple[int, ...], ends_before: tuple[int, ...] = ()) -> int:
    """Return the pool's bytes beside those of products, for blocks that keep 4 MiB a sample, or 8."""
    kinds = (f"10 {4 * MIB}+0@1-15", f"10 {8 * MIB}+0@1-15 {6 * MIB}+0@11-12")
    footprint = Footprint(
        ends=max(ends_before, default=0),
        blocks=tuple(Block(order.count(kind), 0, 0, tensors=text) for kind, text in enumerate(kinds)),
        logits=0,
        order=order_of(map(BlockCall, order, ends_before or (0,) * len(order))),
    )
    parts = replace(PARTS, blocks=PARTS.blocks * len(order))
    found = reserved_memory(footprint, model(), parts, RECORDED, 32, moments=2 * 4 * parts.total)
    assert found
    return found.pool - 2 * PRODUCTS


def test_blocks_of_several_kinds_run_in_their_order() -> None:
    """The backward pass of a block finds the memory that the ones after it freed."""
    assert of_two_kinds((1, 0, 0)) == pytest.approx((8 + 4 + 4 + 6) * 32 * MIB, abs=4 * MIB)
    assert of_two_kinds((0, 1, 0)) == pytest.approx((4 + 8 + 4 + 6) * 32 * MIB, abs=4 * MIB)
    assert of_two_kinds((1, 1, 0)) == pytest.approx((8 + 8 + 4 + 6) * 32 * MIB, abs=4 * MIB)


def test_what_is_kept_between_two_blocks_is_freed_between_their_backward_passes() -> None:
    before_both, between = (of_two_kinds((1, 0), ends) for ends in ((6 * MIB, 6 * MIB), (0, 6 * MIB)))
    assert before_both == between + 6 * 32 * MIB
