"""Who answers the signals that end us, for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

# Ctrl-C, a polite kill, a lost terminal.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def answered_by(handler: Handler, numbers: Iterable[signal.Signals] = ENDS) -> Iterator[None]:
    """What nohup has us ignore stays ignored."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextmanager
def held() -> Iterator[None]:
    """For what must be done as a whole: they are answered after it.

    Not by a mask, which is one thread's: where there are others, one of them takes the signal.
    """
    waiting: list[int] = []
    try:
        with answered_by(lambda number, _: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


def interruptible() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return answered_by(interrupt, (signal.SIGTERM, signal.SIGHUP))


def uninterruptible() -> AbstractContextManager[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP while something short must be finished."""
    return answered_by(signal.SIG_IGN)
