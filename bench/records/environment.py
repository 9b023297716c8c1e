"""Differences between the software of two machines, package by package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def differences(
    here: Mapping[str, str],
    there: Mapping[str, str],
    absent: str,
    names: tuple[str, str] = ("here", "there"),
) -> Iterator[str]:
    """What two machines have otherwise, or one alone."""
    for name in sorted({*here, *there}):
        ours, theirs = here.get(name, absent), there.get(name, absent)
        if ours != theirs:
            yield f"{name} {ours} {names[0]}, {theirs} {names[1]}"
