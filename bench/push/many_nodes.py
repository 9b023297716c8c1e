"""Push to many nodes, a limited number at a time, and reduce the results to one exit code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from bench.push.request import GOOD, Result


def run_all(pushes: Sequence[Callable[[], Result]], at_once: int, stop: threading.Event) -> list[Result]:
    """Run all pushes in threads; return results in their order. Ctrl-C ends the watching, not the runs."""
    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(pushes)))) as pool:
        futures = [pool.submit(push) for push in pushes]
        try:
            wait(futures)
        except KeyboardInterrupt:
            stop.set()
            wait(futures)
        return [future.result() for future in futures]


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if all nodes succeeded, their common exit code if they have one, else 5 for a partial success.

    If all succeeded and nodes were checked: 1 if a check failed, else 3 if one could not be completed.
    """
    codes = {result.exit_code for result in results}
    if len(codes) == 1:
        return codes.pop()
    if all(result.outcome in GOOD for result in results):
        return min(codes - {0})
    if any(result.outcome in (*GOOD, "incomplete") for result in results):
        return 5
    return 3
