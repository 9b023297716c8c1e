"""Show a node check's progress on stderr: a line for each reading, and on a terminal the current phase."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from bench.node_check.judging.evidence import Reading
from bench.records.text import seconds_text
from bench.runner.check.check_node import CheckView


class CheckProgress(CheckView):
    """Shows one node check on stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._name, self._begun = "", 0.0

    def begin(self, name: str) -> None:
        """Show on a terminal that a reading has begun; it replaces the one shown before."""
        self._name, self._begun = name, time.monotonic()
        if self.console.is_terminal:
            self.stop()
            self._status = self.console.status(name)
            self._status.start()

    def phase(self, text: str) -> None:
        """Show what the running reading does now; nothing without a terminal."""
        if self._status is not None:
            self._status.update(f"{self._name}   {text}")

    def end(self, reading: Reading) -> None:
        """Print a line that stays: how long the reading took, or why it was not made."""
        self.stop()
        seconds = seconds_text(reading.ended_at - reading.started_at)
        done = f"read in {seconds}" if reading.reason is None else f"not run: {reading.reason}"
        style = "dim" if reading.reason else None
        self.console.print(f"{reading.name:<17} {done}", soft_wrap=True, style=style, markup=False)

    def say(self, text: str) -> None:
        """Print a line that stays, without markup and without wrapping."""
        self.console.print(text, soft_wrap=True, markup=False)

    def stop(self) -> None:
        """Take the moving line away; may be called twice."""
        if self._status is not None:
            self._status.stop()
            self._status = None
