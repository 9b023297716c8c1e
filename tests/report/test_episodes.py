"""Episodes of made-up readings: the job of each second, when a run stood still, and where a proof begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from bench.records.run_results import Results, TrialResult
from bench.report.compare.episodes import Episode, episodes_of
from tests.report.made import bundle

Reading = tuple[float, object]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run of two trials, "a" and "b", which were measured."""
    settings = [((), 0.5), (("compile",), 0.4)]
    path = bundle(tmp_path_factory.mktemp("made") / "a.tar", settings=settings)
    found = verify_bundle(path, recompute).contents.results
    first, second = found.trials
    return replace(found, trials=(replace(first, id="a"), replace(second, id="b")))


def course(
    results: Results, readings: Sequence[Reading], ends: Mapping[str, float] | None = None, **first: Any
) -> list[tuple[str, float, float]]:
    """Return kind, beginning and end of each episode; `first` changes the first trial."""
    return [(one.kind, one.begun, one.ended) for one in episodes(results, readings, ends, **first)]


def episodes(
    results: Results, readings: Sequence[Reading], ends: Mapping[str, float] | None = None, **first: Any
) -> tuple[Episode, ...]:
    lines = [json.dumps({"at": at, "trial": name}).encode() for at, name in readings]
    trial, *others = results.trials
    changed = replace(results, trials=(replace(trial, **first), *others))
    return episodes_of(lines, changed, ends or {})


def seconds(begun: int, ended: int, name: object) -> list[Reading]:
    return [(float(at), name) for at in range(begun, ended)]


@pytest.mark.parametrize(
    ("job", "kind", "label"),
    [
        ("ceilings", "preparation", "ceilings"),
        ("nodes", "preparation", "nodes"),
        ("gradients", "gradients", "gradients"),
        ("floor", "floor", "floor"),
        (None, "waiting", "between jobs"),
        ("unknown", "waiting", "between jobs"),
        (["a"], "waiting", "between jobs"),
        (5, "waiting", "between jobs"),
    ],
)
def test_a_reading_names_the_job_until_the_next_reading(
    results: Results, job: object, kind: str, label: str
) -> None:
    first, second = episodes(results, [(10.0, job), (11.5, "a"), (12.0, "a")])
    assert first == Episode(kind, 10.0, 11.5, None, label)  # type: ignore[arg-type]
    assert second == Episode("trial", 11.5, 12.0, "tiny-gpt-neox", "naive, micro-batch 16")


def test_neighbours_of_one_job_are_one_episode(results: Results) -> None:
    readings = [*seconds(0, 3, "a"), *seconds(3, 5, "b"), *seconds(5, 7, "a"), (7.0, None)]
    assert course(results, readings) == [("trial", 0, 3), ("trial", 3, 5), ("trial", 5, 7)]


def test_there_are_no_episodes_of_fewer_than_two_readings(results: Results) -> None:
    assert course(results, []) == course(results, [(1.0, "a")]) == []
    assert course(results, [(1.0, "a"), (2.0, "a")]) == [("trial", 1, 2)]


@pytest.mark.parametrize(("gap", "stood_still"), [(10.0, False), (10.5, True)])
def test_a_run_stood_still_in_a_gap_of_more_than_ten_seconds(
    results: Results, gap: float, stood_still: bool
) -> None:
    found = episodes(results, [*seconds(0, 6, "a"), (5.0 + gap, "a"), (6.0 + gap, "a")])
    assert [one.label for one in found if one.kind == "waiting"] == ["not going on"] * stood_still
    assert len(found) == (3 if stood_still else 1)


@pytest.mark.parametrize(("gap", "stood_still"), [(20.0, False), (20.5, True)])
def test_readings_that_are_usually_further_apart_may_have_gaps_of_five_times_as_much(
    results: Results, gap: float, stood_still: bool
) -> None:
    usual: list[Reading] = [(4.0 * number, "a") for number in range(6)]
    found = course(results, [*usual, (20.0 + gap, "a"), (21.0 + gap, "a")])
    assert ("waiting", 20.0, 20.0 + gap) in found or not stood_still
    assert len(found) == (3 if stood_still else 1)


def test_what_is_usual_is_the_middle_of_all_gaps(results: Results) -> None:
    """Of gaps of 1, 1, 4, 4 and 19 seconds, the usual one is 4; of 1, 1, 1, 4 and 19 seconds, 1."""
    assert len(course(results, [(at, "a") for at in (0.0, 1.0, 2.0, 6.0, 10.0, 29.0)])) == 1
    assert len(course(results, [(at, "a") for at in (0.0, 1.0, 2.0, 3.0, 7.0, 26.0)])) == 2


def test_a_clock_that_is_set_back_stands_still_meanwhile(results: Results) -> None:
    readings: list[Reading] = [(5.0, "a"), (6.0, "a"), (3.0, "b"), (4.0, "b"), (7.0, "b"), (8.0, None)]
    assert course(results, readings) == [("trial", 5, 6), ("trial", 6, 8)]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("measured", "trial"),
        ("out-of-memory", "no memory"),
        ("crashed", "failed"),
        ("timed-out", "failed"),
        ("unsupported", "failed"),
    ],
)
def test_a_trials_outcome_is_the_kind_of_its_episode(results: Results, outcome: Any, kind: str) -> None:
    assert course(results, seconds(0, 3, "a"), outcome=outcome) == [(kind, 0, 2)]


# --- proofs ---------------------------------------------------------------------------------------------

PROVEN: dict[str, Any] = {"unproven": "crashed"}


def test_a_proof_begins_after_the_last_timed_step_once_another_job_came_between(results: Results) -> None:
    readings = [*seconds(0, 4, "a"), *seconds(4, 6, "b"), *seconds(6, 9, "a")]
    found = course(results, readings, {"a": 3.0}, **PROVEN)
    assert found == [("trial", 0, 4), ("trial", 4, 6), ("proof", 6, 8)]


def test_the_reading_of_the_last_timed_step_belongs_to_the_trial(results: Results) -> None:
    readings = [*seconds(0, 3, "b"), *seconds(3, 9, "a")]
    assert course(results, readings, {"a": 5.0}, **PROVEN) == [
        ("trial", 0, 3),
        ("trial", 3, 6),
        ("proof", 6, 8),
    ]
    assert course(results, readings, {"a": 5.5}, **PROVEN) == [
        ("trial", 0, 3),
        ("trial", 3, 6),
        ("proof", 6, 8),
    ]


def test_the_end_of_a_trials_process_is_no_proof_if_the_proof_comes_later(results: Results) -> None:
    readings = [*seconds(0, 6, "a"), *seconds(6, 8, "gradients"), *seconds(8, 11, "a")]
    found = course(results, readings, {"a": 3.0}, **PROVEN)
    assert found == [("trial", 0, 6), ("gradients", 6, 8), ("proof", 8, 10)]


def test_a_trial_without_a_proof_has_none(results: Results) -> None:
    assert course(results, seconds(0, 9, "a"), {"a": 3.0}) == [("trial", 0, 8)]
    assert course(results, seconds(0, 9, "a"), {}, **PROVEN) == [("trial", 0, 8)]
    (trial, _) = results.trials
    assert isinstance(trial, TrialResult) and trial.proof is None
