"""Hosts that train as one: they start together or not at all, and if one host is lost, the others end.

One `TrainingGroup` is shared by the threads that push to its hosts. `agree` is pure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from bench.base.errors import Incomplete

# State of a host's earlier run. fetched: its bundle was fetched; ended: its bundle is on the node; running;
# new: there is no earlier run, or it has to start again.
Standing = Literal["fetched", "ended", "running", "new"]
# Points where hosts wait for each other: state of earlier runs known, preflight passed, image shipped.
Step = Literal["connect", "preflight", "ship"]


class GroupFailed(Incomplete):
    """Another host of the group failed."""


class TrainingGroup:
    """The shared state of a group of hosts. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._standings: dict[Step, dict[int, Standing]] = {"connect": {}, "preflight": {}, "ship": {}}
        self.lost: str | None = None  # the first host that failed, and the reason
        self.over = False  # whether the leader's complete bundle has been fetched, so that other runs may end

    def lose(self, host: str, why: str) -> None:
        """Report a failed host. Only the first report is kept: later failures follow from it."""
        with self._changed:
            self.lost = self.lost or f"{host}: {why}"
            self._changed.notify_all()

    def gather(
        self, step: Step, node: int, standing: Standing, heed_stop: Callable[[], None]
    ) -> list[Standing]:
        """Wait until all hosts have reached `step`; return their standings, the leader's first.

        Raises GroupFailed if a host fails meanwhile. `heed_stop` is called twice a second and may raise, to
        stop.
        """
        standings = self._standings[step]
        with self._changed:
            standings[node] = standing
            self._changed.notify_all()
            while len(standings) < self._count:
                if self.lost is not None:
                    raise GroupFailed(
                        f"not started, because of {self.lost}", advice="push again, to all hosts"
                    )
                heed_stop()
                self._changed.wait(0.5)
        return [standings[number] for number in sorted(standings)]


def agree(standings: Sequence[Standing]) -> Standing:
    """Return the state of earlier runs that all hosts act on, given each host's state, the leader's first.

    A host cannot join a run that other hosts are already training: if one has to start, all start again.
    """
    if standings[0] in ("fetched", "ended"):
        return standings[0]
    return "running" if set(standings) <= {"running", "ended"} else "new"
