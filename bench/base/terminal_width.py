"""The width of the terminal, found without `shutil`, whose import would take a twentieth of a start."""

from __future__ import annotations

import os
import sys
from typing import TextIO

USUAL_COLUMNS = 80  # where no width is told


def columns(stream: TextIO | None = None) -> int | None:
    """Return COLUMNS of the environment, or the width of the terminal at a stream; None without either.

    The stream is stdout unless another one is given.
    """
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size((stream or sys.__stdout__).fileno()).columns or None  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # the stream was never open, is closed, or is no terminal
        return None
