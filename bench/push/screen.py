"""Show the progress of a push on stderr: lines for one node, a live table of states for several."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from bench.base.errors import one_line
from bench.base.sizes import size_text
from bench.push.request import Result
from bench.push.terminal import stderr_console

_PLAIN_EVERY_SECONDS = 15.0  # between two lines on an upload, if stderr is not a terminal
_ROWS = 60  # most rows of the live table; further hosts are only counted


class Screen:
    """The `View` of a push. Thread-safe."""

    def __init__(self, hosts: Sequence[str], console: Console | None = None) -> None:
        self._console = console or stderr_console()
        self._many = len(hosts) > 1
        self._width = max((len(host) for host in hosts), default=0)
        self._results = {host: Result(host) for host in hosts}
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._next_plain: dict[str, float] = {}
        self._closed = False  # nothing is printed any more: after an interrupt, threads may still report

    def __enter__(self) -> Screen:
        if self._many and self._console.is_terminal:
            self._live = Live(self.table(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._end_bar()
            if self._live is not None:
                self._live.stop()
            self._live = None

    def show(self, result: Result, text: str = "") -> None:
        """Show a host's phase and `text`, or its outcome: as a row of the table, or as a line."""
        with self._lock:
            self._end_bar()
            self._results[result.host] = result
            self._texts[result.host] = text
            if self._live is not None:
                self._live.update(self.table())
            elif result.outcome is not None:
                self._line(result, ended(result))
            elif text:
                self._line(result, text)

    def sent(self, result: Result, done: int, total: int) -> None:
        """Show the progress of sending, in the table or as a bar, or now and then as a line."""
        with self._lock:
            self._texts[result.host] = f"{size_text(done)} of {size_text(total)}"
            if self._live is not None:
                self._live.update(self.table())
            elif self._console.is_terminal:
                self._draw_bar(result, done, total)
            elif time.monotonic() >= self._next_plain.get(result.host, 0.0) and done < total:
                self._next_plain[result.host] = time.monotonic() + _PLAIN_EVERY_SECONDS
                self._line(result, self._texts[result.host])

    def log(self, result: Result, lines: Sequence[str]) -> None:
        """Print new lines of a run's log; if there are several hosts, only the table shows the last line."""
        with self._lock:
            self._results[result.host] = result
            self._texts[result.host] = lines[-1]
            if self._live is not None:
                self._live.update(self.table())
            elif not self._many:
                for line in lines:
                    self._print(f"  {line}")

    def say(self, text: str) -> None:
        """Print one line above the table or the bar."""
        with self._lock:
            self._end_bar()
            self._print(text)

    def table(self) -> Table:
        """Return the table of all hosts, those that go on first, with how many are in each state below it."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("host", "state", "run", ""):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        states = Counter(_state(result) for result in self._results.values())
        shown = sorted(self._results.values(), key=lambda result: result.outcome is not None)[:_ROWS]
        for result in shown:
            text = ended(result) if result.outcome else self._texts.get(result.host, "")
            table.add_row(*map(one_line, (result.host, _state(result), result.run_id or "", text)))
        table.caption = "   ".join(f"{count} {state}" for state, count in sorted(states.items()))
        table.caption_justify = "left"
        return table

    def _print(self, line: str) -> None:
        if not self._closed:
            self._console.print(one_line(line))

    def _line(self, result: Result, text: str) -> None:
        label = f"{result.host:<{self._width}}  " if self._many else ""
        self._print(f"{label}{_state(result):<10} {text}")

    def _draw_bar(self, result: Result, done: int, total: int) -> None:
        if self._closed:
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(f"{result.phase:<10}", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _state(result: Result) -> str:
    return result.outcome or result.phase


def verdict_text(result: Result) -> str:
    """Return the verdict of a node check and its most serious finding; an empty text for training."""
    verdict = result.checked.verdict.upper() if result.checked else ""
    return f"{verdict} {result.worst}" if result.worst else verdict


def ended(result: Result) -> str:
    """Return the outcome of a host on one line, with advice, and with the marks of its figures."""
    return _ended(result) + "".join(f"   {mark.kind}: {mark.text}" for mark in result.marks)


def _ended(result: Result) -> str:
    if result.error is not None and result.outcome != "running":
        phase = f"{result.phase}: " if result.phase != "waiting" else ""
        advice = f"  ({result.error.advice})" if result.error.advice else ""
        return f"{phase}{result.error.message}{advice}"
    match result.outcome:
        case "running":
            return f"run {result.run_id} continues on the node: bench attach {result.run_id}"
        case "would":
            known = result.to_send_bytes is not None
            size = f"; at most {size_text(result.to_send_bytes or 0)} to send" if known else ""
            return f"the run can start{size}; nothing was changed"
        case "ready":
            what = "environment" if result.environment else "image"
            return f"the {what} is on the node, {size_text(result.sent_bytes)} sent"
        case "unchanged":
            checked = f" ({verdict_text(result)})" if result.checked else ""
            return f"nothing to do{f': {result.bundle}' if result.bundle else ''}{checked}"
        case "incomplete":
            return f"{result.bundle}: the run ended before its plan did; push again to continue it"
    end = str(result.bundle) if result.bundle else "over"
    return f"{verdict_text(result)}   {end}" if result.checked else end
