"""Hosts that train together: either all start or none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.push import training_group
from bench.push.training_group import GroupFailed, Standing, TrainingGroup, agree


@pytest.mark.parametrize(
    ("standings", "all_do"),
    [
        (["new", "new"], "new"),
        (["running", "running"], "running"),
        (["running", "ended"], "running"),  # the other member had already ended
        (["running", "new"], "new"),  # it could not join in the middle
        (["new", "running"], "new"),
        (["ended", "new"], "ended"),  # only the leader has a bundle
        (["fetched", "new", "running"], "fetched"),
    ],
)
def test_the_common_state_of_a_training_group(standings: list[Standing], all_do: Standing) -> None:
    assert agree(standings) == all_do


def nothing() -> None:
    """Do nothing: the user has not pressed Ctrl-C."""


def test_every_member_learns_the_states_of_all_members_in_order() -> None:
    group = TrainingGroup(3)
    told: list[Standing] = ["running", "new", "ended"]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(lambda n: group.gather("connect", n, told[n], nothing), (2, 0, 1)))
    assert heard == [told] * 3


def test_a_waiting_member_learns_which_member_was_lost_first() -> None:
    group = TrainingGroup(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.gather, "ship", 0, "new", nothing)
        group.lose("gpu2", "its disk is full")
        group.lose("gpu1", "not started, because of gpu2")
        with pytest.raises(GroupFailed, match="because of gpu2: its disk is full"):
            waiting.result()


def test_waiting_for_the_group_can_be_cancelled() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrainingGroup(2).gather("connect", 0, "new", stop)


class Condition:
    """A condition in one thread: waiting lets the next of `events` happen."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self._events = list(events)
        self.waits: list[float] = []
        self.notified = 0

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None:
        self.notified += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._events.pop(0)()


def grouped(monkeypatch: pytest.MonkeyPatch, count: int, condition: Condition) -> TrainingGroup:
    monkeypatch.setattr(training_group.threading, "Condition", lambda: condition)
    return TrainingGroup(count)


def test_a_host_that_waits_looks_twice_a_second_whether_it_shall_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heeded: list[int] = []
    condition = Condition(nothing, lambda: group.gather("ship", 1, "running", nothing))
    group = grouped(monkeypatch, 2, condition)
    assert group.gather("ship", 0, "new", lambda: heeded.append(1)) == ["new", "running"]
    assert (condition.waits, heeded) == ([0.5, 0.5], [1, 1])


def test_each_host_that_arrives_or_is_lost_wakes_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    condition = Condition()
    group = grouped(monkeypatch, 1, condition)
    group.gather("connect", 0, "new", nothing)
    assert condition.notified == 1
    group.lose("gpu1", "its disk is full")
    assert condition.notified == 2
    assert group.lost == "gpu1: its disk is full" and not group.over


def test_hosts_wait_for_each_other_at_each_step_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    group = grouped(monkeypatch, 2, Condition(lambda: group.lose("gpu1", "no")))
    for step in ("connect", "preflight"):
        assert len(group._standings[step]) == 0  # type: ignore[index]
    with pytest.raises(GroupFailed, match="not started, because of gpu1: no") as caught:
        group.gather("connect", 0, "new", nothing)
    assert caught.value.advice == "push again, to all hosts"
    with pytest.raises(GroupFailed):
        group.gather("preflight", 0, "new", nothing)
