"""Without memory predictions, the memory of finished trials tells which other trials may fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.plan import DOUBT, USABLE, SettingPlan
from bench.planning.search.learnt_memory import LearntMemory
from bench.planning.search.tried_trials import TriedTrials
from bench.records.trial import Measured, OutOfMemory, Trial
from tests.builders import measurement
from tests.builders import trial as built

MEMORY = 100 << 30
STATES = 20 << 30


def cell(*setting: str, states: int | None = STATES) -> SettingPlan:
    trials = tuple(replace(built(), setting=setting, micro_batch=size) for size in (64, 32, 16, 8, 4, 2, 1))
    needs = dict.fromkeys(t.micro_batch for t in trials)
    return SettingPlan(" + ".join(setting), trials, needs, states, None)


def trial(of: SettingPlan, micro_batch: int) -> Trial:
    return next(t for t in of.trials if t.micro_batch == micro_batch)


PLAIN, CHECKPOINTED = cell("kernels"), cell("kernels", "checkpointing")
SHARDED = cell("kernels", "zero-2", states=5 << 30)
EVERY = (PLAIN, CHECKPOINTED, SHARDED)
FULL = OutOfMemory("gpu", "")


def largest(learnt: dict[str, OutOfMemory | Measured], of: SettingPlan, *answers: str) -> int:
    fits = LearntMemory(TriedTrials(EVERY, learnt), MEMORY)
    return max(t.micro_batch for t in of.trials if fits(of, t) in answers)


def test_without_any_outcome_everything_may_fit() -> None:
    assert {LearntMemory(TriedTrials(EVERY, {}), MEMORY)(of, t) for of in EVERY for t in of.trials} == {"yes"}


def test_a_setting_with_more_states_also_runs_out_of_memory() -> None:
    """16 samples need at least 86 GiB; with 15 GiB more of states and a margin, only 8 samples may fit."""
    learnt = {trial(SHARDED, 16).id: FULL}
    assert largest(learnt, SHARDED, "yes", "hardly") == 16  # the search handles the same setting
    half = cell("half-weights", "kernels")
    assert largest(learnt, half, "yes", "hardly") == 8


def test_a_setting_that_saves_more_is_not_ruled_out() -> None:
    learnt = {trial(PLAIN, 4).id: FULL}
    assert largest(learnt, CHECKPOINTED, "yes") == 64
    assert largest(learnt, SHARDED, "yes", "hardly") == 64  # computes in half precision
    assert largest({trial(CHECKPOINTED, 4).id: FULL}, PLAIN, "yes", "hardly") == 4


def test_running_out_of_host_memory_says_nothing_about_the_gpus() -> None:
    learnt = {trial(PLAIN, 1).id: OutOfMemory("host", "")}
    assert largest(learnt, PLAIN, "yes") == 64


def test_a_trial_that_fitted_predicts_how_many_samples_fit() -> None:
    """Four samples took 16 GiB beyond the states; the room is 72 GiB and 87 GiB."""
    took = Measured(measurement([], peak_bytes=STATES + (16 << 30)))
    learnt = {trial(PLAIN, 4).id: took}
    assert largest(learnt, PLAIN, "yes") == 16
    assert largest(learnt, SHARDED, "yes") == 16
    assert largest(learnt, PLAIN, "hardly") == 64  # an estimate, so it is tried last and not left out


def test_if_nothing_has_fitted_yet_a_quarter_of_the_samples_is_next() -> None:
    assert largest({trial(PLAIN, 64).id: FULL}, PLAIN, "yes") == 16


def test_states_that_do_not_fit_are_ruled_out_without_any_outcome() -> None:
    too_large = cell("kernels", states=130 << 30)
    assert LearntMemory(TriedTrials([too_large], {}), MEMORY)(too_large, too_large.trials[-1]) == "no"


@pytest.mark.parametrize("change", [{"least_bytes": None}, {"needs": {64: 1 << 30}}])
def test_learnt_memory_is_used_only_without_formulas_and_with_counted_states(
    change: dict[str, object],
) -> None:
    other = replace(PLAIN, **change)  # type: ignore[arg-type]
    learnt = {trial(PLAIN, 1).id: FULL}
    assert LearntMemory(TriedTrials([PLAIN], learnt), MEMORY)(other, other.trials[0]) == "yes"


@pytest.mark.parametrize(("more", "answer"), [(-1, "hardly"), (1, "no")])
def test_the_memory_that_samples_need_at_least_is_known_to_a_margin(more: int, answer: str) -> None:
    """16 samples did not fit beside 5 GiB of states; these may be wrong by a margin, as may those of 8."""
    at_least = (USABLE * MEMORY - (1 + DOUBT) * (5 << 30)) / 16
    limit = (MEMORY - 8 * at_least) / (1 - DOUBT)
    other = cell("half-weights", "kernels", states=round(limit) + more * 1000)
    fits = LearntMemory(TriedTrials(EVERY, {trial(SHARDED, 16).id: FULL}), MEMORY)
    assert fits(other, trial(other, 8)) == answer


@pytest.mark.parametrize(("more", "answer"), [(-1, "yes"), (1, "hardly")])
def test_samples_that_fitted_are_expected_to_take_as_much_elsewhere(more: int, answer: str) -> None:
    """A sample took 4 GiB, beside states that leave room for eight of them in the memory that is usable."""
    took = Measured(measurement([], peak_bytes=STATES + (16 << 30)))
    limit = USABLE * MEMORY - 8 * (4 << 30)
    other = cell("gelu", states=round(limit) + more * 1000)
    fits = LearntMemory(TriedTrials(EVERY, {trial(PLAIN, 4).id: took}), MEMORY)
    assert fits(other, trial(other, 8)) == answer
    checkpointed = cell("gelu", "checkpointing", states=round(limit) + more * 1000)
    assert fits(checkpointed, trial(checkpointed, 8)) == "yes"


def test_the_setting_whose_samples_take_most_counts_at_its_largest_micro_batch() -> None:
    """A sample of one setting took 4 GiB, of the other 8 GiB: the room of 72 GiB holds 8 of the latter."""
    fused = cell("kernels", "gelu")
    learnt = {
        trial(PLAIN, 4).id: Measured(measurement([], peak_bytes=STATES + (16 << 30))),
        trial(fused, 4).id: Measured(measurement([], peak_bytes=STATES + (32 << 30))),
        trial(fused, 1).id: Measured(measurement([], peak_bytes=STATES + (64 << 30))),
        trial(fused, 2).id: Measured(measurement([], peak_bytes=STATES + (1 << 30))),
    }
    fits = LearntMemory(TriedTrials((*EVERY, fused), learnt), MEMORY)
    assert [fits(PLAIN, trial(PLAIN, size)) for size in (8, 16)] == ["yes", "hardly"]


@pytest.mark.parametrize("size", [32, 16])
def test_until_a_setting_fitted_its_samples_are_tried_below_a_quarter_of_what_ran_out(size: int) -> None:
    fits = LearntMemory(TriedTrials(EVERY, {trial(PLAIN, 64).id: FULL}), MEMORY)
    assert fits(PLAIN, trial(PLAIN, size)) == ("yes" if size == 16 else "hardly")
    assert fits(CHECKPOINTED, trial(CHECKPOINTED, 64)) == "yes"
