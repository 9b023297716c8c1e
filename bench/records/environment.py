"""Differences between the software of two machines, package by package. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def differences(
    here: Mapping[str, str], there: Mapping[str, str], absent: str, names: tuple[str, str] = ("here", "there")
) -> Iterator[str]:
    """A text for each package whose version differs, or that only one machine has."""
    for name in sorted({*here, *there}):
        ours, theirs = here.get(name, absent), there.get(name, absent)
        if ours != theirs:
            yield f"{name} {ours} {names[0]}, {theirs} {names[1]}"
