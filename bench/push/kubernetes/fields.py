"""Read fields of the API's objects, whatever a server wrote into them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.push.connection import plain

_MOST_CHARACTERS = 300  # of a message of the cluster that are shown


def part_of(value: object, name: str) -> dict[str, Any]:
    """Return an object's field that is an object; an empty one for anything else."""
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, dict) else {}


def list_of(value: object, name: str) -> list[dict[str, Any]]:
    """Return the objects in a field that is a list."""
    found = value.get(name) if isinstance(value, Mapping) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def text_of(value: object) -> str:
    """Return a value as text that a terminal can show; empty for none."""
    return "" if value is None else plain(str(value))[:_MOST_CHARACTERS]
