"""Each condition of a mark just inside and just outside: shares, loads, times, GPUs, odd readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.base.strict_json import canonical_json
from bench.records.estimate import Interval
from bench.records.marks import (
    MEANING,
    Cpus,
    Mark,
    MarkKind,
    all_marks,
    mark_lines,
    marks_of_other_work,
    top_load,
    unsteady,
    worst_marks,
)
from bench.records.slowdown import Slowed

GPUS = Cpus(16, "cuda")
WHOLE_RUN = {"t": (0.0, 1000.0)}
SLOWED = Slowed(2, ("power brake",), 0.25, 405, 1980, 87)


def said(*readings: Mapping[str, Any]) -> bytes:
    """Write telemetry with a reading of the trial `t` in every second, unless a reading tells otherwise."""
    return b"\n".join(
        canonical_json({"at": second, "trial": "t", "gpus": []} | one) for second, one in enumerate(readings)
    )


def found(
    *readings: Mapping[str, Any],
    spans: Mapping[str, tuple[float, float]] = WHOLE_RUN,
    cpus: Cpus = GPUS,
) -> Mapping[str, tuple[Mark, ...]]:
    return marks_of_other_work(lambda: [said(*readings)], spans, cpus)


def kinds(*readings: Mapping[str, Any], **more: Any) -> list[MarkKind]:
    return [mark.kind for mark in found(*readings, **more).get("t", ())]


@pytest.mark.parametrize(("device", "most"), [("cuda", 11.2), ("cpu", 32.0)])
def test_the_highest_load_that_is_a_runs_own_grows_with_the_cpus(device: Any, most: float) -> None:
    assert Cpus(16, device).most_total == pytest.approx(most)


@pytest.mark.parametrize(("readings", "marked"), [(100, ["DISTURBED"]), (101, [])])
def test_another_bench_counts_from_one_reading_in_a_hundred(readings: int, marked: list[str]) -> None:
    assert kinds({"others": True}, *[{}] * (readings - 1)) == marked


@pytest.mark.parametrize(
    ("begun", "ended", "marked"),
    [
        (1.5, 9, ["DISTURBED"]),  # the only disturbed reading is at 0
        (1.51, 9, []),
        (-9, -1.5, ["DISTURBED"]),
        (-9, -1.51, []),
    ],
)
def test_another_bench_counts_up_to_a_second_and_a_half_around_the_steps(
    begun: float, ended: float, marked: list[str]
) -> None:
    assert kinds({"others": True}, spans={"t": (begun, ended)}) == marked


def test_a_reading_counts_for_the_sixteen_trials_that_began_last_before_it() -> None:
    """Trials of one machine follow each other; a forged list of them must not take quadratic time."""
    at_once = {f"{number:02}": (0.01 * number, 0.5) for number in range(20)}
    later = {f"later {number:02}": (9.0, 9.5) for number in range(20)}
    assert [*found({"others": True}, spans=at_once | later)] == [f"{number:02}" for number in range(4, 20)]
    few = {name: at_once[name] for name in ("00", "01", "02")}
    assert [*found({"others": True}, spans=few | later)] == [*few]


@pytest.mark.parametrize(
    ("begun", "ended", "marked"), [(0, 9, ["LOADED"]), (-9, 0, ["LOADED"]), (0.1, 9, []), (-9, -0.1, [])]
)
def test_a_load_counts_from_the_beginning_of_the_steps_to_their_end(
    begun: float, ended: float, marked: list[str]
) -> None:
    assert kinds({"load": 99}, spans={"t": (begun, ended)}) == marked


def test_the_load_is_the_median_of_its_readings() -> None:
    loads = (14, 1, 13, 2, 12, 60, 90)
    (mark,) = found(*({"load": load} for load in loads))["t"]
    assert mark == Mark("LOADED", "a load of 13 on 16 CPUs, from other work", 13 / 16)


@pytest.mark.parametrize(
    ("reading", "cpus", "text"),
    [
        ({"load": 8}, 16, None),  # half a load for each CPU
        ({"load": 8, "cpus": 1}, 16, "a load of 8 on 1 CPUs, from other work"),
        ({"load": 40, "cpus": -1}, 16, "a load of 40 on 16 CPUs, from other work"),
        ({"load": 40, "cpus": 0}, 16, "a load of 40 on 16 CPUs, from other work"),
        ({"load": 40, "cpus": "64"}, 16, "a load of 40 on 16 CPUs, from other work"),
        ({"load": 8}, 1, "a load of 8 on 1 CPUs, from other work"),
        ({"load": 8}, 0, None),  # the node does not say how many CPUs it has
    ],
)
def test_a_load_is_divided_by_the_cpus_that_its_reading_names_or_else_the_node(
    reading: Mapping[str, Any], cpus: int, text: str | None
) -> None:
    marks = found(reading, cpus=Cpus(cpus, "cuda")).get("t", ())
    assert [mark.text for mark in marks] == ([] if text is None else [text])


def test_readings_of_no_trial_and_gpus_that_are_no_list_are_left_out() -> None:
    assert kinds({"load": 99, "trial": ["t"]}, {"load": 99, "trial": None}, {"load": 99, "at": "0"}) == []
    assert kinds({"gpus": 7}, {"gpus": None}) == []


def test_what_was_held_before_the_steps_counts_without_a_reading_around_them() -> None:
    held = {"gpus": [{"held_bytes": 1 << 30}]}
    assert kinds(held, spans={"t": (8.0, 9.0)}) == ["SHARED"]


def test_numbers_that_are_no_load_are_not_found_in_a_block() -> None:
    assert top_load(b'{"at":1700000000,"gpus":[{"celsius":60}]}') == 0.0
    assert top_load(b'{"at":1,"load": 2.5}\n{"at":2,"load":12}') == 12.0


@pytest.mark.parametrize("days", [Interval(0.0, 1.0), Interval(0.0, 0.0)])
def test_a_figure_of_no_days_has_no_width(days: Interval) -> None:
    assert unsteady(days) is None


def test_all_marks_of_a_trial_are_collected_and_a_trial_without_one_is_left_out() -> None:
    shared = Mark("SHARED", "other processes held 1.0 GiB of GPU 0", 1 << 30)
    days = {
        name: Interval(10.0, 6.0 if name == "wide" else 1.0) for name in ("slow", "both", "wide", "sound")
    }
    marks = all_marks({"slow": SLOWED, "both": SLOWED}, {"both": (shared,)}, days)
    slowed = Mark(
        "SLOWED", "GPU 2 by power brake, 25% of the time, at 405 of its 1,980 MHz and 87 °C", SLOWED.share
    )
    assert marks == {
        "slow": (slowed,),
        "both": (slowed, shared),
        "wide": (Mark("UNSTEADY", "its 95% interval is 120% of the figure wide", 0.6),),
    }
    assert [(mark, count) for mark, count in worst_marks(marks)] == [
        (slowed, 2),
        (shared, 1),
        (marks["wide"][0], 1),
    ]


def test_each_kind_but_slowed_has_a_line_with_its_meaning() -> None:
    """The lines of SLOWED are by GPU: `slowed_lines` makes them."""
    marks = {kind: (Mark(kind, "what was seen", 1.0),) for kind in MEANING}
    assert [*mark_lines(marks)] == [
        (kind, f"1 trial: what was seen: {meaning}") for kind, meaning in MEANING.items() if kind != "SLOWED"
    ]
    assert [*MEANING] == ["SLOWED", "DISTURBED", "SHARED", "LOADED", "UNSTEADY"]
