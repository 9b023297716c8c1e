"""The catalogue of GPU models (data/gpus.json): rates and memory, by the driver's or a typed name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from bench.base.errors import ALLOWED, near
from bench.base.frozen import dataclass
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
    return from_json(tuple[GpuModel, ...], read_data("gpus.json"))


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
    typed = re.sub(r"\brtx(?=\d)", "rtx ", name, flags=re.IGNORECASE).replace("-", " ").split()
    every = (*described, *gpu_models())
    exact = next((gpu for gpu in every if gpu.name == name), None)
    close = (gpu for gpu in every if all(_has(gpu, part) for part in typed))
    return exact or (next(close, None) if typed else None)


@cache
def typed_names() -> dict[str, str]:
    """Map the short name that people type for each known model, such as h100-sxm, to the driver's name."""
    names = {}
    for gpu in gpu_models():
        short = re.sub(r"(?i)\b(nvidia|amd|geforce|instinct|generation)\b", "", gpu.name)
        words = re.sub(r"[^a-z0-9]+", " ", short.lower()).split()
        # The shortest beginning that finds this model and no other before it.
        for length in range(1, len(words) + 1):
            typed = "-".join(words[:length])
            if re.search(r"\d", typed) and find_gpu_model(typed) == gpu and typed not in names:
                names[typed] = gpu.name
                break
    return names


def near_gpus(name: str) -> str:
    """Suggest the GPU models whose names are near to a typed one, for a message; without any, list all."""
    names = typed_names()
    plain = {typed.replace("-", ""): typed for typed in names}
    close = near(re.sub(r"(?i)nvidia|geforce|amd|instinct|[-_ ]", "", name), plain)[:MOST_NEAR]
    if close:
        return "nearest: " + ", ".join(names[plain[one]] for one in close)
    return f"{ALLOWED}{', '.join(sorted(names))}"


def _has(gpu: GpuModel, part: str) -> bool:
    """Whether `part` is a word of the names, or the beginning of one, such as "sxm" or the "80" of 80GB.

    A number or a model must match as a whole: "a10" does not find the A100, nor "l40" the L40S.
    """
    # A regular expression for each typed part would take most of the time of completing a card.
    names, part = f" {gpu.name} {gpu.also} ".lower(), part.lower()
    is_model = part[0].isalpha() and part[-1].isdecimal()
    for begins in _places(part, names):
        before, after = names[begins - 1], names[begins + len(part)]
        longer = (part[-1].isdecimal() and after.isdecimal()) or (is_model and after.isalpha())
        if not longer and not (before.isalnum() and part[0].isalnum()):
            return True
    return False


def _places(part: str, text: str) -> Iterator[int]:
    """Yield each place in a text at which `part` begins."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)
