"""Call functions in threads that end with the command: a thread that waits for a node does not delay it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_STEP_SECONDS = 0.25  # after which a wait notices Ctrl-C


def in_threads(calls: Sequence[Callable[[], T]], at_once: int) -> list[Future[T]]:
    """Start to make all calls, `at_once` at a time and in their order; return a future for each.

    Python waits at its end for the threads of a ThreadPoolExecutor, but not for these.
    """
    waiting: SimpleQueue[tuple[Future[T], Callable[[], T]]] = SimpleQueue()
    futures: list[Future[T]] = [Future() for _ in calls]
    for each in zip(futures, calls, strict=True):
        waiting.put(each)
    for _ in range(max(1, min(at_once, len(calls)))):
        threading.Thread(target=_make_calls, args=(waiting,), daemon=True).start()
    return futures


def wait_for_all(futures: Sequence[Future[T]]) -> None:
    """Wait until all calls have ended; KeyboardInterrupt at Ctrl-C.

    The wait is cut into steps, because Python handles a signal that another thread received only between
    them.
    """
    while wait(futures, timeout=_STEP_SECONDS).not_done:
        pass


def _make_calls(waiting: SimpleQueue[tuple[Future[T], Callable[[], T]]]) -> None:
    while True:
        try:
            future, call = waiting.get_nowait()
        except Empty:
            return
        try:
            future.set_result(call())
        except BaseException as error:  # the future raises it where the result is asked for
            future.set_exception(error)
