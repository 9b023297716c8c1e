"""The catalogue of GPU models (data/gpus.json): rates and memory, by the driver's or a typed name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from bench.base.errors import ALLOWED, near
from bench.base.frozen import dataclass
from bench.base.gpu_names import CATALOGUE, GpuName, find_name, typed_names
from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json

GPUS_A_NODE = 8  # the most GPUs of one machine that a manifest may ask for or a prediction be made for


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model by its vendor's data sheet; dense rates, without sparsity."""

    name: str  # as the driver spells it
    compute_capability: str | None  # None: a GPU on which bench does not run
    memory_gib: float
    bf16_tflops: float
    tf32_tflops: float
    fp32_tflops: float
    memory_gb_per_second: float
    source: str
    fp8_tflops: float | None = None  # with sums in fp32; None: its units do not multiply in fp8
    also: str = ""  # other names, for `find_gpu_model`
    vendor: str = "NVIDIA"
    watts: float | None = None  # the power limit
    link: str | None = None  # between GPUs; None: PCIe alone, or unknown
    link_gb_per_second: float | None = None  # both directions together
    measured_bf16_tflops: float | None = None  # the best product of matrices that was published
    note: str = ""  # what sources disagree on, and what was measured elsewhere
    dated: str = ""  # day on which the sources were read; empty: a user described the GPU

    @property
    def runs_bench(self) -> bool:
        """Whether bench can measure on this GPU; others are only predicted and compared by price."""
        return self.compute_capability is not None

    def peak_flops(self, precision: str, *, tf32: bool) -> float:
        """Return the peak of products in a precision; in fp8 that of bf16 if the GPU has no units for it."""
        if precision == "fp8" and self.fp8_tflops is not None:
            return self.fp8_tflops * 1e12
        if precision in ("bf16", "fp16", "fp8"):
            return self.bf16_tflops * 1e12
        return (self.tf32_tflops if tf32 else self.fp32_tflops) * 1e12


MOST_NEAR = 3  # cards that a message suggests in place of an unknown one


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """Return the catalogue that bench ships."""
    return from_json(tuple[GpuModel, ...], read_data(CATALOGUE))


def gpu_named(name: str) -> GpuModel | None:
    """Find a model by the driver's full name; a part of a name does not match: H20 is not H200."""
    return next((gpu for gpu in gpu_models() if gpu.name == name), None)


def power_limit_watts(name: str, gpus: int) -> float | None:
    """Return the watts that `gpus` GPUs of a name may draw together; None if the catalogue does not know."""
    known = gpu_named(name)
    return known.watts * gpus if known and known.watts else None


def find_gpu_model(name: str, described: Sequence[GpuModel] = ()) -> GpuModel | None:
    """Find a model by the driver's full name, or by typed parts of it: "h200", "a100-80gb", "rtx4090".

    Models that the user described come before those of the catalogue.
    """
    every = (*described, *gpu_models())
    place = find_name(name, (GpuName(gpu.name, gpu.also) for gpu in every))
    return None if place is None else every[place]


def near_gpus(name: str) -> str:
    """Suggest the GPU models whose names are near to a typed one, for a message; without any, list all."""
    names = typed_names()
    plain = {typed.replace("-", ""): typed for typed in names}
    close = near(re.sub(r"(?i)nvidia|geforce|amd|instinct|[-_ ]", "", name), plain)[:MOST_NEAR]
    if close:
        return "nearest: " + ", ".join(names[plain[one]] for one in close)
    return f"{ALLOWED}{', '.join(sorted(names))}"
