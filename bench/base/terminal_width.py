"""The width of the terminal, found without `shutil`, whose import would take a twentieth of a start."""

from __future__ import annotations

import os
import sys

USUAL_COLUMNS = 80  # where no width is told


def columns() -> int | None:
    """Return COLUMNS of the environment, or the width of the terminal at stdout; None without either."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or None  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # stdout was never open, is closed, or is no terminal
        return None
