"""Rows that are ranked together, and the run that represents a machine: each rule by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.bundle.stated_manifest import SearchScope
from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.report.compare.compared_rows import (
    DEEPSPEED,
    ON_TRUST,
    Attempt,
    Machine,
    MeasuredAttempt,
    RankedRow,
    Row,
    Software,
)
from bench.report.compare.fastest_runs import COPIED, assurance_of, fastest_runs
from bench.report.compare.groups import (
    decisive,
    differing,
    groups_of,
    in_order,
    ranked_rows,
    why_no_figure,
)

LOADED = Mark("LOADED", "a load of 40 on 16 CPUs, from other work", 2.5)
SHARED = Mark("SHARED", "other processes held 1.0 GiB of GPU 0", 1.0)


def attempt(days: float = 2.0, setting: tuple[str, ...] = ()) -> MeasuredAttempt:
    return MeasuredAttempt(
        "naive", setting, 16, 1, "measured", days=Interval(days, 0.01), step_seconds=Interval(1.0, 0.01),
        units_per_second=1.0, peak_bytes=1,
    )  # fmt: skip


def row(name: str, days: float | None = 2.0, machine: str = "", **changes: Any) -> Any:
    """Make the row of a run, by default on a machine of its own; without a figure if `days` is None."""
    setting = changes.pop("setting", ())
    values: dict[str, Any] = {
        "path": f"{name}.tar", "run_id": name, "started_at": "2026-11-01T00:00:00Z", "level": "self",
        "trusted": False, "complete": True, "machine": Machine("H200", "cuda", 8, 1, machine or name),
        "model": "m", "family": "f", "precision": "bf16", "unit": "token", "conditions": (),
        "searched": SearchScope("guided", "auto"), "software": Software("1", None, None, None, "s"),
        "training_flops": None, "attempts": (),
    }  # fmt: skip
    if days is None:
        return Row(**(values | {"best": None} | changes))
    return RankedRow(**(values | {"best": attempt(days, setting)} | changes))


def paths(rows: Sequence[Row]) -> str:
    return " ".join(one.path.removesuffix(".tar") for one in rows)


def test_rows_are_ordered_by_when_they_ran_then_by_what_was_signed_then_by_their_names() -> None:
    rows = [
        row("a", started_at="2026-11-02"),
        row("b", run_id="2", statement_sha256="1"),
        row("c", run_id="1", statement_sha256="3"),
        row("d", run_id="1", statement_sha256="2", path="z/d.tar"),
        row("d", run_id="1", statement_sha256="2", path="y/d.tar"),
        row("d", run_id="1", statement_sha256="2", path="y/d.tar", model="k"),
        row("d", run_id="1", statement_sha256="2", path="zz/c.tar"),
    ]
    expected = [rows[6], rows[5], rows[4], rows[3], rows[2], rows[1], rows[0]]
    assert in_order(rows) == in_order(reversed(rows)) == expected


def test_rows_of_trusted_signers_decide_if_there_are_any() -> None:
    first, second = row("a"), row("b", trusted=True)
    assert decisive([first, second]) == [second]
    assert decisive(iter([first])) == [first]
    assert ranked_rows([first, row("c", None), second]) == [first, second]


def grouped(*rows: Row, as_one: bool = False) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (paths(group.rows), paths(group.without_figure), group.differs_in)
        for group in groups_of(rows, as_one=as_one)
    ]


def batch(size: int, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (("batch", str(size)), *more)


def of(size: int, name: str, *more: tuple[str, str], **changes: Any) -> Any:
    return row(name, conditions=batch(size, *more), **changes)


TRUSTED: dict[str, Any] = {"trusted": True}
ON_M: dict[str, Any] = {"machine": "M"}
CLAIM = (ON_TRUST, "its days")


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        # Trusted machines count first, each once.
        ([of(1, "a", **TRUSTED), of(2, "b"), of(2, "c")], "a"),
        (
            [
                *(of(1, name, **TRUSTED, **ON_M) for name in ("a", "b")),
                *(of(2, name, **TRUSTED) for name in ("c", "d")),
            ],
            "c d",
        ),
        # Then whether nothing was taken on trust.
        ([of(1, "a"), of(1, "b", CLAIM), of(1, "c", CLAIM)], "a"),
        # Then the number of machines, each once.
        ([of(1, "a"), of(2, "b"), of(2, "c")], "b c"),
        ([of(1, "a", **ON_M), of(1, "b", **ON_M), of(2, "c"), of(2, "d")], "c d"),
        # Then the newest run, then the conditions themselves.
        ([of(1, "a", started_at="2026-12-02"), of(2, "b")], "a"),
        (
            [
                *(of(1, "a", started_at="2026-12-02"), of(1, "b", started_at="2026-09-01")),
                *(of(2, "c"), of(2, "d")),
            ],
            "a b",
        ),
        ([of(1, "a"), of(2, "b")], "b"),
    ],
)
def test_the_group_that_answers_is_the_one_with_the_most_weight(rows: list[Row], first: str) -> None:
    assert grouped(*rows)[0] == (first, "", ())
    assert {*grouped(*reversed(rows))[0][0].split()} == {*first.split()}


def test_rows_without_a_figure_join_the_group_of_their_conditions_or_the_first() -> None:
    rows = [
        row("a", conditions=batch(1)),
        row("b", conditions=batch(2)),
        row("c", conditions=batch(2)),
        row("x", None, conditions=batch(1)),
        row("y", None, conditions=batch(9)),
    ]
    assert grouped(*rows) == [("b c", "y", ()), ("a", "x", ("batch 1, not 2",))]
    assert grouped(*rows, as_one=True) == [("a b c", "x y", ())]
    assert len(groups_of(rows)) == 2, "unless the user asks for one"
    assert grouped(*rows[3:]) == [("", "y", ()), ("", "x", ("batch 1, not 9",))]


def with_version(version: str | None) -> tuple[tuple[str, str], ...]:
    return () if version is None else ((DEEPSPEED, version),)


def test_the_version_of_deepspeed_counts_only_if_several_are_used() -> None:
    one, two = with_version("0.16"), with_version("0.17")
    used = row("a", setting=("zero-2",), conditions=one)
    assert grouped(used, row("b", conditions=two), row("c")) == [("a b c", "", ())]
    assert groups_of([used, row("b", conditions=two)])[0].conditions == ()
    again, newer = (
        row("b", setting=("zero-1",), conditions=one),
        row("c", setting=("zero-2",), conditions=two),
    )
    without = row("d", conditions=with_version("0.1"))
    assert grouped(used, again, newer, without) == [
        ("a b d", "", ()), ("c", "", ("deepspeed 0.17, not 0.16",)),
    ]  # fmt: skip
    # Of versions used as often, the highest is the most used.
    assert grouped(used, newer, without) == [("c d", "", ()), ("a", "", ("deepspeed 0.16, not 0.17",))]
    unknown = row("e", setting=("zero-2",))
    assert grouped(unknown, used, again) == [("a b", "", ()), ("e", "", ("deepspeed none, not 0.16",))]
    unknown_too = row("f", setting=("zero-2",))
    assert grouped(unknown, unknown_too, used, without)[0] == ("e f d", "", ())


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (batch(512), batch(512), ()),
        (batch(512), batch(1024), ("batch 512, not 1024",)),
        ((("torch", "2.9"),), (), ("torch 2.9, not none",)),
        ((), (("torch", "2.9"),), ("torch none, not 2.9",)),
        ((("image", "none"),), (("environment", "e"),), ("environment none, not e",)),
        (((ON_TRUST, "its days"),), (), ("on trust: its days",)),
        ((), ((ON_TRUST, "its days"),), ("nothing on trust",)),
        ((("architecture", "a"),), (("architecture", "b"),), ("another architecture",)),
        ((("rest of the recipe", "a"),), (("rest of the recipe", "b"),), ("another recipe",)),
        (batch(1, ("torch", "1")), batch(2, ("driver", "3")),
         ("batch 1, not 2", "torch 1, not none", "driver none, not 3")),
    ],
)  # fmt: skip
def test_the_difference_between_groups_is_told_in_words(ours: Any, theirs: Any, words: Any) -> None:
    assert differing(ours, theirs) == words


def test_a_row_without_a_figure_tells_how_its_trials_ended() -> None:
    ended = [Attempt("naive", (), 16, 1, outcome) for outcome in ("oom", "crashed", "oom")]
    assert why_no_figure(row("a", None)) == "no setting was tried"
    assert why_no_figure(row("a", None, attempts=tuple(ended))) == "no figure: 2 oom, 1 crashed"


def represented(*rows: RankedRow) -> tuple[str, dict[str, str]]:
    kept, left_out = fastest_runs(rows)
    return paths(kept), {one.path.removesuffix(".tar"): why for one, why in left_out}


def test_a_machine_is_represented_by_its_fastest_run() -> None:
    slow, fast = row("slow", 2.0, "M"), row("fast", 1.5, "M")
    other = row("other", 3.0)
    expected = ("fast other", {"slow": "2 days: the same machine was faster in fast.tar"})
    assert represented(slow, fast, other) == represented(fast, slow, other) == expected


def test_a_marked_run_represents_a_machine_only_if_it_has_no_other() -> None:
    marked, sound = row("marked", 1.0, "M", marks=(LOADED, SHARED)), row("sound", 2.0, "M")
    why = "LOADED, SHARED, 1 days: the same machine has a run in which it was not: sound.tar"
    assert represented(marked, sound) == ("sound", {"marked": why})
    slower = row("slower", 1.5, "M", marks=(LOADED,))
    assert represented(marked, slower) == (
        "marked", {"slower": "1.5 days: the same machine was faster in marked.tar"},
    )  # fmt: skip


def test_a_run_replaces_only_those_that_are_trusted_no_more() -> None:
    """Trust counts before a receipt of the operator."""
    fast = row("fast", 1.0, "M")
    for vouched in ({"trusted": True}, {"level": "operator"}):
        assert represented(fast, row("slow", 2.0, "M", **vouched))[0] == "fast slow"
        assert represented(replace(fast, **vouched), row("slow", 2.0, "M"))[0] == "fast"
        assert represented(replace(fast, **vouched), row("slow", 2.0, "M", **vouched))[0] == "fast"
    assert represented(replace(fast, level="operator"), row("slow", 2.0, "M", trusted=True))[0] == "fast slow"
    assert assurance_of(row("a", trusted=True)) > assurance_of(row("b", level="operator"))


def test_of_equal_figures_the_one_that_is_vouched_for_counts_then_the_complete_one() -> None:
    plain = row("plain", 1.0, "M")
    assert represented(plain, row("vouched", 1.0, "M", trusted=True))[0] == "vouched"
    assert represented(row("partial", 1.0, "M", complete=False), plain)[0] == "plain"


COPY = (frozenset({1.0, 2.0, 3.0, 4.0}),)


def copy(name: str, days: float = 2.0, **changes: Any) -> Any:
    return row(name, days, step_times=COPY, **changes)


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({}, {}),  # of equals, the first to run
        ({"received_at": "2026-11-02"}, {"received_at": "2026-11-03"}),
        ({"received_at": "2026-11-03"}, {}),  # a receipt before none
        ({"trusted": True}, {"level": "operator"}),
        ({"level": "operator"}, {"received_at": "2026-11-01"}),
    ],
)
def test_of_copied_samples_the_original_is_the_one_that_is_vouched_for_or_came_first(
    changes: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = copy("first", **changes), copy("second", 1.0, **other)
    expected = ("first", {"second": f"{COPIED} first.tar"})
    assert represented(first, second) == expected
    if changes:
        assert represented(second, first) == expected


def test_a_run_that_was_continued_or_given_twice_is_no_copy() -> None:
    first, again = copy("run", 2.0, machine="M"), copy("run", 1.5, machine="M", path="again.tar")
    assert represented(first, again) == ("again", {"run": "the same run as again.tar"})
    trusted = replace(first, trusted=True)
    assert represented(trusted, again) == ("run", {"again": "the same run as run.tar"})
    elsewhere = copy("run", 1.5, machine="N", path="elsewhere.tar")
    assert represented(first, elsewhere) == ("run", {"elsewhere": f"{COPIED} run.tar"})
    another = copy("another", 1.5, machine="M")
    assert represented(first, another) == ("run", {"another": f"{COPIED} run.tar"})


def test_the_words_for_a_copy_say_that_one_of_two_measured_nothing() -> None:
    assert COPIED == "its samples are those of another run, so one of the two measured nothing:"
