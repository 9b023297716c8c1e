"""Push to several hosts at a time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from bench.push.host_push import HostPush
from bench.push.request import Result
from bench.push.threads import in_threads, wait_for_all

STOP_SECONDS = 1.0  # after Ctrl-C, for threads to end by themselves


@dataclass(frozen=True, slots=True)
class PushTask:
    """The work of one host's thread. `push` has the state of the push."""

    push: HostPush
    work: Callable[[], Result]


def run_all(tasks: Sequence[PushTask], at_once: int, stop: threading.Event) -> list[Result]:
    """Do all tasks in threads; return results in their order. After Ctrl-C, runs on nodes continue.

    A thread that does not end within STOP_SECONDS of Ctrl-C is waiting for its node. It is abandoned, and its
    host counts as interrupted in its present phase.
    """
    futures = in_threads([task.work for task in tasks], at_once)
    try:
        wait_for_all(futures)
    except KeyboardInterrupt:
        stop.set()
        wait(futures, timeout=STOP_SECONDS)
    return [
        future.result() if future.done() else task.push.interrupt()
        for task, future in zip(tasks, futures, strict=True)
    ]
