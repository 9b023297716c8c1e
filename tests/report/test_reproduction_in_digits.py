"""Whether a run was reproduced, figure by figure, just inside and just outside of each limit, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot
from typing import Any

import pytest

from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.records.run_results import Results, RunFacts, TrialResult
from bench.records.spread import shipped_spreads
from bench.records.trial import Ceiling, Gpu, Image, NodeFacts, OutOfMemory, Timing
from bench.report.reproduce.verdicts import (
    LOSS_TOLERANCE,
    FigureMatch,
    FirstLosses,
    MeanCourse,
    ReproducibleRun,
    Reproduction,
    SettingMatch,
    StepLimits,
    _losses,
    _on_same_gpus,
    _step,
    _within,
    node_differences,
    pip_lines,
    reproduce,
    stack_differences,
)
from tests.builders import ESTIMATE, MODEL

NODE = NodeFacts("a CPU", 8, 2**40, "Debian", "6.1", "3.12.1", driver="580.1", packages={"torch": "2.8.0"})
LOADED = Mark("LOADED", "a load of 40 on 16 CPUs, from other work", 2.5)


def gpu(uuid: str, name: str = "NVIDIA H200") -> Gpu:
    return Gpu(0, name, uuid, 1 << 37, "9.0")


def trial(name: str = "t", **changes: Any) -> TrialResult:
    one = TrialResult(name, MODEL.name, (), "naive", 4, 2, 1, "measured", None, ESTIMATE, None)
    return replace(one, **changes)


def days(value: float, half_width: float = 0.001) -> Any:
    return replace(
        ESTIMATE, step_seconds=Interval(2 * value, 2 * half_width), days=Interval(value, half_width)
    )


FULL = OutOfMemory("gpu", "")
FAILED: dict[str, Any] = {"outcome": "out-of-memory", "failure": FULL, "estimate": None}


def run(
    *trials: TrialResult,
    name: str = "here",
    node: NodeFacts = NODE,
    losses: Mapping[str, FirstLosses] | None = None,
    courses: Mapping[str, MeanCourse] | None = None,
    searched: frozenset[str] = frozenset(),
    marks: Mapping[str, tuple[Mark, ...]] | None = None,
    step_seconds: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ReproducibleRun:
    results = Results(
        bench_version="1.0", manifest_digest="sha256:0", run=RunFacts(name, 0.0, 9.0, True, None), node=node,
        models=(MODEL,), seed=0, timing=Timing(), memory_cap_bytes=None, ceilings=(), trials=trials,
        skipped=(),
    )  # fmt: skip
    unread: Any = None  # no figure of a reproduction comes from the manifest
    return ReproducibleRun(
        samples=0, measured_seconds=0.0, results=replace(results, **changes), stated=unread,
        step_seconds=step_seconds or {}, busy_shares={}, marks=marks or {}, courses=courses or {},
        searched=searched, losses=losses or {each.id: FirstLosses(8, (2.0, 1.0)) for each in trials},
    )  # fmt: skip


def the_only(here: ReproducibleRun, there: ReproducibleRun, tolerance: float = 0.02) -> SettingMatch:
    (one,) = reproduce(here, there, tolerance).compared
    return one


def verdicts(match: SettingMatch) -> dict[str, str]:
    return {figure.name: figure.verdict for figure in match.figures}


@pytest.mark.parametrize(
    ("ours", "theirs", "spread", "tolerance", "allowed", "verdict"),
    [
        (10.2, 10.0, 0.0, 0.02, 0.2, "reproduced"),  # the tolerance itself
        (9.8, 10.0, 0.0, 0.02, 0.2, "reproduced"),
        (10.21, 10.0, 0.0, 0.02, 0.2, "not reproduced"),
        (9.79, 10.0, 0.0, 0.02, 0.2, "not reproduced"),
        (12.5, 10.0, 0.0, 0.25, 2.5, "reproduced"),
        (10.5, 10.0, 0.03, 0.02, 0.588, "reproduced"),  # 1.96 times the spread
        (10.6, 10.0, 0.03, 0.02, 0.588, "not reproduced"),
        (10.5, 10.0, 0.06, 0.02, 1.176, "undecided"),  # an interval wider than a tenth shows nothing
        (12.0, 10.0, 0.06, 0.02, 1.176, "not reproduced"),
        (10.5, 10.0, 0.06, 0.2, 2.0, "reproduced"),  # as the user allows it
    ],
)
def test_a_step_may_differ_as_two_runs_do_or_by_the_tolerance(
    ours: float, theirs: float, spread: float, tolerance: float, allowed: float, verdict: str
) -> None:
    found = _step(Interval(ours, 0.0), Interval(theirs, 0.0), StepLimits(spread, tolerance))
    assert found == FigureMatch(
        "step seconds", verdict, ours, theirs, pytest.approx(allowed, rel=1e-3),  # type: ignore[arg-type]
        pytest.approx(100 * (ours / theirs - 1)), 0.0, 0.0,
    )  # fmt: skip


def test_the_intervals_of_both_runs_widen_what_a_step_may_differ_by() -> None:
    found = _step(Interval(10.4, 0.3), Interval(10.0, 0.4), StepLimits(0.0, 0.02))
    assert (found.verdict, found.half_width) == ("reproduced", pytest.approx(hypot(0.3, 0.4)))
    assert (found.here_half_width, found.there_half_width) == (0.3, 0.4)
    exact = _step(Interval(10.0, 0.0), Interval(10.0, 1.0), StepLimits(0.0, 0.02))
    assert (exact.half_width, exact.verdict) == (1.0, "reproduced"), "a tenth of the step decides"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "percent"),
    [
        (103.0, 100.0, "reproduced", 3.0),
        (97.0, 100.0, "reproduced", -3.0),
        (103.1, 100.0, "not reproduced", 3.1),
        (-97.0, -100.0, "reproduced", -3.0),
        (0.0, 0.0, "reproduced", None),
        (1.0, 0.0, "not reproduced", None),
    ],
)
def test_another_figure_may_differ_by_its_tolerance(
    ours: float, theirs: float, verdict: Any, percent: float | None
) -> None:
    found = _within("peak bytes", ours, theirs, 0.03)
    shown = None if percent is None else pytest.approx(percent)
    assert found == FigureMatch("peak bytes", verdict, ours, theirs, 0.03 * abs(theirs), shown)  # type: ignore[arg-type]


def test_of_the_first_losses_the_pair_that_differs_most_counts() -> None:
    (found,) = _losses(FirstLosses(8, (4.1, 1.05, 2.0)), FirstLosses(8, (4.0, 1.0, 2.0)), 0.02)
    assert (found.name, found.verdict, found.here, found.there) == (
        "first losses",
        "not reproduced",
        1.05,
        1.0,
    )
    (found,) = _losses(FirstLosses(8, (0.0, 1.0)), FirstLosses(8, (1e-13, 1.0)), 0.02)
    assert (found.here, found.there) == (0.0, 1e-13), "a loss of nearly zero"
    (found,) = _losses(FirstLosses(8, (1.9, 0.0)), FirstLosses(8, (1.0, 1.5e-12)), 0.02)
    assert (found.here, found.there) == (0.0, 1.5e-12)
    assert list(_losses(FirstLosses(8, ()), FirstLosses(8, (1.0,)), 0.02)) == []
    (found,) = _losses(FirstLosses(8, (1.0,)), FirstLosses(64, (1.0,)), 0.02)
    assert found == FigureMatch(
        "first losses", "undecided", "first losses of 8 samples", "first losses of 64 samples", None, None
    )
    assert LOSS_TOLERANCE == {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2, "fp8": 5e-2}


def test_losses_are_held_to_the_tolerance_of_the_recipes_precision() -> None:
    near = {"t": FirstLosses(8, (2.01, 1.0))}
    assert verdicts(the_only(run(trial(), losses=near), run(trial(), name="there"))) == {
        "step seconds": "reproduced", "peak bytes": "reproduced", "first losses": "not reproduced",
    }  # fmt: skip
    half = replace(MODEL, recipe=replace(MODEL.recipe, precision="bf16"))
    there = run(trial(), name="there", models=(replace(MODEL, name="other"), half))
    assert verdicts(the_only(run(trial(), losses=near), there))["first losses"] == "reproduced"


def test_memory_may_differ_by_three_percent() -> None:
    for peak_bytes, verdict in ((1.03, "reproduced"), (1.031, "not reproduced")):
        ours = trial(estimate=replace(ESTIMATE, peak_bytes=int(peak_bytes * (1 << 30))))
        assert verdicts(the_only(run(ours), run(trial())))["peak bytes"] == verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "here", "there"),
    [
        (FAILED, FAILED, "reproduced", "out-of-memory", "out-of-memory"),
        (FAILED, {}, "not measured", "out-of-memory", "measured"),
        ({}, FAILED, "not reproduced", "measured", "out-of-memory"),
        ({"estimate": None}, {}, "not measured", "too few samples", "measured"),
        ({}, {"estimate": None}, "undecided", "measured", "too few samples"),
        ({"estimate": None}, {"estimate": None}, "not measured", "too few samples", "too few samples"),
        (FAILED, FAILED | {"outcome": "crashed"}, "not measured", "out-of-memory", "crashed"),
    ],
)
def test_trials_without_figures_are_compared_by_how_they_ended(
    ours: dict[str, Any], theirs: dict[str, Any], verdict: Any, here: str, there: str
) -> None:
    match = the_only(run(trial(**ours)), run(trial(**theirs)))
    assert match.figures == (FigureMatch("outcome", verdict, here, there, None, None),)
    assert match.reproduced == (verdict == "reproduced")
    failed = "failure" in ours and here != there
    assert match.reasons == ((f"{here} here, {there} there",) if failed else ())


def test_trials_are_paired_by_model_setting_micro_batch_and_gpus() -> None:
    for changes in ({"model": "x"}, {"setting": ("compile",)}, {"micro_batch": 8}, {"gpus": 2}):
        found = reproduce(run(trial("u", **changes)), run(trial()), 0.02)
        assert (found.compared, found.missing, found.reproduced) == (
            (), (f"{MODEL.name}, naive, micro-batch 4",), False,
        )  # fmt: skip
    found = reproduce(run(trial("u", label="as it is")), run(trial(), name="there"), 0.05)
    (match,) = found.compared
    assert (match.model, match.label, match.micro_batch) == (MODEL.name, "naive", 4)
    assert (found.here, found.there, found.tolerance, found.reproduced) == ("here", "there", 0.05, True)
    assert (found.missing, found.not_needed, found.schema) == ((), (), "bench/reproduction/v1")


def test_nothing_to_compare_reproduces_nothing() -> None:
    assert not reproduce(run(), run(), 0.02).reproduced
    one = the_only(run(trial()), run(trial()))
    wrong = replace(one, figures=(*one.figures, replace(one.figures[0], verdict="undecided")))
    for compared, missing, reproduced in (
        ((one,), (), True),
        ((one, wrong), (), False),
        ((one,), ("t",), False),
    ):
        assert Reproduction("a", "b", 0.02, True, 0.1, compared, missing).reproduced == reproduced


def test_runs_on_the_same_gpus_are_held_to_the_spread_of_another_day() -> None:
    on = {name: replace(NODE, gpus=(gpu(name),)) for name in ("A", "B")}
    spreads = shipped_spreads()
    for here, there, same in (("A", "A", True), ("A", "B", False)):
        found = reproduce(run(trial(), node=on[here]), run(trial(), node=on[there]), 0.02)
        assert found.same_machine == same
        assert found.spread == (spreads.another_day if same else spreads.another_machine)
    assert not _on_same_gpus(run(), run()), "CPUs have no identity"


SEARCHED = frozenset({MODEL.name})


def test_a_search_that_did_not_need_a_trial_is_compared_by_its_fastest_setting() -> None:
    fast, slow = trial("f", setting=("compile",), label="compiled"), trial("s", estimate=days(2.0))
    there = run(fast, slow, name="there", searched=SEARCHED)
    found = reproduce(run(fast), there, 0.02)
    assert found.not_needed == (f"{MODEL.name}, naive, micro-batch 4",)
    assert found.missing == ()
    assert found.reproduced
    last = found.compared[-1]
    assert (last.model, last.label, last.micro_batch, last.reasons) == (MODEL.name, "fastest", None, ())
    assert (last.figures[0].name, last.figures[0].here, last.figures[0].there) == ("days", 1.0, 1.0)
    ended_early = run(fast, run=RunFacts("here", 0.0, 9.0, False, "ctrl-c"))
    assert reproduce(ended_early, there, 0.02).missing == found.not_needed
    assert reproduce(run(fast), run(fast, slow), 0.02).missing == found.not_needed
    assert len(reproduce(run(fast, slow), there, 0.02).compared) == 2, "nothing was left out"


def test_a_search_that_found_a_slower_setting_says_which() -> None:
    there = run(trial("f", setting=("compile",), label="compiled"), name="there", searched=SEARCHED)
    found = reproduce(run(trial("s", estimate=days(2.0), micro_batch=8)), there, 0.02)
    (last,) = found.compared
    assert verdicts(last) == {"days": "not reproduced"}
    assert last.reasons == ("naive at micro-batch 8 here, compiled at micro-batch 4 there",)
    as_fast = run(trial("s", micro_batch=8))
    assert reproduce(as_fast, there, 0.02).compared[0].reasons == (), "it was reproduced"
    slower = run(trial("s", setting=("compile",), label="compiled", estimate=days(2.0), gpus=2))
    assert reproduce(slower, there, 0.02).compared[0].reasons == ()


def test_only_the_trials_of_one_model_are_its_fastest() -> None:
    other = replace(MODEL, name="other")
    both: dict[str, Any] = {"models": (MODEL, other), "searched": SEARCHED}
    there = run(trial("f", setting=("compile",)), trial("o", model="other", estimate=days(0.5)), **both)
    here = run(trial("s"), trial("o", model="other", estimate=days(0.5)), **both)
    last = reproduce(here, there, 0.02).compared[0]
    assert (last.label, last.figures[0].here, last.figures[0].there) == ("fastest", 1.0, 1.0)


def test_a_search_that_measured_nothing_has_no_fastest_setting() -> None:
    there = run(trial("f", setting=("compile",)), name="there", searched=SEARCHED)
    here = run(trial(**FAILED), node=replace(NODE, driver="570.1"))
    (last,) = reproduce(here, there, 0.02).compared
    assert last == SettingMatch(
        MODEL.name, "fastest", (FigureMatch("outcome", "not measured", "nothing", "measured", None, None),),
        ("driver 570.1 here, 580.1 there",),
    )  # fmt: skip
    failed = run(trial("f", setting=("compile",), **FAILED), name="there", searched=SEARCHED)
    assert reproduce(here, failed, 0.02).compared == ()


def test_marks_of_both_runs_are_told_reproduced_or_not() -> None:
    marked = run(trial(), marks={"t": (LOADED,), "u": (LOADED,)})
    assert the_only(marked, run(trial())).marks == (f"loaded here: {LOADED.text}",)
    assert the_only(run(trial()), marked).marks == (f"loaded there: {LOADED.text}",)
    there = run(trial("f", setting=("compile",)), name="there", searched=SEARCHED)
    (last,) = reproduce(marked, there, 0.02).compared
    assert last.marks == (f"loaded here: {LOADED.text}",)


SLOWER: dict[str, Any] = {"estimate": days(2.0)}


@pytest.mark.parametrize(
    ("here", "there", "reasons"),
    [
        ({}, {}, ()),
        ({"bench_version": "1.1"}, {}, ("bench 1.1 here, bench 1.0 there",)),
        ({"bench_source": "5d41"}, {"bench_source": "7a8b"},
         ("bench 1.0, source 5d41 here, bench 1.0, source 7a8b there",)),
        ({"bench_source": "5d41"}, {"bench_source": "5d41"}, ()),
        ({"courses": {"t": MeanCourse(1021.0, 510.2)}}, {"courses": {"t": MeanCourse(1000.0, 500.0)}},
         ("1,021 MHz here, 1,000 there", "510 W a GPU here, 500 there")),
        ({"courses": {"t": MeanCourse(1020.0, 490.0)}}, {"courses": {"t": MeanCourse(1000.0, 500.0)}}, ()),
        ({"courses": {"t": MeanCourse(979.0)}}, {"courses": {"t": MeanCourse(1000.0, 500.0)}},
         ("979 MHz here, 1,000 there",)),
        ({"courses": {"t": MeanCourse(500.0)}}, {}, ()),
        ({}, {"courses": {"t": MeanCourse(500.0)}}, ()),
    ],
)  # fmt: skip
def test_what_differs_is_told_for_a_trial_that_was_not_reproduced(
    here: dict[str, Any], there: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    assert the_only(run(trial(**SLOWER), **here), run(trial(), **there)).reasons == reasons
    assert the_only(run(trial(), **here), run(trial(), **there)).reasons == (), "it was reproduced"


def ceiling(name: str, rate: float, device: int = 0) -> Ceiling:
    return Ceiling(name, device, "B/s", int(rate), (1.0, 2.0))


def test_bare_operations_that_differ_by_more_than_a_tenth_are_told_of_the_slowest_device() -> None:
    def reasons(*ours: Ceiling) -> tuple[str, ...]:
        theirs = (ceiling("copy", 100e9), ceiling("copy", 120e9, 1), ceiling("other", 1e9))
        return the_only(run(trial(**SLOWER), ceilings=ours), run(trial(), ceilings=theirs)).reasons

    assert reasons(ceiling("copy", 90e9)) == reasons(ceiling("copy", 111e9)) == ()
    assert reasons(ceiling("copy", 89e9)) == ("copy 89 GB/s here, 100 there",)
    assert reasons(ceiling("copy", 112e9)) == ("copy 112 GB/s here, 100 there",)
    assert reasons(ceiling("copy", 112e9), ceiling("copy", 100e9, 1)) == ()
    assert reasons(ceiling("copy", 100e9, 1), ceiling("copy", 112e9)) == ()
    assert reasons(ceiling("elsewhere", 1.0)) == ()


def test_machines_and_their_software_differ_in_words() -> None:
    ours = replace(
        NODE, gpus=(gpu("A"), gpu("B")), driver="570.1", cpu="b CPU", python="3.11.2",
        packages={"numpy": "2"}, switches={"NCCL_ALGO": "Ring", "CUBLAS_X": "1"},
    )  # fmt: skip
    theirs = replace(NODE, switches={"CUBLAS_X": "2"})
    assert list(node_differences(ours, theirs)) == [
        "2x NVIDIA H200 here, no GPU there",
        "driver 570.1 here, 580.1 there",
        "CPU b CPU, 8 cores here, a CPU, 8 cores there",
        "Python 3.11.2 here, 3.12.1 there",
        "numpy 2 here, none there",
        "torch none here, 2.8.0 there",
        "CUBLAS_X 1 here, 2 there",
        "NCCL_ALGO Ring here, not set there",
    ]
    assert list(stack_differences(ours, replace(ours, switches={"CUBLAS_X": "2"}))) == [
        "CUBLAS_X 1 here, 2 there"
    ]
    assert list(node_differences(NODE, replace(NODE, cpu_cores=16))) == [
        "CPU a CPU, 8 cores here, a CPU, 16 cores there"
    ]
    for one, other in ((ours, replace(ours, switches=None)), (replace(ours, switches=None), ours)):
        assert list(node_differences(one, other)) == [], "an older bundle records none"


def test_another_image_is_told_also_if_its_identity_is_unknown() -> None:
    image = Image("cu130", "5d41", "deb1")
    ours, theirs = replace(NODE, image=image), replace(NODE, image=replace(image, debian="deb2"))
    assert list(stack_differences(ours, theirs)) == [
        "image cu130, wheels 5d41 here, image cu130, wheels 5d41 there"
    ]
    assert list(stack_differences(NODE, theirs)) == ["image none here, image cu130, wheels 5d41 there"]
    assert list(stack_differences(ours, ours)) == []


def lines(python: str = "3.12.1", theirs: Mapping[str, str] | None = None, **ours: str) -> list[str]:
    named = {name.replace("_", "-"): version for name, version in ours.items()}
    here = replace(NODE, packages=named, python=python)
    return list(pip_lines(here, replace(NODE, packages=theirs or {"torch": "2.8.0", "numpy": "2.1"})))


def test_commands_of_pip_make_the_packages_equal() -> None:
    assert lines(torch="2.8.0", numpy="2.1") == []
    assert lines(torch="2.8.0", numpy="2.0") == ["pip install numpy==2.1"]
    assert lines(torch="2.8.0") == ["pip install numpy==2.1"]
    assert lines(torch="2.8.0", numpy="2.1", b="1", a="2") == ["pip uninstall --yes a b"]
    assert lines("3.12.9", torch="2.8.0", numpy="2.0") == ["pip install numpy==2.1"]


def test_another_python_needs_an_environment_if_any_package_differs() -> None:
    environment = [
        "python3.12 -m venv .venv && . .venv/bin/activate",
        "pip install .   # in the repository of bench",
        "pip install numpy==2.1 torch==2.8.0",
    ]
    assert lines("3.11.1", torch="2.8.0", numpy="2.0") == environment
    assert lines("3.11.1", torch="2.8.0", numpy="2.1", more="1") == environment
    assert lines("3.11.1", torch="2.8.0", numpy="2.1") == []


def test_kernels_that_were_built_with_another_torch_are_built_again() -> None:
    theirs = {"torch": "2.8.0", "numpy": "2.1", "flash-attn": "2.7"}
    kept = lines(theirs=theirs, torch="2.8.0", numpy="2.0", flash_attn="2.7")
    assert kept == ["pip install numpy==2.1"]
    again = lines(theirs=theirs, torch="2.7.0", numpy="2.1", flash_attn="2.7")
    assert again[0] == "pip install torch==2.8.0 ninja packaging setuptools wheel"
    assert again[1:] == [
        "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps flash-attn==2.7"
    ]
    newer = lines(theirs=theirs, torch="2.7.0", numpy="2.1", flash_attn="2.6")
    assert newer[1:] == ["pip install --no-build-isolation --no-cache-dir flash-attn==2.7"]


def test_a_run_is_a_copy_of_one_whose_step_times_it_has() -> None:
    times = ((1.0, 1.1, 1.2, 1.3), (2.0, 2.1, 2.2))
    one = run(step_seconds={"t": times})
    assert run(step_seconds={"u": (times[1], (9.0, 9.1))}).is_copy_of(one)
    assert not run(step_seconds={"t": ((3.0, 3.1, 3.2, 3.3),)}).is_copy_of(one)
