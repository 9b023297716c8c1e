"""Choose a predicted setting: the fastest, and of equally fast ones the one that sends least. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

AS_FAST = 1.01  # times that differ less than this cannot be told apart
T = TypeVar("T")


def chosen(options: Collection[T], seconds: Callable[[T], float], sent_bytes: Callable[[T], float]) -> T:
    """Choose among at least one option, by a step's predicted time and the bytes that each GPU sends in it.

    Other costs of an exchange, such as copies into and out of its buffers, are not predicted.
    """
    limit = AS_FAST * min(map(seconds, options))
    as_fast = (option for option in options if seconds(option) <= limit)
    return min(as_fast, key=lambda option: (sent_bytes(option), seconds(option)))
