"""Hosts that train as one: they begin together or not at all, and where one is lost the others end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from bench.base.errors import Incomplete

# done: its bundle is here; over: it waits there; going: the run is alive there; new: it has yet to start
Standing = Literal["done", "over", "going", "new"]
Step = Literal["begun", "sound", "brought"]


class LeftAlone(Incomplete):
    """One of the others came to grief."""


class TrainingGroup:
    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._told: dict[Step, dict[int, Standing]] = {"begun": {}, "sound": {}, "brought": {}}
        self._lost: str | None = None
        self.over = False  # the leader's bundle is here, whole: nobody else is needed any more

    @property
    def lost(self) -> str | None:
        """Who is not with the others any more, and why."""
        return self._lost

    def lose(self, host: str, why: str) -> None:
        """The first one counts: what comes after is its consequence."""
        with self._changed:
            self._lost = self._lost or f"{host}: {why}"
            self._changed.notify_all()

    def gather(
        self, step: Step, node: int, standing: Standing, heed_stop: Callable[[], None]
    ) -> list[Standing]:
        """Waits until all have come so far: how each of them stands, the leader first."""
        told = self._told[step]
        with self._changed:
            told[node] = standing
            self._changed.notify_all()
            while len(told) < self._count:
                if self._lost is not None:
                    raise LeftAlone(
                        f"not started, because of {self._lost}", advice="push again: to all of them"
                    )
                heed_stop()
                self._changed.wait(0.5)
        return [told[number] for number in sorted(told)]


def agreed(standings: Sequence[Standing]) -> Standing:
    """What all do. One that starts anew finds no other in the middle of a run: then all start, or none."""
    if standings[0] in ("done", "over"):
        return standings[0]
    return "going" if set(standings) <= {"going", "over"} else "new"
