"""Waiting for what comes, on a machine that works for many others too.

A limit of seconds in a test says how busy the machine is, and nothing about the code under test. Tests wait
for an event, and give up only after so long that the event will not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 1200.0  # less than the limit of a test (--timeout in Makefile), which would not say why


def until(
    true: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS, every: float = 0.1
) -> None:
    """Return when the condition holds; `what` says in the error of a test what did not come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(every)
