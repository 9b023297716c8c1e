"""Show a node check's progress on stderr: a line for each reading, and on a terminal the current phase."""

from __future__ import annotations

import sys

from bench.base.live_line import LinePart, LiveLine
from bench.node_check.judging.evidence import Reading
from bench.records.text import seconds_text
from bench.runner.check.check_node import CheckView


class CheckProgress(CheckView):
    """Shows one node check on stderr."""

    def __init__(self) -> None:
        self._line = LiveLine(sys.stderr)
        self._name: str | None = None  # of the reading that is being made

    def begin(self, name: str) -> None:
        """Show on a terminal that a reading has begun; it replaces the one shown before."""
        self._name = name
        self._line.draw([LinePart(name, 2)])

    def phase(self, text: str) -> None:
        """Show what the running reading does now; nothing without a terminal."""
        if self._name is not None:
            self._line.draw([LinePart(f"{self._name:<17}", 2), LinePart(text, 1)])

    def end(self, reading: Reading) -> None:
        """Print a line that stays: how long the reading took, or why it was not made."""
        self.stop()
        seconds = seconds_text(reading.ended_at - reading.started_at)
        done = f"read in {seconds}" if reading.reason is None else f"not run: {reading.reason}"
        self._line.print(f"{reading.name:<17} {done}", dim=reading.reason is not None)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._line.print(text)

    def stop(self) -> None:
        """Take the moving line away; may be called twice."""
        self._name = None
        self._line.clear()
