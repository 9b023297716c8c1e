"""Watts and courses from made-up telemetry, in digits: which readings count, and when there is no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.base.strict_json import canonical_json
from bench.bundle.verify import Files, verify_bundle
from bench.node_check.recompute_any import recompute
from bench.records.run_results import TrialResult
from bench.report.compare.energy import course_of, telemetry_lines, watts_of
from tests.report.made import bundle

BEGAN, ENDED = 100.0, 110.0
TIMED, OTHER = "4e4fc42f64fff5ea", "77aa2be1c0d9e3f8"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """A trial on one GPU, whose update takes a tenth of the recipe's step of one second."""
    path = bundle(tmp_path_factory.mktemp("made") / "a.tar")
    (found,) = verify_bundle(path, recompute).contents.results.trials
    assert found.estimate is not None
    step = replace(found.estimate.step_seconds, value=1.0)
    return replace(found, gpus=1, estimate=replace(found.estimate, step_seconds=step, update_seconds=0.1))


def reading(at: float, *joules: float | None, trial: str = TIMED) -> bytes:
    gpus = [{} if one is None else {"energy_joules": one} for one in joules]
    return canonical_json({"at": at, "gpus": gpus, "trial": trial})


def watts(
    trial: TrialResult, lines: Sequence[bytes], *, gpus: int = 1, steps: Sequence[float] = (1.0, 1.0)
) -> float | None:
    """Return the watts of a trial that was timed from BEGAN to ENDED."""
    timed = {"started_at": BEGAN, "ended_at": ENDED, "steps": [{"seconds": each} for each in steps]}
    samples = [canonical_json({"trial": name, "measurement": timed}) for name in (OTHER, TIMED)]
    files = cast(Files, SimpleNamespace(lines=lambda name: samples if name == "samples.jsonl" else ()))
    return watts_of(files, {TIMED: trial}, list(lines), gpus).get(TIMED)


# --- power ----------------------------------------------------------------------------------------------


def test_power_is_the_energy_between_the_first_and_last_reading_inside_the_timed_span(
    trial: TrialResult,
) -> None:
    lines = [reading(99.9, 0), reading(100.0, 5000), reading(104.0, 5900), reading(110.0, 8000)]
    assert watts(trial, [*lines, reading(110.1, 99_000)]) == 300.0
    assert watts(trial, lines[1:3]) == 225.0


def test_readings_of_another_trial_do_not_count(trial: TrialResult) -> None:
    lines = [reading(101.0, 0), reading(103.0, 600), reading(105.0, 6000, trial=OTHER)]
    assert watts(trial, lines) == 300.0


def test_all_gpus_of_the_node_are_added_and_those_of_other_nodes_draw_as_much(trial: TrialResult) -> None:
    two = replace(trial, gpus=2)
    lines = [reading(100.0, 0, 100), reading(110.0, 2000, 4100)]
    assert watts(two, lines, gpus=2) == 600.0
    assert watts(trial, lines, gpus=2) == 200.0, "the second GPU does not train"
    assert watts(replace(trial, gpus=4), lines, gpus=2) == 1200.0
    assert watts(replace(trial, gpus=8), lines, gpus=1) == 1600.0


def test_there_is_no_power_without_two_readings_a_counter_and_a_clock_that_goes_on(
    trial: TrialResult,
) -> None:
    assert watts(trial, []) is None
    assert watts(trial, [reading(105.0, 0)]) is None
    assert watts(trial, [reading(99.0, 0), reading(105.0, 500), reading(111.0, 900)]) is None
    assert watts(trial, [reading(101.0, 0), reading(102.0, 300)], gpus=0) is None
    assert watts(trial, [reading(101.0, None), reading(102.0, 300)]) is None
    assert watts(trial, [reading(101.0, 0), reading(102.0, None)]) is None
    assert watts(trial, [reading(101.0), reading(102.0)]) is None
    assert watts(trial, [reading(102.0, 0), reading(102.0, 300)]) is None
    assert watts(trial, [reading(102.0, 300), reading(101.0, 0)]) is None


def test_a_counter_that_stands_still_goes_back_or_leaps_is_broken(trial: TrialResult) -> None:
    def between(joules: float) -> float | None:
        return watts(trial, [reading(101.0, 1000), reading(102.0, 1000 + joules)])

    assert between(0) is None
    assert between(-1) is None
    assert between(1) == 1.0
    assert between(9_999) == 9_999.0
    assert between(10_000) is None
    two = replace(trial, gpus=2)
    assert watts(two, [reading(101.0, 0, 0), reading(102.0, 9_999, 9_999)], gpus=2) == 19_998.0
    assert watts(two, [reading(101.0, 0, 0), reading(102.0, 10_000, 10_000)], gpus=2) is None


