"""Measure how fast this machine can send to a node."""

from __future__ import annotations

import os
import time

from bench.push.remote import Node, demand

_SENT_BYTES = (2**18, 3 * 2**19)  # the second only if the first arrives too soon to be timed
_LEAST_SECONDS = 0.1  # of a transfer that says anything about the line


def measured_rate(node: Node) -> float:
    """Send some random bytes to a node; return the bytes per second of the line to it."""
    began = time.monotonic()
    demand(node, ":", "measuring the line")
    latency = time.monotonic() - began
    for size in _SENT_BYTES:
        began = time.monotonic()
        node.ask("cat >/dev/null", [os.urandom(size)])
        seconds = max(time.monotonic() - began - latency, 0.001)
        if seconds > _LEAST_SECONDS:
            break
    return size / seconds
