"""Between two trials."""

from __future__ import annotations

from bench.runner.measure import settle

GIB = 1 << 30


def test_a_trial_waits_for_the_memory_of_the_one_before() -> None:
    readings = [[60 * GIB, GIB], [3 * GIB, GIB], [GIB, GIB]]
    said: list[str] = []
    settle(lambda: readings.pop(0), [GIB, GIB], said.append)
    assert readings == [] and said == []


def test_memory_that_does_not_come_back_is_named() -> None:
    said: list[str] = []
    settle(lambda: [GIB, 15 * GIB], [GIB, GIB], said.append, seconds=0)
    assert len(said) == 1
    assert "14.0 GiB on GPU 1" in said[0]


def test_a_machine_without_gpus_has_nothing_to_wait_for() -> None:
    said: list[str] = []
    settle(lambda: [], [], said.append)
    assert said == []
