"""Parse the names of machines that people type: 8xh100, or h100 for a single GPU."""

from __future__ import annotations

from collections.abc import Sequence

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import GpuModel, find_gpu_model, near_gpus


def machine_named(
    text: str, option: str, described: Sequence[GpuModel] = (), advice: str = ""
) -> tuple[GpuModel, int]:
    """Return the kind and the number of GPUs; BadInput names the option and the nearest cards.

    `described` are cards that the catalogue lacks; they take precedence.
    """
    if "," in text:
        advice = f"give {option} once for each machine"
        raise BadInput(f"{option} {text}: names several machines", advice=advice)
    count, times, name = text.partition("x")
    if not (times and count.isdecimal()):
        count, name = "1", text
    gpu = find_gpu_model(name, described)
    if gpu is None or int(count) < 1:
        near = f"for example 8xh100; {near_gpus(name)}"
        raise BadInput(f"{option} {text}: no such machine", advice="; ".join(filter(None, (near, advice))))
    return gpu, int(count)
