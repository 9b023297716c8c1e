"""Hosts that train together: either all start or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

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
