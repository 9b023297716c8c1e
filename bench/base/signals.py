"""Temporarily handle or delay the signals that end a command: Ctrl-C, kill, a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from bench.base.operating_system import ENDS

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def answered_by(handler: Handler, numbers: Iterable[signal.Signals] = ENDS) -> Iterator[None]:
    """Handle the signals by `handler` within the block; signals that are ignored (nohup) stay ignored."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def held() -> Iterator[None]:
    """Delay the signals until the end of the block, for work that must not be interrupted.

    A signal mask is not enough: it belongs to one thread, and another thread would take the signal.
    """
    waiting: list[int] = []
    try:
        with answered_by(lambda number, _: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


def interruptible() -> AbstractContextManager[None]:
    """Let the other signals that end a command raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return answered_by(interrupt, [number for number in ENDS if number is not signal.SIGINT])


def uninterruptible() -> AbstractContextManager[None]:
    """Ignore the signals that end a command while something short must be finished."""
    return answered_by(signal.SIG_IGN)
