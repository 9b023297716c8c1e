"""Hosts that train as one: all begin, or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.push.training_group import LeftAlone, Standing, TrainingGroup, agreed


@pytest.mark.parametrize(
    ("standings", "all_do"),
    [
        (["new", "new"], "new"),
        (["going", "going"], "going"),
        (["going", "over"], "going"),  # the other was let go before we looked at the leader
        (["going", "new"], "new"),  # it could not join in the middle
        (["new", "going"], "new"),
        (["over", "new"], "over"),  # the leader's bundle is all there is to have
        (["done", "new", "going"], "done"),
    ],
)
def test_what_all_do(standings: list[Standing], all_do: Standing) -> None:
    assert agreed(standings) == all_do


def nothing() -> None:
    """Nobody pressed Ctrl-C."""


def test_all_hear_of_all_the_leader_first() -> None:
    company = TrainingGroup(3)
    told: list[Standing] = ["going", "new", "over"]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(lambda n: company.gather("begun", n, told[n], nothing), (2, 0, 1)))
    assert heard == [told] * 3


def test_who_waits_hears_of_the_first_that_was_lost() -> None:
    company = TrainingGroup(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(company.gather, "brought", 0, "new", nothing)
        company.lose("gpu2", "its disk is full")
        company.lose("gpu1", "not started, because of gpu2")
        with pytest.raises(LeftAlone, match="because of gpu2: its disk is full"):
            waiting.result()


def test_who_waits_may_be_called_off() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrainingGroup(2).gather("begun", 0, "new", stop)
