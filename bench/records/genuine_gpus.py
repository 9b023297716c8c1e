"""Find GPUs that are not what NVML says: one card under several names, or a card of another name. Pure.

In: the GPUs as NVML names them, the kernel's own list of them, and the rate of equal work on each GPU alone
and on all at once. Out: each contradiction in words. NVML is a library of user space that anyone can replace;
the kernel's lists are /proc/driver/nvidia/gpus and the PCI bus in sysfs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.base.frozen import dataclass
from bench.records.estimate import mean
from bench.records.trial import Ceiling, Gpu, KernelGpu, KernelGpus, NodeFacts

# Share of its own rate that a GPU must keep while all GPUs work. GPUs of one node share power and air, which
# costs a few percent; two names of one card leave each half of it.
LEAST_KEPT = 0.75
PRODUCT_ALONE, PRODUCT_TOGETHER = "product-alone", "product-together"  # names of ceilings


@dataclass(frozen=True, slots=True)
class RatePair:
    """The rate of one piece of work on one GPU: alone, and while all GPUs do it."""

    alone: float
    together: float

    @property
    def kept(self) -> float:
        """The share of its own rate that the GPU keeps while all others work."""
        return self.together / self.alone


def false_gpus(node: NodeFacts, ceilings: Iterable[Ceiling]) -> Iterator[str]:
    """Yield evidence that GPUs of a run are false; nothing for a run on a CPU, or one that did not look."""
    if not node.gpus:
        return
    if node.kernel_gpus is not None:
        yield from contradictions(node.gpus, node.kernel_gpus)
    if fault := shared(rate_pairs(ceilings)):
        yield fault


def contradictions(gpus: Sequence[Gpu], kernel: KernelGpus) -> Iterator[str]:
    """Yield every contradiction between the GPUs of NVML that answer and the kernel's list."""
    named = [gpu for gpu in gpus if gpu.memory_bytes]
    yield from _twice("the UUID", {gpu.index: gpu.uuid for gpu in named})
    yield from _twice("the place on the bus", {gpu.index: gpu.bus for gpu in named if gpu.bus})
    if kernel.unseen is not None:
        return
    by_bus: dict[str | None, KernelGpu] = {gpu.bus: gpu for gpu in kernel.gpus}
    for gpu in named:
        listed = by_bus.get(gpu.bus)
        if listed is not None:
            yield from _differences(gpu, listed.uuid, listed.name)
        elif gpu.bus:
            yield f"GPU {gpu.index} is said to be at {gpu.bus}, where the kernel has no NVIDIA GPU"
    if len(named) > len(kernel.gpus):
        yield f"NVML names {len(named)} GPUs, the kernel has {len(kernel.gpus)}"


def _twice(what: str, of_gpus: Mapping[int, str]) -> Iterator[str]:
    for value, count in Counter(of_gpus.values()).items():
        if count > 1:
            indices = ", ".join(str(index) for index, own in of_gpus.items() if own == value)
            yield f"GPUs {indices} have {what} {value} in common: they are one card"


def _differences(gpu: Gpu, uuid: str | None, name: str | None) -> Iterator[str]:
    if uuid is not None and uuid != gpu.uuid:
        yield f"GPU {gpu.index} at {gpu.bus} is {gpu.uuid}; the kernel's driver says {uuid}"
    if name is not None and _bare(name) != _bare(gpu.name):
        yield f"GPU {gpu.index} at {gpu.bus} is {gpu.name}; the kernel's driver says {name}"


def _bare(name: str) -> str:
    return name.removeprefix("NVIDIA ").strip()


def rate_pairs(ceilings: Iterable[Ceiling]) -> Mapping[int, RatePair]:
    """Return the rates of the product that a run measures both ways, by device; empty if it did not."""
    rates = {(ceiling.name, ceiling.device): ceiling.work / mean(ceiling.samples) for ceiling in ceilings}
    return {
        device: RatePair(rate, rates[PRODUCT_TOGETHER, device])
        for (name, device), rate in rates.items()
        if name == PRODUCT_ALONE and (PRODUCT_TOGETHER, device) in rates
    }


def shared(pairs: Mapping[int, RatePair]) -> str | None:
    """Say which GPUs slow each other down as two names of one card would; None if all keep their rates."""
    slow = {index: pair.kept for index, pair in pairs.items() if pair.kept < LEAST_KEPT}
    if not slow:
        return None
    which = f"GPU{'s' * (len(slow) > 1)} {', '.join(map(str, slow))}"
    keep = f"{100 * min(slow.values()):.0f}% of the rate that each has alone"
    return f"{which} of {len(pairs)}: while all work, as little as {keep}, as names of one card would"
