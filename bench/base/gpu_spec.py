"""Read a file that describes a GPU model which the catalogue lacks, reporting every mistake at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, Mistake, in_json
from bench.base.files import read_bounded
from bench.base.form_mistakes import form_mistakes, written_json
from bench.base.gpu_catalogue import GpuModel
from bench.base.kinds_of_file import CARD
from bench.base.strict_json import from_json

MAX_BYTES = 1 << 16
LEAST, MOST = 1e-3, 1e9  # far below and above every card: beyond them, quotients are too large for a float
ADVICE = "docs/prediction.md has the form, with an example"


def load_gpu_spec(path: Path) -> GpuModel:
    """Return the GPU model that a JSON file describes."""
    too_large = "larger than 64 KiB: not a card"
    data = read_bounded(path, MAX_BYTES, what="the card", too_large=too_large, wanted=CARD)
    document = written_json(data, str(path), CARD)
    mistakes = [*form_mistakes(GpuModel, document)] or [*_meaning_mistakes(document)]
    if mistakes:
        raise BadInput.of(mistakes, str(path), ADVICE)
    return from_json(GpuModel, document)


def _meaning_mistakes(document: Mapping[str, Any]) -> Iterator[Mistake]:
    for field, value in document.items():
        if isinstance(value, int | float) and not LEAST <= value <= MOST:
            allowed = f"allowed: a number from {LEAST:g} to {MOST:g}"
            yield Mistake(f"/{field}", f"{value:g} is not a rate", allowed)
        elif field in ("name", "source") and not value.strip():
            yield Mistake(f"/{field}", "empty", "allowed: a text")
    capability = document["compute_capability"]
    if capability is not None and not all(part.isdecimal() for part in capability.split(".", 1)):
        found = f"{in_json(capability)} is not a compute capability"
        yield Mistake("/compute_capability", found, 'allowed: "10.0" for instance, or null')
    best, peak = document.get("measured_bf16_tflops"), document["bf16_tflops"]
    if best is not None and best > peak:
        found = f"{best:g} is more than the peak of {peak:g}"
        yield Mistake("/measured_bf16_tflops", found, "allowed: at most bf16_tflops, dense")
