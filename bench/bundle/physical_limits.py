"""Refuse rates and memory that the machine of a run or a node check cannot have. Pure.

In: the facts of a machine and a figure of it. Out: VerificationFailed for a figure above the machine's limit.
A GPU of the catalogue is held to its own data sheet. CPUs, and GPUs that the catalogue lacks, have generous
limits that no machine of today reaches; `unknown_models` names such GPUs, so that a verdict can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.gpu_catalogue import GpuModel, gpu_models, gpu_named
from bench.base.sizes import bytes_text
from bench.records.estimate import ceiling_precisions
from bench.records.trial import Gpu, NodeFacts, Trial

if TYPE_CHECKING:
    from bench.records.estimate import Estimate
    from bench.records.trial import Ceiling, Proof

Unit = Literal["FLOP/s", "B/s"]

# Largest measured rate, as a multiple of the vendor's peak: that peak is for one clock, and some cards
# are sold to run at a higher clock, but not at 1.5 times that clock.
MAX_SHARE_OF_PEAK = 1.5
# Largest rate or memory of a GPU that the catalogue lacks, as a multiple of the best in the catalogue.
MAX_SHARE_OF_BEST = 4.0
MAX_SHARE_OF_MEMORY = 1.1  # of the data sheet's: drivers and vendors differ in what they leave out
# Two multiply-adds of 16 values a cycle are 0.4 TFLOP/s at 6 GHz; the matrix units of a core do 2,048
# operations in 16 bits a cycle, which are 5 TFLOP/s at 2.5 GHz.
CORE_FLOPS, CORE_MATRIX_FLOPS = 1e12, 5e12
MOST_CORES = 2048  # of one machine
HOST_BYTES = 4e12  # a second, of a machine's own memory; no disk or network is faster
COPY_BYTES = 128e9  # a second, of PCIe 5 with 16 lanes in both directions; a link between GPUs may be faster
PRECISIONS = ("fp8", "bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest rate that a device can have, and where it is known from."""

    rate: float
    words: str
    margin: float = 1.0  # multiple of the rate that a measurement may reach

    def require(self, what: str, rate: float, unit: Unit) -> None:
        """Refuse a rate above this one; `what` names the figure."""
        if not rate <= self.margin * self.rate:
            scale, short = (1e12, "TFLOP/s") if unit == "FLOP/s" else (1e9, "GB/s")
            most = f"{self.words} is {self.rate / scale:,.0f}"
            raise VerificationFailed(f"{what} is {rate / scale:,.0f} {short}; {most}")


def peak_of(node: NodeFacts, gpu: Gpu | None, figure: str, unit: Unit) -> Peak:
    """Return the peak of a figure of a GPU, such as "matmul-bf16", "memory" or "peer"; None: of the host."""
    if gpu is None:
        return _host_peak(node, figure, unit)
    model = gpu_named(gpu.name)
    if model is not None:
        return Peak(_rate(model, figure, unit), f"the vendor's peak of an {model.name}", MAX_SHARE_OF_PEAK)
    best = max(_rate(known, figure, unit) for known in gpu_models())
    return Peak(best, "that of the fastest GPU that bench knows", MAX_SHARE_OF_BEST)


def _host_peak(node: NodeFacts, figure: str, unit: Unit) -> Peak:
    if unit == "B/s":
        return Peak(HOST_BYTES, "the most that a machine's own memory can do")
    cores = min(node.cpu_cores, MOST_CORES)
    in_16_bits = not figure.endswith(("fp32", "tf32"))
    flops = cores * (CORE_MATRIX_FLOPS if in_16_bits else CORE_FLOPS)
    return Peak(flops, f"the most that {cores:,} cores can do")


def _rate(gpu: GpuModel, figure: str, unit: Unit) -> float:
    """Return a model's rate by its data sheet; a product in no known precision may be in the fastest."""
    if unit == "FLOP/s":
        precision = figure.removeprefix("matmul-")
        possible = (precision,) if precision in PRECISIONS else PRECISIONS
        return max(gpu.peak_flops(precision, tf32=precision == "tf32") for precision in possible)
    if figure.startswith("memory"):
        return gpu.memory_gb_per_second * 1e9
    link = gpu.link_gb_per_second
    return COPY_BYTES if link is None else max(COPY_BYTES, link * 1e9)


