"""Many nodes: so many at a time, each to its own end, and one exit code for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from bench.push.request import GOOD, Result


def walk(journeys: Sequence[Callable[[], Result]], at_once: int, stop: threading.Event) -> list[Result]:
    """In the order given. Ctrl-C ends the watching, never a run."""
    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(journeys)))) as pool:
        futures = [pool.submit(journey) for journey in journeys]
        try:
            wait(futures)
        except KeyboardInterrupt:
            stop.set()
            wait(futures)
        return [future.result() for future in futures]


def exit_code(results: Sequence[Result]) -> int:
    """0 if all went well; if none did, what they have in common; else 5: some of it is here.

    Where all is here, and nodes were checked, 1 if one of them failed, or 3 if one could not be checked.
    """
    codes = {result.exit_code for result in results}
    if len(codes) == 1:
        return codes.pop()
    if all(result.outcome in GOOD for result in results):
        return min(codes - {0})
    if any(result.outcome in (*GOOD, "incomplete") for result in results):
        return 5
    return 3
