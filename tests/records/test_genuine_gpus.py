"""GPUs that are not what NVML says: found by the kernel's own list, and by work on all of them at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.records.genuine_gpus import RatePair, contradictions, false_gpus, rate_pairs, shared
from bench.records.trial import Ceiling, Gpu, KernelGpu, KernelGpus, NodeFacts

GPUS = tuple(Gpu(i, "NVIDIA H200", f"GPU-{i}", 2**37, "9.0", f"0000:{i}b:00.0") for i in range(3))
KERNEL = KernelGpus(tuple(KernelGpu(gpu.bus or "", gpu.uuid, gpu.name) for gpu in GPUS))
UNSEEN = KernelGpus(unseen="hidden")


def changed(index: int, **fields: object) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, **fields) if gpu.index == index else gpu for gpu in GPUS)  # type: ignore[arg-type]


def test_gpus_that_the_kernel_lists_are_not_doubted() -> None:
    assert list(contradictions(GPUS, KERNEL)) == []
    assert list(contradictions(GPUS[1:], KERNEL)) == []  # CUDA_VISIBLE_DEVICES hides one
    untold = KernelGpus(tuple(replace(gpu, uuid=None, name=None) for gpu in KERNEL.gpus))
    assert list(contradictions(GPUS, untold)) == []
    older = KernelGpus(tuple(replace(gpu, name="H200") for gpu in KERNEL.gpus))
    assert list(contradictions(GPUS, older)) == []
    assert list(contradictions(changed(1, bus=None), KERNEL)) == []
    assert list(contradictions(GPUS, UNSEEN)) == []


@pytest.mark.parametrize("kernel", [KERNEL, UNSEEN])
def test_one_card_by_two_names_is_found_even_where_the_kernel_shows_nothing(kernel: KernelGpus) -> None:
    same = "GPUs 0, 2 have the UUID GPU-0 in common: they are one card"
    assert same in contradictions(changed(2, uuid="GPU-0"), kernel)
    same = "GPUs 0, 2 have the place on the bus 0000:0b:00.0 in common: they are one card"
    assert same in contradictions(changed(2, bus="0000:0b:00.0"), kernel)
    lost = changed(2, uuid="GPU-0", bus="0000:0b:00.0", memory_bytes=0)  # a GPU that does not answer
    assert list(contradictions(lost, kernel)) == []


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (
            changed(1, bus="0000:ff:00.0"),
            "GPU 1 is said to be at 0000:ff:00.0, where the kernel has no NVIDIA GPU",
        ),
        (changed(1, uuid="GPU-x"), "GPU 1 at 0000:1b:00.0 is GPU-x; the kernel's driver says GPU-1"),
        (
            changed(1, name="NVIDIA B200"),
            "GPU 1 at 0000:1b:00.0 is NVIDIA B200; the kernel's driver says NVIDIA H200",
        ),
    ],
)
def test_a_gpu_that_the_kernel_does_not_know_so_is_found(gpus: tuple[Gpu, ...], told: str) -> None:
    assert list(contradictions(gpus, KERNEL)) == [told]


def test_more_gpus_than_the_kernel_has_are_found_without_any_address() -> None:
    nowhere = tuple(replace(gpu, bus=None) for gpu in GPUS)
    assert list(contradictions(nowhere, KERNEL)) == []
    fewer = KernelGpus(KERNEL.gpus[:1])
    assert list(contradictions(nowhere, fewer)) == ["NVML names 3 GPUs, the kernel has 1"]


@pytest.mark.parametrize(("kept", "found"), [(1.02, False), (0.75, False), (0.749, True), (0.125, True)])
def test_a_gpu_that_is_slower_beside_the_others_is_a_name_of_one_of_them(kept: float, found: bool) -> None:
    told = shared({0: RatePair(8e14, 8e14), 1: RatePair(8e14, kept * 8e14)})
    assert (told is not None) == found
    if told:
        assert told.startswith(f"GPU 1 of 2: while all work, as little as {100 * kept:.0f}% of the rate")


def test_one_card_sold_as_eight_is_found() -> None:
    eight = {index: RatePair(8e14, 1e14) for index in range(8)}
    assert (shared(eight) or "").startswith(
        "GPUs 0, 1, 2, 3, 4, 5, 6, 7 of 8: while all work, as little as 12%"
    )
    assert shared({}) is None


def ceilings(*together: float) -> list[Ceiling]:
    """Make the ceilings of devices whose product takes a second alone, and `together` seconds at once."""
    alone = [Ceiling("product-alone", i, "FLOP/s", 100, (0.5, 1.5)) for i in range(len(together))]
    both = [Ceiling("product-together", i, "FLOP/s", 100, (s / 2, 1.5 * s)) for i, s in enumerate(together)]
    return [*alone, *both, Ceiling("matmul-bf16", 0, "FLOP/s", 100, (0.1,))]


def test_rates_are_means_since_cards_that_take_turns_give_a_short_call_the_whole_card() -> None:
    assert rate_pairs(ceilings(1.0, 4.0)) == {0: RatePair(100.0, 100.0), 1: RatePair(100.0, 25.0)}
    assert rate_pairs(ceilings()) == rate_pairs(ceilings(1.0)[:1]) == {}


def test_everything_that_speaks_against_the_gpus_of_a_run() -> None:
    node = NodeFacts("a CPU", 16, 2**37, "Debian", "6.1", "3.12", GPUS, kernel_gpus=KERNEL)
    assert list(false_gpus(node, ceilings(1.0, 1.0))) == []
    false = replace(node, gpus=changed(1, uuid="GPU-x"))
    assert len(list(false_gpus(false, ceilings(1.0, 4.0)))) == 2
    older = replace(false, kernel_gpus=None)
    assert len(list(false_gpus(older, ceilings(1.0, 4.0)))) == 1
    on_cpu = replace(node, gpus=())  # processes on a CPU share it
    assert list(false_gpus(on_cpu, ceilings(1.0, 4.0))) == []
