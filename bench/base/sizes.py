"""Sizes as text, in the unit that fits them: memory in powers of 1024, transfers in powers of 1000. Pure."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """Format an amount of memory or disk space in binary units: 512 B, 12 KiB, 384 MiB, 96.8 GiB."""
    if count >= 2**30:
        return f"{count / 2**30:,.1f} GiB"
    for scale, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.0f} {unit}"
    return f"{count:.0f} B"


def size_text(count: float) -> str:
    """Format a size in decimal units, which are usual for transfers: 12 B, 3.4 kB, 5.60 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
