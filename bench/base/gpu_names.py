"""Names of GPU models (data/gpus.json): the driver's, and the short ones that people type.

Shells complete short names, so this module imports little: neither dataclasses nor the decoder of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from bench.base.shipped_data import DATA

CATALOGUE = "gpus.json"


class GpuName(NamedTuple):
    """The driver's name of a GPU model, and other names that it has."""

    name: str
    also: str = ""


def find_name(typed: str, names: Iterable[GpuName]) -> int | None:
    """Return the place of the first name that has all parts of a typed one: "h200", "a100-80gb", "rtx4090".

    The driver's full name comes first. None if no name fits, and for a text without a part.
    """
    parts = re.sub(r"\brtx(?=\d)", "rtx ", typed, flags=re.IGNORECASE).replace("-", " ").split()
    every = list(names)
    for place, one in enumerate(every):
        if one.name == typed:
            return place
    if not parts:
        return None
    return next((place for place, one in enumerate(every) if all(_has(one, part) for part in parts)), None)


@cache
def typed_names() -> dict[str, str]:
    """Map the short name that people type for each known model, such as h100-sxm, to the driver's name."""
    known = [GpuName(gpu["name"], gpu.get("also", "")) for gpu in json.loads((DATA / CATALOGUE).read_bytes())]
    found = {}
    for place, (name, _) in enumerate(known):
        short = re.sub(r"(?i)\b(nvidia|amd|geforce|instinct|generation)\b", "", name)
        words = re.sub(r"[^a-z0-9]+", " ", short.lower()).split()
        # The shortest beginning that finds this model and no other before it.
        for length in range(1, len(words) + 1):
            typed = "-".join(words[:length])
            if re.search(r"\d", typed) and find_name(typed, known) == place and typed not in found:
                found[typed] = name
                break
    return found


def _has(gpu: GpuName, part: str) -> bool:
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
