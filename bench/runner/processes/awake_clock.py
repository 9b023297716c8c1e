"""Time as a process that may be held up counts it: by Ctrl-Z, a terminal that is blocked, a closed lid."""

from __future__ import annotations

import time

ASLEEP_SECONDS = 10.0  # between two looks at the clock, which are a quarter of a second apart


class AwakeClock:
    """Seconds without those between two looks that lie so far apart that nobody can have looked."""

    def __init__(self) -> None:
        self._last, self._lost = time.monotonic(), 0.0

    def now(self) -> float:
        now = time.monotonic()
        if now - self._last > ASLEEP_SECONDS:
            self._lost += now - self._last
        self._last = now
        return now - self._lost