def test_power_of_steps_in_which_updates_take_a_larger_share_is_not_that_of_training(
    trial: TrialResult,
) -> None:
    lines = [reading(100.0, 0), reading(110.0, 3000)]
    # The update takes 0.1 of the recipe's second, and may take up to 0.2 of a timed step.
    for seconds, found in ((0.501, 300.0), (0.499, None), (2.0, 300.0)):
        assert watts(trial, lines, steps=[seconds]) == found
        assert watts(trial, lines, steps=[seconds] * 3) == found
    assert watts(trial, lines, steps=[0.3, 0.8]) == 300.0, "the mean of the timed steps counts"
    assert watts(trial, lines, steps=[]) == 300.0
    assert trial.estimate is not None
    unknown = replace(trial, estimate=replace(trial.estimate, update_seconds=None))
    assert watts(unknown, lines, steps=[0.1]) == 300.0
    assert watts(replace(trial, estimate=None), lines, steps=[0.1]) == 300.0


def test_a_reading_that_does_not_begin_with_its_time_is_refused(trial: TrialResult) -> None:
    with pytest.raises(ValueError, match=r"does not begin with its time: b'\{\"by\":101"):
        watts(trial, [b'{"by":101,"trial":"4e4fc42f64fff5ea"}', reading(101.0, 0)])


@pytest.mark.parametrize(
    ("signed", "lines"), [({"telemetry.jsonl": ""}, [b"a", b"b"]), ({"results.json": ""}, [])]
)
def test_telemetry_is_an_optional_file(signed: Mapping[str, str], lines: list[bytes]) -> None:
    files = SimpleNamespace(sha256=signed, lines={"telemetry.jsonl": iter([b"a", b"b"])}.__getitem__)
    assert telemetry_lines(cast(Files, files)) == lines


# --- courses --------------------------------------------------------------------------------------------


def line(at: float, *gpus: Mapping[str, float], **more: float) -> bytes:
    return canonical_json({"at": at, "gpus": list(gpus), **more})


def test_a_course_begins_at_0_and_is_the_mean_of_the_gpus() -> None:
    gpus: tuple[dict[str, Any], ...] = (
        {"power_watts": 300, "sm_mhz": 1980, "celsius": 40, "used_bytes": 1024},
        {"power_watts": 500, "sm_mhz": 1900, "celsius": 50, "used_bytes": 3072},
    )
    course = course_of([line(1000.0, *gpus, load=3), line(1002.5, gpus[0], gpus[0], load=5)])
    assert course is not None
    assert course.seconds == (0.0, 2.5)
    assert (course.watts, course.sm_mhz) == ((400.0, 300.0), (1940.0, 1980.0))
    assert (course.celsius, course.used_bytes) == ((45.0, 40.0), (2048.0, 1024.0))
    assert course.load == (3.0, 5.0)


def test_a_figure_that_one_reading_lacks_is_empty() -> None:
    course = course_of([line(0.0, {"celsius": 40}, load=1), line(1.0, {"celsius": 41, "sm_mhz": 1980})])
    assert course is not None
    assert (course.celsius, course.sm_mhz, course.load) == ((40.0, 41.0), (), ())


def test_readings_without_gpus_count_only_on_a_machine_without_gpus() -> None:
    course = course_of([line(0.0, load=1), line(1.0, load=2)])
    assert course is not None
    assert (course.seconds, course.watts, course.load) == ((0.0, 1.0), (), (1.0, 2.0))
    some = course_of([line(0.0), line(5.0, {"celsius": 40}), line(7.0, {"celsius": 42})])
    assert some is not None
    assert (some.seconds, some.celsius) == ((0.0, 2.0), (40.0, 42.0))
    assert course_of([line(0.0), line(1.0, {"celsius": 40}), line(2.0)]) is None


def test_there_is_no_course_of_fewer_than_two_readings() -> None:
    assert course_of([]) is None
    assert course_of([line(0.0)]) is None


@pytest.mark.parametrize(("readings", "every"), [(60, 1), (61, 2), (120, 2), (121, 3)])
def test_a_course_has_at_most_60_points(readings: int, every: int) -> None:
    course = course_of([line(float(at), load=1) for at in range(readings)])
    assert course is not None
    assert course.seconds == tuple(float(at) for at in range(0, readings, every))
