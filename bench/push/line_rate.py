"""Measure how fast this machine can send to a node."""

from __future__ import annotations

import os
import time

from bench.push.remote import Node, demand

_SENT_BYTES = (2**18, 2**20)  # the second only if the first arrives too soon to be timed
_LEAST_SECONDS = 0.1  # of a transfer that says anything about the line
_EMPTY_TRIPS = 3  # round trips without data; the fastest one counts, since a busy machine delays some
_LEAST_SHARE = 0.1  # of a transfer's time that its bytes take, whatever the empty trips took


def measured_rate(node: Node) -> float:
    """Send some random bytes to a node; return the bytes per second of the line to it."""
    trip_seconds = min(_seconds_of_a_trip(node) for _ in range(_EMPTY_TRIPS))
    for size in _SENT_BYTES:
        began = time.monotonic()
        node.ask("cat >/dev/null", [os.urandom(size)])
        seconds = transfer_seconds(time.monotonic() - began, trip_seconds)
        if seconds > _LEAST_SECONDS:
            break
    return size / seconds


def _seconds_of_a_trip(node: Node) -> float:
    began = time.monotonic()
    demand(node, ":", "measuring the line")
    return time.monotonic() - began


def transfer_seconds(elapsed_seconds: float, trip_seconds: float) -> float:
    """Return the seconds that the bytes took of a transfer: all but an empty trip, and at least a tenth."""
    return max(elapsed_seconds - trip_seconds, _LEAST_SHARE * elapsed_seconds)