def unknown_models(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the names of the models that the catalogue lacks, each once."""
    return tuple(dict.fromkeys(gpu.name for gpu in gpus if gpu_named(gpu.name) is None))


def require_names(node: NodeFacts) -> None:
    """Refuse GPU names that look like another name: with spare blanks, or characters beyond ASCII."""
    for gpu in node.gpus:
        name = gpu.name
        if not (name.isascii() and name.isprintable() and name == " ".join(name.split())):
            raise VerificationFailed(
                f"the name of GPU {gpu.index} is {name!a:.60}; drivers write names in ASCII, without "
                "spare blanks"
            )


def require_ceiling(node: NodeFacts, trained: Sequence[Gpu], ceiling: Ceiling) -> None:
    """Refuse a measured limit that its own device cannot reach; `trained` are the GPUs that trained.

    Results of several nodes only list the GPUs of the first node; other nodes are taken to have the same.
    """
    gpu = trained[ceiling.device % len(trained)] if trained else None
    peak_of(node, gpu, ceiling.name, ceiling.unit).require(
        f"its limit {ceiling.name}", ceiling.rate, ceiling.unit
    )


def peak_of_products(node: NodeFacts, gpu: Gpu | None, trial: Trial) -> Peak:
    """Return the peak of a device in the fastest precision that a trial may multiply in.

    A method that this version does not know may use tf32 for a recipe in fp32; all other precisions are at
    least as fast as tf32.
    """
    precisions = {"tf32", *ceiling_precisions(trial.model, trial.setting)}
    peaks = (peak_of(node, gpu, f"matmul-{precision}", "FLOP/s") for precision in sorted(precisions))
    return max(peaks, key=lambda peak: peak.rate)


def require_rate(node: NodeFacts, trained: Sequence[Gpu], trial: Trial, estimate: Estimate) -> None:
    """Refuse an estimate that all devices of its trial together cannot reach."""
    most = _most_flops(node, trained, trial)
    most.require(f"the rate of trial {trial.id}", estimate.flops_per_second, "FLOP/s")


def require_proof_rate(
    node: NodeFacts, trained: Sequence[Gpu], trial: Trial, estimate: Estimate, proof: Proof
) -> None:
    """Refuse real training that is faster than all devices of its trial together can train."""
    rate = estimate.flops_per_second * estimate.step_seconds.value / proof.step_seconds
    most = _most_flops(node, trained, trial)
    most.require(f"the rate of the proof of trial {trial.id}", rate, "FLOP/s")


def _most_flops(node: NodeFacts, trained: Sequence[Gpu], trial: Trial) -> Peak:
    """Return the most that all devices of a trial can do together."""
    used = trained[: trial.gpus] or (None,)  # processes on a CPU share it
    peaks = [peak_of_products(node, gpu, trial) for gpu in used]
    times = max(1.0, trial.gpus / len(used)) if trained else 1.0
    most = times * sum(peak.rate * peak.margin for peak in peaks)
    return Peak(most, "the most that its devices can do")


def require_memory(node: NodeFacts, trained: Sequence[Gpu], trial: Trial, peak_bytes: int) -> None:
    """Refuse a peak of memory above that of the largest device of its trial."""
    most = max((_memory(gpu, node) for gpu in trained), default=node.memory_bytes)
    if peak_bytes > most:
        has = f"its device has {bytes_text(most)}"
        raise VerificationFailed(f"trial {trial.id} used {bytes_text(peak_bytes)} of memory; {has}")


def _memory(gpu: Gpu, node: NodeFacts) -> int:
    """Return the bytes of a GPU's memory; refuse more than its model has.

    A GPU whose driver does not report its memory shares the host's memory.
    """
    if model := gpu_named(gpu.name):
        known, share, has = model.memory_gib, MAX_SHARE_OF_MEMORY, f"an {model.name} has"
    else:
        known, share = max(known.memory_gib for known in gpu_models()), MAX_SHARE_OF_BEST
        has = "the largest known GPU has"
    if gpu.memory_bytes > share * known * 2**30:
        has += f" {bytes_text(known * 2**30)}"
        raise VerificationFailed(f"GPU {gpu.index} has {bytes_text(gpu.memory_bytes)}; {has}")
    return gpu.memory_bytes or node.memory_bytes
